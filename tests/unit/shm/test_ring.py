"""The header ring: where slots lie, what their first word says, and which buffers writer and reader refuse."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from framepool._native import seqlock
from framepool.errors import RegionError, RegionSizeError
from framepool.shm import ring
from framepool.shm.pool import Pool
from framepool.shm.ring import HeaderRing
from framepool.shm.tensor import TensorLayout
from tests.support.slots import IMPLEMENTATIONS, CoreSlots, Slots

BOTH = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
FOUR = TensorLayout.build(np.uint8, (4,))


@pytest.mark.clause("W-8.3-01")
def test_word_is_the_sequence_above_the_commit_bit() -> None:
    assert ring.in_progress(5) == 0b1010
    assert ring.committed(5) == 0b1011
    assert ring.committed(ring.MAX_SEQUENCE) == 2**64 - 1
    assert (ring.sequence(0b1011), ring.is_committed(0b1011)) == (5, True)
    assert (ring.sequence(0b1010), ring.is_committed(0b1010)) == (5, False)


@BOTH
@pytest.mark.clause("W-8.1-01", "W-8.1-02", "W-8.2-04", "W-6-02", "W-6-03", "W-8.2-03")
def test_slot_i_leads_with_its_word_at_64_and_256_i(implementation: type[Slots]) -> None:
    slots = implementation(nslots=4)
    for seq in (0, 1, 2, 3):
        slots.publish(0x0102030405060700 + seq, FOUR)
        offset = 64 + 256 * seq
        word = bytes(slots.header[offset : offset + 8])
        assert word == (2 * (0x0102030405060700 + seq) + 1).to_bytes(8, "little")
    assert not slots.header[:64].any()


@BOTH
@pytest.mark.clause("W-10.2.1-12", "W-15.4-01")
def test_frame_takes_the_slot_of_its_sequence_modulo_the_ring(implementation: type[Slots]) -> None:
    slots = implementation(nslots=8)
    for seq in range(21):
        slots.publish(seq, FOUR, bytes([seq] * 4))
        assert slots.word(seq % 8) == 2 * seq + 1
        assert bytes(slots.array(slots.accept(seq))) == bytes([seq] * 4)


@pytest.mark.clause("W-3-01")
@pytest.mark.parametrize("nslots", [0, -4, 3, 6, 12, 2**31 + 1, 2**32])
def test_number_of_slots_that_is_no_power_of_two_is_refused(nslots: int) -> None:
    buffer = np.zeros(1 << 14, np.uint8)
    for make in (
        lambda: HeaderRing(buffer, nslots),
        lambda: Pool(1, 64, nslots, buffer),
        lambda: seqlock.RingReader(buffer, nslots, []),
        lambda: seqlock.RingWriter(buffer, nslots, []),
    ):
        with pytest.raises(RegionError, match="power of two"):
            make()
    assert HeaderRing(buffer, 8).nslots == 8
    assert seqlock.RingReader(buffer, 8, []).nslots == 8


def test_ring_shorter_than_its_slots_is_refused() -> None:
    short = np.zeros(64 + 4 * 256 - 1, np.uint8)
    for make in (HeaderRing, lambda buffer, nslots: seqlock.RingReader(buffer, nslots, [])):
        with pytest.raises(RegionSizeError, match="1088 bytes, not 1087"):
            make(short, 4)


def test_pool_that_lies_about_its_buffer_is_refused_by_the_core() -> None:
    class Liar:
        pool_id, stride_bytes, nslots = 1, 4096, 4
        buffer = np.zeros(4096, np.uint8)

    with pytest.raises(RegionSizeError):
        seqlock.RingReader(np.zeros(64 + 4 * 256, np.uint8), 4, [Liar()])


@pytest.mark.clause("W-9-06")
def test_core_refuses_a_pool_of_another_number_of_slots() -> None:
    header = np.zeros(64 + 8 * 256, np.uint8)
    pool = Pool(1, 64, 8, np.zeros(1 << 12, np.uint8))
    for kind in (seqlock.RingReader, seqlock.RingWriter):
        with pytest.raises(RegionError, match="pool 1 has 8 slots, the header ring 4"):
            kind(header, 4, [pool])


def test_core_refuses_a_pool_id_that_comes_twice() -> None:
    pools = [Pool(1, stride, 4, np.zeros(1 << 12, np.uint8)) for stride in (64, 128)]
    with pytest.raises(RegionError, match="twice"):
        seqlock.RingReader(np.zeros(64 + 4 * 256, np.uint8), 4, pools)


@pytest.mark.clause("W-8.2-15")
def test_core_refuses_a_ring_whose_words_would_not_be_aligned() -> None:
    buffer = np.zeros(64 + 4 * 256 + 8, np.uint8)
    assert buffer.ctypes.data % 8 == 0
    for shift in range(1, 8):
        with pytest.raises(RegionError, match="aligned"):
            seqlock.RingReader(buffer[shift:], 4, [])
    assert seqlock.RingReader(buffer[8:], 4, []).nslots == 4


def test_writer_refuses_a_read_only_ring() -> None:
    with pytest.raises((BufferError, ValueError)):
        seqlock.RingWriter(bytes(64 + 4 * 256), 4, [])


def test_mapping_cannot_be_closed_under_a_ring_or_its_views(base_dir: Path) -> None:
    path = base_dir / "pool"
    path.write_bytes(bytes(64 + 4 * 4096))
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    header = np.zeros(64 + 4 * 256, np.uint8)
    writer = seqlock.RingWriter(header, 4, [Pool(1, 4096, 4, np.zeros(64 + 4 * 4096, np.uint8))])
    writer.publish(0, b"abcd", seqlock.Layout(FOUR.header))
    reader = seqlock.RingReader(header, 4, [Pool(1, 4096, 4, mapping)])
    with pytest.raises(BufferError):
        mapping.close()
    checked = reader.check(0)
    assert isinstance(checked, seqlock.CheckedSlot)
    view = reader.array(checked)
    reader.close()
    with pytest.raises(BufferError):
        mapping.close()
    assert view.sum() == 0
    del view
    mapping.close()


def test_closed_ring_refuses_every_call() -> None:
    slots = CoreSlots()
    slots.publish(0, FOUR)
    checked = slots.accept(0)
    slots.claim(1, 4)
    slots.reader.close()
    slots.writer.close()
    slots.writer.close()
    for call in (
        lambda: slots.check(0),
        lambda: slots.still(0),
        lambda: slots.array(checked),
        lambda: slots.copy(checked),
        lambda: slots.claim(2, 4),
        lambda: slots.payload(1),
        lambda: slots.commit(1, FOUR),
        lambda: slots.abandon(1),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_ring_closes_at_the_end_of_with() -> None:
    slots = CoreSlots()
    with slots.reader as reader:
        assert reader.nslots == 8
    with pytest.raises(ValueError, match="closed"):
        reader.check(0)
