"""The producer's side of a stream: a slot claimed, filled and committed, then its descriptor (Wire 8.3, 10.2.1, 15.18).

It never waits: not for readers, not for Aeron, not for a lease. What cannot be published now is dropped and counted.
The lease is looked at before a claim and again before the commit, so that a producer that was stopped in between
does not write into a stream that is somebody else's by now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Buffer, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from framepool._native.frames import ABANDONED, EXPIRED, FrameWriter
from framepool._native.seqlock import Layout, RingWriter
from framepool.client.gauges import Values
from framepool.client.mapping import ring_parts
from framepool.client.metadata import SourceMetadata
from framepool.client.plane import Place
from framepool.client.producer_duties import ProducerDuties
from framepool.client.progress import ProgressReporter
from framepool.client.trace import Trace, Traced
from framepool.clock import Clock
from framepool.errors import MediaDriverLost, NoPoolFits, NotAttached
from framepool.shm.region import MappedStream
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Outcome, Publication
from framepool.wire._generated.control_900 import ClockDomain, FrameDescriptor, MajorOrder, ProgressUnit
from framepool.wire.dtypes import from_numpy

MAX_LAYOUTS = 256
"""Encoded tensor headers that a producer keeps; a camera has a handful."""


class Producer:
    """Publishes the frames of one stream under the lease of its place. One thread at a time.

    >>> with producer.claim((480, 640), np.uint16) as slot:         # doctest: +SKIP
    ...     sensor.read_into(slot.array)                            # straight into shared memory
    >>> producer.publish(image)                                     # the same with one copy  # doctest: +SKIP
    """

    def __init__(
        self,
        place: Place,
        descriptors: Publication,
        clock: Clock,
        *,
        publish_timestamps: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.duties: ProducerDuties | None = None
        """Its part in the control plane, which the pool gives it."""
        self.stream_id = place.stream_id
        self.closed = False
        self.counts: Counter[str] = Counter()
        self._place = place
        self._descriptors = descriptors
        self._clock = clock
        self._publish_timestamps = publish_timestamps
        self._on_close = on_close
        self._stream: MappedStream | None = None
        self._ring: RingWriter | None = None
        self._frames: FrameWriter | None = None
        self._next_seq = 0
        self._last_layout: Layout | None = None
        self._layouts: dict[tuple[tuple[int, ...], np.dtype[Any], str, str | None], Layout] = {}

    @property
    def metadata(self) -> SourceMetadata:
        """What the frames mean: a dictionary whose changes are told to everybody (Wire 10.3).

        >>> camera.metadata["exposure_ms"] = 2.5          # doctest: +SKIP
        """
        if self.duties is None:
            raise ValueError("a producer without a pool has no metadata")
        return self.duties.metadata

    def send_blob(self, blob_type: int, data: Buffer) -> None:
        """Sends a large piece of metadata, such as a flat field or a mask, for the present metadata version.

        It goes out in chunks beside the frames; consumers that are there now find it in `Pool.blobs`.
        """
        if self.duties is None:
            raise ValueError("a producer without a pool has no metadata")
        self.duties.blobs.send(self.stream_id, self.metadata.version, blob_type, data)

    @property
    def current_seq(self) -> int:
        """Of the last frame claimed; 0 before there is one."""
        return max(self._next_seq - 1, 0)

    @property
    def attached(self) -> bool:
        """Whether a frame could be published right now."""
        return self._place.stream is not None

    @property
    def has_readers(self) -> bool:
        """Whether anybody listens to descriptors."""
        try:
            return self._descriptors.is_connected
        except MediaDriverLost:
            return False

    def claim(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.uint8,
        *,
        order: Literal["C", "F"] = "C",
        progress: Literal["rows", "columns"] | None = None,
        timestamp_ns: int | None = None,
        meta_version: int | None = None,
        trace_id: int | None = None,
        parents: Iterable[Traced] = (),
    ) -> Slot:
        """The next slot, to be filled in a `with` block and committed at its end.

        With `progress`, `slot.progress(rows=…)` tells consumers that asked for it how much is there already.
        `trace_id` and `parents` are as in `publish`.

        Raises `NotAttached` without a lease and `NoPoolFits` for a frame that is larger than every pool; both are
        counted as drops.
        """
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        layout = self._layout(dimensions, np.dtype(dtype), order, progress)
        slot = self._claim(layout, timestamp_ns, meta_version, Trace.of(trace_id, parents))
        if progress is not None:
            slot.progress()
        return slot

    def publish(
        self,
        array: npt.ArrayLike,
        *,
        timestamp_ns: int | None = None,
        meta_version: int | None = None,
        trace_id: int | None = None,
        parents: Iterable[Traced] = (),
    ) -> int | None:
        """Copies an array into the next slot and tells of it: its sequence number, or None if it was dropped.

        A `trace_id` begins a trace. With `parents`, the frames that this one was made of, it gets a trace id of its
        own, and one TraceLinkSet on the metadata stream names theirs; if none of them is traced, neither is this one.
        """
        image = np.asarray(array)
        columns_first = image.flags.f_contiguous and not image.flags.c_contiguous
        layout = self._layout(image.shape, image.dtype, "F" if columns_first else "C")
        if parents or (self.duties and self.duties.own_streams):
            return self._publish_by_slot(image, layout, timestamp_ns, meta_version, Trace.of(trace_id, parents))
        if self._writer() is None or self._frames is None:
            self.counts["no lease"] += 1
            return None
        seq = self._next_seq
        self._frames.deadline_ns = self._place.deadline_ns()
        try:
            outcome = self._frames.publish(
                seq,
                image,
                layout,
                self._clock.timestamp_ns() if timestamp_ns is None else timestamp_ns,
                self._metadata_version() if meta_version is None else meta_version,
                trace_id or 0,
                self._publish_timestamps,
            )
        except NoPoolFits:
            self.counts["no pool fits"] += 1
            return None
        return self._judge(seq, outcome)

    def publish_batch(self, arrays: Iterable[npt.ArrayLike]) -> list[int | None]:
        """Publishes one array after the other."""
        return [self.publish(array) for array in arrays]

    def close(self) -> None:
        """Gives lease and regions back."""
        if self.closed:
            return
        self.closed = True
        self._leave()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def gauges(self) -> Values:
        """What is told of this producer once a second (`gauges`)."""
        layout = self._last_layout
        return {"frames": self.counts["published"], "frame_bytes": None if layout is None else layout.extent}

    def statistics(self) -> dict[str, object]:
        """Counts of frames by what became of them, and the state of lease and mapping."""
        duties = self.duties.statistics() if self.duties else {}
        return {"next_seq": self._next_seq, **self.counts, **self._place.statistics(), **duties}

    def _publish_by_slot(
        self, image: npt.NDArray[Any], layout: Layout, timestamp_ns: int | None, meta_version: int | None, trace: Trace
    ) -> int | None:
        """The same step by step, for frames whose descriptor is not all there is to tell."""
        try:
            slot = self._claim(layout, timestamp_ns, meta_version, trace)
            slot.array[...] = image
            slot.commit()
        except (NotAttached, NoPoolFits):
            return None
        return slot.seq

    def _judge(self, seq: int, outcome: int) -> int | None:
        """What became of a frame that was published in one call; the lease is looked at before and after the copy."""
        if outcome == EXPIRED:
            self.counts["no lease"] += 1
            return None
        self._next_seq = seq + 1
        if outcome == ABANDONED:
            self.counts["lease lost while writing"] += 1
            return None
        self.counts["published"] += 1
        self._count_told(outcome)
        return seq

    def _count_told(self, outcome: int) -> None:
        if outcome == Outcome.NOT_CONNECTED:
            self.counts["without readers"] += 1
        elif outcome < 0:
            self.counts["descriptors lost"] += 1

    def _metadata_version(self) -> int:
        return self.duties.metadata.version if self.duties else 0

    def _claim(self, layout: Layout, timestamp_ns: int | None, meta_version: int | None, trace: Trace) -> Slot:
        ring = self._writer()
        if ring is None or self._stream is None:
            self.counts["no lease"] += 1
            raise NotAttached(f"stream {self.stream_id}: no lease right now; the frame is dropped")
        seq = self._next_seq
        try:
            ring.claim(seq, layout.extent)
        except NoPoolFits:
            self.counts["no pool fits"] += 1
            raise
        self._next_seq = seq + 1
        stamp = self._clock.timestamp_ns() if timestamp_ns is None else timestamp_ns
        if meta_version is None:
            meta_version = self._metadata_version()
        return Slot(self, ring, seq, self._stream.layout.epoch, layout, stamp, meta_version, trace)

    def _commit(self, slot: Slot) -> None:
        """The second look at the lease, then the commit and its descriptor."""
        if self._place.stream is not self._stream or slot._ring is not self._ring:
            slot.abandon()
            self.counts["lease lost while writing"] += 1
            raise NotAttached(f"stream {self.stream_id}: the lease ended while frame {slot.seq} was written")
        slot._ring.commit(slot.seq, slot.layout, slot.timestamp_ns, slot.meta_version)
        self.counts["published"] += 1
        self._tell(slot)

    def _tell(self, slot: Slot) -> None:
        descriptor = FrameDescriptor(
            stream_id=self.stream_id,
            epoch=slot.epoch,
            seq=slot.seq,
            timestamp_ns=self._clock.timestamp_ns() if self._publish_timestamps else None,
            trace_id=slot.trace.trace_id,
        )
        data = descriptor.encode()
        try:
            outcome = self._descriptors.offer(data)
        except MediaDriverLost:
            outcome = Outcome.CLOSED
        self._count_told(outcome)
        if self.duties and self.duties.own_streams:
            self.duties.tell(data)
        if self.duties and (links := slot.trace.links(self.stream_id, slot.epoch, slot.seq)):
            self.counts["trace links sent" if self.duties.link(links) else "trace links lost"] += 1

    def _writer(self) -> RingWriter | None:
        """The writer of the epoch that the lease allows now; a new epoch starts at sequence 0 (Wire 15.2)."""
        stream = self._place.stream
        if stream is not self._stream:
            self._leave()
            self._stream = stream
            if stream is not None:
                self._ring = RingWriter(*ring_parts(stream))
                self._frames = FrameWriter(
                    self._descriptors,
                    self._ring,
                    self.stream_id,
                    stream.layout.epoch,
                    realtime=self._clock.domain is ClockDomain.REALTIME_SYNCED,
                )
        return self._ring

    def _leave(self) -> None:
        ring, self._ring = self._ring, None
        self._frames = None
        self._stream = None
        self._next_seq = 0
        if ring is not None:
            ring.close()

    def _layout(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        order: Literal["C", "F"],
        progress: Literal["rows", "columns"] | None = None,
    ) -> Layout:
        """The encoded header of a contiguous tensor, kept for the next frame of its kind."""
        key = (shape, dtype, order, progress)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            major = MajorOrder.COLUMN if order == "F" else MajorOrder.ROW
            unit = ProgressUnit[progress.upper()] if progress else ProgressUnit.NONE
            described = TensorLayout.build(from_numpy(dtype), shape, order=major, progress_unit=unit)
            layout = self._layouts[key] = Layout(described.header)
        self._last_layout = layout
        return layout


class Slot:
    """A claimed slot: fill `array`, and leaving the `with` block commits it; an exception abandons it."""

    def __init__(
        self,
        producer: Producer,
        ring: RingWriter,
        seq: int,
        epoch: int,
        layout: Layout,
        timestamp_ns: int,
        meta_version: int,
        trace: Trace,
    ) -> None:
        self.seq = seq
        self.epoch = epoch
        self.layout = layout
        self.timestamp_ns = timestamp_ns
        self.meta_version = meta_version
        self.trace = trace
        self.array: npt.NDArray[Any] = ring.array(seq, layout)
        """The payload in shared memory, writable."""
        self._ring = ring
        self._producer = producer
        self._reporter: ProgressReporter | None = None
        self._open = True

    def progress(self, nbytes: int | None = None, *, rows: int | None = None, columns: int | None = None) -> bool:
        """So much is filled now; says whether consumers were told. Nothing at all says that filling begins.

        Told at most as often as the consumers agreed on, and only if one of them asked for progress (Wire 10.2.2).
        """
        if self._reporter is None:
            if self._producer.duties is None:
                return False
            self._reporter = self._producer.duties.progress.frame(
                self.epoch, self.seq, self.layout, self.layout.extent, write_header=self._write_header
            )
            self._reporter.start()
        if nbytes is None and rows is None and columns is None:
            return False
        return self._reporter.update(nbytes, rows=rows, columns=columns)

    def commit(self) -> None:
        """Makes the frame readable and tells of it; raises `NotAttached` if the lease ended meanwhile."""
        if self._open:
            self._producer._commit(self)
            self._open = False
            if self._reporter is not None:
                self._reporter.complete()

    def abandon(self) -> None:
        """Gives the slot up: readers see a gap."""
        if self._open:
            self._open = False
            if self._reporter is not None:
                self._reporter.abandon()
            try:
                self._ring.abandon(self.seq)
            except ValueError:  # the ring was closed with its epoch
                return
            self._producer.counts["abandoned"] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.abandon()

    def _write_header(self) -> None:
        """What consumers read before the commit (`decisions.md` #29)."""
        self._ring.write_header(self.seq, self.layout, self.timestamp_ns, self.meta_version)
