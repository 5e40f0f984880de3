"""Claims and commits one slot over and over: BASE COUNT, with sequences whose two halves always agree."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

from framepool._native.seqlock import Layout, RingWriter
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout

HALVES = (1 << 32) + 1
"""Times n: n in the upper and in the lower 32 bits of a sequence."""


def main(base: Path, count: int) -> None:
    with (base / "header").open("r+b") as file:
        header = mmap.mmap(file.fileno(), 0)
    layout = Layout(TensorLayout.build("u1", (0,)).header)
    with RingWriter(header, 1, [Pool(1, 64, 1, bytearray(128))]) as writer:
        for n in range(count):
            writer.claim(n * HALVES, 0)
            writer.commit(n * HALVES, layout)
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
