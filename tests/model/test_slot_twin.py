"""The compiled core and the readable model agree: on every slot, valid, at a boundary or hostile, and on every byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from framepool._native import seqlock
from framepool.errors import FramepoolError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import Dtype, MajorOrder, ProgressUnit
from tests.support.slots import FIELDS, CoreSlots, ModelSlots, Slots

NSLOTS = 4
STRIDES = (256, 4096)

EDGES = (0, 1, 2, 3, 7, 8, 9, 63, 64, 255, 256, 257, 4096, 4097, 2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
SIGNED_EDGES = (-1, -4, -(2**31), -(2**15), *EDGES)


def numbers(code: str) -> st.SearchStrategy[int]:
    """Values of a struct code, boundaries first."""
    size = struct.calcsize(f"<{code}")
    low, high = (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) if code.islower() else (0, 2 ** (8 * size) - 1)
    edges = [edge for edge in SIGNED_EDGES if low <= edge <= high]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


def values(name: str) -> st.SearchStrategy[Any]:
    """A hostile value of a field."""
    code = FIELDS[name][1].code
    if code.endswith("s"):
        return st.binary(min_size=int(code[:-1]), max_size=int(code[:-1]))
    if code.startswith("8"):
        return st.tuples(*[numbers("i")] * 8)
    return numbers(code)


small = st.integers(0, 6)


@st.composite
def tensors(draw: st.DrawFn) -> TensorLayout:
    """A layout that can be built: any dtype, order, shape, with and without strides and progress."""
    dtype = draw(st.sampled_from([dtype for dtype in Dtype if dtype is not Dtype.UNKNOWN]))
    order = draw(st.sampled_from([MajorOrder.ROW, MajorOrder.COLUMN]))
    shape = tuple(draw(st.lists(small, min_size=1, max_size=8)))
    strides = None
    if dtype is not Dtype.BIT and draw(st.booleans()):
        step = TensorLayout.build(dtype, (1,)).extent
        wanted = [0] * len(shape)
        for i in reversed(range(len(shape))) if order is MajorOrder.ROW else range(len(shape)):
            wanted[i] = step + draw(st.sampled_from([0, 0, 1, 4]))
            step = wanted[i] * max(1, shape[i])
        strides = wanted
    for unit in draw(st.permutations(list(ProgressUnit))):
        try:
            return TensorLayout.build(dtype, shape, strides=strides, order=order, progress_unit=unit)
        except FramepoolError:
            continue
    raise AssertionError("NONE always works")


@st.composite
def hostile(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Fields to overwrite; the enumerations get more than their share of known values."""
    names = draw(st.lists(st.sampled_from([name for name in FIELDS if name != "seqCommit"]), max_size=4))
    return [(name, draw(values(name))) for name in names]


def same(model: Slots, core: Slots, seq: int) -> None:
    """Both accept the slot and read the same from it, or both drop it for the same reason."""
    ours, theirs = model.check(seq), core.check(seq)
    if isinstance(ours, DropReason) or isinstance(theirs, DropReason):
        event(f"dropped {ours!r}" if isinstance(ours, DropReason) else "accepted by the model alone")
        assert ours == theirs
        return
    event("accepted")
    for name in ("seq", "pool_id", "payload_slot", "values_len_bytes", "timestamp_ns", "meta_version"):
        assert getattr(ours, name) == getattr(theirs, name), name
    names = ("dtype", "order", "shape", "strides", "progress_unit", "progress_stride_bytes", "nbytes", "extent")
    for name in names:
        assert getattr(ours.layout, name) == getattr(theirs.layout, name), name
    for read in (Slots.array, Slots.copy):
        mine = getattr(model, read.__name__)(ours)
        other = getattr(core, read.__name__)(theirs)
        assert mine.shape == other.shape
        assert mine.strides == other.strides or mine.size == 0
        assert mine.dtype == other.dtype
        assert mine.tobytes() == other.tobytes()


def twins(seed: int = 0) -> tuple[ModelSlots, CoreSlots]:
    """A model and a core with equal, random payload pools."""
    model, core = ModelSlots(NSLOTS, STRIDES), CoreSlots(NSLOTS, STRIDES)
    for ours, theirs in zip(model.pools, core.pools, strict=True):
        noise = np.random.default_rng(seed).integers(0, 256, memoryview(ours.buffer).nbytes, np.uint8)
        np.asarray(ours.buffer)[:] = noise
        np.asarray(theirs.buffer)[:] = noise
    return model, core


def test_reasons_have_the_same_numbers() -> None:
    assert {reason.name: reason.value for reason in DropReason} == seqlock.REASONS


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layout=tensors(), changes=hostile(), seq=st.integers(0, 2**63 - 1), extra=st.integers(0, 9))
def test_both_judge_a_tampered_slot_alike(
    layout: TensorLayout, changes: list[tuple[str, Any]], seq: int, extra: int
) -> None:
    model, core = twins()
    nbytes = layout.extent + extra
    if nbytes > max(STRIDES):
        return
    for slots in (model, core):
        slots.publish(seq, layout, nbytes=nbytes, timestamp_ns=seq, meta_version=seq & 0xFFFFFFFF)
        for name, value in changes:
            slots.put(seq % NSLOTS, name, value)
    same(model, core, seq)


