"""One segment of a recording and one frame in it, as its readers have them: mapped, and read when it is asked for."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from framepool._native.crc32c import crc32c
from framepool.errors import DecodeError, IndexDamaged, RecordingDamaged
from framepool.recorder.codecs import decompress
from framepool.recorder.contents import Contents, LossRow, MessageRow, are_sound, scan
from framepool.recorder.format import FRAME_HEADER_BYTES, NO_TIMESTAMP, Codec
from framepool.recorder.index import FRAMES, frames_table, has_arrow, read_frames
from framepool.recorder.manifest import OpenEntry, SegmentEntry, open_file
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout, decode_tensor, view
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import MajorOrder
from framepool.wire.attributes import Metadata
from framepool.wire.constants import TENSOR_HEADER_OFFSET
from framepool.wire.dtypes import NUMPY_DTYPES
from framepool.wire.message import Message

if TYPE_CHECKING:
    import pyarrow as pa

    from framepool.recorder.recording import Recording


class Reference(NamedTuple):
    """Where the payload of a frame is: good wherever the file can be opened."""

    path: str
    offset: int
    length: int
    host: str
    boot_id: str


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
            raise RecordingDamaged(f"{self.path}: the message at byte {row.offset} is damaged: {error}") from None

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
                self._table = self._checked(*read_frames(index))
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

    def _checked(
        self, offsets: npt.NDArray[np.int64], headers: npt.NDArray[np.void]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """What an index says, if all of it can be in this segment; else `IndexDamaged`."""
        room = self.entry.bytes - FRAME_HEADER_BYTES
        inside = (offsets >= 0) & (offsets <= room) & (headers["stored_bytes"] <= max(room, 0))
        if not (inside & (headers["stored_bytes"].astype(np.int64) <= room - offsets)).all() or not are_sound(headers):
            raise IndexDamaged(f"{self.path.with_suffix(FRAMES).name} leads out of its segment")
        return offsets, headers

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
            fd = open_file(self.path)
        except FileNotFoundError:
            self.recording.check_retained(self.number)
            raise RecordingDamaged(f"{self.path} is missing") from None
        except OSError as error:
            raise RecordingDamaged(f"{self.path}: {error.strerror}") from None
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
        if row >= len(segment.headers):
            raise RecordingDamaged(f"{segment.path} has {len(segment.headers)} frames, the manifest says more")
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
