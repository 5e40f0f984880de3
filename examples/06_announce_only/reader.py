"""A reader without a lease: it maps what is announced. Give it a number of frames, or let it run."""

import itertools
import sys

import framepool as fp
from framepool.errors import FrameOverwritten

STREAM = 10_000
limit = int(sys.argv[1]) if len(sys.argv) > 1 else None

with fp.connect() as pool, pool.announced(STREAM) as eye:
    for frame in itertools.islice(eye, limit):
        try:
            image = frame.copy()
        except FrameOverwritten:  # the camera lapped us
            continue
        print(f"reader: frame {frame.seq} has value {image[0, 0]}", flush=True)
