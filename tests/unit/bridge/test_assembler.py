"""Every rule of the receiver's end, in the readable assembler and in the compiled one (Bridge 5.2, 5.3a, 6, 8).

`Twins` feeds both and sees that they agree on each step: causes, counts, frames.
"""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from framepool._native.bridge import Assembler
from framepool._native.seqlock import CheckedSlot, RingReader
from framepool.bridge.assembler import GIVEN_UP_KEPT
from framepool.bridge.chunks import Chunk, ChunkDrop, ChunkSizing
from framepool.errors import FramepoolError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.bridge_902 import Bool, BridgeFrameChunk
from framepool.wire._generated.control_900 import SlotHeader
from tests.support.chunked import EPOCH, SIZING, STREAM, STRIDES, SentFrame, Slots, Twins, noise, put
from tests.support.slots import FIELDS

FRAME = SentFrame(5, noise(5, 200), trace_id=9, timestamp_ns=11, meta_version=3)


@pytest.fixture
def twins() -> Twins:
    return Twins().ready()


def changed(chunk: Chunk, **values: Any) -> Chunk:
    """The chunk with other fields, encoded anew."""
    message = BridgeFrameChunk.decode(chunk.message)
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return chunk._replace(message=BridgeFrameChunk(**{**fields, **values}).encode())


def with_header(frame: SentFrame, name: str, value: int | tuple[int, ...] | bytes) -> list[Chunk]:
    """Its chunks, with another value in a field of the slot header."""
    start, field = FIELDS[name]
    header = bytearray(frame.header)
    size = field.size
    raw = (
        value
        if isinstance(value, bytes)
        else b"".join(
            part.to_bytes(size // (len(value) if isinstance(value, tuple) else 1), "little", signed=part < 0)
            for part in (value if isinstance(value, tuple) else (value,))
        )
    )
    header[start + field.offset : start + field.offset + size] = raw
    first, *rest = frame.chunks()
    return [changed(first, header_bytes=bytes(header)), *rest]


@pytest.mark.clause("B-2.2-01", "B-6-12")
def test_frame_arrives_as_it_was_sent(twins: Twins) -> None:
    assert twins.send(*FRAME.chunks()) == [None] * 4
    (arrived,) = twins.arrived
    assert arrived.payload == FRAME.payload
    assert (arrived.seq, arrived.timestamp_ns, arrived.meta_version, arrived.trace_id) == (5, 11, 3, 9)
    assert arrived.tensor_header == FRAME.header[64:]


@pytest.mark.clause("B-6-12", "B-6-13", "B-6-14", "B-6-16")
def test_local_slot_has_its_own_place_and_the_source_header(twins: Twins) -> None:
    twins.send(*SentFrame(70, noise(1, 200), payload_slot=999_999).chunks())
    assert twins.slots is not None
    words = SlotHeader.BLOCK.unpack_from(twins.slots.slot(70))
    assert words[:4] == (70 << 1 | 1, 200, 70 % 64, 5)
    reader = RingReader(twins.slots.header, 64, list(twins.slots.pools.values()))
    checked = reader.check(70)
    assert isinstance(checked, CheckedSlot)
    assert bytes(reader.array(checked)) == noise(1, 200)


@pytest.mark.clause("B-6-11")
@pytest.mark.parametrize(("length", "pool_id"), [(64, 5), (65, 8), (200, 8), (0, 5)])
def test_smallest_local_pool_that_holds_the_payload_is_used(length: int, pool_id: int) -> None:
    twins = Twins(local={5: 64, 8: 256, 7: 1024}).ready()
    twins.send(*SentFrame(1, noise(1, length)).chunks())
    assert twins.slots is not None
    assert SlotHeader.BLOCK.unpack_from(twins.slots.slot(1))[3] == pool_id


@pytest.mark.clause("B-5.2-20")
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 2, 3, 0), (2, 0, 3, 1)])
def test_chunks_in_any_order_make_the_frame(twins: Twins, order: tuple[int, ...]) -> None:
    chunks = FRAME.chunks()
    twins.send(*[chunks[index] for index in order])
    assert [frame.payload for frame in twins.arrived] == [FRAME.payload]


@pytest.mark.clause("B-5.2-20")
def test_slices_need_not_be_numbered_in_their_order(twins: Twins) -> None:
    first, second, third, last = FRAME.chunks()
    twins.send(first, changed(third, chunk_index=1), changed(second, chunk_index=2), last)
    assert [frame.payload for frame in twins.arrived] == [FRAME.payload]


