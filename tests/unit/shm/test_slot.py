"""A frame's way through a slot, in the model and in the compiled core: every step of Wire 8.3 and every drop rule."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from framepool.errors import NoPoolFits, SequenceError, TensorError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import Dtype, FrameDescriptor, MajorOrder, ProgressUnit
from tests.support.slots import IMPLEMENTATIONS, Slots

pytestmark = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)

COLUMN = MajorOrder.COLUMN
IMAGE = TensorLayout.build(np.float32, (3, 4))
DATA = np.arange(12, dtype=np.float32).tobytes()
EMPTY = TensorLayout.build(np.float32, (0, 4))
SEQ = 13
INDEX = SEQ % 8


@pytest.fixture
def slots(implementation: type[Slots]) -> Slots:
    """A ring of 8 with pools of 1 KiB and 4 KiB that holds one image as frame 13."""
    slots = implementation()
    slots.publish(SEQ, IMAGE, DATA, timestamp_ns=123, meta_version=7)
    return slots


# Claim, fill, commit


@pytest.mark.clause("W-8.3-01", "W-8.3-03", "W-8.3-04", "W-8.3-06", "W-15.21-02")
def test_slot_is_in_progress_from_claim_to_commit(implementation: type[Slots]) -> None:
    slots = implementation(nslots=4)
    for seq in (5, 9, 13):
        slots.claim(seq, IMAGE.extent)
        assert slots.word(1) == seq << 1
        slots.payload(seq)[:] = DATA
        assert slots.word(1) == seq << 1
        slots.write_header(seq, IMAGE)
        assert slots.word(1) == seq << 1
        slots.commit(seq, IMAGE)
        assert slots.word(1) == seq << 1 | 1


@pytest.mark.clause("W-8.3-03")
def test_claim_marks_the_slot_before_anything_else_changes(slots: Slots) -> None:
    before = slots.slot(INDEX).tobytes()
    slots.claim(SEQ + 8, 16)
    assert slots.slot(INDEX).tobytes()[8:] == before[8:]
    assert slots.word(INDEX) == (SEQ + 8) << 1
    assert slots.check(SEQ + 8) is DropReason.NOT_COMMITTED


@pytest.mark.clause("W-8.3-05", "W-8.2-05", "W-8.2-09", "W-8.2-18", "W-8.2-33", "W-8.2-03", "W-6-02")
def test_commit_overwrites_every_byte_of_the_slot(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.slot(INDEX)[:] = 0xFF
    layout = TensorLayout.build(np.uint16, (2, 3))
    slots.publish(SEQ, layout, timestamp_ns=0x1112131415161718, meta_version=0x21222324)
    raw = slots.slot(INDEX).tobytes()
    expected = struct.pack("<QIIHIQI", SEQ << 1 | 1, 12, INDEX, 1, 0, 0x1112131415161718, 0x21222324)
    assert raw[:34] == expected
    assert raw[34:60] == bytes(26)
    assert raw[60:64] == bytes.fromhex("C0000000")
    assert raw[64:72] == bytes.fromhex("B800340084030100")
    assert raw[64:] == layout.header


@pytest.mark.clause("W-8.2-22")
def test_unused_dimensions_of_an_earlier_frame_are_wiped(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(5, TensorLayout.build(np.uint8, (2,) * 8, strides=(128, 64, 32, 16, 8, 4, 2, 1)))
    slots.publish(13, TensorLayout.build(np.uint8, (2, 3, 4), strides=(12, 4, 1)))
    assert slots.get(5, "dims") == (2, 3, 4, 0, 0, 0, 0, 0)
    assert slots.get(5, "strides") == (12, 4, 1, 0, 0, 0, 0, 0)


@pytest.mark.clause("W-9-01", "W-9-02", "W-9-03", "W-9-07")
@pytest.mark.parametrize(("nbytes", "pool_id"), [(1, 1), (1024, 1), (1025, 2), (4096, 2), (4097, 3), (16384, 3)])
def test_payload_lies_in_the_smallest_pool_that_fits(implementation: type[Slots], nbytes: int, pool_id: int) -> None:
    slots = implementation(strides=(1024, 4096, 16384))
    data = np.random.default_rng(nbytes).integers(1, 256, nbytes, np.uint8).tobytes()
    slots.publish(SEQ, TensorLayout.build(np.uint8, (nbytes,)), data)
    assert slots.get(INDEX, "poolId") == pool_id
    start = 64 + INDEX * (1024, 4096, 16384)[pool_id - 1]
    assert slots.pool_bytes(pool_id)[start : start + nbytes].tobytes() == data
    assert all(not slots.pool_bytes(other).any() for other in {1, 2, 3} - {pool_id})
    assert slots.array(slots.accept(SEQ)).tobytes() == data


@pytest.mark.clause("W-9-04")
@pytest.mark.parametrize("nbytes", [4097, 2**32, 2**70])
def test_payload_that_fits_no_pool_leaves_the_slot_alone(slots: Slots, nbytes: int) -> None:
    before = slots.header.tobytes()
    with pytest.raises(NoPoolFits, match=f"{nbytes} bytes do not fit the largest pool stride of 4096"):
        slots.claim(SEQ + 8, nbytes)
    assert slots.header.tobytes() == before
    slots.claim(SEQ + 8, 4096)


@pytest.mark.clause("W-8.2-33")
def test_empty_payload_is_committed_and_accepted(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, EMPTY)
    assert slots.word(INDEX) == SEQ << 1 | 1
    assert slots.get(INDEX, "valuesLenBytes") == 0
    assert slots.get(INDEX, "payloadSlot") == INDEX
    checked = slots.accept(SEQ)
    assert slots.array(checked).shape == (0, 4)
    copy = slots.copy(checked)
    assert isinstance(copy, np.ndarray)
    assert copy.shape == (0, 4)


@pytest.mark.clause("W-8.3-08", "W-8.3-06")
def test_visibility_is_ensured_before_the_commit_store(implementation: type[Slots]) -> None:
    seen: list[tuple[int, bytes]] = []

    def flush(payload: memoryview) -> None:
        seen.append((flushing.word(INDEX), bytes(payload)))

    flushing = implementation(visibility=flush)
    flushing.publish(SEQ, IMAGE, DATA)
    assert seen == [(SEQ << 1, DATA)]
    assert flushing.word(INDEX) == SEQ << 1 | 1


def test_frame_whose_visibility_fails_stays_uncommitted(implementation: type[Slots]) -> None:
    def flush(payload: memoryview) -> None:
        raise OSError("no such device")

    slots = implementation(visibility=flush)
    slots.claim(SEQ, IMAGE.extent)
    with pytest.raises(OSError, match="no such device"):
        slots.commit(SEQ, IMAGE)
    assert slots.check(SEQ) is DropReason.NOT_COMMITTED
    slots.abandon(SEQ)


def test_abandoned_claim_stays_in_progress_until_the_next_frame(slots: Slots) -> None:
    slots.claim(SEQ + 8, 16)
    slots.abandon(SEQ + 8)
    assert slots.word(INDEX) == (SEQ + 8) << 1
    assert slots.check(SEQ + 8) is DropReason.NOT_COMMITTED
    slots.publish(SEQ + 16, IMAGE, DATA)
    assert slots.accept(SEQ + 16).seq == SEQ + 16


@pytest.mark.clause("W-8.3-02")
def test_sequence_must_rise(slots: Slots) -> None:
    for stale in (SEQ, SEQ - 1, 0):
        with pytest.raises(SequenceError, match="the next is 14 or higher"):
            slots.claim(stale, 4)
    slots.claim(SEQ + 1, 4)


def test_sequence_beyond_63_bits_is_refused(implementation: type[Slots]) -> None:
    slots = implementation()
    with pytest.raises(SequenceError):
        slots.claim(2**63, 4)
    with pytest.raises((SequenceError, OverflowError)):
        slots.claim(-1, 4)
    slots.publish(2**63 - 1, IMAGE)
    assert slots.word(7) == 2**64 - 1
    assert slots.accept(2**63 - 1).seq == 2**63 - 1


def test_slot_is_not_claimed_twice_at_once(implementation: type[Slots]) -> None:
    slots = implementation(nslots=2)
    slots.claim(0, 4)
    slots.claim(1, 4)
    with pytest.raises(SequenceError, match="still claimed by 0"):
        slots.claim(2, 4)
    slots.commit(0, TensorLayout.build(np.uint8, (4,)))
    slots.claim(2, 4)


def test_step_without_its_claim_is_refused(slots: Slots) -> None:
    for call in (
        lambda: slots.payload(SEQ),
        lambda: slots.commit(SEQ, IMAGE),
        lambda: slots.write_header(SEQ, IMAGE),
        lambda: slots.abandon(SEQ),
        lambda: slots.abandon(SEQ + 8),
    ):
        with pytest.raises(SequenceError, match="not claimed"):
            call()


def test_tensor_larger_than_its_claim_is_refused(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.claim(SEQ, IMAGE.extent - 1)
    with pytest.raises(TensorError, match="needs 48 bytes, the claim has 47"):
        slots.commit(SEQ, IMAGE)
    assert slots.check(SEQ) is DropReason.NOT_COMMITTED


def test_header_can_be_read_before_the_payload_is_complete(implementation: type[Slots]) -> None:
    """decisions.md #29: what progress needs is there, and the slot is still in progress."""
    slots = implementation()
    slots.claim(SEQ, IMAGE.extent)
    slots.write_header(SEQ, IMAGE, 5, 6)
    early = slots.slot(INDEX).tobytes()
    assert slots.check(SEQ) is DropReason.NOT_COMMITTED
    slots.commit(SEQ, IMAGE, 5, 6)
    assert early[8:] == slots.slot(INDEX).tobytes()[8:]