def mostly(usual: st.SearchStrategy[int], rare: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    """Nineteen of twenty from the first: a header that is wrong everywhere meets only the first rule."""
    return st.integers(0, 19).flatmap(lambda roll: usual if roll else rare)


headers = st.fixed_dictionaries(
    {
        "dtype": mostly(st.sampled_from([*range(1, 12), 13, 14, 14]), numbers("h")),
        "majorOrder": mostly(st.sampled_from([1, 2]), numbers("h")),
        "ndims": mostly(st.integers(1, 8), numbers("B")),
        "dims": st.tuples(*[mostly(small, numbers("i"))] * 8),
        "strides": st.tuples(*[mostly(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 4, 8, 12, 48, 96]), numbers("i"))] * 8),
        "progressUnit": mostly(st.sampled_from([0, 0, 1, 2]), numbers("B")),
        "progressStrideBytes": mostly(st.sampled_from([0, 1, 2, 4, 8, 12, 48, 96]), numbers("I")),
    }
)
"""A TensorHeader with a wrong field here and there."""

CONTIGUOUS = {"strides": (0,) * 8, "progressUnit": 0, "progressStrideBytes": 0}
HUGE = 2**31 - 1


@settings(max_examples=3000, deadline=None)
@given(header=headers, length=mostly(st.sampled_from([4096, 4096, 0, 64]), st.integers(0, 4096)))
@example({"dtype": 14, "majorOrder": 1, "ndims": 8, "dims": (HUGE, HUGE, *[0] * 6), **CONTIGUOUS}, 0)
@example({"dtype": 7, "majorOrder": 1, "ndims": 3, "dims": (0, HUGE, HUGE, *[0] * 5), **CONTIGUOUS}, 0)
@example({"dtype": 1, "majorOrder": 2, "ndims": 3, "dims": (HUGE, HUGE, *[0] * 6), **CONTIGUOUS}, 0)
@example({"dtype": 1, "majorOrder": 1, "ndims": 8, "dims": (HUGE,) * 8, **CONTIGUOUS}, 4096)
@example(
    {"dtype": 1, "majorOrder": 1, "ndims": 2, "dims": (0, HUGE, *[0] * 6), **CONTIGUOUS, "strides": (HUGE,) * 8}, 0
)
def test_both_judge_a_tensor_header_alike(header: dict[str, Any], length: int) -> None:
    model, core = twins()
    for slots in (model, core):
        slots.publish(5, TensorLayout.build(np.uint8, (length,)))
        for name, value in header.items():
            slots.put(1, name, value)
    same(model, core, 5)


@settings(max_examples=500, deadline=None)
@given(raw=st.binary(min_size=256, max_size=256), seq=st.integers(0, 2**64 - 1), committed=st.booleans())
def test_both_judge_random_bytes_alike(raw: bytes, seq: int, committed: bool) -> None:
    model, core = twins()
    for slots in (model, core):
        slots.slot(seq % NSLOTS)[:] = np.frombuffer(raw, np.uint8)
        if committed:
            slots.put(seq % NSLOTS, "seqCommit", (seq << 1 | 1) & (2**64 - 1))
    same(model, core, seq)


@settings(max_examples=300, deadline=None)
@given(
    frames=st.lists(
        st.tuples(
            tensors(), st.integers(1, 9), st.sampled_from(["commit", "abandon", "header"]), st.binary(max_size=64)
        ),
        max_size=12,
    ),
    timestamp=st.integers(0, 2**64 - 1),
    version=st.integers(0, 2**32 - 1),
)
def test_both_write_the_same_bytes(
    frames: list[tuple[TensorLayout, int, str, bytes]], timestamp: int, version: int
) -> None:
    model, core = twins()
    for slots in (model, core):
        slots.header[64:] = 0xFF
        seq = -1
        for layout, step, end, data in frames:
            seq += step
            try:
                slots.claim(seq, layout.extent)
            except FramepoolError:
                continue
            part = data[: layout.extent]
            slots.payload(seq)[: len(part)] = part
            if end != "abandon":
                slots.write_header(seq, layout, timestamp, version)
            if end == "commit":
                slots.commit(seq, layout, timestamp, version)
            else:
                slots.abandon(seq)
    assert model.header.tobytes() == core.header.tobytes()
    for ours, theirs in zip(model.pools, core.pools, strict=True):
        assert bytes(memoryview(ours.buffer)) == bytes(memoryview(theirs.buffer))


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["claim", "commit", "abandon"]), st.integers(0, 12)), max_size=20))
def test_both_refuse_the_same_steps(steps: list[tuple[str, int]]) -> None:
    layout = TensorLayout.build(np.uint8, (3,))
    model, core = twins()
    for step, seq in steps:
        outcomes = []
        for slots in (model, core):
            try:
                if step == "claim":
                    slots.claim(seq, 3)
                elif step == "commit":
                    slots.commit(seq, layout)
                else:
                    slots.abandon(seq)
                outcomes.append("done")
            except FramepoolError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
        assert outcomes[0] == outcomes[1]
    assert model.header.tobytes() == core.header.tobytes()