def test_several_frames_are_assembled_at_once(twins: Twins) -> None:
    frames = [SentFrame(seq, noise(seq, 200)) for seq in (1, 2, 3)]
    for chunks in zip(*[frame.chunks() for frame in frames], strict=True):
        twins.send(*chunks)
    assert [(frame.seq, frame.payload) for frame in twins.arrived] == [(frame.seq, frame.payload) for frame in frames]


def test_frame_that_began_after_a_newer_one_is_published_if_it_is_whole_first(twins: Twins) -> None:
    newer, older = SentFrame(6, noise(6, 200)).chunks(), SentFrame(5, noise(5, 200)).chunks()
    twins.send(newer[0], *older, *newer[1:])
    assert twins.seqs == [5, 6]


@pytest.mark.clause("B-6-15")
def test_frames_are_published_in_rising_sequence(twins: Twins) -> None:
    older, newer = SentFrame(5, noise(5, 200)).chunks(), SentFrame(6, noise(6, 100)).chunks()
    twins.send(*older[:-1], *newer)
    assert twins.seqs == [6]
    assert twins.count(ChunkDrop.OVERTAKEN) == 1
    assert twins.send(older[-1]) == [ChunkDrop.BEHIND]
    assert twins.send(*SentFrame(4, b"late").chunks()) == [ChunkDrop.BEHIND]
    assert twins.seqs == [6]


@pytest.mark.clause("B-5.2-23")
def test_identical_duplicates_are_ignored(twins: Twins) -> None:
    chunks = FRAME.chunks()
    twins.send(chunks[0], chunks[0], chunks[1], chunks[2], chunks[1], chunks[3])
    assert [frame.payload for frame in twins.arrived] == [FRAME.payload]
    assert twins.core.duplicates == 2
    assert twins.send(chunks[3]) == [ChunkDrop.BEHIND]


@pytest.mark.clause("B-5.2-24")
@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"payload_bytes": b"y" * 64}, id="other bytes"),
        pytest.param({"chunk_length": 63, "payload_bytes": FRAME.payload[64:127]}, id="shorter"),
        pytest.param({"chunk_offset": 65, "payload_bytes": FRAME.payload[65:129]}, id="elsewhere"),
    ],
)
def test_conflicting_duplicate_costs_the_frame(twins: Twins, other: dict[str, Any]) -> None:
    chunks = FRAME.chunks()
    causes = twins.send(chunks[0], chunks[1], changed(chunks[1], **other), chunks[1], chunks[2], chunks[3])
    assert causes == [None, None, ChunkDrop.CONFLICT, ChunkDrop.GIVEN_UP, ChunkDrop.GIVEN_UP, ChunkDrop.GIVEN_UP]
    assert twins.arrived == []
    assert twins.core.in_flight == 0


@pytest.mark.clause("B-5.2-24")
def test_other_header_in_a_duplicate_costs_the_frame(twins: Twins) -> None:
    first, *rest = FRAME.chunks()
    assert twins.send(first, with_header(FRAME, "timestampNs", 12)[0])[1] is ChunkDrop.CONFLICT
    twins.send(*rest)
    assert twins.arrived == []


@pytest.mark.clause("B-5.2-24", "B-5.2-10", "B-3-04")
@pytest.mark.parametrize(
    ("slices", "cause"),
    [
        ([(0, 64), (64, 64), (128, 64), (128, 64)], ChunkDrop.OVERLAP),
        ([(0, 64), (64, 64), (127, 9), (137, 63)], ChunkDrop.OVERLAP),
        ([(0, 64), (64, 64), (128, 8), (137, 63)], ChunkDrop.COVERAGE),
        ([(0, 64), (64, 64), (128, 64), (192, 7)], ChunkDrop.COVERAGE),
        ([(0, 64), (0, 64), (128, 64), (192, 8)], ChunkDrop.OVERLAP),
        ([(0, 64), (64, 64), (128, 64), (192, 8)], None),
        ([(0, 64), (128, 64), (64, 64), (192, 8)], None),
        ([(0, 64), (64, 64), (192, 8), (128, 64)], None),
    ],
)
def test_slices_must_tile_the_payload(twins: Twins, slices: list[tuple[int, int]], cause: ChunkDrop | None) -> None:
    chunks = [
        changed(chunk, chunk_offset=offset, chunk_length=length, payload_bytes=FRAME.payload[offset : offset + length])
        for chunk, (offset, length) in zip(FRAME.chunks(), slices, strict=True)
    ]
    assert twins.send(*chunks)[-1] == cause
    assert twins.seqs == ([] if cause else [5])


