"""A reader that wants every frame, and says what it missed. Give it a number of frames, or let it run."""

import itertools
import sys

import framepool as fp
from framepool.errors import FrameOverwritten

STREAM = 10_000
limit = int(sys.argv[1]) if len(sys.argv) > 1 else None

with fp.connect() as pool, pool.consumer(STREAM) as eye:
    for frame in itertools.islice(eye, limit):
        try:
            with frame as image:
                brightness = image.mean()
        except FrameOverwritten:  # the camera lapped us while we read: brightness is worthless, and counted as late
            continue
        print(f"every frame: {frame.seq} has brightness {brightness:.1f}", flush=True)
    print(f"every frame: {eye.counts['received']} read, {eye.counts['gap'] + eye.counts['late']} missed")
