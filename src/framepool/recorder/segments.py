"""Segments on their way to disk: records are laid into the staging buffer here, and written by `disk`.

`SegmentLog` cuts segments and never waits. It shares with the disk's thread the staging buffer, whose positions only
rise, and a queue of what is to happen at which position: a segment begins, is flushed, ends. What finds no room in the
staging buffer is refused, and the recorder's loss if nothing changes.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from framepool._native.recording import DONE, NO_ROOM, SEGMENT_FULL, Staging
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import RecorderConfig
from framepool.recorder import format as form
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.contents import Contents, LossRow, MessageRow, SegmentHead
from framepool.recorder.format import BLOCK, Kind
from framepool.recorder.manifest import SEGMENT_SUFFIX, RecordingInfo
from framepool.wire._generated.control_900 import ClockDomain

if TYPE_CHECKING:
    from framepool._native.recording import Framed


class CapturedMessage(msgspec.Struct, frozen=True):
    """A message of the control plane, and where it was heard."""

    aeron_stream_id: int
    stream_id: int
    schema_id: int
    template_id: int
    data: bytes


@dataclass
class Segment:
    """A segment that is being written."""

    contents: Contents
    origin: int
    """Where it begins, in positions of the staging buffer."""
    began_ns: int
    """By the monotonic clock."""
    frames: int = 0

    @property
    def end_ordinal(self) -> int:
        return self.contents.first_ordinal + self.frames


@dataclass(frozen=True)
class Begin:
    """A file is needed for what follows."""

    segment: Segment


@dataclass(frozen=True)
class Flush:
    """Everything up to the position is to be durable."""

    segment: Segment
    position: int
    end_ordinal: int
    frames: int
    """Recorded until then."""
    lost: dict[Reason, int]

    @property
    def bytes(self) -> int:
        return self.position - self.segment.origin


@dataclass(frozen=True)
class End:
    """The segment has no more than this."""

    segment: Segment
    position: int


class SegmentLog:
    """Where records go in. For one thread; `queue` is for the disk's."""

    def __init__(
        self,
        staging: Staging,
        info: RecordingInfo,
        config: RecorderConfig,
        clock: Clock,
        *,
        next_number: int = 0,
        next_ordinal: int = 0,
        carried: Callable[[], Iterable[CapturedMessage]] = lambda: (),
    ) -> None:
        """Every segment begins with the messages `carried`, so that it can be understood without those before it."""
        self.staging = staging
        self.next_ordinal = next_ordinal
        self.queue: deque[Begin | Flush | End] = deque()
        """What the disk is to do, in order."""
        self.counts: Counter[str] = Counter()
        self._info = info
        self._config = config
        self._clock = clock
        self._next_number = next_number
        self._carried = carried
        self._segment: Segment | None = None
        self._flushed = staging.head
        self._now = (0, 0)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something that no flush was asked for yet."""
        return self.staging.head > self._flushed

    @property
    def is_due(self) -> bool:
        """Whether the segment is old or long enough to end."""
        segment = self._segment
        if segment is None:
            return False
        if self.staging.head - segment.origin >= self._config.segment_bytes:
            return True
        age_ns = self._clock.monotonic_ns() - segment.began_ns
        says_something = segment.frames > 0 or bool(segment.contents.losses)
        return says_something and age_ns >= self._config.segment_seconds * NANOS_PER_SECOND

    def add_frames[F: Framed](self, frames: list[F], first: int = 0) -> tuple[int, int]:
        """Adds `frames[first:]`: how many were added, and why not more, as `Staging.stage` says."""
        segment = self._current()
        if segment is None:
            return 0, NO_ROOM
        most = self._config.segment_frames - segment.frames
        if most <= 0:
            return 0, SEGMENT_FULL
        some = frames if len(frames) - first <= most else frames[: first + most]
        count, code = self.staging.stage(
            some,
            first,
            segment.origin,
            self._config.segment_bytes,
            segment.contents.segment_id,
            segment.frames,
            *self._times(),
        )
        segment.frames += count
        self.next_ordinal += count
        self.counts["frames"] += count
        if code == DONE and some is not frames:
            code = SEGMENT_FULL
        return count, code

    def restore(self, position: int, payload: bytes, codec: int) -> None:
        """Stores the last frame in another way: see `Staging.restore`."""
        assert self._segment is not None
        self.staging.restore(position, payload, codec, self._segment.origin)

    def add_loss(self, loss: Loss) -> bool:
        """Adds a row of the loss table, if there is room: whether there was."""
        segment = self._current()
        if segment is None or not self._append(segment, Kind.LOSS, msgspec.json.encode(loss)):
            return False
        segment.contents.losses.append(LossRow(loss, self._now[0], segment.frames))
        self.counts["losses"] += 1
        return True

    def add_message(self, message: CapturedMessage) -> bool:
        """Adds a message, if there is room: whether there was."""
        segment = self._current()
        return segment is not None and self._add_message(segment, message)

    def flush(self, frames: int = 0, lost: dict[Reason, int] | None = None) -> bool:
        """Asks for everything to be durable that was added until now; False if there is no room to ask.

        How much was recorded and lost in all is told with the watermark.
        """
        segment = self._segment
        if segment is None or not self.is_dirty:
            return True
        if not self._pad(segment):
            return False
        self._flushed = self.staging.head
        self.queue.append(Flush(segment, self._flushed, segment.end_ordinal, frames, lost or {}))
        return True

    def end(self, state: dict[int, AccountState]) -> bool:
        """Ends the segment; what is added next begins another one. False if there is no room for its padding."""
        segment = self._segment
        if segment is None:
            return True
        if not self._pad(segment):
            return False
        offsets, headers = self.staging.take_rows()
        contents = segment.contents
        contents.bytes = self.staging.head - segment.origin
        contents.end_ordinal = segment.end_ordinal
        contents.offsets = np.frombuffer(offsets, np.int64)
        contents.headers = np.frombuffer(headers, form.FRAME_HEADER)
        contents.state = state
        self._flushed = self.staging.head
        self._segment = None
        self.queue.append(End(segment, self._flushed))
        return True

    def _current(self) -> Segment | None:
        """The segment to add to, begun if there is none; None while there is no room to begin one."""
        return self._segment or self._begin()

    def _begin(self) -> Segment | None:
        number, ordinal, info = self._next_number, self.next_ordinal, self._info
        head = SegmentHead(
            recording_id=info.recording_id,
            number=number,
            first_ordinal=ordinal,
            host=info.host,
            boot_id=info.boot_id,
        )
        contents = Contents(
            number=number,
            file=f"{number:08}{SEGMENT_SUFFIX}",
            segment_id=secrets.randbits(64) or 1,
            first_ordinal=ordinal,
        )
        segment = Segment(contents, self.staging.head, self._clock.monotonic_ns())
        carried, needed = [], 2 * BLOCK
        for message in self._carried():
            length = form.aligned(form.MESSAGE_HEADER_BYTES + len(message.data))
            if needed + length <= self.staging.capacity // 2:
                carried.append(message)
                needed += length
        if self.staging.room < needed:
            return None
        self.queue.append(Begin(segment))  # before any byte of it
        self._segment = segment
        self._next_number += 1
        self._append(segment, Kind.SEGMENT, msgspec.json.encode(head))
        for message in carried:
            self._add_message(segment, message)
        return segment

    def _add_message(self, segment: Segment, message: CapturedMessage) -> bool:
        names = (message.aeron_stream_id, message.stream_id, message.schema_id, message.template_id)
        offset = self.staging.head - segment.origin + form.MESSAGE_HEADER_BYTES
        if not self._append(segment, Kind.MESSAGE, message.data, form.MESSAGE_TAIL.pack(*names)):
            return False
        segment.contents.messages.append(MessageRow(*names, *self._now, segment.frames, offset, len(message.data)))
        self.counts["messages"] += 1
        return True

    def _append(self, segment: Segment, kind: Kind, payload: bytes, tail: bytes = b"", record_bytes: int = 0) -> bool:
        recorded_ns, monotonic_ns = self._now = self._times()
        record = form.encode(
            kind,
            payload,
            segment_id=segment.contents.segment_id,
            number=segment.frames,
            recorded_ns=recorded_ns,
            monotonic_ns=monotonic_ns,
            tail=tail,
            record_bytes=record_bytes,
        )
        # Something is always left for the padding of a flush.
        return (kind is Kind.PADDING or self.staging.room >= len(record) + BLOCK) and self.staging.append(record)

    def _times(self) -> tuple[int, int]:
        """Now, by the wall and by the monotonic clock."""
        return self._clock.now_ns(ClockDomain.REALTIME_SYNCED), self._clock.monotonic_ns()

    def _pad(self, segment: Segment) -> bool:
        missing = -self.staging.head % BLOCK
        return not missing or self._append(segment, Kind.PADDING, b"", record_bytes=missing)