@pytest.mark.clause("B-3-04", "B-5.2-22")
@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_frame_with_a_chunk_missing_is_never_published(twins: Twins, missing: int) -> None:
    twins.send(*[chunk for index, chunk in enumerate(FRAME.chunks()) if index != missing])
    assert twins.arrived == []
    assert twins.slots is not None
    assert twins.slots.slot(5)[0] & 1 == 0
    twins.expire(1001)
    assert twins.count(ChunkDrop.TIMEOUT) == 1


def lengths(header: int, payload: int) -> Callable[[Chunk], Chunk]:
    """The chunk with so much of header and payload bytes, and the flag as it was."""

    def change(chunk: Chunk) -> Chunk:
        return changed(chunk, header_bytes=bytes(header), payload_bytes=bytes(payload))

    return change


@pytest.mark.parametrize(
    ("index", "change", "cause"),
    [
        pytest.param(
            1, lambda chunk: changed(chunk, chunk_count=0), ChunkDrop.CHUNK_COUNT, marks=pytest.mark.clause("B-5.2-02")
        ),
        pytest.param(
            1,
            lambda chunk: chunk._replace(message=put(chunk.message, "chunkCount", 65_536)),
            ChunkDrop.MALFORMED,
            marks=pytest.mark.clause("B-5.2-02"),
        ),
        pytest.param(
            1, lambda chunk: changed(chunk, chunk_index=4), ChunkDrop.CHUNK_INDEX, marks=pytest.mark.clause("B-5.2-03")
        ),
        pytest.param(0, lengths(255, 64), ChunkDrop.HEADER_BYTES, marks=pytest.mark.clause("B-5.2-16")),
        pytest.param(0, lengths(0, 64), ChunkDrop.HEADER_BYTES, marks=pytest.mark.clause("B-5.2-16")),
        pytest.param(1, lengths(256, 64), ChunkDrop.HEADER_BYTES, marks=pytest.mark.clause("B-5.2-17")),
        pytest.param(1, lengths(1, 64), ChunkDrop.HEADER_BYTES, marks=pytest.mark.clause("B-5.2-17")),
        pytest.param(1, lengths(0, 63), ChunkDrop.PAYLOAD_BYTES, marks=pytest.mark.clause("B-5.2-19")),
        pytest.param(1, lengths(0, 65), ChunkDrop.PAYLOAD_BYTES, marks=pytest.mark.clause("B-5.2-19")),
        pytest.param(
            1,
            lambda chunk: changed(chunk, stream_id=STREAM + 1),
            ChunkDrop.OTHER_STREAM,
            marks=pytest.mark.clause("B-6-01"),
        ),
        pytest.param(1, lambda chunk: changed(chunk, seq=2**63), ChunkDrop.SEQUENCE),
        pytest.param(1, lambda chunk: changed(chunk, epoch=EPOCH - 1), ChunkDrop.OLD_EPOCH),
    ],
)
def test_broken_chunk_is_dropped_and_a_sound_one_still_makes_the_frame(
    twins: Twins, index: int, change: Callable[[Chunk], Chunk], cause: ChunkDrop
) -> None:
    chunks = FRAME.chunks()
    assert twins.send(change(chunks[index])) == [cause]
    assert twins.core.in_flight == 0
    twins.send(*chunks[:index], change(chunks[index]), *chunks[index + 1 :])
    assert twins.arrived == []
    twins.send(chunks[index])
    assert [frame.payload for frame in twins.arrived] == [FRAME.payload]
    assert twins.count(cause) == 2


@pytest.mark.clause("B-5.2-25", "B-10-06")
def test_chunk_longer_than_this_end_is_configured_for_is_dropped() -> None:
    twins = Twins(sizing=ChunkSizing(mtu_bytes=512, chunk_bytes=63)).ready()
    assert twins.send(*SentFrame(1, bytes(63)).chunks()) == [None]
    assert twins.send(*SentFrame(2, bytes(64)).chunks()) == [ChunkDrop.CHUNK_BYTES]
    assert twins.seqs == [1]


