"""What is in a segment, in memory: gathered while it is written, or read back from its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from framepool.errors import RecordingDamaged
from framepool.recorder import format as form
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.format import FRAME_HEADER, Codec, Kind, Record
from framepool.recorder.manifest import UNREADABLE, SegmentEntry, StreamSpan
from framepool.shm.drop import DropReason
from framepool.shm.ring import MAX_SEQUENCE
from framepool.shm.tensor import decode_tensor
from framepool.wire.constants import TENSOR_HEADER_OFFSET

NO_FRAMES: Final = np.empty(0, FRAME_HEADER)
NO_OFFSETS: Final = np.empty(0, np.int64)
CODECS: Final = frozenset(map(int, Codec))
TENSOR_WORD: Final = (form.SLOT_OFFSET + TENSOR_HEADER_OFFSET) // 8
LONGEST_PAYLOAD: Final = 2**32 - 1
"""values_len_bytes of a slot holds no more."""


class LossRow(msgspec.Struct, frozen=True):
    """A loss as it stands in a segment."""

    loss: Loss
    recorded_ns: int
    number: int
    """How many frames of the segment come before it."""


class MessageRow(msgspec.Struct, frozen=True):
    """Where a message stands in a segment."""

    aeron_stream_id: int
    stream_id: int
    """The tensor stream that it speaks of; 0 if it speaks of none."""
    schema_id: int
    template_id: int
    recorded_ns: int
    monotonic_ns: int
    number: int
    """How many frames of the segment come before it."""
    offset: int
    length: int


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the first record of a segment says."""

    recording_id: str
    number: int
    first_ordinal: int
    host: str
    boot_id: str


@dataclass(kw_only=True)
class Contents:
    """A segment with everything that its index says."""

    number: int
    file: str
    segment_id: int
    first_ordinal: int
    end_ordinal: int = 0
    bytes: int = 0
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: NO_OFFSETS)
    """Of the records of frames."""
    headers: npt.NDArray[np.void] = field(default_factory=lambda: NO_FRAMES)
    losses: list[LossRow] = field(default_factory=list)
    messages: list[MessageRow] = field(default_factory=list)
    state: dict[int, AccountState] = field(default_factory=dict)
    recovered: bool = False

    def entry(self, *, indexed: bool) -> SegmentEntry:
        """As the manifest has it."""
        recorded = self.headers["recorded_ns"]
        return SegmentEntry(
            number=self.number,
            file=self.file,
            segment_id=f"{self.segment_id:016x}",
            bytes=self.bytes,
            frames=len(self.headers),
            first_ordinal=self.first_ordinal,
            end_ordinal=self.end_ordinal,
            first_recorded_ns=int(recorded[0]) if len(recorded) else None,
            last_recorded_ns=int(recorded[-1]) if len(recorded) else None,
            streams=spans(self.headers),
            lost=lost_frames(row.loss for row in self.losses),
            losses=len(self.losses),
            messages=len(self.messages),
            indexed=indexed,
            recovered=self.recovered,
            state=self.state,
        )


def spans(headers: npt.NDArray[np.void]) -> dict[int, StreamSpan]:
    """The streams of these frames."""
    found = {}
    for stream_id in np.unique(headers["stream_id"]).tolist():
        mine = headers[headers["stream_id"] == stream_id]
        first, last = mine[0], mine[-1]
        found[stream_id] = StreamSpan(
            frames=len(mine),
            raw_bytes=int(mine["raw_bytes"].sum()),
            first_epoch=int(first["epoch"]),
            first_seq=int(first["seq"]),
            last_epoch=int(last["epoch"]),
            last_seq=int(last["seq"]),
            first_timestamp_ns=int(first["timestamp_ns"]),
            last_timestamp_ns=int(last["timestamp_ns"]),
        )
    return found


def lost_frames(losses: Any) -> dict[Reason, int]:
    """Frames by reason; those of rows without an end are not counted."""
    counted: Counter[Reason] = Counter()
    for loss in losses:
        counted[loss.reason] += loss.frames or 0
    return dict(counted)


