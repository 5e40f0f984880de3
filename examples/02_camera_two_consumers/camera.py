"""The camera: serves the driver and publishes a hundred frames a second, until Ctrl-C."""

import contextlib
import itertools
import time

import numpy as np

import framepool as fp

STREAM = 10_000

with contextlib.suppress(KeyboardInterrupt), fp.serve() as pool:
    camera = pool.producer(STREAM, name="camera", metadata={"exposure_ms": 2.5})
    print(f"camera: publishing on stream {STREAM}", flush=True)
    for number in itertools.count():
        with camera.claim((512, 512), np.uint16) as slot:
            slot.array[:] = number % 1000  # a real camera reads out straight into slot.array
        time.sleep(0.01)