@pytest.mark.parametrize(
    ("index", "change", "cause"),
    [
        pytest.param(
            0,
            {"header_included": Bool.FALSE, "header_bytes": b""},
            ChunkDrop.HEADER_PLACE,
            marks=pytest.mark.clause("B-5.2-07"),
        ),
        pytest.param(
            1,
            {"header_included": Bool.TRUE, "header_bytes": FRAME.header},
            ChunkDrop.HEADER_PLACE,
            marks=pytest.mark.clause("B-5.2-07"),
        ),
        pytest.param(0, {"chunk_offset": 1}, ChunkDrop.FIRST_OFFSET, marks=pytest.mark.clause("B-5.2-07")),
        pytest.param(3, {"chunk_offset": 193}, ChunkDrop.SLICE, marks=pytest.mark.clause("B-5.2-10")),
        pytest.param(1, {"chunk_offset": 2**32 - 1}, ChunkDrop.SLICE),
        pytest.param(3, {"chunk_count": 5}, ChunkDrop.INCONSISTENT, marks=pytest.mark.clause("B-6-01")),
        pytest.param(3, {"payload_length": 201}, ChunkDrop.INCONSISTENT, marks=pytest.mark.clause("B-6-01")),
    ],
)
def test_inconsistent_chunk_costs_the_frame(twins: Twins, index: int, change: dict[str, Any], cause: ChunkDrop) -> None:
    chunks = FRAME.chunks()
    others = [chunk for number, chunk in enumerate(chunks) if number != index]
    twins.send(*others)
    assert twins.send(changed(chunks[index], **change)) == [cause]
    assert twins.send(*chunks) == [ChunkDrop.GIVEN_UP] * 4
    assert twins.arrived == []
    assert twins.core.in_flight == 0
    assert twins.core.dropped(5)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        pytest.param("ndims", 0, DropReason.NDIMS, marks=pytest.mark.clause("B-6-05")),
        pytest.param("ndims", 9, DropReason.NDIMS, marks=pytest.mark.clause("B-6-05")),
        pytest.param("dtype", 12, DropReason.DTYPE, marks=pytest.mark.clause("B-6-05")),
        pytest.param("dtype", 99, DropReason.DTYPE, marks=pytest.mark.clause("B-6-05")),
        pytest.param("dims", (-1, 0, 0, 0, 0, 0, 0, 0), DropReason.NEGATIVE_DIM, marks=pytest.mark.clause("B-6-05")),
        pytest.param("dims", (201, 0, 0, 0, 0, 0, 0, 0), DropReason.EXTENT, marks=pytest.mark.clause("B-6-05")),
        pytest.param("headerLength", 191, DropReason.HEADER_LENGTH, marks=pytest.mark.clause("B-6-06")),
        pytest.param("templateId", 51, DropReason.HEADER_TEMPLATE, marks=pytest.mark.clause("B-6-07")),
        pytest.param("schemaId", 901, DropReason.HEADER_SCHEMA, marks=pytest.mark.clause("B-6-07")),
        pytest.param("version", 2, DropReason.HEADER_VERSION, marks=pytest.mark.clause("B-6-07")),
        pytest.param("blockLength", 185, DropReason.HEADER_BLOCK_LENGTH, marks=pytest.mark.clause("B-6-07")),
        pytest.param("payloadOffset", 8, DropReason.PAYLOAD_OFFSET, marks=pytest.mark.clause("B-6-08")),
        pytest.param("poolId", 3, DropReason.UNKNOWN_POOL, marks=pytest.mark.clause("B-6-09")),
    ],
)
def test_header_that_breaks_a_rule_of_the_wire_costs_the_frame(
    twins: Twins, name: str, value: int | tuple[int, ...], reason: DropReason
) -> None:
    chunks = with_header(FRAME, name, value)
    assert twins.send(chunks[0])[-1] is ChunkDrop.HEADER
    assert twins.send(*chunks[1:]) == [ChunkDrop.GIVEN_UP] * 3
    assert twins.arrived == []
    assert twins.core.invalid() == {reason: 1}


@pytest.mark.clause("B-6-06")
def test_garbage_in_place_of_a_header_costs_the_frame(twins: Twins) -> None:
    first, *rest = FRAME.chunks()
    garbage = FRAME.header[:12] + b"\xa5" * 244
    twins.send(*rest, changed(first, header_bytes=garbage))
    assert twins.arrived == []


@pytest.mark.clause("B-6-04")
@pytest.mark.parametrize("length", [199, 201])
def test_header_of_another_length_than_the_payload_costs_the_frame(twins: Twins, length: int) -> None:
    assert twins.send(*with_header(FRAME, "valuesLenBytes", length))[0] is ChunkDrop.VALUES_LEN
    assert twins.arrived == []


@pytest.mark.clause("B-6-16")
def test_header_of_another_frame_costs_the_frame(twins: Twins) -> None:
    assert twins.send(*with_header(FRAME, "seqCommit", 6 << 1 | 1))[0] is ChunkDrop.SEQ_COMMIT
    assert twins.arrived == []