@pytest.mark.clause("W-8.2-08")
def test_no_address_of_this_process_is_stored_in_a_slot(slots: Slots) -> None:
    raw = slots.slot(INDEX).tobytes()
    addresses = [slots.header.ctypes.data, *(slots.pool_bytes(pool.pool_id).ctypes.data for pool in slots.pools)]
    pages = {address >> 16 for address in addresses}
    assert not pages & {int.from_bytes(raw[i : i + 8], "little") >> 16 for i in range(8, 249)}
    assert not slots.get(INDEX, "slotPad").strip(b"\0")
    assert not slots.get(INDEX, "tensorPad").strip(b"\0")


# Check and read


@pytest.mark.clause("W-10.2.1-11", "W-10.2.1-03")
def test_accepted_slot_says_what_was_published(slots: Slots) -> None:
    checked = slots.accept(SEQ)
    assert (checked.seq, checked.pool_id, checked.payload_slot) == (SEQ, 1, INDEX)
    assert (checked.values_len_bytes, checked.timestamp_ns, checked.meta_version) == (48, 123, 7)
    assert (checked.layout.shape, checked.layout.strides, checked.layout.extent) == ((3, 4), (16, 4), 48)
    np.testing.assert_array_equal(slots.array(checked), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(slots.copy(checked), np.arange(12).reshape(3, 4))


@pytest.mark.clause("W-1-01")
def test_array_is_the_shared_memory_itself_and_read_only(slots: Slots) -> None:
    array = slots.array(slots.accept(SEQ))
    memory = slots.pool_bytes(1)
    assert array.ctypes.data == memory.ctypes.data + 64 + INDEX * 1024
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    assert len(FrameDescriptor(stream_id=1, epoch=1, seq=SEQ).encode()) == 48


def test_copy_is_private_and_writable(slots: Slots) -> None:
    copy: Any = slots.copy(slots.accept(SEQ))
    copy += 1
    np.testing.assert_array_equal(slots.array(slots.accept(SEQ)), np.arange(12).reshape(3, 4))


@pytest.mark.clause("W-8.2-24", "W-8.2-28")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", "?"])
def test_every_dtype_arrives_in_either_order(implementation: type[Slots], dtype: str, order: Any) -> None:
    source = np.arange(24).reshape(2, 3, 4).astype(dtype).copy(order=order)
    slots = implementation()
    layout = TensorLayout.of(source)
    assert layout.declared_strides == (0, 0, 0)
    slots.publish(SEQ, layout, source.tobytes(order="A"))
    checked = slots.accept(SEQ)
    for array in (slots.array(checked), slots.copy(checked)):
        assert isinstance(array, np.ndarray)
        assert array.dtype == source.dtype
        assert array.strides == source.strides
        np.testing.assert_array_equal(array, source)


@pytest.mark.clause("W-8.2-28")
def test_strided_tensor_shows_the_elements_at_their_strides(implementation: type[Slots]) -> None:
    slots = implementation()
    layout = TensorLayout.build(np.uint8, (2, 3), strides=(100, 7))
    data = np.random.default_rng(0).integers(0, 256, layout.extent, np.uint8)
    slots.publish(SEQ, layout, data.tobytes())
    expected = [[data[0], data[7], data[14]], [data[100], data[107], data[114]]]
    np.testing.assert_array_equal(slots.array(slots.accept(SEQ)), expected)
    np.testing.assert_array_equal(slots.copy(slots.accept(SEQ)), expected)


def test_bit_and_bytes_tensors_arrive_as_uint8(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, TensorLayout.build(Dtype.BIT, (3, 7)), b"\x01\x02\x03")
    array = slots.array(slots.accept(SEQ))
    assert (array.tolist(), array.dtype.str) == ([1, 2, 3], "|u1")
    slots.publish(SEQ + 1, TensorLayout.build(Dtype.BYTES, (5,)), b"hello")
    copy = slots.copy(slots.accept(SEQ + 1))
    assert isinstance(copy, np.ndarray)
    assert copy.tobytes() == b"hello"


# Drops: commit and identity


@pytest.mark.clause("W-8.3-09", "W-15.21-01", "W-15.21-03")
def test_slot_in_progress_is_dropped_at_once_and_the_next_is_read(slots: Slots) -> None:
    slots.claim(SEQ + 8, 16)
    slots.publish(SEQ + 9, IMAGE, DATA)
    assert slots.check(SEQ + 8) is DropReason.NOT_COMMITTED
    assert slots.accept(SEQ + 9).seq == SEQ + 9


def test_slot_never_written_is_dropped(implementation: type[Slots]) -> None:
    assert implementation().check(0) is DropReason.NOT_COMMITTED


@pytest.mark.clause("W-8.2-13", "W-15.21-01")
def test_overwritten_slot_is_dropped(slots: Slots) -> None:
    slots.publish(SEQ + 8, IMAGE, DATA)
    assert slots.check(SEQ) is DropReason.WRONG_SEQUENCE
    assert slots.accept(SEQ + 8).seq == SEQ + 8


@pytest.mark.clause("W-15.3-01")
def test_slot_that_went_back_is_skipped(slots: Slots) -> None:
    slots.put(INDEX, "seqCommit", (SEQ - 8) << 1 | 1)
    assert slots.check(SEQ) is DropReason.WRONG_SEQUENCE
    assert not slots.still(SEQ)


@pytest.mark.parametrize("seq", [2**63 + SEQ, 2**64 - 1])
def test_descriptor_with_a_sequence_no_slot_can_hold_is_dropped(slots: Slots, seq: int) -> None:
    assert slots.check(seq) in (DropReason.WRONG_SEQUENCE, DropReason.NOT_COMMITTED)
    assert not slots.still(seq)


@pytest.mark.clause("W-8.3-10", "W-8.3-13")
@pytest.mark.parametrize("word", [(SEQ + 8) << 1, (SEQ + 8) << 1 | 1, SEQ << 1, 0])
def test_frame_overwritten_between_check_and_copy_is_not_handed_out(slots: Slots, word: int) -> None:
    checked = slots.accept(SEQ)
    assert slots.still(SEQ)
    slots.put(INDEX, "seqCommit", word)
    assert not slots.still(SEQ)
    assert slots.copy(checked) is DropReason.OVERWRITTEN


@pytest.mark.clause("W-8.3-13")
def test_empty_frame_overwritten_before_its_copy_is_not_handed_out(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, EMPTY)
    checked = slots.accept(SEQ)
    slots.publish(SEQ + 8, EMPTY)
    assert slots.copy(checked) is DropReason.OVERWRITTEN


def test_late_and_malformed_drops_are_told_apart(implementation: type[Slots]) -> None:
    late = {DropReason.NOT_COMMITTED, DropReason.WRONG_SEQUENCE, DropReason.OVERWRITTEN}
    assert {reason for reason in DropReason if reason.late} == late


# Drops: the slot header


def expect(slots: Slots, reason: DropReason, **fields: Any) -> None:
    """The frame is dropped for `reason` with these fields, and accepted again without."""
    before = {name: slots.get(INDEX, name) for name in fields}
    for name, value in fields.items():
        slots.put(INDEX, name, value)
    assert slots.check(SEQ) is reason
    for name, value in before.items():
        slots.put(INDEX, name, value)
    slots.accept(SEQ)


@pytest.mark.clause("W-8.2-19", "W-10.2.1-15")
def test_payload_offset_other_than_zero_is_dropped(slots: Slots) -> None:
    for offset in (64, 1, 2**32 - 1):
        expect(slots, DropReason.PAYLOAD_OFFSET, payloadOffset=offset)


@pytest.mark.clause("W-10.2.1-13")
def test_payload_slot_out_of_range_is_dropped(slots: Slots) -> None:
    for index in (8, 2**31, 2**32 - 1):
        expect(slots, DropReason.PAYLOAD_SLOT_RANGE, payloadSlot=index)


def test_payload_slot_of_another_header_is_dropped(slots: Slots) -> None:
    for index in {*range(8)} - {INDEX}:
        expect(slots, DropReason.PAYLOAD_SLOT, payloadSlot=index)


def test_unknown_pool_is_dropped(slots: Slots) -> None:
    for pool_id in (0, 3, 65535):
        expect(slots, DropReason.UNKNOWN_POOL, poolId=pool_id)


@pytest.mark.clause("W-10.2.1-14")
def test_values_longer_than_the_stride_are_dropped(slots: Slots) -> None:
    for length in (1025, 2**32 - 1):
        expect(slots, DropReason.VALUES_LENGTH, valuesLenBytes=length)
    slots.put(INDEX, "valuesLenBytes", 1024)
    assert slots.accept(SEQ).values_len_bytes == 1024


@pytest.mark.clause("W-8.2-32")
def test_empty_frame_is_accepted_whatever_its_pool(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, EMPTY)
    slots.put(INDEX, "poolId", 999)
    checked = slots.accept(SEQ)
    assert checked.values_len_bytes == 0
    assert slots.array(checked).size == 0


def test_empty_frame_still_obeys_the_other_rules(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, EMPTY)
    expect(slots, DropReason.PAYLOAD_OFFSET, payloadOffset=1)
    expect(slots, DropReason.PAYLOAD_SLOT, payloadSlot=0)
    expect(slots, DropReason.EXTENT, dims=(1, 4, 0, 0, 0, 0, 0, 0))


@pytest.mark.clause("W-8.2-07", "W-8.2-06")
def test_padding_is_ignored(slots: Slots) -> None:
    slots.put(INDEX, "slotPad", b"\xaa" * 26)
    slots.put(INDEX, "tensorPad", b"\x55" * 109)
    slots.put(INDEX, "padAlign", 0xEE)
    checked = slots.accept(SEQ)
    assert (checked.layout.shape, checked.timestamp_ns) == ((3, 4), 123)
    np.testing.assert_array_equal(slots.array(checked), np.arange(12).reshape(3, 4))


# Drops: the embedded header


@pytest.mark.clause("W-8.3-11")
def test_header_length_other_than_192_is_dropped(slots: Slots) -> None:
    for length in (191, 0, 193, 184, 2**32 - 1):
        expect(slots, DropReason.HEADER_LENGTH, headerLength=length)


@pytest.mark.clause("W-8.3-11")
def test_embedded_message_that_is_no_tensor_header_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.HEADER_TEMPLATE, templateId=51)
    expect(slots, DropReason.HEADER_BLOCK_LENGTH, blockLength=183)


