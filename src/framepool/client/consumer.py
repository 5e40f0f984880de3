"""The consumer's side of a stream: descriptors in, slots checked, frames out (Wire 8.3, 10.2.1, 15.18, 15.21).

It never waits for a commit. A frame is handed over in place once its header is proven whole; what its reader makes of
it is proven by the frame itself. Every frame that was published is counted once: as received, as a gap when no
descriptor told of it, as late when it was overwritten before or while it was read, as invalid by the rule it broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from framepool._native.frames import ConsumerCore, FrameReader, Taken
from framepool._native.seqlock import RingReader
from framepool.client.compiled import compiled
from framepool.client.consumer_duties import ConsumerDuties
from framepool.client.fallback import Elsewhere, PayloadSource
from framepool.client.frame import Frame
from framepool.client.gauges import Values
from framepool.client.hello import SHARED, Endpoint, Fallback
from framepool.client.histogram import LatencyMeter, LatencyWindow
from framepool.client.mapping import MappingState, ring_parts
from framepool.client.partial import Partial, PartialSlots
from framepool.client.plane import Place
from framepool.client.qos import ConsumerReading
from framepool.client.rate import RateGate
from framepool.clock import Clock, MonotonicClock
from framepool.errors import MediaDriverLost, RegionError, TransportClosed, TransportError
from framepool.shm.drop import DropReason
from framepool.shm.region import MappedStream
from framepool.transport.aeron import Drain
from framepool.transport.listener import Listener
from framepool.wire._generated.control_900 import FrameProgress, Mode
from framepool.wire.attributes import Metadata

MAX_OUTSTANDING_SEQ_GAP = 256
NOT_OF_THIS_EPOCH = frozenset({"other epoch", "unmapped", "unsupported", "resyncs", "repeated"})
QUEUED = 4096
"""Frames that come another way than through shared memory and are taken at once, at the most."""
GLANCE = 0.002
"""Seconds between looks, in an event loop, at what comes another way."""
PATIENCE = 0.05
"""Seconds between looks at a stream that says nothing."""


class Watcher(Protocol):
    """Who accounts for every frame of a stream: told of what is not handed over. On the thread of the consumer."""

    def on_mapped(self, epoch: int, ring: RingReader) -> None:
        """The regions of an epoch are there now."""

    def on_left(self, epoch: int, ring: RingReader) -> None:
        """They are let go of; the ring can be read for the last time."""

    def on_dropped(self, epoch: int, seq: int, rule: DropReason | None) -> None:
        """A frame was told of and is not handed over, for the rule that its slot broke or because its epoch was not
        mapped. Frames that nothing told of show in the sequence; none is skipped for a newer one if `max_gap` is so."""


class Consumer(ConsumerCore):
    """Reads the frames of one stream under the lease of its place. One thread at a time.

    >>> sent = camera.publish_batch([image, image + 1])
    >>> for frame in eye:                                   # or: async for frame in eye
    ...     with frame as array:                            # in place, read-only
    ...         print(array.sum())
    ...     if frame.seq == sent[-1]:
    ...         break
    66
    78
    """

    def __init__(
        self,
        place: Place,
        descriptors: Drain,
        *,
        clock: Clock | None = None,
        max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP,
        lookup: Callable[[int, int], Metadata | None] | None = None,
        watcher: Watcher | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        clock = clock or MonotonicClock()
        self.duties: ConsumerDuties | None = None
        """Its part in the control plane, which the pool gives it."""
        self.switch: Callable[[Endpoint, Endpoint], tuple[Drain, Drain | None]] | None = None
        """Subscribes to descriptors, and to progress if that has a stream of its own; from the pool."""
        self.elsewhere: Elsewhere | None = None
        """Where payloads come from without shared memory; from the pool."""
        self.configured_fallback: Fallback | None = None
        """Where they are to come from if regions are rejected and nobody says otherwise (Wire 15.22)."""
        self.latency = LatencyMeter(clock)
        self._recent = LatencyWindow(self.latency.histogram)
        self.stream_id = place.stream_id
        self.closed = False
        self._own: Counter[str] = Counter()
        self._place = place
        self._changes = place.changes
        self._lookup = lookup
        self._ring: RingReader | None = None
        self._descriptors = descriptors
        self._listener = Listener(descriptors.subscription)
        self._heard = 0
        self._watcher = watcher
        self._selects = watcher is not None
        self._max_gap = max_outstanding_seq_gap
        self._frames = self._reader_of(descriptors)
        self._resume_at: int | None = None
        self._on_close = on_close
        self._gate = RateGate(0, clock)
        self._assigned = 0
        self._where = (SHARED, SHARED)
        self._progress: Drain | None = None
        self._last_seq = 0
        self._foreign_epoch: int | None = None
        self._stream: MappedStream | None = None
        self._ready: deque[Frame] = deque()
        self._set_direct()

    @property
    def counts(self) -> Counter[str]:
        """Frames by what became of them.

        >>> before = eye.counts["received"]
        >>> seq = camera.publish(image)
        >>> frame = next(eye)
        >>> eye.counts["received"] - before, eye.counts["gap"]
        (1, 0)
        """
        counts = self._own.copy()
        counts.update(_counted(self._frames))
        return +counts

    @property
    def consumer_id(self) -> int | None:
        """The id under which it says hello and reports; it changes if somebody else goes by it too.

        >>> 0 < eye.consumer_id < 2**32
        True
        """
        return None if self.duties is None else self.duties.introduction.consumer_id

    @property
    def state(self) -> MappingState:
        """Whether frames come from shared memory, are to come from elsewhere, or cannot come at all (Wire 15.12).

        >>> eye.state
        <MappingState.MAPPED: 'mapped'>
        """
        if self._fallback() is not None:
            return MappingState.FALLBACK
        return MappingState.UNMAPPED if self._place.stream is None else MappingState.MAPPED

    @property
    def epoch(self) -> int | None:
        """The epoch that is mapped at this moment; frames of another one are over.

        >>> seq = camera.publish(image)
        >>> next(eye).epoch == eye.epoch
        True
        """
        if self._fallback() is not None:
            source = self._source()
            return None if source is None else source.epoch
        stream = self._place.stream
        return None if stream is None else stream.layout.epoch

    @property
    def ready(self) -> bool:
        """Whether frames can come: out of shared memory, or from elsewhere.

        >>> eye.ready
        True
        """
        return self._place.stream is not None if self._fallback() is None else self._source() is not None

    @property
    def refusal(self) -> str:
        """Why no frames can come, as far as it is known.

        >>> eye.refusal
        ''
        """
        fallback = self._fallback()
        if fallback is not None:
            return fallback.unsupported or (self.elsewhere.refusal if self.elsewhere else "nothing brings it")
        return "" if self._place.stream is not None else self._place.refusal()

    @compiled(ConsumerCore.poll)
    def poll(self, limit: int = 256) -> list[Frame]:
        """The frames that descriptors told of since the last call and that are still there; never waits.

        >>> seq = camera.publish(image)
        >>> while not (frames := eye.poll()):
        ...     _ = eye.wait(0.1)
        >>> frames[0].seq == seq
        True
        """
        raise NotImplementedError

    def _poll(self, limit: int) -> list[Frame]:
        """The same for a consumer around which something changed, or that does not take whatever comes."""
        if self._changes.count != self._seen:
            self._catch_up()
            if (source := self._source()) is not None:
                return self._arrived(source, limit)
        try:
            frames = self._frames.take(limit)
            if frames is None:  # the lease is over, as far as can be seen natively
                self._catch_up()
                frames = self._frames.take(limit) or []
        except TransportError as error:
            return self._silent(error)
        if not frames:
            self._attend()
        if self._selects or self._resume_at is not None or self._frames.regressed is not None:
            return self._sift(frames)
        return frames

    def newest(self) -> Frame | None:
        """The newest frame of those that descriptors told of, the others being passed over unlooked at; never waits.

        For whoever shows or samples a stream: it costs the same however many were passed over.

        >>> sent = camera.publish_batch([image] * 5)
        >>> while (frame := eye.newest()) is None or frame.seq < sent[-1]:
        ...     _ = eye.wait(0.1)
        """
        found = [*self._ready, *self._newest()]
        self._ready.clear()
        self._skip(len(found) - 1)
        return found[-1] if found else None

    def pass_over(self) -> None:
        """Counts everything that was told of until now as skipped: the next frame is one that is yet to come.

        >>> seq = camera.publish(image)
        >>> eye.wait(1.0)
        True
        >>> eye.pass_over()
        >>> eye.poll()
        []
        """
        if self.newest() is not None:
            self._skip(1)

    def fileno(self) -> int:
        """Readable while there may be something to poll: for `select`. It may change from one frame to the next.

        >>> import select
        >>> seq = camera.publish(image)
        >>> readable, _, _ = select.select([eye], [], [], 1.0)
        >>> readable == [eye]
        True
        """
        return self._descriptors.fileno()

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame, passing over older ones; None when nothing comes within `timeout` seconds.

        >>> seq = camera.publish(image)
        >>> eye.latest(timeout=1.0).seq == seq
        True
        >>> eye.latest(timeout=0.01) is None
        True
        """
        frame = self._next_within(timeout)
        newer = None if frame is None else self.newest()
        if newer is None:
            return frame
        self._skip(1)
        return newer

    def wait_for(self, seq: int, timeout: float | None = None) -> Frame | None:
        """The frame `seq`, or None: it was missed, or did not come within `timeout` seconds.

        >>> sent = camera.publish_batch([image, image + 1])
        >>> eye.wait_for(sent[1], timeout=1.0).copy().sum()
        np.uint64(78)
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            frame = self._next_within(left)
            if frame is None or frame.seq == seq:
                return frame
            if frame.seq > seq:
                self._ready.appendleft(frame)
                return None

    def partial(self, seq: int | None = None) -> Partial | None:
        """What can be read already of a frame that is still being written: of `seq`, or of the newest one told of.

        For a consumer made with `progress=True`, of a producer that tells of progress. None if there is nothing.

        >>> early = pool.consumer(10_000, progress=True)
        >>> with camera.claim((100, 100), np.uint16, progress="rows") as slot:
        ...     slot.array[:50] = 3
        ...     while not slot.progress(rows=50):           # told at most every so often
        ...         pass
        ...     while (part := early.partial()) is None or part.rows < 50:
        ...         pass
        ...     with part as rows:                          # in place, read-only
        ...         rows.sum()
        np.uint64(15000)
        """
        if self.duties is None:
            raise ValueError("this consumer did not ask for progress: make it with progress=True")
        self._reader()
        if self._progress is not None:
            for message in self._progress.take():
                self.duties.on_progress(FrameProgress.decode(message))
        return self.duties.partial(seq)

    def limit(self, max_rate_hz: int) -> None:
        """Hands out at most so many frames a second, evenly spread; 0 is all of them.

        >>> eye.limit(10)
        >>> sent = camera.publish_batch([image] * 50)       # all at once: one of them is enough
        >>> eye.latest(timeout=1.0) is None, eye.latest(timeout=0.01) is None
        (False, True)
        """
        self._gate.limit(max_rate_hz)
        follows_progress = self.duties is not None and self.duties.partials is not None
        watched = self._watcher is not None or self.latency.ages is None or follows_progress
        self._selects = watched or bool(max_rate_hz)
        self._set_direct()

    def tend(self) -> bool:
        """Joins the descriptor stream again after this process was stopped for so long that it went on without it; True
        while that takes its time. Called by the control plane now and then.

        >>> eye.tend()
        False
        """
        with contextlib.suppress(MediaDriverLost, TransportClosed):
            received = self._descriptors.statistics()["received"]
            heard, self._heard = received != self._heard, received
            self._listener.tend(heard=heard)
        return self._listener.joining

    def reading(self) -> ConsumerReading | None:
        """What is reported of this consumer once a second (Wire 10.4.1).

        >>> seq = camera.publish(image)
        >>> frame = next(eye)
        >>> eye.reading().last_seq_seen == seq, eye.reading().drops_gap
        (True, 0)
        """
        stream = self._stream
        epoch = self._foreign_epoch if stream is None else stream.layout.epoch
        if epoch is None:
            return None
        counts = self.counts
        return ConsumerReading(
            epoch=epoch,
            last_seq_seen=self._last_seq_seen(),
            drops_gap=counts["gap"],
            drops_late=counts["late"],
            mode=self.duties.assignment.mode if self.duties else Mode.STREAM,
        )

    def gauges(self) -> Values:
        """What is told of this consumer once a second (`gauges`): how old frames were since the last time.

        >>> seq = camera.publish(image)
        >>> frame = next(eye)
        >>> eye.gauges()["latency_p50_ns"] > 0
        True
        """
        self.latency.settle()
        p50, p90, p99 = self._recent.look(50, 90, 99)
        received = self.counts["received"]
        return {"frames": received, "latency_p50_ns": p50, "latency_p90_ns": p90, "latency_p99_ns": p99}

    def wait(self, timeout: float) -> bool:
        """Whether there may be something to poll, waiting for it up to `timeout` seconds.

        >>> eye.wait(0.01)
        False
        >>> seq = camera.publish(image)
        >>> eye.wait(1.0)
        True
        """
        if (source := self._source()) is not None:
            return source.wait(timeout)
        try:
            return self._descriptors.wait(timeout)
        except MediaDriverLost:
            time.sleep(timeout)
            return False
        except TransportClosed:
            if self.closed:
                return False
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        frame = self._next_within(None)
        if frame is None:
            raise StopIteration
        return frame

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        while not self.closed:
            frame = self._at_hand()
            if frame is not None:
                return frame
            await self._readable()
        raise StopAsyncIteration

    def close(self) -> None:
        """Gives lease and regions back; ends whoever iterates.

        >>> eye.close()
        >>> list(eye)
        []
        """
        if self.closed:
            return
        self.closed = True
        self._ready.clear()
        self._leave()
        if self.elsewhere is not None:
            self.elsewhere.close()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """Counts of frames by what became of them, and the state of lease and mapping.

        >>> eye.statistics()["mapping"]["state"]
        'mapped'
        """
        duties = self.duties.statistics() if self.duties else {}
        source = self._source()
        if source is not None:
            duties = {**duties, "fallback": source.statistics()}
        return {**self.counts, "latency_ns": self.latency.statistics(), **self._place.statistics(), **duties}

    def _newest(self) -> list[Frame]:
        self._catch_up()
        if (source := self._source()) is not None:
            return self._arrived(source, QUEUED)
        try:
            found = self._frames.latest()
        except TransportError as error:
            return self._silent(error)
        return self._sift([] if found is None else [found])

    def _silent(self, error: TransportError) -> list[Frame]:
        """Nothing can come: the control plane waits for the media driver, or another thread closed us just now."""
        if isinstance(error, MediaDriverLost) or (isinstance(error, TransportClosed) and self.closed):
            return []
        raise error

    def _sift(self, frames: list[Frame]) -> list[Frame]:
        """What has to be looked at between frames, for those to whom it happens."""
        if self._resume_at is not None:
            self._count_between_streams(self._resume_at)
        if self._watcher is not None:
            for drop in self._frames.drops():
                self._watcher.on_dropped(*drop)
        if self._selects:
            frames = [frame for frame in frames if self._admits(frame)]
        if self._frames.regressed is not None:
            self._place.unmap(f"the sequence went back to {self._frames.regressed}")
            self._leave()
        return frames

    def _skip(self, frames: int) -> None:
        """So many that counted as received are passed over."""
        if frames > 0:
            self._own["skipped"] += frames
            self._own["received"] -= frames

    def _next_within(self, timeout: float | None) -> Frame | None:
        """The next frame; None after `timeout` seconds or once closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            frame = self._at_hand()
            if frame is not None:
                return frame
            left = PATIENCE if deadline is None else min(PATIENCE, deadline - time.monotonic())
            if left <= 0:
                return None
            self.wait(left)
        return None

    def _at_hand(self) -> Frame | None:
        """The next frame, without waiting; none of an epoch that is over (Wire 15.2)."""
        if self._ready and self._changes.count != self._seen:
            self._reader()
        if not self._ready:
            self._ready.extend(self.poll())
        return self._ready.popleft() if self._ready else None

    async def _readable(self) -> None:
        """Waits in the event loop until the drain has something, looking up now and then all the same."""
        if self._source() is not None:
            await asyncio.sleep(GLANCE)
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptors.fileno(), ready.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(self._descriptors.fileno())

    def _admits(self, frame: Frame) -> bool:
        """Whether this consumer wants the frame now."""
        if self.duties is not None:
            self.duties.on_descriptor(frame.seq)
        if not self._gate.admits(frame.publish_timestamp_ns, frame.timestamp_ns):
            self._own["received"] -= 1
            self._own["rate limited"] += 1
            return False
        if self.latency.ages is None:
            self.latency.observe(frame.timestamp_ns)
        return True

    def _arrived(self, source: PayloadSource, limit: int) -> list[Frame]:
        """Frames that came another way; they are counted as those of shared memory are."""
        frames = []
        for ring, checked, epoch, trace_id in source.take(limit):
            if epoch == self._foreign_epoch:
                self._own["gap"] += checked.seq - self._last_seq - 1
            self._foreign_epoch = epoch
            self._last_seq = checked.seq
            if not self._gate.admits():
                self._own["rate limited"] += 1
                continue
            self._own["received"] += 1
            frames.append(
                Frame(
                    ring,
                    checked,
                    stream_id=self.stream_id,
                    epoch=epoch,
                    trace_id=trace_id,
                    lookup=self._lookup,
                    late=self._count_late,
                )
            )
        return frames

    def _count_between_streams(self, resume_at: int) -> None:
        """Frames that were told of on neither stream, while this consumer moved from one to the other."""
        if self._frames.next_seq is not None:
            told_of = sum(count for name, count in _counted(self._frames).items() if name not in NOT_OF_THIS_EPOCH)
            self._own["gap"] += max(0, self._frames.next_seq - told_of - resume_at)
            self._resume_at = None
            self._set_direct()

    def _set_direct(self) -> None:
        """Whether frames are handed over as they come, without a look at each or between them."""
        self._direct = not self._selects and self._resume_at is None

    def _count_late(self, frame: Taken) -> None:
        self._own["received"] -= 1
        self._own["late"] += 1
        self._frames.lapped()

    def _last_seq_seen(self) -> int:
        return self._last_seq if self._frames.next_seq is None else self._frames.next_seq - 1

    def _reader_of(self, descriptors: Drain) -> FrameReader[Frame]:
        return FrameReader(
            descriptors,
            self._ring,
            self.stream_id,
            max_gap=self._max_gap,
            kind=Frame,
            lookup=self._lookup,
            late=self._count_late,
            ages=self.latency.ages,
            ledger=self._watcher is not None,
        )

    def _catch_up(self) -> None:
        """Follows what changed in the control plane: the assignment, and the epoch that is mapped."""
        self._follow_assignment()
        self._reader()

    def _reader(self) -> RingReader | None:
        """The reader of the epoch that is mapped now; sequences start anew with it (Wire 15.2)."""
        seen = self._changes.count
        stream = None if self._fallback() is not None else self._place.stream
        if stream is not self._stream:
            self._leave()
            parts = None
            if stream is not None:
                try:
                    parts = ring_parts(stream)
                except RegionError:  # the control plane let go of them just now
                    stream = None
            self._stream = stream
            if stream is not None and parts is not None:
                self._foreign_epoch = None
                self._ring = RingReader(*parts)
                self._frames.remap(self._ring, stream.layout.epoch)
                if self._watcher is not None:
                    self._watcher.on_mapped(stream.layout.epoch, self._ring)
                if self.duties is not None:
                    self.duties.follow(PartialSlots(self._ring, *parts), stream.layout.epoch)
        if stream is None:
            self._frames.deadline_ns = None
            self._frames.follow(None)
        self._seen = seen if stream is not None and self._place.lend(self._frames) else -1
        return self._ring

    def _fallback(self) -> Fallback | None:
        """Where payloads come from instead of shared memory: where this consumer was told to turn (Wire 10.1.3), or
        where it is to turn if regions are rejected (Wire 15.22)."""
        told = None if self.duties is None else self.duties.assignment.fallback
        if told is None and self._place.rejected():
            return self.configured_fallback
        return told

    def _source(self) -> PayloadSource | None:
        """What brings payloads now, if that is not shared memory."""
        return None if self.elsewhere is None else self.elsewhere.follow(self._fallback())

    def _follow_assignment(self) -> None:
        """Moves to the streams, and keeps to the rate, that this consumer was assigned (Wire 10.1.3)."""
        if self.duties is None or self.duties.assigned == self._assigned:
            return
        self._assigned = self.duties.assigned
        assignment = self.duties.assignment
        self.limit(assignment.local_rate_hz)
        where = (assignment.descriptor, assignment.control)
        if self.switch is not None and where != self._where:
            self._where = where
            before, self._resume_at = self._frames, self._frames.next_seq
            self._set_direct()
            self._descriptors, self._progress = self.switch(*where)
            self._listener = Listener(self._descriptors.subscription)
            self._frames = self._reader_of(self._descriptors)
            self._frames.remap(self._ring, before.epoch)
            self._own.update(_counted(before))

    def _leave(self) -> None:
        """Lets go of an epoch; its frames are not valid any more, and those in flight are dropped with it."""
        self._own["received"] -= len(self._ready)
        self._own["other epoch"] += len(self._ready)
        self._ready.clear()
        ring, self._ring = self._ring, None
        if ring is not None and self._watcher is not None:
            self._watcher.on_left(self._frames.epoch, ring)
        self._stream = None
        self._resume_at = None
        self._set_direct()
        self._last_seq = self._last_seq_seen()
        self._frames.remap(None)
        if self.duties is not None:
            self.duties.follow(None, 0)
        if ring is not None:
            ring.close()


def _counted(frames: FrameReader[Frame]) -> dict[str, int]:
    """What a reader counted, by the names that people see."""
    return {
        "received": frames.received,
        "gap": frames.gap,
        "late": frames.late,
        "skipped": frames.skipped,
        "other epoch": frames.other_epoch,
        "unmapped": frames.unmapped,
        "unsupported": frames.unsupported,
        "resyncs": frames.resyncs,
        "repeated": frames.repeated,
        **{f"invalid {reason.name}": count for reason, count in frames.invalid().items()},
    }
