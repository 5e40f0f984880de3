"""The producer's side of a stream: a slot claimed, filled and committed, then its descriptor (Wire 8.3, 10.2.1, 15.18).

It never waits: not for readers, not for Aeron, not for a lease. What cannot be published now is dropped and counted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from framepool._native.seqlock import Layout, RingWriter
from framepool.client.mapping import ring_parts
from framepool.client.seat import Seat
from framepool.clock import Clock
from framepool.errors import MediaDriverLost, NoPoolFits
from framepool.shm.region import MappedStream
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Outcome, Publication
from framepool.wire._generated.control_900 import FrameDescriptor


class Producer:
    """Publishes the frames of one stream under the lease of its seat."""

    def __init__(self, seat: Seat, descriptors: Publication, clock: Clock) -> None:
        self._seat = seat
        self._descriptors = descriptors
        self._clock = clock
        self._stream: MappedStream | None = None
        self._ring: RingWriter | None = None
        self._next_seq = 0
        self._layouts: dict[tuple[tuple[int, ...], str, tuple[int, ...]], Layout] = {}
        self.counts: Counter[str] = Counter()

    def publish(self, array: npt.NDArray[np.generic], *, timestamp_ns: int | None = None) -> int | None:
        """Copies an array into the next slot and tells of it: its sequence number, or None if it was dropped."""
        ring = self._writer()
        if ring is None:
            self.counts["no lease"] += 1
            return None
        layout = self._layout(array)
        seq = self._next_seq
        try:
            ring.claim(seq, layout.extent)
        except NoPoolFits:
            self.counts["no pool fits"] += 1
            return None
        self._next_seq = seq + 1
        ring.array(seq, layout)[...] = array
        if not self._seat.attachment.valid():
            ring.abandon(seq)
            self.counts["lease lost while writing"] += 1
            return None
        ring.commit(seq, layout, self._clock.timestamp_ns() if timestamp_ns is None else timestamp_ns)
        self.counts["published"] += 1
        self._tell(seq)
        return seq

    def close(self) -> None:
        """Lets go of the slots; the seat keeps the lease."""
        ring, self._ring = self._ring, None
        self._stream = None
        if ring is not None:
            ring.close()

    def statistics(self) -> dict[str, int]:
        return {"next_seq": self._next_seq, **self.counts}

    def _writer(self) -> RingWriter | None:
        """The writer of the epoch that the lease allows now; a new epoch starts at sequence 0 (Wire 15.2)."""
        stream = self._seat.stream
        if stream is not self._stream:
            self.close()
            self._stream = stream
            if stream is not None:
                self._ring = RingWriter(*ring_parts(stream))
                self._next_seq = 0
        return self._ring

    def _layout(self, array: npt.NDArray[np.generic]) -> Layout:
        key = (array.shape, array.dtype.str, array.strides)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(TensorLayout.of(array).header)
        return layout

    def _tell(self, seq: int) -> None:
        assert self._stream is not None
        layout = self._stream.layout
        descriptor = FrameDescriptor(stream_id=layout.stream_id, epoch=layout.epoch, seq=seq)
        try:
            outcome = self._descriptors.offer(descriptor.encode())
        except MediaDriverLost:
            outcome = Outcome.CLOSED
        if outcome == Outcome.NOT_CONNECTED:
            self.counts["without readers"] += 1
        elif outcome < 0:
            self.counts["descriptors lost"] += 1