@pytest.mark.clause("W-8.3-12")
def test_embedded_message_of_another_schema_or_version_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.HEADER_SCHEMA, schemaId=901)
    expect(slots, DropReason.HEADER_VERSION, version=2)
    expect(slots, DropReason.HEADER_VERSION, version=0)


@pytest.mark.clause("W-15.8-01")
def test_unknown_enumeration_values_are_dropped(slots: Slots) -> None:
    for dtype in (0, 12, 15, 99, -1, -32768):
        expect(slots, DropReason.DTYPE, dtype=dtype)
    for order in (0, 3, -1):
        expect(slots, DropReason.MAJOR_ORDER, majorOrder=order)
    for unit in (3, 7, 255):
        expect(slots, DropReason.PROGRESS_UNIT, progressUnit=unit)


@pytest.mark.clause("W-8.2-17")
def test_number_of_dimensions_beyond_1_to_8_is_dropped(slots: Slots) -> None:
    for ndims in (0, 9, 255):
        expect(slots, DropReason.NDIMS, ndims=ndims)
    slots.put(INDEX, "ndims", 1)
    assert slots.accept(SEQ).layout.shape == (3,)
    slots.put(INDEX, "ndims", 8)
    slots.put(INDEX, "dims", (1, 1, 1, 1, 1, 1, 3, 4))
    assert slots.accept(SEQ).layout.shape == (1, 1, 1, 1, 1, 1, 3, 4)


