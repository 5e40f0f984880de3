"""A recording as a sequence of frames: arrays on mapped files, for notebooks, replay and Spark.

>>> recording = fp.Recording("flight-7")                       # doctest: +SKIP
>>> recording[0].array, recording[0].metadata                  # doctest: +SKIP
>>> for frame in recording.stream(10_000)[100:200]:            # doctest: +SKIP
...     show(frame.array)

Nothing is read before it is asked for: the manifest says how many frames a segment has, its index where they are. A
recording that is still written can be read as far as it is durable; `refresh` looks again.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from framepool.errors import FramesRemoved, RecordingDamaged, RecordingError
from framepool.recorder.account import Loss
from framepool.recorder.contents import MessageRow
from framepool.recorder.manifest import Manifest, RecordingInfo, Retained, SegmentEntry, Watermark
from framepool.recorder.recorded import RecordedFrame, Reference, Segment
from framepool.wire._generated.control_900 import DataSourceMeta
from framepool.wire.attributes import Metadata
from framepool.wire.message import Message

__all__ = ["Frames", "RecordedFrame", "RecordedLoss", "RecordedMessage", "Recording", "Reference", "Segment"]

KEPT_TABLES: Final = 64
"""Segments whose index is kept in memory."""
KEPT_METADATA: Final = 1_024
"""Versions of metadata that are kept decoded."""


class RecordedMessage(NamedTuple):
    """A message of the control plane, as it was heard."""

    recorded_ns: int
    ordinal: int
    """Of the frame that was recorded next."""
    message: Message


class RecordedLoss(NamedTuple):
    """Frames that are not there, and when that was noticed."""

    recorded_ns: int
    ordinal: int
    """Of the frame that was recorded next."""
    loss: Loss


class Frames(Sequence[RecordedFrame]):
    """Some frames of a recording, in the order in which they were recorded. Slices cost nothing."""

    def __init__(
        self, segments: Sequence[Segment], streams: frozenset[int] | None = None, window: range | None = None
    ) -> None:
        """The frames of these segments, of these streams or of all."""
        self._segments = segments
        self._streams = streams
        self._ends = list(itertools.accumulate(_count(segment, streams) for segment in segments))
        self._window = range(self._ends[-1] if self._ends else 0) if window is None else window

    def __len__(self) -> int:
        return len(self._window)

    @overload
    def __getitem__(self, index: int) -> RecordedFrame: ...
    @overload
    def __getitem__(self, index: slice) -> Frames: ...
    def __getitem__(self, index: int | slice) -> RecordedFrame | Frames:
        if isinstance(index, slice):
            return Frames(self._segments, self._streams, self._window[index])
        return self._frame(self._window[index])

    def __iter__(self) -> Iterator[RecordedFrame]:
        return map(self._frame, self._window)

    def parts(self) -> Iterator[tuple[Segment, npt.NDArray[np.intp]]]:
        """The segments that they are in, with their rows there: for work on whole columns."""
        wanted = np.arange(self._window.start, self._window.stop, self._window.step)
        for part, segment in enumerate(self._segments):
            begin = self._ends[part - 1] if part else 0
            mine = wanted[(wanted >= begin) & (wanted < self._ends[part])] - begin
            if len(mine):
                yield segment, mine if self._streams is None else segment.rows_of(self._streams)[mine]

    def stack(self) -> npt.NDArray[Any]:
        """All of them as one array, copied; for frames of one shape and type."""
        if not len(self):
            raise ValueError("there are no frames to stack")
        first = self[0]
        stacked = np.empty((len(self), *first.shape), first.dtype)
        for number, frame in enumerate(self):
            if frame.shape != first.shape or frame.dtype != first.dtype:
                raise ValueError(f"{frame!r} is not like {first!r}")
            stacked[number] = frame.array
        return stacked

    def _frame(self, at: int) -> RecordedFrame:
        part = bisect.bisect_right(self._ends, at)
        segment = self._segments[part]
        row = at - (self._ends[part - 1] if part else 0)
        if self._streams is not None:
            rows = segment.rows_of(self._streams)
            row = int(rows[row]) if row < len(rows) else len(segment.headers)
        return RecordedFrame(segment, row)

    def __repr__(self) -> str:
        return f"<{len(self)} frames>"


class Recording(Frames):
    """The frames of a recording that are there and durable now, oldest first.

    Raises `RecordingError` if there is no recording at that path.

    >>> with fp.Recorder(pool, "morning", [10_000]):
    ...     sent = camera.publish_batch([image, image + 1])
    >>> recording = fp.Recording("morning")
    >>> recording.streams, [frame.copy().sum() for frame in recording]
    ({10000: 2}, [np.uint64(66), np.uint64(78)])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.manifest = Manifest(path)
        self.info: RecordingInfo = self.manifest.info()
        self.segments: list[Segment] = []
        self.watermark: Watermark | None = None
        self.retained = Retained()
        self._tables: dict[int, Segment] = {}
        self._metadata: dict[tuple[int, int, int], Metadata | None] = {}
        self.refresh()

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.manifest.path

    def refresh(self) -> None:
        """Looks again: what was recorded since, and what was removed."""
        self.watermark = self.manifest.watermark()  # before the entries: what is sealed meanwhile is in one of them
        self.retained = self.manifest.retained()
        known = {segment.number: segment for segment in self.segments if segment.sealed}
        sealed: dict[int, Segment] = {}
        for number in self.manifest.numbers():
            if number in known:
                sealed[number] = known[number]
            elif number >= self.retained.first_segment and (entry := self.manifest.entry(number)) is not None:
                sealed[number] = Segment(self, entry)
        first = max(self.retained.first_segment, max(sealed, default=-1) + 1)
        opened = self.watermark.open if self.watermark is not None else ()
        unsealed = {entry.number: Segment(self, entry) for entry in opened if entry.number >= first}
        both = {**sealed, **unsealed}
        self.segments = [both[number] for number in sorted(both)]
        super().__init__(self.segments)

    @property
    def streams(self) -> dict[int, int]:
        """Its streams, and how many frames each has."""
        found: dict[int, int] = {}
        for segment in self.segments:
            if isinstance(segment.entry, SegmentEntry):
                counts = {stream_id: span.frames for stream_id, span in segment.entry.streams.items()}
            else:
                ids, numbers = np.unique(segment.headers["stream_id"], return_counts=True)
                counts = dict(zip(ids.tolist(), numbers.tolist(), strict=True))
            for stream_id, count in counts.items():
                found[stream_id] = found.get(stream_id, 0) + count
        return dict(sorted(found.items()))

    def stream(self, stream_id: int) -> Frames:
        """The frames of one stream; `RecordingError` if it was not recorded."""
        return self.only([stream_id])

    def only(self, streams: Iterable[int]) -> Frames:
        """The frames of some streams, in the order in which they were recorded."""
        wanted, present = frozenset(streams), self.streams
        if missing := sorted(wanted - present.keys()):
            raise RecordingError(
                f"{self.path} has no stream {missing[0]}, but {', '.join(map(str, present)) or 'none'}"
            )
        return Frames(self.segments, wanted)

    def between(self, start: int, end: int) -> Frames:
        """The frames with ordinals from `start` to before `end`; `FramesRemoved` if some of them are gone."""
        if start < self.retained.first_ordinal and start < end:
            raise FramesRemoved(
                f"{self.path} begins with frame {self.retained.first_ordinal} by now: {start} was removed by retention"
            )
        inside = [each for each in self.segments if each.first_ordinal < end and each.entry.end_ordinal > start]
        frames = Frames(inside)
        low = bisect.bisect_left(range(len(frames)), start, key=lambda at: frames[at].ordinal)
        high = bisect.bisect_left(range(len(frames)), end, key=lambda at: frames[at].ordinal)
        return frames[low:high]

    def losses(self) -> Iterator[RecordedLoss]:
        """The rows of the loss table."""
        for segment in self.segments:
            for row in segment.losses:
                yield RecordedLoss(row.recorded_ns, segment.first_ordinal + row.number, row.loss)

    def messages(self, *kinds: type[Message]) -> Iterator[RecordedMessage]:
        """The messages of the control plane that were recorded, of these kinds or of all."""
        wanted = {(kind.SCHEMA_ID, kind.TEMPLATE_ID) for kind in kinds}
        for segment in self.segments:
            for row in segment.messages:
                if not wanted or (row.schema_id, row.template_id) in wanted:
                    ordinal = segment.first_ordinal + row.number
                    yield RecordedMessage(row.recorded_ns, ordinal, segment.message(row))

    def metadata(self, segment: Segment, frame: RecordedFrame) -> Metadata | None:
        """What a frame of a segment refers to. Versions are counted by each producer for itself, so the last one that
        was heard before the frame counts, and else the first one after it."""
        wanted, number = (frame.stream_id, frame.meta_version), frame.ordinal - segment.first_ordinal
        chosen: MessageRow | None = None
        for row in segment.messages:
            if (row.schema_id, row.template_id) != (DataSourceMeta.SCHEMA_ID, DataSourceMeta.TEMPLATE_ID):
                continue
            if row.stream_id == wanted[0] and (row.number <= number or chosen is None):
                meta = self._read_metadata(segment, row)
                chosen = row if meta is not None and meta.version == wanted[1] else chosen
        return None if chosen is None else self._read_metadata(segment, chosen)

    def _read_metadata(self, segment: Segment, row: MessageRow) -> Metadata | None:
        key = (segment.number, row.offset, row.length)
        if key not in self._metadata:
            message = segment.message(row)
            if not isinstance(message, DataSourceMeta):
                raise RecordingDamaged(f"{segment.path}: the message at byte {row.offset} is no metadata")
            if len(self._metadata) >= KEPT_METADATA:
                self._metadata.pop(next(iter(self._metadata)))
            self._metadata[key] = Metadata(
                message.stream_id, message.meta_version, message.timestamp_ns, message.attributes
            )
        return self._metadata[key]

    def loaded(self, segment: Segment) -> None:
        """Keeps the indexes of the segments that were used last, and no more."""
        self._tables.pop(segment.number, None)
        self._tables[segment.number] = segment
        if len(self._tables) > KEPT_TABLES:
            self._tables.pop(next(iter(self._tables))).forget()

    def check_retained(self, number: int) -> None:
        """Raises `FramesRemoved` if a segment that is not there was removed by retention."""
        retained = self.manifest.retained()
        if number < retained.first_segment:
            raise FramesRemoved(f"{self.path} begins with frame {retained.first_ordinal} by now: look again (refresh)")

    def __repr__(self) -> str:
        streams = ", ".join(f"{count} of stream {stream_id}" for stream_id, count in self.streams.items())
        return f"<Recording {self.path}: {streams or 'no frames'}>"


def _count(segment: Segment, streams: frozenset[int] | None) -> int:
    if streams is None:
        return segment.frames
    if isinstance(segment.entry, SegmentEntry):
        return sum(span.frames for stream_id, span in segment.entry.streams.items() if stream_id in streams)
    return len(segment.rows_of(streams))