def test_commit_bit_of_the_source_does_not_matter(twins: Twins) -> None:
    twins.send(*with_header(FRAME, "seqCommit", 5 << 1))
    assert twins.seqs == [5]


@pytest.mark.clause("B-6-09")
def test_pool_of_an_empty_frame_is_looked_at_too(twins: Twins) -> None:
    assert twins.send(*SentFrame(1, b"", pool_id=9).chunks()) == [ChunkDrop.HEADER]
    assert twins.send(*SentFrame(2, b"").chunks()) == [None]
    assert twins.seqs == [2]


@pytest.mark.clause("B-6-10")
def test_payload_beyond_the_stride_of_its_source_pool_costs_the_frame(twins: Twins) -> None:
    frame = SentFrame(5, bytes(257), pool_id=1)
    assert ChunkDrop.HEADER in twins.send(*frame.chunks())
    assert twins.core.invalid() == {DropReason.VALUES_LENGTH: 1}
    assert twins.arrived == []


@pytest.mark.clause("B-6-10", "B-7.2-02")
def test_payload_beyond_every_stride_of_the_source_costs_the_frame(twins: Twins) -> None:
    twins.announce(EPOCH, {1: 64})
    assert twins.send(*SentFrame(5, bytes(65)).chunks()) == [ChunkDrop.SOURCE_STRIDE, ChunkDrop.GIVEN_UP]
    twins.announce(EPOCH, {1: 128})
    twins.send(*SentFrame(6, bytes(65)).chunks())
    assert twins.seqs == [6]


@pytest.mark.clause("B-5.2-11")
def test_payload_that_no_local_pool_holds_costs_the_frame() -> None:
    twins = Twins(local={5: 64, 6: 128}).ready()
    assert twins.send(*SentFrame(1, bytes(129)).chunks())[0] is ChunkDrop.NO_POOL_FITS
    twins.send(*SentFrame(2, bytes(128)).chunks())
    assert twins.seqs == [2]
    assert twins.slots is not None
    assert twins.slots.slot(1) == bytes(256)


@pytest.mark.clause("B-10-07")
def test_payload_beyond_the_configured_limit_costs_the_frame() -> None:
    twins = Twins(sizing=ChunkSizing(mtu_bytes=512, chunk_bytes=64, max_payload_bytes=100)).ready()
    twins.send(*SentFrame(1, bytes(101)).chunks(), *SentFrame(2, bytes(100)).chunks())
    assert twins.seqs == [2]
    assert twins.count(ChunkDrop.PAYLOAD_LENGTH) == 1


@pytest.mark.clause("B-5.2-12", "B-6-03")
def test_nothing_is_accepted_before_an_announce() -> None:
    twins = Twins()
    twins.retarget()
    assert twins.send(*FRAME.chunks()) == [ChunkDrop.NOT_ANNOUNCED] * 4
    assert twins.slots is not None
    before = twins.slots.header.tobytes()
    twins.announce()
    twins.retarget()
    assert twins.arrived == []
    assert before == bytes(len(before))
    twins.send(*FRAME.chunks())
    assert twins.seqs == [5]


@pytest.mark.clause("B-6-02", "B-6-03")
def test_only_the_announced_epoch_is_accepted(twins: Twins) -> None:
    slots = twins.slots
    assert slots is not None
    twins.send(*SentFrame(1, b"old", epoch=EPOCH - 1).chunks())
    assert slots.header.tobytes() == bytes(slots.header.nbytes)
    twins.send(*SentFrame(2, b"now").chunks())
    written = slots.header.tobytes()
    twins.send(*SentFrame(3, b"new", epoch=EPOCH + 1).chunks())
    assert slots.header.tobytes() == written
    assert twins.seqs == [2]
    assert twins.count(ChunkDrop.OLD_EPOCH) == twins.count(ChunkDrop.NEW_EPOCH) == 1


@pytest.mark.clause("B-8-02", "B-8-03")
def test_chunk_of_a_higher_epoch_ends_the_lower_one(twins: Twins) -> None:
    chunks = FRAME.chunks()
    twins.send(*chunks[:2])
    assert twins.send(*SentFrame(0, b"", epoch=EPOCH + 1).chunks()) == [ChunkDrop.NEW_EPOCH]
    assert twins.count(ChunkDrop.EPOCH_CHANGE) == 1
    assert twins.core.in_flight == 0
    assert twins.send(*chunks) == [ChunkDrop.OLD_EPOCH] * 4
    assert not twins.announce(EPOCH), "that epoch is over"
    assert twins.core.old_announces == 1
    assert twins.announce(EPOCH + 1)
    twins.retarget()
    twins.send(*SentFrame(0, b"", epoch=EPOCH + 1).chunks())
    assert twins.seqs == [0]


