"""A reader that wants the newest frame five times a second, as a display does. Give it a number, or let it run."""

import itertools
import sys
import time

import framepool as fp
from framepool.errors import FrameOverwritten

STREAM = 10_000
limit = int(sys.argv[1]) if len(sys.argv) > 1 else None

with fp.connect() as pool, pool.consumer(STREAM) as eye:
    for _ in itertools.islice(itertools.count(), limit):
        frame = eye.latest(timeout=5.0)
        if frame is None:
            print("newest frame: the camera is silent", flush=True)
            continue
        try:
            image = frame.copy()  # private and whole: it may be shown for as long as we like
        except FrameOverwritten:  # the camera lapped us: there is a newer one by now
            continue
        exposure = frame.metadata["exposure_ms"] if frame.metadata else "?"
        print(f"newest frame: {frame.seq}, {image.shape}, exposure {exposure} ms", flush=True)
        time.sleep(0.2)