@pytest.mark.clause("W-8.2-23")
def test_dims_and_strides_beyond_ndims_are_ignored(slots: Slots) -> None:
    slots.put(INDEX, "dims", (3, 4, -1, 2**31 - 1, 7, 7, 7, 7))
    slots.put(INDEX, "strides", (0, 0, -1, -(2**31), 7, 7, 7, 7))
    checked = slots.accept(SEQ)
    assert (checked.layout.shape, checked.layout.strides) == ((3, 4), (16, 4))


def test_negative_dimension_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.NEGATIVE_DIM, dims=(3, -4, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.NEGATIVE_DIM, dims=(-(2**31), 0, 0, 0, 0, 0, 0, 0))


def test_shape_whose_size_overflows_is_dropped(slots: Slots) -> None:
    big = 2**31 - 1
    expect(slots, DropReason.TOO_LARGE, ndims=8, dims=(big,) * 8)
    expect(slots, DropReason.TOO_LARGE, ndims=4, dims=(big, big, big, 0, 0, 0, 0, 0))
    # 2^64 elements: a size that wraps to 0 in 64 bits
    expect(slots, DropReason.TOO_LARGE, ndims=3, dtype=1, dims=(2**30, 2**30, 16, 0, 0, 0, 0, 0))
    expect(slots, DropReason.EXTENT, ndims=2, dtype=1, dims=(2**16, 2**16, 0, 0, 0, 0, 0, 0))


