"""Reads what it can of a ring that is being lapped and says what became of each sequence: BASE COUNT core|model|blind.

`core` reads with the compiled reader, `model` with the readable one, `blind` with the readable one whose second
check always says yes and which is slow between its check and its copy: it must see torn frames.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from framepool._native.seqlock import RingReader
from framepool.shm import slot as model
from framepool.shm.drop import DropReason
from framepool.shm.pool import check_pools
from framepool.shm.ring import HeaderRing
from tests.process.lapped_ring import NSLOTS, Files, attach, newest, verdict

type Read = Callable[[int], npt.NDArray[np.generic] | DropReason]


def core_reader(files: Files) -> Read:
    reader = RingReader(files.header, NSLOTS, files.pools)

    def read(seq: int) -> npt.NDArray[np.generic] | DropReason:
        result = reader.read(seq)
        return result if isinstance(result, DropReason) else result[1]

    return read


def model_reader(files: Files, pause: float = 0.0) -> Read:
    ring, pools = HeaderRing(files.header, NSLOTS), check_pools(files.pools, NSLOTS)

    def read(seq: int) -> npt.NDArray[np.generic] | DropReason:
        checked = model.check_slot(ring, pools, seq)
        if isinstance(checked, DropReason):
            return checked
        if pause:
            time.sleep(pause)
        return model.copy_payload(ring, pools, checked)

    return read


def consume(files: Files, read: Read, count: int) -> Counter[str]:
    """Every sequence from 0 to `count` ends in exactly one of accepted, late and gap, or as what must not be."""
    seen: Counter[str] = Counter()
    ring = RingReader(files.header, NSLOTS, [])
    following = 0
    while following < count:
        latest = newest(ring)
        if latest < following:
            continue
        oldest = max(following, latest - NSLOTS + 1)
        seen["gap"] += oldest - following
        for seq in range(oldest, latest + 1):
            frame = read(seq)
            if isinstance(frame, DropReason):
                seen["late" if frame.late else f"malformed {frame.name}"] += 1
            else:
                seen[verdict(frame, seq)] += 1
        following = latest + 1
    return seen


def main(base: Path, count: int, kind: str) -> None:
    files = attach(base, writable=False)
    if kind == "blind":
        model.still_committed = lambda ring, seq: True
    read = core_reader(files) if kind == "core" else model_reader(files, 0.0005 if kind == "blind" else 0.0)
    print("ready", flush=True)
    print("counts " + json.dumps(consume(files, read, count)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