def loss_row(buffer: memoryview, record: Record) -> LossRow | None:
    """The loss that a record tells of; None if what it says is none, whole as it is."""
    try:
        loss = msgspec.json.decode(form.payload(buffer, record), type=Loss)
    except UNREADABLE:
        return None
    last = loss.first_seq if loss.last_seq is None else loss.last_seq
    if not (0 <= loss.stream_id < 2**32 and 0 <= loss.epoch < 2**64 and 0 <= loss.first_seq <= last <= MAX_SEQUENCE):
        return None
    return LossRow(loss, record.prefix.recorded_ns, record.prefix.number)


def message_row(buffer: memoryview, record: Record) -> MessageRow:
    """Where the message of a record is, and what it is."""
    prefix = record.prefix
    aeron_stream_id, stream_id, schema_id, template_id = form.MESSAGE_TAIL.unpack_from(
        buffer, record.offset + form.PREFIX_BYTES
    )
    return MessageRow(
        *(aeron_stream_id, stream_id, schema_id, template_id, prefix.recorded_ns, prefix.monotonic_ns, prefix.number),
        *(record.payload_offset, prefix.stored_bytes),
    )


def head_of(buffer: memoryview) -> tuple[int, SegmentHead] | None:
    """The id of a segment and what its first record says; None if it has none."""
    first = form.read(buffer, 0)
    if first is None or first.kind is not Kind.SEGMENT or not form.is_whole(buffer, first):
        return None
    try:
        return first.prefix.segment_id, msgspec.json.decode(form.payload(buffer, first), type=SegmentHead)
    except UNREADABLE:
        return None


def is_sound(header: np.void) -> bool:
    """Whether the header of a frame says what a recorder could have written. Its checksum shows that it was written
    so, not that a recorder wrote it."""
    codec, stored, raw = int(header["codec"]), int(header["stored_bytes"]), int(header["raw_bytes"])
    if codec not in CODECS or raw > LONGEST_PAYLOAD or int(header["seq"]) > MAX_SEQUENCE:
        return False
    layout = decode_tensor(header["tensor"].tobytes(), raw)
    return not isinstance(layout, DropReason) and (stored == raw if codec == Codec.RAW else stored <= raw)


def are_sound(headers: npt.NDArray[np.void]) -> bool:
    """Whether all of them are; each layout is looked at once."""
    codecs, stored, raw = headers["codec"], headers["stored_bytes"], headers["raw_bytes"]
    fits = np.where(codecs == Codec.RAW, stored == raw, stored <= raw)
    known = np.isin(codecs, list(CODECS)) & (raw <= LONGEST_PAYLOAD) & (headers["seq"] <= MAX_SEQUENCE)
    if not (fits & known).all():
        return False
    if not len(headers):
        return True
    words = np.ascontiguousarray(headers).view(np.uint64).reshape(len(headers), -1)[:, TENSOR_WORD:]
    starts = np.flatnonzero(np.concatenate(([True], (words[1:] != words[:-1]).any(axis=1))))
    shortest: dict[bytes, int] = {}
    for start, length in zip(starts.tolist(), np.minimum.reduceat(raw, starts).tolist(), strict=True):
        tensor = words[start].tobytes()
        shortest[tensor] = min(length, shortest.get(tensor, LONGEST_PAYLOAD))
    return not any(isinstance(decode_tensor(each, length), DropReason) for each, length in shortest.items())


def scan(
    buffer: memoryview, segment_id: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void], list[LossRow], list[MessageRow]]:
    """All there is in a segment, from the headers of its records: payloads of frames are not looked at. Raises
    `RecordingDamaged` for what no recorder writes."""
    offsets: list[int] = []
    losses: list[LossRow] = []
    messages: list[MessageRow] = []
    for record in form.walk(buffer, segment_id):
        match record.kind:
            case Kind.FRAME:
                offsets.append(record.offset)
            case Kind.LOSS if form.is_whole(buffer, record):
                if (loss := loss_row(buffer, record)) is None:
                    raise RecordingDamaged(f"the record at byte {record.offset} of segment {segment_id:x} is no loss")
                losses.append(loss)
            case Kind.MESSAGE:
                messages.append(message_row(buffer, record))
    places = np.array(offsets, np.int64)
    headers = form.frame_headers(buffer, places) if offsets else NO_FRAMES
    if not are_sound(headers):
        raise RecordingDamaged(f"segment {segment_id:x} has a frame with a header that no recorder writes")
    return places, headers, losses, messages
