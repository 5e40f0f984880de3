"""A producer and a consumer that keep a journal, for tests of whatever lies between and around them.

`Sealing` publishes frames that say which they are, `Believing` reads every frame and tells the journal what it took it
for and what the frame says of itself. Both carry on by themselves whatever happens to driver and media driver.
`docs/testing.md` shows both at work.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framepool.client.attach import Grant
from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.errors import FrameOverwritten, NotAttached
from framepool.shm.region import MappedStream
from framepool.testing.journal import Journal, Seal

WORDS = 128
"""Of a frame, at the least: 64-bit ones."""
MISSES = ("gap", "late", "invalid", "skipped")


class Member:
    """A producer or a consumer with its journal: which lease it has, which regions are mapped."""

    def __init__(self, member: Producer | Consumer, journal: Journal) -> None:
        assert isinstance(member._place, Seat)
        self.seat = member._place
        self.stream_id = member.stream_id
        self.journal = journal
        self.frames = 0
        self._grant: Grant | None = None
        self._mapped: MappedStream | None = None

    def note_lease(self) -> None:
        """The lease as it is now, if it is another one than before: as the place goes by it, which is told of its end a
        moment after the attachment is."""
        grant = self.seat.granted
        if grant is self._grant:
            return
        if self._grant is not None:
            self.journal.lost(self._grant.lease_id, self.stream_id)
        if grant is not None:
            client_id, role = self.seat.attachment.client_id, self.seat.role
            self.journal.attached(grant.lease_id, client_id, role, self.stream_id, grant.layout.epoch)
        self._grant = grant

    def note_mapping(self, stream: MappedStream | None) -> None:
        """The regions that are in use, if they are others than before, and every file that is mapped with them."""
        if stream is not None and stream is not self._mapped:
            if self._grant is None:  # the lease came after we last looked
                self.note_lease()
            if self._grant is None:  # and went again
                return
            self.journal.mapped(self.stream_id, stream.layout.epoch)
            self.journal.files(mapped_files("self"))
        self._mapped = stream

    def end(self) -> None:
        """The lease is given back."""
        if self._grant is not None:
            self.journal.lost(self._grant.lease_id, self.stream_id)
            self._grant = None


class Sealing(Member):
    """Publishes frames that say which they are."""

    def __init__(self, producer: Producer, journal: Journal, *, words: int = WORDS, large: int = 0) -> None:
        """Every 16th frame has `large` words, if that is given."""
        super().__init__(producer, journal)
        self.user = producer
        self._words = words
        self._large = large or words

    def turn(self) -> int:
        """Publishes one frame; 0 if it could not."""
        self.note_lease()
        grant = self._grant
        words = self._large if self.frames % 16 == 15 else self._words
        try:
            slot = self.user.claim(words, np.uint64)
        except NotAttached:
            return 0
        if grant is None or grant.layout.epoch != slot.epoch:  # the lease came between the two looks
            slot.abandon()
            return 0
        self.note_mapping(self.user._stream)
        crc = seal(slot.array, slot.epoch, slot.seq, self.stream_id)
        self.journal.published(self.stream_id, slot.epoch, slot.seq, crc)
        try:
            slot.commit()
        except NotAttached:
            self.journal.withdrawn(self.stream_id, slot.epoch, slot.seq)
            return 0
        self.frames += 1
        return 1


class Believing(Member):
    """Reads every frame whole, as far as it is told to be."""

    def __init__(self, consumer: Consumer, journal: Journal, *, dwell: float = 0.0) -> None:
        """It looks at a frame in place for `dwell` seconds, in halves, and believes it if leaving it does not fail;
        without, it takes a copy."""
        super().__init__(consumer, journal)
        self.user = consumer
        self.dwell = dwell

    def turn(self) -> int:
        """Reads one frame; 0 if there was none."""
        self.note_lease()
        before = self._misses()
        frames = [(frame, words) for frame in self.user.poll(1) if (words := self._whole(frame)) is not None]
        self.note_mapping(self.user._stream)
        if self._mapped is not None and (missed := self._misses() - before):
            self.journal.missed(self.stream_id, self._mapped.layout.epoch, missed)
        for frame, words in frames:
            self.journal.received(self.stream_id, frame.epoch, frame.seq, crc_of(words), seal_of(words))
        self.frames += len(frames)
        return len(frames)

    def _whole(self, frame: Frame) -> npt.NDArray[Any] | None:
        try:
            if not self.dwell:
                return frame.copy()
            with frame as image:
                half = image.size // 2
                words = np.empty(image.size, np.uint64)
                words[:half] = image[:half]
                time.sleep(self.dwell)
                words[half:] = image[half:]
            return words
        except FrameOverwritten:
            return None

    def _misses(self) -> int:
        return sum(count for name, count in self.user.counts.items() if name.startswith(MISSES))


def seal(words: npt.NDArray[Any], epoch: int, seq: int, stream_id: int = 0) -> int:
    """Makes a payload say which frame it is and close with a crc of all of it; the crc."""
    words[:] = (epoch << 32) ^ seq
    words[0], words[1], words[2] = epoch, seq, stream_id
    words[-1] = crc = crc_of(words)
    return crc


def crc_of(words: npt.NDArray[Any]) -> int:
    """Of all but the last word."""
    return zlib.crc32(np.ascontiguousarray(words[:-1]))


def seal_of(words: npt.NDArray[Any]) -> Seal:
    """What a payload says of itself."""
    return Seal(int(words[0]), int(words[1]), int(words[-1]), int(words[2]))


def mapped_files(process: int | str) -> set[str]:
    """The files that a process has mapped to share them; none of one that is gone."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        found = (line.split(maxsplit=5) for line in lines)
        return {
            parts[5].removesuffix(" (deleted)")
            for parts in found
            if len(parts) == 6 and parts[1][3] == "s" and parts[5].startswith("/") and not parts[5].startswith(NO_FILES)
        }
    return set()


NO_FILES = ("/dev/zero", "/memfd:", "/SYSV", "/usr/", "/lib")
"""Memory without a file that the system shows as one, and what its libraries share."""