@pytest.mark.clause("B-8-02", "B-8-03", "B-7.2-02")
def test_announce_of_a_higher_epoch_gives_up_what_is_on_its_way_and_begins_anew(twins: Twins) -> None:
    twins.send(*SentFrame(9, b"").chunks(), *SentFrame(12, bytes(200)).chunks()[:2])
    assert twins.announce(EPOCH + 1)
    assert twins.core.target is None
    assert twins.core.in_flight == 0
    assert twins.send(*SentFrame(0, b"", epoch=EPOCH + 1).chunks()) == [ChunkDrop.NO_TARGET]
    twins.retarget()
    assert twins.send(*SentFrame(12, bytes(200)).chunks()[2:]) == [ChunkDrop.OLD_EPOCH] * 2
    twins.send(*SentFrame(0, b"", epoch=EPOCH + 1).chunks())
    assert twins.seqs == [9, 0]
    assert not twins.announce(EPOCH)
    assert twins.core.epoch == EPOCH + 1


def test_same_epoch_announced_again_changes_nothing(twins: Twins) -> None:
    chunks = FRAME.chunks()
    twins.send(*chunks[:2])
    assert not twins.announce()
    twins.send(*chunks[2:])
    assert twins.seqs == [5]


def test_lower_epoch_is_believed_once_the_higher_one_was_silent(twins: Twins) -> None:
    twins.send(*SentFrame(9, b"").chunks(), now_ns=1000)
    assert not twins.announce(1, now_ns=4000)
    assert twins.send(*SentFrame(0, b"", epoch=1).chunks(), now_ns=4001) == [ChunkDrop.OLD_EPOCH]
    assert twins.announce(1, now_ns=4001)
    twins.retarget()
    twins.send(*SentFrame(0, b"", epoch=1).chunks(), now_ns=4002)
    assert twins.seqs == [9, 0]


def test_epoch_of_a_stray_chunk_does_not_end_a_stream_for_good(twins: Twins) -> None:
    twins.send(*SentFrame(9, b"").chunks(), *SentFrame(0, b"", epoch=2**64 - 1).chunks(), now_ns=1000)
    assert twins.send(*SentFrame(10, b"").chunks(), now_ns=1001) == [ChunkDrop.OLD_EPOCH]
    assert not twins.announce(now_ns=2000)
    assert twins.announce(now_ns=4001)
    twins.retarget()
    twins.send(*SentFrame(11, b"").chunks(), now_ns=4002)
    assert twins.seqs == [9, 11]


def test_change_of_target_gives_up_what_is_on_its_way(twins: Twins) -> None:
    chunks = FRAME.chunks()
    twins.send(*SentFrame(3, b"").chunks(), *chunks[:2])
    twins.retarget()
    assert twins.count(ChunkDrop.TARGET_CHANGE) == 1
    twins.send(*chunks, *SentFrame(2, b"").chunks(), *SentFrame(6, b"").chunks())
    assert twins.seqs == [3, 6], "in one source epoch sequences go on rising, whatever becomes of the local one"


@pytest.mark.clause("B-5.3a-01")
def test_frame_that_takes_too_long_is_never_published(twins: Twins) -> None:
    chunks = FRAME.chunks()
    twins.send(*chunks[:2], now_ns=100)
    twins.expire(1100)
    assert twins.core.in_flight == 1
    twins.expire(1101)
    assert twins.core.in_flight == 0
    twins.send(*chunks[2:], *chunks[:2], now_ns=1102)
    assert twins.arrived == []
    assert twins.core.dropped(5)


@pytest.mark.clause("B-5.3a-03")
def test_timeout_leaves_nothing_of_many_unfinished_frames() -> None:
    twins = Twins(max_frames=64).ready()
    for seq in range(64):
        twins.send(changed(FRAME.chunks()[1], seq=seq, chunk_count=65_535))
    assert twins.core.in_flight == 64
    assert twins.core.state_bytes == 64 * 65_535 * 8
    twins.expire(1001)
    assert twins.core.in_flight == 0
    assert twins.core.state_bytes == 0
    assert twins.count(ChunkDrop.TIMEOUT) == 64
    twins.send(*SentFrame(64, noise(64, 200)).chunks())
    assert twins.seqs == [64]


