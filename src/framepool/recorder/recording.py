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
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from framepool._native.crc32c import crc32c
from framepool.errors import DecodeError, FramesRemoved, RecordingDamaged, RecordingError
from framepool.recorder.account import Loss
from framepool.recorder.codecs import decompress
from framepool.recorder.contents import Contents, LossRow, MessageRow, scan
from framepool.recorder.format import FRAME_HEADER_BYTES, NO_TIMESTAMP, Codec
from framepool.recorder.index import FRAMES, frames_table, has_arrow, read_frames
from framepool.recorder.manifest import Manifest, OpenEntry, RecordingInfo, Retained, SegmentEntry, Watermark
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout, decode_tensor, view
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import DataSourceMeta, MajorOrder
from framepool.wire.attributes import Metadata
from framepool.wire.constants import TENSOR_HEADER_OFFSET
from framepool.wire.dtypes import NUMPY_DTYPES
from framepool.wire.message import Message

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_TABLES: Final = 64
"""Segments whose index is kept in memory."""


class Reference(NamedTuple):
    """Where the payload of a frame is: good wherever the file can be opened."""

    path: str
    offset: int
    length: int
    host: str
    boot_id: str


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


class Segment:
    """One file of a recording, mapped when it is first needed."""

    def __init__(self, recording: Recording, entry: SegmentEntry | OpenEntry) -> None:
        self.entry = entry
        self.number = entry.number
        self.path = recording.manifest.segments / entry.file
        self.segment_id = int(entry.segment_id, 16)
        self.first_ordinal = entry.first_ordinal
        self.recording = recording
        self._buffer: memoryview | None = None
        self._table: tuple[npt.NDArray[np.int64], npt.NDArray[np.void]] | None = None
        self._rest: tuple[list[LossRow], list[MessageRow]] | None = None
        self._rows: dict[frozenset[int], npt.NDArray[np.intp]] = {}

    @property
    def sealed(self) -> bool:
        return isinstance(self.entry, SegmentEntry)

    @property
    def frames(self) -> int:
        """How many frames it has."""
        return self.entry.frames if isinstance(self.entry, SegmentEntry) else len(self.headers)

    @property
    def buffer(self) -> memoryview:
        """The file, mapped read-only."""
        if self._buffer is None:
            self._buffer = self._map()
        return self._buffer

    @property
    def headers(self) -> npt.NDArray[np.void]:
        """The headers of its frames (`format.FRAME_HEADER`)."""
        return self._frames()[1]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where the records of its frames begin."""
        return self._frames()[0]

    @property
    def losses(self) -> list[LossRow]:
        return self._others()[0]

    @property
    def messages(self) -> list[MessageRow]:
        return self._others()[1]

    def rows_of(self, streams: frozenset[int]) -> npt.NDArray[np.intp]:
        """The rows of some streams."""
        headers = self.headers
        if streams not in self._rows:
            self._rows[streams] = np.flatnonzero(np.isin(headers["stream_id"], list(streams)))
        return self._rows[streams]

    def message(self, row: MessageRow) -> Message:
        """A message, decoded; `RecordingDamaged` if it is none."""
        try:
            return dispatch.decode(self.buffer[row.offset : row.offset + row.length])
        except DecodeError as error:
            raise RecordingDamaged(f"{self.path}: the message at {row.offset} is damaged: {error}") from None

    @property
    def contents(self) -> Contents:
        """Everything that its index says."""
        return Contents(
            number=self.number,
            file=self.path.name,
            segment_id=self.segment_id,
            first_ordinal=self.first_ordinal,
            offsets=self.offsets,
            headers=self.headers,
            losses=self.losses,
            messages=self.messages,
        )

    def table(self) -> pa.Table:
        """The index of its frames as an Arrow table."""
        return frames_table(self.path.name, self.first_ordinal, self.offsets, self.headers)

    def _frames(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        if self._table is None:
            index = self.path.with_suffix(FRAMES)
            if isinstance(self.entry, SegmentEntry) and self.entry.indexed and has_arrow() and index.exists():
                self._table = read_frames(index)
            else:
                self._scan()
                assert self._table is not None
            self.recording.loaded(self)
        return self._table

    def _others(self) -> tuple[list[LossRow], list[MessageRow]]:
        if self._rest is None:
            self._scan()
            assert self._rest is not None
        return self._rest

    def _scan(self) -> None:
        offsets, headers, losses, messages = scan(self.buffer, self.segment_id)
        self._table = (offsets, headers)
        self._rest = (losses, messages)

    def forget(self) -> None:
        """Gives the memory of its index back; it is read again when it is needed."""
        self._table = None
        self._rows.clear()

    def _map(self) -> memoryview:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.recording.check_retained(self.number)
            raise RecordingDamaged(f"{self.path} is missing") from None
        try:
            size = os.fstat(fd).st_size
            if size < self.entry.bytes:
                raise RecordingDamaged(f"{self.path} has {size} bytes, {self.entry.bytes} were written")
            return (
                memoryview(mmap.mmap(fd, self.entry.bytes, prot=mmap.PROT_READ))
                if self.entry.bytes
                else memoryview(b"")
            )
        finally:
            os.close(fd)


class RecordedFrame:
    """One frame of a recording. Its array is the file itself, read-only, unless it is compressed."""

    __slots__ = ("_header", "_layout", "_offset", "_segment")

    def __init__(self, segment: Segment, row: int) -> None:
        self._segment = segment
        self._header = segment.headers[row]
        self._offset = int(segment.offsets[row]) + FRAME_HEADER_BYTES
        self._layout: TensorLayout | None = None

    @property
    def segment(self) -> Segment:
        """The file that it is in."""
        return self._segment

    @property
    def ordinal(self) -> int:
        """Its place in the recording, over all streams."""
        return self._segment.first_ordinal + int(self._header["number"])

    @property
    def stream_id(self) -> int:
        return int(self._header["stream_id"])

    @property
    def epoch(self) -> int:
        return int(self._header["epoch"])

    @property
    def seq(self) -> int:
        return int(self._header["seq"])

    @property
    def timestamp_ns(self) -> int:
        """When the frame was begun, by the clock of its producer."""
        return int(self._header["timestamp_ns"])

    @property
    def publish_timestamp_ns(self) -> int | None:
        """When its descriptor was sent; None if that was not said."""
        told = int(self._header["publish_timestamp_ns"])
        return None if told == NO_TIMESTAMP else told

    @property
    def recorded_ns(self) -> int:
        """When it was recorded, by the wall clock."""
        return int(self._header["recorded_ns"])

    @property
    def monotonic_ns(self) -> int:
        """When it was recorded, by the monotonic clock of the host."""
        return int(self._header["monotonic_ns"])

    @property
    def meta_version(self) -> int:
        return int(self._header["meta_version"])

    @property
    def trace_id(self) -> int | None:
        return int(self._header["trace_id"]) or None

    @property
    def crc(self) -> int:
        """CRC32C of the payload as it was in shared memory."""
        return int(self._header["raw_crc"])

    @property
    def codec(self) -> Codec:
        return Codec(int(self._header["codec"]))

    @property
    def nbytes(self) -> int:
        """Bytes of payload in shared memory."""
        return int(self._header["raw_bytes"])

    @property
    def layout(self) -> TensorLayout:
        """Shape, strides and type of the elements."""
        if self._layout is None:
            self._layout = _layout_of(self._header["tensor"].tobytes())
        return self._layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; BYTES and packed BIT come as uint8."""
        return NUMPY_DTYPES[self.layout.dtype]

    @property
    def order(self) -> Literal["C", "F"]:
        return "F" if self.layout.order is MajorOrder.COLUMN else "C"

    @property
    def stored(self) -> memoryview:
        """The payload as it is in the file."""
        return self._segment.buffer[self._offset : self._offset + int(self._header["stored_bytes"])]

    @property
    def payload(self) -> memoryview:
        """The payload as it was in shared memory: the file itself, unless it is compressed."""
        return memoryview(decompress(self.codec, self.stored, self.nbytes))

    @property
    def array(self) -> npt.NDArray[Any]:
        """The frame, read-only."""
        return view(self.payload, 0, self.layout)

    @property
    def slot_header(self) -> bytes:
        """The header slot as it was in the ring."""
        return bytes(self._header["slot"])

    @property
    def tensor_header(self) -> bytes:
        """The encoded TensorHeader."""
        return self.slot_header[TENSOR_HEADER_OFFSET:]

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the version that this frame refers to; None if it was not heard."""
        return self._segment.recording.metadata(self._segment, self)

    @property
    def reference(self) -> Reference:
        """Where the stored payload is."""
        info = self._segment.recording.info
        length = int(self._header["stored_bytes"])
        return Reference(str(self._segment.path), self._offset, length, info.host, info.boot_id)

    def copy(self) -> npt.NDArray[Any]:
        """A private, writable copy."""
        return self.array.copy(order="K")

    def check(self) -> None:
        """Raises `RecordingDamaged` if the payload is not what was recorded."""
        if crc32c(self.payload) != self.crc:
            raise RecordingDamaged(f"{self._segment.path}: frame {self.ordinal} is not what was recorded")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"<RecordedFrame {self.ordinal}: {self.seq} of stream {self.stream_id}, {self.dtype} {shape}>"


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
        return RecordedFrame(segment, row if self._streams is None else int(segment.rows_of(self._streams)[row]))

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
            assert isinstance(message, DataSourceMeta)
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


_LAYOUTS: dict[bytes, TensorLayout] = {}


def _layout_of(header: bytes) -> TensorLayout:
    """Decoded once for a steady camera."""
    layout = _LAYOUTS.get(header)
    if layout is None:
        decoded = decode_tensor(header, 2**32 - 1)
        if isinstance(decoded, DropReason):
            raise RecordingDamaged(f"a frame has a header that breaks a rule: {decoded.name}")
        if len(_LAYOUTS) > 256:
            _LAYOUTS.clear()
        layout = _LAYOUTS[header] = decoded
    return layout
