"""Publishes frames as fast as it can, or in bursts of BURST: BASE COUNT BURST (0 for none).

It waits for a line on its input first, so that the consumer misses no frame.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from framepool._native.seqlock import Layout, RingWriter
from framepool.shm.tensor import TensorLayout
from tests.process.lapped_ring import NSLOTS, SIZES, VARIANTS, attach, stamp, templates

PAUSE = 0.0002


def main(base: Path, count: int, burst: int) -> None:
    files = attach(base, writable=True)
    frames = templates()
    layouts = {size: Layout(TensorLayout.build("u1", (size,)).header) for size in SIZES}
    with RingWriter(files.header, NSLOTS, files.pools) as writer:
        sys.stdin.readline()
        for seq in range(count):
            frame = frames[seq % VARIANTS]
            stamp(frame, seq)
            writer.publish(seq, frame, layouts[len(frame)], seq)
            if burst and seq % burst == 0:
                time.sleep(PAUSE)
    print(f"published {count}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
