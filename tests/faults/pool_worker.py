"""A producer or consumers on the public API in a process of their own, which keep a journal and carry on by themselves.

Lines: `attached` when all streams are; `flowing N` after every 20 frames; `where JSON` for each frame that a consumer
with the role `locate` reads; `end JSON` with the counts of each stream. Standard input: `end` closes and exits.

Usage: pool_worker.py CONFIG JOURNAL NAME produce|consume|locate PERIOD STREAM…
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

import framepool as fp
from framepool.config import load
from framepool.errors import FrameOverwritten
from framepool.testing.journal import Journal
from framepool.testing.members import WORDS, Believing, Sealing, seal

__all__ = ["WORDS", "seal"]

REPORT_EVERY = 20
PATIENCE = 60.0


class Locating(Believing):
    """Says where each frame lies before it reads it."""

    def _whole(self, frame: fp.Frame) -> npt.NDArray[Any] | None:
        with contextlib.suppress(FrameOverwritten):
            print("where", json.dumps(whereabouts(self.user, frame)), flush=True)
        return super()._whole(frame)


def whereabouts(consumer: fp.Consumer, frame: fp.Frame) -> dict[str, int]:
    """Which bytes of which file the view of a frame is, found by its address in the maps of this process."""
    with frame as image:
        address = image.__array_interface__["data"][0]
        crc = zlib.crc32(image.tobytes())
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *_ = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            at = address - start + int(offset, 16)
            return {"pid": os.getpid(), "seq": frame.seq, "inode": int(inode), "offset": at, "crc": crc}
    raise AssertionError(f"{address:#x} is not mapped")


def main(config: str, journal_path: str, name: str, role: str, period: str, *streams: str) -> None:
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    logging.basicConfig(level=logging.INFO)  # on standard error: read when a test fails
    with fp.connect(load(config), timeout=PATIENCE) as pool, Journal(journal_path, name) as journal:
        members: list[Sealing | Believing] = []
        for stream in map(int, streams):
            if role == "produce":
                members.append(Sealing(pool.producer(stream, timeout=PATIENCE), journal))
            else:
                reading = Locating if role == "locate" else Believing
                members.append(reading(pool.consumer(stream, timeout=PATIENCE), journal))
        print("attached", flush=True)
        run(members, ended.is_set, float(period))
        for member in members:
            member.user.close()
            member.end()
        said = {member.stream_id: {name: n for name, n in member.user.counts.items() if n} for member in members}
        print("end", json.dumps(said), flush=True)


def run(members: list[Sealing | Believing], ended: Callable[[], bool], period: float) -> None:
    frames = 0
    while not ended():
        for member in members:
            if member.turn():
                frames += 1
                if frames % REPORT_EVERY == 0:
                    print(f"flowing {frames}", flush=True)
        if isinstance(members[0], Sealing):
            time.sleep(period)
        elif not any(isinstance(member, Believing) and member.user._descriptors.waiting for member in members):
            members[0].user.wait(period)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
