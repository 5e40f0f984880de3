"""The producer's side of a stream: a slot claimed, filled and committed, then its descriptor (Wire 8.3, 10.2.1, 15.18).

It never waits: not for readers, not for Aeron, not for a lease. What cannot be published now is dropped and counted.
The lease is looked at before a claim and again before the commit, so that a producer that was stopped in between
does not write into a stream that is somebody else's by now.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Buffer, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from framepool._native.frames import ABANDONED, ClaimedSlot, FrameWriter, ProducerCore
from framepool._native.seqlock import Layout, RingWriter
from framepool.client.compiled import compiled
from framepool.client.gauges import Values
from framepool.client.mapping import ring_parts
from framepool.client.metadata import SourceMetadata
from framepool.client.plane import Place
from framepool.client.producer_duties import ProducerDuties
from framepool.client.progress import ProgressReporter
from framepool.client.trace import UNTRACED, Trace, Traced
from framepool.clock import Clock, MonotonicClock
from framepool.config import Config, load
from framepool.errors import MediaDriverLost, NoPoolFits, NotAttached, RegionError
from framepool.shm.region import MappedStream
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import AnyPublication
from framepool.wire._generated.control_900 import ClockDomain, FrameDescriptor, MajorOrder, ProgressUnit
from framepool.wire.cursor import byte_view
from framepool.wire.dtypes import from_numpy

MAX_LAYOUTS = 256
"""Encoded tensor headers that a producer keeps; a camera has a handful."""


class Producer(ProducerCore):
    """Publishes the frames of one stream under the lease of its place. One thread at a time.

    >>> with camera.claim((48, 64), np.uint16) as slot:
    ...     slot.array[:] = 7                                       # straight into shared memory
    >>> seq = camera.publish(image)                                 # the same with one copy
    >>> [frame.shape for frame in (next(eye), next(eye))]
    [(48, 64), (3, 4)]
    """

    def __init__(
        self,
        place: Place,
        descriptors: AnyPublication,
        clock: Clock,
        *,
        publish_timestamps: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.duties: ProducerDuties | None = None
        """Its part in the control plane, which the pool gives it."""
        self.stream_id = place.stream_id
        self.closed = False
        self._own: Counter[str] = Counter()
        self._place = place
        self._descriptors = descriptors
        self._clock = clock
        self._publish_timestamps = publish_timestamps
        self._on_close = on_close
        self._changes = place.changes
        self._slot_kind = Slot
        self._native_clock = isinstance(clock, MonotonicClock)
        self._stream: MappedStream | None = None
        self._last_layout: Layout | None = None
        self._layouts: dict[tuple[tuple[int, ...], np.dtype[Any], str, str | None], Layout] = {}

    @classmethod
    def standalone(
        cls, stream_id: int, *, name: str = "", profile: str = "default", config: Config | None = None
    ) -> Producer:
        """A producer without a driver and with a connection of its own, as `Pool.standalone` makes it on a shared one.

        It owns files, epochs and superblocks, and announces them; consumers come by `Pool.announced`. Only a media
        driver has to run.

        >>> with fp.Producer.standalone(10_002) as own, pool.announced(10_002) as reader:
        ...     own.publish(image)
        ...     next(reader).shape
        0
        (3, 4)
        """
        from framepool.client.pool import Pool

        with contextlib.ExitStack() as opened:
            pool = opened.enter_context(Pool(load() if config is None else config))
            producer = pool.standalone(stream_id, name=name, profile=profile)
            opened.callback(producer._on_close or producer.close)
            producer._on_close = opened.pop_all().close
        return producer

    @property
    def metadata(self) -> SourceMetadata:
        """What the frames mean: a dictionary whose changes are told to everybody (Wire 10.3).

        >>> camera.metadata["exposure_ms"] = 2.5
        >>> with camera.metadata.edit():                    # several changes, one version
        ...     camera.metadata["gain"] = 4
        ...     camera.metadata.name = "camera-left"
        >>> sorted(camera.metadata)
        ['exposure_ms', 'gain', 'tags']
        """
        if self.duties is None:
            raise ValueError("a producer without a pool has no metadata")
        return self.duties.metadata

    def send_blob(self, blob_type: int, data: Buffer) -> None:
        """Sends a large piece of metadata, such as a flat field or a mask, for the present metadata version.

        It goes out in chunks beside the frames; consumers that are there now find it in `Pool.blobs`.

        >>> camera.send_blob(1, np.ones((16, 16), np.float32))
        """
        if self.duties is None:
            raise ValueError("a producer without a pool has no metadata")
        self.duties.blobs.send(self.stream_id, self.metadata.version, blob_type, data)

    @property
    def counts(self) -> Counter[str]:
        """Frames by what became of them.

        >>> before = camera.counts["published"]
        >>> seq = camera.publish(image)
        >>> camera.counts["published"] - before
        1
        """
        counts = self._own.copy()
        if self._frames is not None:
            counts.update(_counted(self._frames))
        return +counts

    @property
    def current_seq(self) -> int:
        """Of the last frame claimed; 0 before there is one.

        >>> camera.publish(image) == camera.current_seq
        True
        """
        return max(self._next_seq() - 1, 0)

    @property
    def attached(self) -> bool:
        """Whether a frame could be published right now.

        >>> camera.attached
        True
        """
        return self._place.stream is not None

    @property
    def has_readers(self) -> bool:
        """Whether anybody listens to descriptors: of whichever stream, since all streams of a pool have one channel.

        >>> camera.has_readers
        True
        """
        try:
            return self._descriptors.is_connected
        except MediaDriverLost:
            return False

    @compiled(ProducerCore.claim)
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

        >>> with camera.claim((3, 4), np.uint16) as slot:
        ...     np.copyto(slot.array, image)
        """
        raise NotImplementedError

    @compiled(ProducerCore.publish)
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

        >>> seq = camera.publish(image, timestamp_ns=123)
        >>> next(eye).timestamp_ns
        123
        """
        raise NotImplementedError

    def _publish(
        self,
        array: npt.ArrayLike,
        timestamp_ns: int | None,
        meta_version: int | None,
        trace_id: int | None,
        parents: Iterable[Traced],
    ) -> int | None:
        """`publish` for a producer around which something changed, or whose frames have more to tell."""
        duties = self.duties
        if parents or (duties is not None and duties.own_streams):
            return self._publish_by_slot(np.asarray(array), timestamp_ns, meta_version, Trace.of(trace_id, parents))
        frames = self._frames if self._changes.count == self._seen else self._writer()
        if frames is None:
            self._own["no lease"] += 1
            return None
        if timestamp_ns is None and not self._native_clock:
            timestamp_ns = self._clock.timestamp_ns()
        if meta_version is None:
            meta_version = 0 if duties is None else duties.metadata.version
        try:
            seq: int = frames.put(array, timestamp_ns, meta_version, trace_id, self._publish_timestamps)
        except NoPoolFits:
            self._own["no pool fits"] += 1
            return None
        self._attend()
        return seq if seq >= 0 else None

    def publish_raw(
        self,
        payload: Buffer,
        tensor_header: bytes,
        *,
        timestamp_ns: int | None = None,
        meta_version: int | None = None,
        trace_id: int | None = None,
        parents: Iterable[Traced] = (),
    ) -> int | None:
        """Publishes bytes as they lie, under a TensorHeader that was encoded elsewhere: what a recording holds.

        Bytes beyond the tensor's extent are left out. Otherwise as `publish`.

        >>> from framepool.shm.tensor import TensorLayout
        >>> from framepool.wire._generated.control_900 import Dtype
        >>> header = TensorLayout.build(Dtype.UINT16, (3, 4)).header
        >>> seq = camera.publish_raw(image.tobytes(), header)
        >>> (next(eye).copy() == image).all()
        np.True_
        """
        layout = Layout(tensor_header)
        try:
            slot = self._claim_slot(layout, timestamp_ns, meta_version, Trace.of(trace_id, parents))
            slot.ring.payload(slot.seq)[:] = byte_view(payload)[: layout.extent]
            slot.commit()
        except (NotAttached, NoPoolFits):
            return None
        self._last_layout = layout
        return slot.seq

    def publish_batch(self, arrays: Iterable[npt.ArrayLike]) -> list[int | None]:
        """Publishes one array after the other.

        >>> len(camera.publish_batch([image, image, image]))
        3
        """
        return [self.publish(array) for array in arrays]

    def close(self) -> None:
        """Gives lease and regions back.

        >>> camera.close()
        >>> camera.publish(image) is None
        True
        """
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
        """What is told of this producer once a second (`gauges`).

        >>> seq = camera.publish(image)
        >>> camera.gauges()["frame_bytes"]
        24
        """
        layout = self._last_layout
        return {"frames": self.counts["published"], "frame_bytes": None if layout is None else layout.extent}

    def statistics(self) -> dict[str, object]:
        """Counts of frames by what became of them, and the state of lease and mapping.

        >>> camera.statistics()["attachment"]["state"]
        'attached'
        """
        duties = self.duties.statistics() if self.duties else {}
        return {"next_seq": self._next_seq(), **self.counts, **self._place.statistics(), **duties}

    def _publish_by_slot(
        self, image: npt.NDArray[Any], timestamp_ns: int | None, meta_version: int | None, trace: Trace
    ) -> int | None:
        """The same step by step, for frames whose descriptor is not all there is to tell."""
        try:
            slot = self._claim_slot(self._describe(image, _columns_first(image)), timestamp_ns, meta_version, trace)
            slot.array[...] = image
            slot.commit()
        except (NotAttached, NoPoolFits):
            return None
        return slot.seq

    def _claim(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike,
        order: Literal["C", "F"],
        progress: Literal["rows", "columns"] | None,
        timestamp_ns: int | None,
        meta_version: int | None,
        trace_id: int | None,
        parents: Iterable[Traced],
    ) -> Slot:
        """`claim` of a frame of another kind than the last one, or with more to tell."""
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        layout = self._layout(dimensions, np.dtype(dtype), order, progress)
        slot = self._claim_slot(layout, timestamp_ns, meta_version, Trace.of(trace_id, parents))
        if progress is not None:
            slot.progress()
        else:
            self._claims(shape, dtype, order, layout)
        return slot

    def _claim_slot(self, layout: Layout, timestamp_ns: int | None, meta_version: int | None, trace: Trace) -> Slot:
        frames = self._frames if self._changes.count == self._seen else self._writer()
        if timestamp_ns is None and not self._native_clock:
            timestamp_ns = self._clock.timestamp_ns()
        if meta_version is None:
            meta_version = 0 if self.duties is None else self.duties.metadata.version
        try:
            slot = None if frames is None else frames.claim(Slot, layout, timestamp_ns, meta_version)
        except NoPoolFits:
            self._own["no pool fits"] += 1
            raise
        if slot is None:
            if frames is None:
                self._own["no lease"] += 1
            raise self._no_lease()
        slot._producer = self
        slot._trace = trace if trace.trace_id else None
        return slot

    def _no_lease(self) -> NotAttached:
        return NotAttached(f"stream {self.stream_id}: no lease right now; the frame is dropped")

    def _lease_ended(self, seq: int) -> NotAttached:
        return NotAttached(f"stream {self.stream_id}: the lease ended while frame {seq} was written")

    def _commit(self, slot: Slot) -> None:
        """The second look at the lease, then the commit and its descriptor."""
        if self._changes.count != self._seen:
            self._writer()
        if slot.writer is not self._frames:
            slot.forsake()
            self._own["lease lost while writing"] += 1
            raise self._lease_ended(slot.seq)
        if slot.finish(slot.trace.trace_id or 0, self._publish_timestamps) == ABANDONED:
            raise self._lease_ended(slot.seq)
        if self.duties is not None and (self.duties.own_streams or slot.trace.parents):
            self._tell_more(slot, self.duties)
        self._attend()

    def _tell_more(self, slot: Slot, duties: ProducerDuties) -> None:
        """Descriptors for consumers with a stream of their own, and what the frame was made of."""
        if duties.own_streams:
            descriptor = FrameDescriptor(
                stream_id=self.stream_id,
                epoch=slot.epoch,
                seq=slot.seq,
                timestamp_ns=self._clock.timestamp_ns() if self._publish_timestamps else None,
                meta_version=slot.meta_version or None,
                trace_id=slot.trace.trace_id,
            )
            duties.tell(descriptor.encode())
        if links := slot.trace.links(self.stream_id, slot.epoch, slot.seq):
            self._own["trace links sent" if duties.link(links) else "trace links lost"] += 1

    def _writer(self) -> FrameWriter | None:
        """The writer of the epoch that the lease allows now; a new epoch starts at sequence 0 (Wire 15.2)."""
        seen = self._changes.count
        stream = self._place.stream
        if stream is not self._stream:
            self._leave()
            ring = None
            if stream is not None:
                try:
                    ring = RingWriter(*ring_parts(stream))
                except RegionError:  # the control plane let go of them just now
                    stream = None
            self._stream = stream
            if stream is not None and ring is not None:
                self._frames = FrameWriter(
                    self._descriptors,
                    ring,
                    self.stream_id,
                    stream.layout.epoch,
                    realtime=self._clock.domain is ClockDomain.REALTIME_SYNCED,
                    describe=self._describe,
                )
        duties = self.duties
        self._meta_version = 0 if duties is None else duties.metadata.version
        self._direct = self._native_clock and not (duties is not None and duties.own_streams)
        self._seen = seen if self._frames is not None and self._place.lend(self._frames) else -1
        return self._frames

    def _leave(self) -> None:
        frames, self._frames = self._frames, None
        self._stream = None
        if frames is not None:
            self._own.update(_counted(frames))
            frames.ring.close()

    def _next_seq(self) -> int:
        return 0 if self._frames is None else self._frames.next_seq

    def _describe(self, image: npt.NDArray[Any], columns_first: bool) -> Layout:
        return self._layout(image.shape, image.dtype, "F" if columns_first else "C")

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


class Slot(ClaimedSlot):
    """A claimed slot: fill `array`, and leaving the `with` block commits it; an exception abandons it.

    >>> with camera.claim((3, 4), np.uint16, timestamp_ns=5) as slot:
    ...     slot.array[:] = image                           # in shared memory, writable
    ...     slot.seq == camera.current_seq, slot.epoch == eye.epoch
    ...     slot.timestamp_ns, slot.meta_version == camera.metadata.version, slot.open
    (True, True)
    (5, True, True)
    >>> slot.open
    False
    """

    __slots__ = ()

    _producer: Producer
    _reporter: ProgressReporter | None

    @property
    def trace(self) -> Trace:
        """Where its frame comes from.

        >>> camera.claim(4, trace_id=7).trace.trace_id
        7
        """
        return self._trace or UNTRACED

    def progress(self, nbytes: int | None = None, *, rows: int | None = None, columns: int | None = None) -> bool:
        """So much is filled now; says whether consumers were told. Nothing at all says that filling begins.

        Told at most as often as the consumers agreed on, and only if one of them asked for progress (Wire 10.2.2).

        >>> with camera.claim((100, 100), np.uint16, progress="rows") as slot:
        ...     slot.array[:50] = 1
        ...     slot.progress(rows=50)                      # nobody here asked for it
        ...     slot.array[50:] = 1
        False
        """
        if self._reporter is None:
            if self._producer.duties is None:
                return False
            self._reporter = self._producer.duties.progress.frame(
                self.epoch, self.seq, self.layout, self.layout.extent, write_header=self.write_header
            )
            self._reporter.start()
        if nbytes is None and rows is None and columns is None:
            return False
        return self._reporter.update(nbytes, rows=rows, columns=columns)

    def commit(self) -> None:
        """Makes the frame readable and tells of it; raises `NotAttached` if the lease ended meanwhile.

        >>> slot = camera.claim(4)
        >>> slot.array[:] = 1, 2, 3, 4
        >>> slot.commit()
        >>> next(eye).copy()
        array([1, 2, 3, 4], dtype=uint8)
        """
        if self.open:
            self._producer._commit(self)
            if self._reporter is not None:
                self._reporter.complete()

    def abandon(self) -> None:
        """Gives the slot up: readers see a gap.

        >>> camera.claim(4).abandon()
        >>> camera.counts["abandoned"]
        1
        """
        if self.open:
            if self._reporter is not None:
                self._reporter.abandon()
            if self.forsake():
                self._producer._own["abandoned"] += 1


def _columns_first(image: npt.NDArray[Any]) -> bool:
    return image.flags.f_contiguous and not image.flags.c_contiguous


def _counted(frames: FrameWriter) -> dict[str, int]:
    """What a writer counted, by the names that people see."""
    return {
        "published": frames.committed,
        "without readers": frames.unheard,
        "descriptors lost": frames.untold,
        "no lease": frames.expired,
        "lease lost while writing": frames.abandoned,
        "abandoned": frames.failed,
    }
