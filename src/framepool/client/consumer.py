"""The consumer's side of a stream: descriptors in, slots checked, frames out (Wire 8.3, 10.2.1, 15.18, 15.21).

It never waits for a commit. A frame is handed over in place once its header is proven whole; what its reader makes of
it is proven by the frame itself. Every frame that was published is counted once: as received, as a gap when no
descriptor told of it, as late when it was overwritten before or while it was read, as invalid by the rule it broke.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from framepool._native.seqlock import RingReader
from framepool.client.frame import Frame
from framepool.client.listener import Listener
from framepool.client.mapping import ring_parts
from framepool.client.plane import Place
from framepool.errors import MediaDriverLost, TransportClosed
from framepool.shm.drop import DropReason
from framepool.shm.region import MappedStream
from framepool.transport.aeron import Drain
from framepool.wire._generated.control_900 import FrameDescriptor

MAX_OUTSTANDING_SEQ_GAP = 256
PATIENCE = 0.05
"""Seconds between looks at a stream that says nothing."""


class Consumer:
    """Reads the frames of one stream under the lease of its place. One thread at a time.

    >>> for frame in consumer:                     # doctest: +SKIP
    ...     with frame as image:
    ...         show(image)
    """

    def __init__(
        self,
        place: Place,
        descriptors: Drain,
        *,
        max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.stream_id = place.stream_id
        self.closed = False
        self.counts: Counter[str] = Counter()
        self._place = place
        self._descriptors = descriptors
        self._listener = Listener(descriptors.subscription, descriptors)
        self._max_gap = max_outstanding_seq_gap
        self._on_close = on_close
        self._stream: MappedStream | None = None
        self._ring: RingReader | None = None
        self._next_seq: int | None = None
        self._ready: deque[Frame] = deque()

    def poll(self, limit: int = 256) -> list[Frame]:
        """The frames that descriptors told of since the last call and that are still there; never waits."""
        try:
            messages = self._listener.poll(limit)
        except MediaDriverLost:  # the control plane waits for it
            return []
        except TransportClosed:
            if self.closed:  # by another thread, just now
                return []
            raise
        descriptors = deque(FrameDescriptor.decode(message) for message in messages)
        frames = []
        while descriptors:
            descriptor = descriptors.popleft()
            if self._is_far_behind(descriptor):
                self.counts["resyncs"] += 1
                descriptor = descriptors.pop() if descriptors else descriptor
                descriptors.clear()  # all before the newest is given up as a gap
            frame = self._receive(descriptor)
            if frame is not None:
                frames.append(frame)
        return frames

    def latest(self, timeout: float | None = None) -> Frame | None:
        """The newest frame, passing over older ones; None when nothing comes within `timeout` seconds."""
        frame = self._next_within(timeout)
        while frame is not None:
            newer = [*self._ready, *self.poll()]
            self._ready.clear()
            if not newer:
                break
            self.counts["skipped"] += len(newer)
            self.counts["received"] -= len(newer)
            frame = newer[-1]
        return frame

    def wait_for(self, seq: int, timeout: float | None = None) -> Frame | None:
        """The frame `seq`, or None: it was missed, or did not come within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            frame = self._next_within(left)
            if frame is None or frame.seq == seq:
                return frame
            if frame.seq > seq:
                self._ready.appendleft(frame)
                return None

    def wait(self, timeout: float) -> bool:
        """Whether there may be something to poll, waiting for it up to `timeout` seconds."""
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
            self._ready.extend(self.poll())
            if self._ready:
                return self._ready.popleft()
            await self._readable()
        raise StopAsyncIteration

    def close(self) -> None:
        """Gives lease and regions back; ends whoever iterates."""
        if self.closed:
            return
        self.closed = True
        self._ready.clear()
        self._leave()
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """Counts of frames by what became of them, and the state of lease and mapping."""
        return {**self.counts, **self._place.statistics()}

    def _next_within(self, timeout: float | None) -> Frame | None:
        """The next frame; None after `timeout` seconds or once closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed:
            if self._ready:
                return self._ready.popleft()
            self._ready.extend(self.poll())
            if self._ready:
                continue
            left = PATIENCE if deadline is None else min(PATIENCE, deadline - time.monotonic())
            if left <= 0:
                return None
            self.wait(left)
        return None

    async def _readable(self) -> None:
        """Waits in the event loop until the drain has something, looking up now and then all the same."""
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

    def _is_far_behind(self, descriptor: FrameDescriptor) -> bool:
        """Whether so many frames are missing that only the newest is worth having (Wire 15.4)."""
        return (
            self._next_seq is not None
            and self._stream is not None
            and descriptor.epoch == self._stream.layout.epoch
            and descriptor.seq - self._next_seq > self._max_gap
        )

    def _receive(self, descriptor: FrameDescriptor) -> Frame | None:
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
                self._place.unmap(f"sequence went back from {self._next_seq - 1} to {seq}")
                return None
            self.counts["gap"] += seq - self._next_seq
        self._next_seq = seq + 1
        checked = ring.check(seq)
        if isinstance(checked, DropReason):
            self.counts["late" if checked.late else f"invalid {checked.name}"] += 1
            return None
        self.counts["received"] += 1
        return Frame(
            ring,
            checked,
            stream_id=descriptor.stream_id,
            epoch=descriptor.epoch,
            trace_id=descriptor.trace_id,
            late=self._count_late,
        )

    def _count_late(self, frame: Frame) -> None:
        self.counts["received"] -= 1
        self.counts["late"] += 1

    def _reader(self) -> RingReader | None:
        """The reader of the epoch that is mapped now; sequences start anew with it (Wire 15.2)."""
        stream = self._place.stream
        if stream is not self._stream:
            self._leave()
            self._stream = stream
            if stream is not None:
                self._ring = RingReader(*ring_parts(stream))
        return self._ring

    def _leave(self) -> None:
        """Lets go of an epoch; its frames are not valid any more."""
        ring, self._ring = self._ring, None
        self._stream = None
        self._next_seq = None
        if ring is not None:
            ring.close()
