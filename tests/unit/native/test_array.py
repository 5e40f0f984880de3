"""The view that the core makes of a slot: the model's in all but speed, and alive for as long as anybody holds it."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import Dtype, MajorOrder
from tests.support.slots import CoreSlots, ModelSlots

IMAGE = TensorLayout.build(np.uint16, (3, 4))


@given(
    st.sampled_from([dtype for dtype in Dtype if dtype is not Dtype.UNKNOWN]),
    st.lists(st.integers(0, 4), min_size=1, max_size=8).filter(lambda shape: prod(shape) <= 500),
    st.sampled_from([MajorOrder.ROW, MajorOrder.COLUMN]),
    st.integers(0, 2**32 - 1),
)
def test_view_is_that_of_the_model(dtype: Dtype, shape: list[int], order: MajorOrder, seed: int) -> None:
    layout = TensorLayout.build(dtype, tuple(shape), order=order)
    data = np.random.default_rng(seed).integers(0, 2, layout.extent, np.uint8).tobytes()
    views = []
    for kind in (ModelSlots, CoreSlots):
        slots = kind()
        slots.publish(5, layout, data)
        views.append(slots.array(slots.accept(5)))
    model, core = views
    assert core.dtype == model.dtype
    assert core.shape == model.shape
    assert core.strides == model.strides
    assert core.tobytes() == model.tobytes()
    assert not core.flags.writeable
    assert not core.flags.owndata
    if core.size:
        assert core.flags.c_contiguous == model.flags.c_contiguous
        assert core.flags.f_contiguous == model.flags.f_contiguous
        assert core.flags.aligned


def test_strides_are_those_of_the_layout() -> None:
    layout = TensorLayout.build(np.float32, (3, 5), strides=(64, 8))
    slots = CoreSlots()
    slots.claim(1, layout.extent)
    written = slots.writer.array(1, Layout(layout.header))
    written[...] = np.arange(15).reshape(3, 5)
    slots.commit(1, layout)
    view = slots.array(slots.accept(1))
    assert view.strides == written.strides == (64, 8)
    assert np.array_equal(view, np.arange(15).reshape(3, 5))
    assert written.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


def test_view_is_in_place() -> None:
    slots = CoreSlots()
    slots.publish(2, IMAGE)
    view = slots.array(slots.accept(2))
    pool = slots.pool_bytes(1)
    assert view.ctypes.data == pool.ctypes.data + 64 + 2 * 1024
    pool[64 + 2 * 1024] = 77
    assert view[0, 0] == 77


class Mapped:
    """A ring and a pool in memory that can be unmapped."""

    def __init__(self) -> None:
        self.header = mmap.mmap(-1, 64 + 8 * 256)
        self.buffer = mmap.mmap(-1, 64 + 8 * 1024)
        self.pools: list[Any] = [SimpleNamespace(pool_id=1, stride_bytes=1024, nslots=8, buffer=self.buffer)]
        self.writer = RingWriter(self.header, 8, self.pools)
        self.reader = RingReader(self.header, 8, self.pools)

    def close(self) -> None:
        self.writer.close()
        self.reader.close()
        self.header.close()


def test_view_outlives_the_ring_and_keeps_the_memory_mapped() -> None:
    mapped = Mapped()
    layout = Layout(IMAGE.header)
    mapped.writer.publish(3, bytes(range(24)), layout)
    checked = mapped.reader.check(3)
    assert isinstance(checked, CheckedSlot)
    view = mapped.reader.array(checked)
    part = view[1:, 2]
    mapped.writer.claim(4, 24)
    written = mapped.writer.array(4, layout)
    mapped.close()
    for holder in ("written", "view", "part"):
        with pytest.raises(BufferError):
            mapped.buffer.close()
        assert part.tobytes() == bytes([12, 13, 20, 21])
        written[...] = 1
        if holder == "written":
            del written
            written = np.zeros(1)
        elif holder == "view":
            del view
    gone = weakref.ref(part)
    del part
    gc.collect()
    assert gone() is None
    mapped.buffer.close()


def test_views_leave_no_references_behind() -> None:
    slots = CoreSlots()
    slots.publish(2, IMAGE)
    checked: Any = slots.accept(2)
    base = slots.reader.array(checked).base
    few = 4  # are kept to serve again
    before = sys.getrefcount(base)
    views = [slots.reader.array(checked) for _ in range(1000)]
    assert before + 1000 - few <= sys.getrefcount(base) <= before + 1000
    del views
    assert sys.getrefcount(base) < before + few
    slots.reader.close()
    assert sys.getrefcount(base) < before


def numbered(slots: CoreSlots, count: int) -> None:
    for seq in range(count):
        slots.publish(seq, IMAGE, np.full((3, 4), seq, np.uint16).tobytes())


def test_arrays_that_are_held_keep_their_frames_and_one_that_is_not_serves_again() -> None:
    slots = CoreSlots()
    numbered(slots, 8)
    held = [slots.array(slots.accept(seq)) for seq in range(8)]
    assert [int(array[0, 0]) for array in held] == list(range(8))
    del held
    first = slots.array(slots.accept(1))
    place, part = id(first), first[1:]
    del first
    second = slots.array(slots.accept(2))
    assert id(second) == place, "it was made anew"
    assert (int(second[0, 0]), int(part[0, 0])) == (2, 1), "a view of it stays where it was"


CHANGES = {
    "shape": lambda array: setattr(array, "shape", (4, 3)),
    "dtype": lambda array: setattr(array, "dtype", np.int16),
    "flags": lambda array: setattr(array.flags, "aligned", False),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_array_that_somebody_changed_does_not_serve_again(change: Any) -> None:
    slots = CoreSlots()
    numbered(slots, 2)
    array = slots.array(slots.accept(0))
    change(array)
    del array
    after = slots.array(slots.accept(1))
    assert (after.shape, after.dtype, after.flags.aligned) == ((3, 4), np.uint16, True)
    assert int(after[0, 0]) == 1


def test_array_that_is_watched_or_exported_does_not_serve_again() -> None:
    slots = CoreSlots()
    numbered(slots, 3)
    array = slots.array(slots.accept(0))
    seen = memoryview(array)
    del array
    watched = weakref.ref(slots.array(slots.accept(1)))
    assert int(slots.array(slots.accept(2))[0, 0]) == 2
    assert seen[0, 0] == 0
    assert watched() is None or int(watched()[0, 0]) == 1  # type: ignore[index]


def test_ring_that_is_closed_lets_its_memory_go() -> None:
    slots = CoreSlots()
    numbered(slots, 1)
    slots.array(slots.accept(0))
    pool = slots.pools[0].buffer
    before = sys.getrefcount(pool)
    slots.reader.close()
    assert sys.getrefcount(pool) < before
