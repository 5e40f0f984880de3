"""The bytes of a segment: records one after the other, each proven by its own checksums (`docs/recording.md`).

A record is a header of 64, 128 or 512 bytes, a payload, and padding to 64 bytes. Frames carry their slot header as it
lay in the ring, and their payload begins on 64 bytes, so that a mapped file gives arrays without a copy. Everything is
little-endian. The hot path that writes frames is compiled (`_native/recording.pyx`); this is the readable side, which
writes all other kinds and reads all of them. A test holds the two against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Buffer, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from framepool._native.crc32c import crc32c
from framepool.wire.constants import HEADER_SLOT_BYTES, TENSOR_HEADER_OFFSET

MAGIC: Final = 0x43525046
"""The bytes `FPRC`."""
VERSION: Final = 1
ALIGNMENT: Final = 64
"""Of records and payloads."""
BLOCK: Final = 4096
"""What direct writes are multiples of; a flush fills the last one with padding."""

PREFIX: Final = struct.Struct("<IIHHIQQQIIQQ")
MESSAGE_TAIL: Final = struct.Struct("<iIHH52x")
CHECKED_FROM: Final = 8
"""The header's checksum is over its bytes from here on."""

PREFIX_BYTES: Final = 64
MESSAGE_HEADER_BYTES: Final = 128
FRAME_HEADER_BYTES: Final = 512
SLOT_OFFSET: Final = 256
"""Of the slot header within a frame's header."""

NO_TIMESTAMP: Final = 2**64 - 1
NO_TRACE_ID: Final = 0


class Kind(IntEnum):
    """What a record is."""

    SEGMENT = 1
    """The first of a file: JSON that says which recording and machine it comes from."""
    FRAME = 2
    LOSS = 3
    """JSON: frames that are not here, and why."""
    MESSAGE = 4
    """A message of the control plane as it passed: metadata, QoS, trace links, events."""
    PADDING = 5
    """Nothing: fills a block before it is written."""


HEADER_BYTES: Final = {
    Kind.SEGMENT: PREFIX_BYTES,
    Kind.FRAME: FRAME_HEADER_BYTES,
    Kind.LOSS: PREFIX_BYTES,
    Kind.MESSAGE: MESSAGE_HEADER_BYTES,
    Kind.PADDING: PREFIX_BYTES,
}


class Codec(IntEnum):
    """How a payload is stored."""

    RAW = 0
    ZSTD = 1
    BLOSC2 = 2


FRAME_HEADER: Final = np.dtype(
    {
        "names": [
            *("magic", "header_crc", "version", "kind", "header_bytes", "segment_id", "record_bytes", "stored_bytes"),
            *("stored_crc", "number", "recorded_ns", "monotonic_ns"),
            *("stream_id", "codec", "epoch", "seq", "publish_timestamp_ns", "trace_id", "raw_bytes", "raw_crc"),
            *("pool_id", "timestamp_ns", "meta_version", "tensor", "slot"),
        ],
        "formats": [
            *("<u4", "<u4", "<u2", "<u2", "<u4", "<u8", "<u8", "<u8"),
            *("<u4", "<u4", "<u8", "<u8"),
            *("<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u8", "<u4"),
            *("<u2", "<u8", "<u4", "V192", "V256"),
        ],
        "offsets": [
            *(0, 4, 8, 10, 12, 16, 24, 32),
            *(40, 44, 48, 56),
            *(64, 68, 72, 80, 88, 96, 104, 112),
            *(SLOT_OFFSET + 16, SLOT_OFFSET + 22, SLOT_OFFSET + 30, SLOT_OFFSET + TENSOR_HEADER_OFFSET, SLOT_OFFSET),
        ],
        "itemsize": FRAME_HEADER_BYTES,
    }
)
"""The header of a frame. From `pool_id` on, fields of the slot header, and `slot` is all of it."""

assert SLOT_OFFSET + HEADER_SLOT_BYTES == FRAME_HEADER_BYTES
assert PREFIX.size == PREFIX_BYTES


class Prefix(NamedTuple):
    """The first 64 bytes of every record."""

    magic: int
    header_crc: int
    version: int
    kind: int
    header_bytes: int
    segment_id: int
    record_bytes: int
    stored_bytes: int
    stored_crc: int
    number: int
    """Of a frame: which one of its segment it is; of others: how many frames come before it."""
    recorded_ns: int
    monotonic_ns: int


class Record(NamedTuple):
    """A record that is where it says, with a header that is whole."""

    offset: int
    kind: Kind
    prefix: Prefix

    @property
    def payload_offset(self) -> int:
        return self.offset + self.prefix.header_bytes

    @property
    def end(self) -> int:
        return self.offset + self.prefix.record_bytes


