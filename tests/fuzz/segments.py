"""A segment as a hostile or broken writer leaves it: read, verified and recovered.

Checksums would stop a fuzzer at the door, so an input says what the records are, and they get checksums that are right
unless it asks for wrong ones.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from framepool._native.crc32c import crc32c
from framepool.errors import RecordingError
from framepool.recorder import format as form
from framepool.recorder.contents import SegmentHead, head_of, scan
from framepool.recorder.format import FRAME_HEADER_BYTES, Kind
from framepool.recorder.manifest import Activity, Manifest, OpenEntry, RecordingInfo, Watermark
from framepool.recorder.recording import Recording
from framepool.recorder.recovery import take_over
from framepool.recorder.verify import verify
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import SlotHeader
from tests.fuzz.draw import Draw, pieced
from tests.fuzz.places import scratch
from tests.golden.vectors import ALL

SEGMENT_ID: Final = 7
HEAD: Final = SegmentHead(recording_id="00" * 16, number=0, first_ordinal=0, host="here", boot_id="now")
MOST_RECORDS: Final = 24
MOST_BYTES: Final = 2**20


def one(data: bytes) -> None:
    draw = Draw(data)
    how, claimed = draw.number(), draw.number(2)
    segment = draw.rest() if how & 1 else _written(draw)
    buffer = memoryview(segment)
    head_of(buffer)
    with suppress(RecordingError):
        scan(buffer, SEGMENT_ID)
    path = scratch() / "recording"
    shutil.rmtree(path, ignore_errors=True)
    durable = len(segment) if how & 2 else min(claimed, len(segment))
    _lay_out(path, segment, durable, sealed=bool(how & 4))
    (read_all, _verify, _recover, read_all)[how >> 3 & 3](path)


def _verify(path: Path) -> None:
    with suppress(RecordingError):
        verify(str(path))


def _recover(path: Path) -> None:
    """What was recovered can be read and has nothing wrong with it that recovery should have seen."""
    manifest = Manifest(path)
    with suppress(RecordingError):
        try:
            take_over(manifest)
        finally:
            manifest.unlock()
        read_all(path)
        verify(str(path))


def read_all(path: Path) -> None:
    """Everything that readers do with a recording; `RecordingError` says what cannot be read."""
    with suppress(RecordingError):
        recording = Recording(path)
        with suppress(RecordingError):
            repr(recording)
        with suppress(RecordingError):
            list(recording.losses())
        with suppress(RecordingError):
            for row in recording.messages():
                repr(row)
        for at in range(min(len(recording), 32)):
            with suppress(RecordingError):
                frame = recording[at]
                repr(frame)
                frame.reference
                frame.slot_header
                frame.metadata
                frame.check()
                assert frame.copy().nbytes <= frame.layout.nbytes
        for segment in recording.segments:
            with suppress(RecordingError):
                segment.table()


def _written(draw: Draw) -> bytes:
    """Records one after the other."""
    written = bytearray()
    number = 0
    for _ in range(MOST_RECORDS):
        if not draw or len(written) > MOST_BYTES:
            break
        kind = draw.chosen((Kind.FRAME, Kind.SEGMENT, Kind.LOSS, Kind.MESSAGE, Kind.PADDING))
        how = draw.number()
        tail, payload = draw.piece(), draw.piece()
        if kind is Kind.FRAME:
            record = _frame(tail, payload, number)
            number += 1
        else:
            record = form.encode(
                kind, payload, segment_id=SEGMENT_ID, number=number, recorded_ns=1, monotonic_ns=2,
                tail=tail[: form.HEADER_BYTES[kind] - form.PREFIX_BYTES],
            )  # fmt: skip
        if how & 1:  # the prefix says something else, with a checksum that is right
            record = _altered(record, form.HEADER_BYTES[kind], draw.number(), draw.bytes(8))
        if how & 2:
            record = record[:-64] if len(record) > 64 else b""
        if how & 4:
            record = bytes([record[0] ^ 1]) + record[1:] if record else b""
        written += record
    return bytes(written)


def _frame(tail: bytes, payload: bytes, number: int) -> bytes:
    """A frame of these bytes; `tail` overwrites fields of its header from the stream id on."""
    layout = TensorLayout.build(np.uint8, (len(payload),))
    slot = SlotHeader(
        seq_commit=number << 1 | 1,
        values_len_bytes=len(payload),
        payload_slot=0,
        pool_id=1,
        payload_offset=0,
        timestamp_ns=0,
        meta_version=0,
        header_bytes=layout.header,
    ).encode_body()
    header = form.encode_frame_header(
        payload, slot, segment_id=SEGMENT_ID, number=number, recorded_ns=1, monotonic_ns=2, stream_id=10_000, epoch=3,
        seq=number,
    )  # fmt: skip
    changed = header[:64] + tail[: FRAME_HEADER_BYTES - 64] + header[64 + len(tail) :]
    return _summed(changed, FRAME_HEADER_BYTES) + payload + bytes(-(FRAME_HEADER_BYTES + len(payload)) % 64)


def _altered(record: bytes, header_bytes: int, at: int, change: bytes) -> bytes:
    at = 8 + at % 56
    return _summed(record[:at] + change + record[at + len(change) :], header_bytes)


def _summed(record: bytes, header_bytes: int) -> bytes:
    """With the checksum of the header that it has now."""
    return record[:4] + struct.pack("<I", crc32c(record[8:header_bytes])) + record[8:]


def _lay_out(path: Path, segment: bytes, durable: int, *, sealed: bool) -> None:
    """A recording with this segment alone: open as far as the watermark says, or with an entry that says as much."""
    for directory in (path, path / "segments", path / "manifest"):
        directory.mkdir()
    (path / "segments" / "00000000.seg").write_bytes(segment)
    info = RecordingInfo(recording_id=HEAD.recording_id, created_ns=0, host="here", boot_id="now")
    (path / "recording.json").write_bytes(msgspec.json.encode(info))
    frames = len(segment) // 576
    names = {
        "number": 0, "file": "00000000.seg", "segment_id": f"{SEGMENT_ID:x}", "bytes": durable, "first_ordinal": 0,
        "end_ordinal": frames,
    }  # fmt: skip
    if sealed:
        rest = {
            "frames": frames, "first_recorded_ns": 1, "last_recorded_ns": 1, "streams": {}, "lost": {}, "losses": 0,
            "messages": 0, "indexed": False, "recovered": False, "state": {},
        }  # fmt: skip
        (path / "manifest" / "00000000.json").write_bytes(msgspec.json.encode({**names, **rest}))
        return
    watermark = Watermark(
        ordinal=0, recorded_ns=0, activity=Activity.STOPPED, open=(msgspec.convert(names, OpenEntry),), pid=1,
        boot_id="now", frames=0, lost={},
    )  # fmt: skip
    (path / "watermark.json").write_bytes(msgspec.json.encode(watermark))


def seeds() -> Iterator[bytes]:
    head = bytes([1, 0]) + pieced(b"", msgspec.json.encode(HEAD))
    frame = bytes([0, 0]) + pieced(b"", b"payload of a frame")
    empty = bytes([0, 0]) + pieced(b"", b"")
    loss = b'{"stream_id":10000,"epoch":3,"first_seq":1,"last_seq":4,"reason":"overwritten","detail":""}'
    lost = bytes([2, 0]) + pieced(b"", loss)
    said = [
        bytes([3, 0]) + pieced(struct.pack("<iIHH", 1300, 10_000, *vector.message.HEADER[2:0:-1]), vector.encoded)
        for vector in ALL
        if vector.with_header
    ]
    padding = bytes([4, 0]) + pieced(b"", b"")
    for how in range(0, 24, 2):
        begin = bytes([how, 0, 4])
        yield begin + head + frame + lost + frame + padding
        yield begin + head + frame + said[0] + empty
        yield begin + head + bytes([0, 1]) + pieced(b"", b"abc") + bytes([3, 9, 9]) + frame
        yield begin + head + bytes([0, 2]) + pieced(b"", b"x" * 200) + frame
        yield begin + head + bytes([0, 0]) + pieced(struct.pack("<II", 1, 1), b"zstd?")  # a codec
        yield begin + frame
    for message in said[::5]:
        yield bytes([2, 0, 4]) + head + message
    yield bytes([1, 0, 4]) + form.encode(
        Kind.SEGMENT, msgspec.json.encode(HEAD), segment_id=SEGMENT_ID, number=0, recorded_ns=1, monotonic_ns=2
    )
