"""Publishes, claims and polls so many times, for `test_instructions.py` to count: `instructions_worker.py DIR N`."""

from __future__ import annotations

import os
import sys
import time

import numpy as np


def main(directory: str, count: str) -> None:
    os.environ["FRAMEPOOL_AERON_DIRECTORY"] = f"{directory}/aeron"
    os.environ["FRAMEPOOL_DRIVER_SHM_BASE_DIR"] = directory
    os.environ["FRAMEPOOL_DRIVER_LEASE_EXPIRY_MS"] = "120000"
    import framepool as fp

    image = np.zeros(64, np.uint8)
    with fp.serve() as pool, pool.producer(10_000, timeout=120) as camera, pool.consumer(10_000, timeout=120) as eye:
        while not camera.has_readers:
            time.sleep(0.05)
        frames = 0
        for _ in range(int(count)):
            camera.publish(image)
            with camera.claim((64,)) as slot:
                slot.array[0] = 1
            for frame in eye.poll():
                with frame:
                    frames += 1
        print(f"frames {frames}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