def aligned(length: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple."""
    return -(-length // alignment) * alignment


def encode(
    kind: Kind,
    payload: bytes,
    *,
    segment_id: int,
    number: int,
    recorded_ns: int,
    monotonic_ns: int,
    tail: bytes = b"",
    record_bytes: int = 0,
) -> bytes:
    """A whole record of any kind but FRAME; `tail` is what its header has behind the prefix."""
    header_bytes = HEADER_BYTES[kind]
    record_bytes = record_bytes or aligned(header_bytes + len(payload))
    head = PREFIX.pack(
        *(MAGIC, 0, VERSION, kind, header_bytes, segment_id, record_bytes, len(payload), crc32c(payload), number),
        *(recorded_ns, monotonic_ns),
    )
    head = (head + tail).ljust(header_bytes, b"\0")
    head = head[:4] + crc32c(head[CHECKED_FROM:]).to_bytes(4, "little") + head[CHECKED_FROM:]
    return (head + payload).ljust(record_bytes, b"\0")


def encode_frame_header(payload: Buffer, slot: bytes, **fields: int) -> bytes:
    """The header of a frame with this payload, raw, and this slot header; `fields` are those of FRAME_HEADER."""
    length, crc = memoryview(payload).nbytes, crc32c(payload)
    header = np.zeros(1, FRAME_HEADER)
    values = {
        "magic": MAGIC,
        "version": VERSION,
        "kind": Kind.FRAME,
        "header_bytes": FRAME_HEADER_BYTES,
        "record_bytes": aligned(FRAME_HEADER_BYTES + length),
        "stored_bytes": length,
        "raw_bytes": length,
        "stored_crc": crc,
        "raw_crc": crc,
        **fields,
    }
    for name, value in values.items():
        header[name] = value
    header["slot"] = np.void(slot)
    raw = bytearray(header.tobytes())
    raw[4:8] = crc32c(raw[CHECKED_FROM:]).to_bytes(4, "little")
    return bytes(raw)


def read(buffer: memoryview, offset: int, segment_id: int | None = None) -> Record | None:
    """The record at an offset, if there is one, with a whole header, within the buffer; its payload is not looked at.

    None is the end of a segment that was not finished, or damage: who knows how much must be there can tell.
    """
    if offset + PREFIX_BYTES > len(buffer):
        return None
    prefix = Prefix._make(PREFIX.unpack_from(buffer, offset))
    if prefix.magic != MAGIC or prefix.version != VERSION:
        return None
    header_bytes = HEADER_BYTES.get(prefix.kind)  # type: ignore[call-overload]
    if header_bytes is None or prefix.header_bytes != header_bytes or prefix.record_bytes % ALIGNMENT:
        return None
    if prefix.record_bytes < header_bytes + prefix.stored_bytes or offset + prefix.record_bytes > len(buffer):
        return None
    if segment_id is not None and prefix.segment_id != segment_id:
        return None
    if crc32c(buffer[offset + CHECKED_FROM : offset + header_bytes]) != prefix.header_crc:
        return None
    return Record(offset, Kind(prefix.kind), prefix)


def walk(buffer: memoryview, segment_id: int | None = None, start: int = 0) -> Iterator[Record]:
    """Records one after the other, up to the first that is none."""
    while (record := read(buffer, start, segment_id)) is not None:
        yield record
        start = record.end


def find(buffer: memoryview, start: int, end: int, segment_id: int) -> int | None:
    """Where the next record begins at or behind `start`, where a header is damaged: for what can still be saved."""
    for offset in range(aligned(start), end, ALIGNMENT):
        if bytes(buffer[offset : offset + 4]) == b"FPRC" and read(buffer, offset, segment_id) is not None:
            return offset
    return None


def payload(buffer: memoryview, record: Record) -> memoryview:
    """The stored bytes of a record."""
    start = record.payload_offset
    return buffer[start : start + record.prefix.stored_bytes]


def is_whole(buffer: memoryview, record: Record) -> bool:
    """Whether the payload is what it was when it was written."""
    return crc32c(payload(buffer, record)) == record.prefix.stored_crc


def frame_headers(buffer: Buffer, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """The headers of the frames at these offsets, copied side by side."""
    raw = np.frombuffer(buffer, np.uint8)
    gathered: npt.NDArray[Any] = raw[offsets[:, np.newaxis] + np.arange(FRAME_HEADER_BYTES)]
    return gathered.view(FRAME_HEADER).reshape(len(offsets))