@pytest.mark.clause("W-8.2-25")
def test_negative_stride_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.NEGATIVE_STRIDE, strides=(-4, 0, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.NEGATIVE_STRIDE, strides=(16, -(2**31), 0, 0, 0, 0, 0, 0))


@pytest.mark.clause("W-8.2-27")
def test_strides_that_contradict_the_order_are_dropped(slots: Slots) -> None:
    expect(slots, DropReason.STRIDE_ORDER, strides=(4, 12, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.STRIDE_ORDER, strides=(16, 4, 0, 0, 0, 0, 0, 0), majorOrder=2)


@pytest.mark.clause("W-8.2-27")
def test_strides_that_overlap_are_dropped(slots: Slots) -> None:
    expect(slots, DropReason.STRIDE_OVERLAP, strides=(15, 4, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.STRIDE_OVERLAP, strides=(16, 3, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.STRIDE_OVERLAP, strides=(4, 11, 0, 0, 0, 0, 0, 0), majorOrder=2)
    expect(slots, DropReason.STRIDE_OVERLAP, strides=(0, 5, 0, 0, 0, 0, 0, 0))


@pytest.mark.clause("W-8.2-24")
def test_each_zero_stride_is_inferred_from_the_contiguous_layout(slots: Slots) -> None:
    slots.put(INDEX, "strides", (20, 0, 0, 0, 0, 0, 0, 0))
    slots.put(INDEX, "valuesLenBytes", 56)
    assert slots.accept(SEQ).layout.strides == (20, 4)
    slots.put(INDEX, "strides", (0, 4, 0, 0, 0, 0, 0, 0))
    assert slots.accept(SEQ).layout.strides == (16, 4)
    slots.put(INDEX, "majorOrder", 2)
    slots.put(INDEX, "strides", (4, 0, 0, 0, 0, 0, 0, 0))
    assert slots.accept(SEQ).layout.strides == (4, 12)


def test_bit_tensor_with_strides_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.BIT_STRIDES, dtype=14, strides=(4, 1, 0, 0, 0, 0, 0, 0))
    slots.put(INDEX, "dtype", 14)
    assert slots.accept(SEQ).layout.extent == 2


def test_tensor_beyond_its_values_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.EXTENT, valuesLenBytes=47)
    expect(slots, DropReason.EXTENT, valuesLenBytes=0)
    expect(slots, DropReason.EXTENT, dims=(4, 4, 0, 0, 0, 0, 0, 0))
    expect(slots, DropReason.EXTENT, strides=(17, 4, 0, 0, 0, 0, 0, 0))


@pytest.mark.clause("W-8.2-30")
@pytest.mark.parametrize(("order", "unit", "stride"), [(1, 1, 16), (1, 2, 4), (2, 1, 4), (2, 2, 12)], ids=str)
def test_progress_stride_that_is_not_the_layouts_is_dropped(slots: Slots, order: int, unit: int, stride: int) -> None:
    slots.put(INDEX, "majorOrder", order)
    expect(slots, DropReason.PROGRESS_STRIDE_ZERO, progressUnit=unit, progressStrideBytes=0)
    for wrong in (stride + 4, stride - 1, 2**32 - 1):
        expect(slots, DropReason.PROGRESS_STRIDE, progressUnit=unit, progressStrideBytes=wrong)
    slots.put(INDEX, "progressUnit", unit)
    slots.put(INDEX, "progressStrideBytes", stride)
    slots.accept(SEQ)


@pytest.mark.clause("W-8.2-30")
def test_progress_in_columns_of_a_vector_is_dropped(slots: Slots) -> None:
    expect(slots, DropReason.PROGRESS_AXIS, ndims=1, progressUnit=2, progressStrideBytes=4)


def test_progress_stride_without_a_unit_is_ignored(slots: Slots) -> None:
    slots.put(INDEX, "progressStrideBytes", 99)
    slots.accept(SEQ)


@pytest.mark.clause("W-8.2-29", "W-8.2-30")
def test_published_progress_passes_its_own_rule(implementation: type[Slots]) -> None:
    slots = implementation()
    slots.publish(SEQ, TensorLayout.build(np.uint16, (6, 5), order=COLUMN, progress_unit=ProgressUnit.COLUMNS))
    assert (slots.get(INDEX, "progressUnit"), slots.get(INDEX, "progressStrideBytes")) == (2, 12)
    slots.accept(SEQ)
