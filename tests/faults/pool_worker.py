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

import numpy as np
import numpy.typing as npt

import framepool as fp
from framepool.client.attach import Grant
from framepool.client.seat import Seat
from framepool.config import load
from framepool.errors import FrameOverwritten, NotAttached
from framepool.shm.region import MappedStream
from framepool.testing.history import Journal

WORDS = 128
REPORT_EVERY = 20
PATIENCE = 60.0
MISSES = ("gap", "late", "invalid", "skipped")


class Member:
    """A producer or a consumer with its journal: which lease it has, which regions are mapped."""

    def __init__(self, member: fp.Producer | fp.Consumer, journal: Journal) -> None:
        assert isinstance(member._place, Seat)
        self.seat = member._place
        self.stream_id = member.stream_id
        self.journal = journal
        self._grant: Grant | None = None
        self._mapped: MappedStream | None = None

    def note_lease(self) -> None:
        """The lease as it is now, if it is another one than before."""
        grant = self.seat.attachment.grant
        if grant is self._grant:
            return
        if self._grant is not None:
            self.journal.lost(self._grant.lease_id, self.stream_id)
        if grant is not None:
            client_id, role = self.seat.attachment.client_id, self.seat.role
            self.journal.attached(grant.lease_id, client_id, role, self.stream_id, grant.layout.epoch)
        self._grant = grant

    def note_mapping(self, stream: MappedStream | None) -> None:
        """The regions that are in use, if they are others than before."""
        if stream is not None and stream is not self._mapped:
            self.journal.mapped(self.stream_id, stream.layout.epoch)
        self._mapped = stream

    def end(self) -> None:
        if self._grant is not None:
            self.journal.lost(self._grant.lease_id, self.stream_id)


class Camera(Member):
    """Publishes frames that say which they are."""

    def __init__(self, producer: fp.Producer, journal: Journal) -> None:
        super().__init__(producer, journal)
        self.user = producer

    def turn(self) -> int:
        self.note_lease()
        grant = self._grant
        try:
            slot = self.user.claim(WORDS, np.uint64)
            if grant is None or grant.layout.epoch != slot.epoch:  # the lease came between the two looks
                slot.abandon()
                return 0
            self.note_mapping(self.user._stream)
            seal(slot.array, slot.epoch, slot.seq)
            crc = int(slot.array[-1])
            slot.commit()
        except NotAttached:
            return 0
        self.journal.published(self.stream_id, slot.epoch, slot.seq, crc)
        return 1


class Eye(Member):
    """Reads every frame whole."""

    def __init__(self, consumer: fp.Consumer, journal: Journal, locate: bool) -> None:
        super().__init__(consumer, journal)
        self.user = consumer
        self._locate = locate

    def turn(self) -> int:
        self.note_lease()
        before = self._misses()
        frames = [(frame, words) for frame in self.user.poll(1) if (words := self._whole(frame)) is not None]
        self.note_mapping(self.user._stream)
        if self._mapped is not None and (missed := self._misses() - before):
            self.journal.missed(self.stream_id, self._mapped.layout.epoch, missed)
        for frame, words in frames:
            if self._grant is None:
                self.note_lease()
            sealed = (int(words[0]), int(words[1]), int(words[-1]))
            self.journal.received(self.stream_id, frame.epoch, frame.seq, crc_of(words), sealed)
        return len(frames)

    def _whole(self, frame: fp.Frame) -> npt.NDArray[Any] | None:
        try:
            if self._locate:
                print("where", json.dumps(whereabouts(self.user, frame)), flush=True)
            return frame.copy()
        except FrameOverwritten:
            return None

    def _misses(self) -> int:
        return sum(count for name, count in self.user.counts.items() if name.startswith(MISSES))


def seal(words: npt.NDArray[np.uint64], epoch: int, seq: int) -> None:
    """A payload that says which frame it is and seals itself with a crc."""
    words[:] = (epoch << 32) ^ seq
    words[0], words[1] = epoch, seq
    words[-1] = crc_of(words)


def crc_of(words: npt.NDArray[np.generic]) -> int:
    return zlib.crc32(words[:-1].tobytes())


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
        members: list[Camera | Eye] = []
        for stream in map(int, streams):
            if role == "produce":
                members.append(Camera(pool.producer(stream, timeout=PATIENCE), journal))
            else:
                members.append(Eye(pool.consumer(stream, timeout=PATIENCE), journal, role == "locate"))
        print("attached", flush=True)
        run(members, ended.is_set, float(period))
        for member in members:
            member.user.close()
            member.end()
        said = {member.stream_id: {name: n for name, n in member.user.counts.items() if n} for member in members}
        print("end", json.dumps(said), flush=True)


def run(members: list[Camera | Eye], ended: Callable[[], bool], period: float) -> None:
    frames = 0
    while not ended():
        for member in members:
            if member.turn():
                frames += 1
                if frames % REPORT_EVERY == 0:
                    print(f"flowing {frames}", flush=True)
        if isinstance(members[0], Camera):
            time.sleep(period)
        elif not any(isinstance(member, Eye) and member.user._descriptors.waiting for member in members):
            members[0].user.wait(period)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
