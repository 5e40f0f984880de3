"""What the compiled core has and the model has not: the one-copy path, buffers it holds, threads beside it."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framepool._native import seqlock
from framepool.errors import TensorError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from tests.support.slots import CoreSlots

IMAGE = TensorLayout.build(np.float32, (3, 4))
DATA = np.arange(12, dtype=np.float32).tobytes()
SEQ = 13


def test_publish_copies_once_and_commits() -> None:
    slots = CoreSlots()
    assert slots.writer.publish(SEQ, np.frombuffer(DATA, np.uint8), seqlock.Layout(IMAGE.header), 3, 4) == 1
    result = slots.reader.read(SEQ)
    assert isinstance(result, tuple)
    assert (result[0].timestamp_ns, result[0].meta_version) == (3, 4)
    assert result[1].tobytes() == DATA


def test_publish_takes_an_array_in_the_order_of_its_memory() -> None:
    slots = CoreSlots()
    source = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    slots.writer.publish(SEQ, source, seqlock.Layout(TensorLayout.of(source).header))
    np.testing.assert_array_equal(slots.array(slots.accept(SEQ)), source)


def test_publish_refuses_data_of_another_length_or_with_gaps() -> None:
    slots = CoreSlots()
    layout = seqlock.Layout(IMAGE.header)
    with pytest.raises(TensorError, match="47 bytes of data for a tensor of 48"):
        slots.writer.publish(SEQ, DATA[:-1], layout)
    with pytest.raises((BufferError, ValueError)):
        slots.writer.publish(SEQ, np.zeros(96, np.uint8)[::2], layout)
    assert slots.check(SEQ) is DropReason.NOT_COMMITTED
    slots.writer.publish(SEQ, DATA, layout)


def test_publish_that_fails_gives_its_claim_up() -> None:
    failing = [True]

    def flush(payload: memoryview) -> None:
        if failing:
            raise OSError("not now")

    slots = CoreSlots(nslots=1, visibility=flush)
    layout = seqlock.Layout(IMAGE.header)
    with pytest.raises(OSError, match="not now"):
        slots.writer.publish(0, DATA, layout)
    assert slots.check(0) is DropReason.NOT_COMMITTED
    failing.clear()
    slots.writer.publish(1, DATA, layout)
    slots.accept(1)


def test_array_writes_straight_into_shared_memory() -> None:
    slots = CoreSlots()
    slots.claim(SEQ, IMAGE.extent)
    slots.writer.array(SEQ, seqlock.Layout(IMAGE.header))[:] = 2.5
    slots.commit(SEQ, IMAGE)
    np.testing.assert_array_equal(slots.array(slots.accept(SEQ)), np.full((3, 4), 2.5))


def test_large_copies_let_other_threads_run() -> None:
    size = 1 << 24
    slots = CoreSlots(nslots=2, strides=(size,))
    layout = seqlock.Layout(TensorLayout.build(np.uint8, (size,)).header)
    data = np.full(size, 7, np.uint8)
    turns = 0
    stop = threading.Event()

    def turn() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.0001)

    def turned_while(call: Callable[[int], object]) -> bool:
        for seq in range(200):
            before = turns
            call(seq)
            if turns > before:
                return True
        return False

    thread = threading.Thread(target=turn)
    interval = sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(3600)  # only a call that frees the lock lets the other thread take it
    time.sleep(0.02)
    try:
        assert not turned_while(lambda seq: sum(range(10_000)))
        assert turned_while(lambda seq: slots.writer.publish(seq, data, layout))
        last = max(slots.word(0), slots.word(1)) >> 1
        assert turned_while(lambda seq: slots.reader.read(last))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_word_shows_the_state_of_a_slot() -> None:
    slots = CoreSlots(nslots=2)
    slots.publish(4, IMAGE)
    slots.claim(7, 4)
    assert [slots.reader.word(0), slots.reader.word(1)] == [0b1001, 0b1110]
    with pytest.raises(IndexError):
        slots.reader.word(2)


def test_same_layout_is_parsed_once() -> None:
    slots = CoreSlots()
    for seq in (1, 2):
        slots.publish(seq, IMAGE)
    slots.publish(3, TensorLayout.build(np.uint8, (1,)))
    first, second, third = (slots.accept(seq).layout for seq in (1, 2, 3))
    assert first is second
    assert third is not first


def test_slot_checked_by_another_reader_is_refused() -> None:
    large, small = CoreSlots(nslots=8, strides=(64, 4096)), CoreSlots(nslots=1, strides=(64,))
    large.publish(7, TensorLayout.build(np.uint8, (1000,)))
    checked = large.accept(7)
    for call in (small.array, small.copy):
        with pytest.raises(ValueError, match="another reader"):
            call(checked)


def test_checked_slot_is_made_by_a_check_only() -> None:
    with pytest.raises(TypeError):
        seqlock.CheckedSlot()
    slots = CoreSlots()
    for call in (slots.array, slots.copy):
        with pytest.raises(ValueError, match="not checked"):
            call(seqlock.CheckedSlot.__new__(seqlock.CheckedSlot))
        with pytest.raises(TypeError):
            call(None)


def method(name: str) -> str:
    """The code of a method of the core, its docstring left out."""
    source = (Path(seqlock.__file__).parent / "seqlock.pyx").read_text()
    (body,) = re.findall(rf"^    c?def [^\n]*\b{name}\(.*?(?=^    c?def |^@|^cdef |\Z)", source, re.M | re.S)
    return re.sub(r'"""..*?"""', "", body, flags=re.S)


def in_order(text: str, *parts: str) -> bool:
    """Whether the parts stand in the text one behind the other."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@pytest.mark.clause("W-15.3-03", "W-8.2-15")
def test_every_access_to_the_word_is_an_ordered_atomic() -> None:
    """A check of the code: on x86 no test can tell a release store from a plain one, on aarch64 it counts."""
    source = (Path(seqlock.__file__).parent / "seqlock.pyx").read_text()
    assert "atomic" not in source.partition('"""')[2].partition('"""')[2], (
        "the four steps of seqlock.h are all there is"
    )
    assert in_order(method("begin"), "fp_slot_begin(")
    assert in_order(method("finish"), "fp_slot_commit(")
    assert in_order(method("check_header"), "fp_slot_look(", "memcpy(", "fp_slot_look_again(")
    assert in_order(method("unchanged"), "fp_slot_look_again(")
    assert in_order(method("commit"), "self.fill_header(", "self.visibility_(", "self.finish(")
    assert in_order(method("copy"), "memcpy(", "self.unchanged(", "memcpy(", "self.unchanged(")
    stores = [line for line in source.splitlines() if "memcpy(slot " in line or "memcpy(self.slots" in line]
    assert len(stores) == 2
    assert "slot + FP_SLOT_HEADER_SEQ_COMMIT_SIZE," in stores[0]
    assert "slot + FP_TENSOR_HEADER_OFFSET," in stores[1]