def test_newer_frame_takes_the_room_of_the_oldest() -> None:
    twins = Twins(max_frames=2).ready()
    frames = [SentFrame(seq, noise(seq, 200)).chunks() for seq in range(4)]
    twins.send(frames[1][0], frames[2][0])
    assert twins.send(frames[0][0]) == [ChunkDrop.CROWDED]
    twins.send(frames[3][0])
    assert twins.core.dropped(1)
    twins.send(*frames[2][1:], *frames[3][1:])
    assert twins.seqs == [2, 3]
    assert twins.count(ChunkDrop.CROWDED) == 2


def test_frames_that_need_one_slot_do_not_mix() -> None:
    twins = Twins(nslots=4).ready()
    older, newer = SentFrame(1, noise(1, 200)).chunks(), SentFrame(5, noise(5, 200)).chunks()
    twins.send(older[0], newer[0])
    assert twins.core.dropped(1)
    assert twins.send(older[1]) == [ChunkDrop.GIVEN_UP]
    twins.send(*newer[1:])
    assert [frame.payload for frame in twins.arrived] == [noise(5, 200)]


@pytest.mark.clause("B-5.4-01")
def test_checksum_is_wanted_where_the_policy_is_on() -> None:
    twins = Twins(crc32c=True).ready()
    assert twins.send(*SentFrame(1, noise(1, 200)).chunks())[-1] is ChunkDrop.CHECKSUM
    twins.send(*SentFrame(2, noise(2, 200)).chunks(crc32c=True))
    twins.send(*SentFrame(3, b"").chunks(crc32c=True))
    *chunks, last = SentFrame(4, noise(4, 200)).chunks(crc32c=True)
    assert twins.send(*chunks, last._replace(reserved=last.reserved ^ 1))[-1] is ChunkDrop.CHECKSUM
    assert twins.seqs == [2, 3]


def test_checksum_is_ignored_where_the_policy_is_off(twins: Twins) -> None:
    twins.send(*SentFrame(1, noise(1, 200)).chunks(crc32c=True), *SentFrame(2, b"").chunks(crc32c=True))
    assert twins.seqs == [1, 2]


def test_frame_that_the_target_refuses_is_given_up(twins: Twins) -> None:
    twins.take(False)
    assert twins.send(*FRAME.chunks())[-1] is ChunkDrop.REFUSED
    twins.take(True)
    assert twins.send(*FRAME.chunks()) == [ChunkDrop.GIVEN_UP] * 4
    twins.send(*SentFrame(6, b"").chunks())
    assert twins.seqs == [6]


def test_nothing_is_claimed_while_the_lease_does_not_allow_it() -> None:
    slots = Slots(8, {1: 1024})
    assembler = Assembler(STREAM, SIZING)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = slots
    slots.open = False
    assert [assembler.feed(*chunk) for chunk in FRAME.chunks()] == [ChunkDrop.NO_TARGET] * 4
    assert slots.header.tobytes() == bytes(slots.header.nbytes)
    slots.open = True
    slots.ring.close()
    assert assembler.feed(*FRAME.chunks()[0]) == ChunkDrop.NO_TARGET


def test_ring_closed_under_a_frame_on_its_way_costs_that_frame_only() -> None:
    slots = Slots(8, {1: 1024})
    assembler = Assembler(STREAM, SIZING)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = slots
    chunks = FRAME.chunks()
    assembler.feed(*chunks[0])
    slots.ring.close()
    assert assembler.feed(*chunks[1]) == ChunkDrop.NO_TARGET
    assembler.target = Slots(8, {1: 1024})
    for chunk in SentFrame(6, b"").chunks():
        assert assembler.feed(*chunk) == 0


class Failing(Slots):
    """A target whose publication was closed."""

    def publish(self, *args: object) -> bool:
        raise FramepoolError("no")


def test_error_of_the_target_is_the_callers_and_costs_one_frame() -> None:
    assembler = Assembler(STREAM, SIZING)
    assembler.announce(EPOCH, STRIDES)
    slots = Failing(8, {1: 1024})
    assembler.target = slots
    with pytest.raises(FramepoolError, match="no"):
        assembler.feed(*SentFrame(1, b"").chunks()[0])
    assert assembler.in_flight == 0
    assert assembler.statistics()["refused"] == 1
    slots.ring.claim(9, 10)  # the slot of frame 1, which is not claimed any more


