"""A frame that is read while the sensor still writes it, band of rows by band of rows."""

import time

import numpy as np

import framepool as fp

STREAM = 10_000
ROWS, COLUMNS, BAND = 1024, 1024, 128

with fp.serve() as pool:
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM, progress=True)  # without somebody who asks, nobody is told of progress
    for _ in range(5):
        with camera.claim((ROWS, COLUMNS), np.uint16, progress="rows") as slot:
            for done in range(BAND, ROWS + 1, BAND):
                slot.array[done - BAND : done] = done  # the sensor delivers a band
                slot.progress(rows=done)
                time.sleep(0.02)
                partial = eye.partial()
                if partial is not None and partial.rows:
                    with partial as rows:  # what is there already, in place
                        print(f"frame {partial.seq}: {len(rows):4} of {ROWS} rows, the last one is {rows[-1, 0]}")
        whole = eye.wait_for(slot.seq, timeout=5.0)  # the commit: from here on it is a frame like any other
        if whole is not None:
            print(f"frame {whole.seq}: whole")
