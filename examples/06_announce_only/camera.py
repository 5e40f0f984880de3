"""A producer without a driver: it owns its files in shared memory and announces them itself, until Ctrl-C."""

import contextlib
import itertools
import time

import numpy as np

import framepool as fp

STREAM = 10_000

with contextlib.suppress(KeyboardInterrupt), fp.connect() as pool, pool.standalone(STREAM, name="camera") as camera:
    print(f"camera: announcing stream {STREAM}", flush=True)
    for number in itertools.count():
        camera.publish(np.full((240, 320), number % 256, np.uint8))
        time.sleep(0.02)