@pytest.mark.parametrize("index", [0, 1, 3])
def test_frame_with_a_chunk_overwritten_in_the_log_is_never_published(index: int) -> None:
    slots = Slots(8, {1: 1024})
    assembler = Assembler(STREAM, SIZING)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = slots
    chunks = FRAME.chunks()
    for number, chunk in enumerate(chunks):
        assembler.feed(*chunk, torn=number == index)
    for chunk in chunks:
        assert assembler.feed(*chunk) == ChunkDrop.GIVEN_UP
    assert slots.arrived == []
    assert assembler.statistics()["torn"] == 1


def test_epoch_that_an_overwritten_chunk_told_of_is_not_believed() -> None:
    slots = Slots(8, {1: 1024})
    assembler = Assembler(STREAM, SIZING)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = slots
    first, *rest = FRAME.chunks()
    assembler.feed(*first)
    assert assembler.feed(*SentFrame(0, b"", epoch=2**64 - 1).chunks()[0], torn=True) == ChunkDrop.NEW_EPOCH
    for chunk in rest:
        assert assembler.feed(*chunk) == 0
    assert [frame.seq for frame in slots.arrived] == [5]


def test_caller_is_told_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="max_frames"):
        Assembler(STREAM, SIZING, max_frames=0)
    with pytest.raises(ValueError, match="timeout"):
        Assembler(STREAM, SIZING, timeout_ns=0)
    assembler = Assembler(STREAM, SIZING)
    with pytest.raises(AttributeError):
        assembler.target = object()  # type: ignore[assignment]
    with pytest.raises(OverflowError):
        assembler.announce(EPOCH, {70_000: 64})
    assert assembler.epoch is None


@pytest.mark.clause("B-5.2-26", "B-5.2-27")
def test_message_that_claims_a_gigabyte_makes_nothing_large(twins: Twins) -> None:
    chunk = FRAME.chunks()[1]
    message = bytearray(put(chunk.message, "payloadLength", 2**30))
    message[53:57] = (2**30).to_bytes(4, "little")
    core = twins.core
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert twins.feed(bytes(message)) is ChunkDrop.MALFORMED
    assert core.feed(put(chunk.message, "payloadLength", 2**30)) == ChunkDrop.SOURCE_STRIDE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    assert core.state_bytes == 0


def test_flood_of_frames_that_never_end_is_kept_in_bounds() -> None:
    assembler = Assembler(STREAM, SIZING, max_frames=16)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = Slots(64, {1: 1024})
    chunk = changed(FRAME.chunks()[1], chunk_count=65_535)
    largest = 0
    for seq in range(20_000):
        assembler.feed(put(chunk.message, "seq", seq * 7919 % 2**40))
        largest = max(largest, assembler.state_bytes)
        assert assembler.in_flight <= 16
    assert largest <= 16 * 65_535 * 8
    statistics = assembler.statistics()
    assert statistics["crowded"] + statistics["given_up"] + statistics["in_flight"] == 20_000
    assembler.expire(10**12)
    assert assembler.state_bytes == 0


def test_memory_of_frames_given_up_is_bounded(twins: Twins) -> None:
    late = changed(FRAME.chunks()[0], chunk_offset=1)
    for seq in range(GIVEN_UP_KEPT + 1):
        twins.feed(put(late.message, "seq", seq))
    assert not twins.core.dropped(0), "the oldest is forgotten"
    assert all(twins.core.dropped(seq) for seq in range(1, GIVEN_UP_KEPT + 1))
    for seq in range(1000, 1000 + 3 * GIVEN_UP_KEPT):
        twins.feed(put(late.message, "seq", seq))
        assert twins.core.dropped(seq)
        assert twins.core.dropped(seq - GIVEN_UP_KEPT + 1) or seq - GIVEN_UP_KEPT + 1 < 1000


def test_each_payload_byte_is_copied_once() -> None:
    slots = Slots(4, {1: 2**20})
    assembler = Assembler(STREAM, ChunkSizing(mtu_bytes=8192, chunk_bytes=8064))
    assembler.announce(EPOCH, {1: 2**20})
    assembler.target = slots
    payload = noise(1, 2**20)
    frame = SentFrame(1, payload, pool_id=1, layout=TensorLayout.build(np.uint8, (2**20,)))
    for chunk in frame.chunks(ChunkSizing(mtu_bytes=8192, chunk_bytes=8064)):
        assert assembler.feed(*chunk) == 0
    assert assembler.copied_bytes == 2**20
    (arrived,) = slots.arrived
    assert arrived.payload == payload
