"""The consumer's side of a stream: descriptors in, slots checked, whole frames out (Wire 8.3, 10.2.1, 15.18, 15.21).

It never waits for a commit. A frame is handed over as a private copy that is known to be whole, or it is counted:
as a gap when no descriptor told of it, as late when it was overwritten, as invalid by the rule that it broke.
"""

from __future__ import annotations

import time
from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt

from framepool._native.seqlock import RingReader
from framepool.client.listener import Listener
from framepool.client.mapping import ring_parts
from framepool.client.seat import Seat
from framepool.errors import MediaDriverLost
from framepool.shm.drop import DropReason
from framepool.shm.region import MappedStream
from framepool.transport.aeron import Drain
from framepool.wire._generated.control_900 import FrameDescriptor


class Received(msgspec.Struct, frozen=True):
    """A frame that was read whole."""

    epoch: int
    seq: int
    timestamp_ns: int
    array: npt.NDArray[np.generic]


class Consumer:
    """Reads the frames of one stream under the lease of its seat."""

    def __init__(self, seat: Seat, descriptors: Drain) -> None:
        self._seat = seat
        self._descriptors = descriptors
        self._listener = Listener(descriptors.subscription, descriptors)
        self._stream: MappedStream | None = None
        self._ring: RingReader | None = None
        self._next_seq: int | None = None
        self.counts: Counter[str] = Counter()

    def poll(self, limit: int = 256) -> list[Received]:
        """The frames that descriptors told of since the last call and that are still there."""
        frames = []
        try:
            messages = self._listener.poll(limit)
        except MediaDriverLost:  # the control plane waits for it
            return []
        for message in messages:
            frame = self._receive(FrameDescriptor.decode(message))
            if frame is not None:
                frames.append(frame)
        return frames

    def wait(self, timeout: float) -> bool:
        """Whether there is something to poll, waiting for it up to `timeout` seconds."""
        try:
            return self._descriptors.wait(timeout)
        except MediaDriverLost:
            time.sleep(timeout)
            return False

    def close(self) -> None:
        """Lets go of the slots; the seat keeps the lease."""
        ring, self._ring = self._ring, None
        self._stream = None
        if ring is not None:
            ring.close()

    def statistics(self) -> dict[str, int]:
        return dict(self.counts)

    def _receive(self, descriptor: FrameDescriptor) -> Received | None:
        ring = self._reader()
        if ring is None or self._stream is None:
            self.counts["unmapped"] += 1
            return None
        if descriptor.epoch != self._stream.layout.epoch:
            self.counts["other epoch"] += 1
            return None
        seq = descriptor.seq
        if self._next_seq is not None:
            if seq < self._next_seq:
                self._seat.mapping.unmap(f"sequence went back from {self._next_seq - 1} to {seq}")
                return None
            self.counts["gap"] += seq - self._next_seq
        self._next_seq = seq + 1
        read = ring.read(seq)
        if isinstance(read, DropReason):
            self.counts["late" if read.late else f"invalid {read.name}"] += 1
            return None
        checked, array = read
        self.counts["received"] += 1
        return Received(descriptor.epoch, seq, checked.timestamp_ns, array)

    def _reader(self) -> RingReader | None:
        """The reader of the epoch that is mapped now; sequences start anew with it (Wire 15.2)."""
        stream = self._seat.stream
        if stream is not self._stream:
            self.close()
            self._stream = stream
            self._next_seq = None
            if stream is not None:
                self._ring = RingReader(*ring_parts(stream))
        return self._ring
