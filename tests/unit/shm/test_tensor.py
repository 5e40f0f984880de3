"""Tensor layouts: what a header can describe, its bytes, and the numpy arrays laid over them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool._native import seqlock
from framepool.errors import TensorError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout, decode_tensor, pack_bits, unpack_bits, view
from framepool.wire._generated.control_900 import Dtype, MajorOrder, ProgressUnit, TensorHeader
from framepool.wire.dtypes import NUMPY_DTYPES

ROW, COLUMN = MajorOrder.ROW, MajorOrder.COLUMN
NONE, ROWS, COLUMNS = ProgressUnit.NONE, ProgressUnit.ROWS, ProgressUnit.COLUMNS
INT32_MAX = 2**31 - 1
VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "sbe-vectors.json").read_text())
TENSOR_VECTORS = [vector for vector in VECTORS if vector["message"] == "TensorHeader" and not vector["codec_only"]]
NUMPY_TYPES = ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", "?"]


def decoded(header: bytes, nbytes: int = 2**32 - 1) -> TensorLayout:
    layout = decode_tensor(header, nbytes)
    assert isinstance(layout, TensorLayout), layout
    return layout


# What can be built


@pytest.mark.parametrize("order", [ROW, COLUMN])
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_contiguous_layout_has_the_strides_of_numpy(dtype: str, order: MajorOrder) -> None:
    like = np.zeros((3, 4, 5), dtype, order="C" if order is ROW else "F")
    layout = TensorLayout.build(dtype, (3, 4, 5), order=order)
    assert layout.strides == like.strides
    assert layout.declared_strides == (0, 0, 0)
    assert layout.nbytes == layout.extent == like.nbytes
    assert NUMPY_DTYPES[layout.dtype] == like.dtype


@pytest.mark.clause("W-8.2-16")
@pytest.mark.parametrize("shape", [(), (1,) * 9])
def test_number_of_dimensions_beyond_1_to_8_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorError, match=f"{len(shape)} dimensions, 1 to 8 are possible"):
        TensorLayout.build(np.uint8, shape)
    assert TensorLayout.build(np.uint8, (1,) * 8).extent == 1


def test_refusal_of_a_scalar_says_how_to_publish_it() -> None:
    with pytest.raises(TensorError, match=r"publish a scalar as shape \(1,\)"):
        TensorLayout.of(np.array(3.0))


@pytest.mark.parametrize("shape", [(2**31,), (-1,), (2, -3), (2.5,), ("a",)])
def test_dimension_that_no_int32_holds_is_refused(shape: tuple[Any, ...]) -> None:
    with pytest.raises(TensorError, match="dimension"):
        TensorLayout.build(np.uint8, shape)


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, ">u2", "S4", "U1", "M8[ns]", object, "i4,f4"])
def test_dtype_without_a_name_on_the_wire_is_refused(dtype: Any) -> None:
    with pytest.raises(TensorError):
        TensorLayout.build(dtype, (1,))


def test_unknown_dtype_and_order_are_refused() -> None:
    with pytest.raises(TensorError, match="UNKNOWN"):
        TensorLayout.build(Dtype.UNKNOWN, (1,))
    with pytest.raises(TensorError, match="UNKNOWN"):
        TensorLayout.build(np.uint8, (1,), order=MajorOrder.UNKNOWN)


@pytest.mark.clause("W-8.2-26")
@pytest.mark.parametrize(
    ("shape", "strides", "order", "match"),
    [
        ((3, 4), (15, 4), ROW, "overlap"),
        ((3, 4), (16, 3), ROW, "overlap"),
        ((3, 4), (4, 12), ROW, "contradict"),
        ((3, 4), (16, 4), COLUMN, "contradict"),
        ((3, 4), (4, 11), COLUMN, "overlap"),
        ((3, 4), (-16, 4), ROW, "stride -16"),
        ((3, 4), (2**31, 4), ROW, "stride 2147483648"),
        ((3, 4), (16,), ROW, "1 strides for 2 dimensions"),
        ((3, 4, 5), (0, 64, 4), ROW, "overlap"),
    ],
)
def test_strides_that_overlap_or_contradict_the_order_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], order: MajorOrder, match: str
) -> None:
    with pytest.raises(TensorError, match=match):
        TensorLayout.build(np.float32, shape, strides=strides, order=order)


@pytest.mark.clause("W-8.2-26")
@pytest.mark.parametrize(
    ("shape", "strides", "order", "extent"),
    [
        ((3, 4), (16, 4), ROW, 48),
        ((3, 4), (64, 4), ROW, 144),
        ((3, 4), (64, 8), ROW, 156),
        ((3, 4), (28, 8), ROW, 84),
        ((3, 4), (4, 12), COLUMN, 48),
        ((3, 4), (4, 64), COLUMN, 204),
        ((1, 4), (16, 4), ROW, 16),
        ((3, 0), (64, 4), ROW, 0),
        ((3, 4, 5), (0, 20, 0), ROW, 240),
    ],
)
def test_padded_strides_are_accepted(
    shape: tuple[int, ...], strides: tuple[int, ...], order: MajorOrder, extent: int
) -> None:
    layout = TensorLayout.build(np.float32, shape, strides=strides, order=order)
    assert layout.extent == extent
    assert layout.declared_strides == strides
    assert 0 not in layout.strides


def test_tensor_over_more_than_4_gib_is_refused() -> None:
    assert TensorLayout.build(np.uint8, (2, INT32_MAX)).extent == 2**32 - 2
    with pytest.raises(TensorError, match="4 GiB"):
        TensorLayout.build(np.uint8, (3, INT32_MAX))


@pytest.mark.parametrize("shape", [(INT32_MAX,) * 8, (INT32_MAX, INT32_MAX, INT32_MAX, 0)])
def test_shape_beyond_any_address_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorError, match="more bytes than an address can count"):
        TensorLayout.build(np.uint8, shape)


@pytest.mark.clause("W-8.2-29")
@pytest.mark.parametrize(
    ("order", "unit", "stride"), [(ROW, ROWS, 20), (ROW, COLUMNS, 4), (COLUMN, ROWS, 4), (COLUMN, COLUMNS, 12)]
)
def test_progress_stride_is_that_of_the_rows_or_columns(order: MajorOrder, unit: ProgressUnit, stride: int) -> None:
    layout = TensorLayout.build(np.float32, (3, 5), order=order, progress_unit=unit)
    assert layout.progress_stride_bytes == stride
    given_too = TensorLayout.build(np.float32, (3, 5), order=order, progress_unit=unit, progress_stride_bytes=stride)
    assert given_too == layout
    for wrong in (0, stride - 1, stride + 4, 2**32):
        with pytest.raises(TensorError, match="progress stride"):
            TensorLayout.build(np.float32, (3, 5), order=order, progress_unit=unit, progress_stride_bytes=wrong)


@pytest.mark.clause("W-8.2-29")
def test_progress_stride_follows_declared_strides() -> None:
    layout = TensorLayout.build(np.float32, (3, 5), strides=(64, 8), progress_unit=ROWS)
    assert layout.progress_stride_bytes == 64


def test_progress_in_columns_of_a_vector_is_refused() -> None:
    with pytest.raises(TensorError, match="no columns"):
        TensorLayout.build(np.uint8, (3,), progress_unit=COLUMNS)


# Arrays as they lie


@pytest.mark.parametrize(
    ("array", "order", "strides"),
    [
        (np.zeros((3, 4), "<f4"), ROW, (16, 4)),
        (np.zeros((3, 4), "<f4", order="F"), COLUMN, (4, 12)),
        (np.zeros((3, 8), "<f4")[:, :4], ROW, (32, 4)),
        (np.zeros((3, 8), "<f4")[:, ::2], ROW, (32, 8)),
        (np.zeros((4, 7), "u1")[:, ::2], ROW, (7, 2)),
        (np.zeros((8, 3), "<f4", order="F")[:4], COLUMN, (4, 32)),
        (np.zeros((3, 1, 8), "<f4")[:, :, ::2], ROW, (32, 28, 8)),
        (np.zeros((1, 8, 3), "<f4")[:, ::2], ROW, (84, 24, 4)),
    ],
)
def test_layout_of_an_array_is_how_it_lies(
    array: np.ndarray[Any, Any], order: MajorOrder, strides: tuple[int, ...]
) -> None:
    layout = TensorLayout.of(array)
    assert layout.order is order
    assert layout.strides == strides
    assert decoded(layout.header) == layout


@pytest.mark.parametrize(
    "array", [np.zeros((3, 4))[::-1], np.broadcast_to(np.zeros(4), (3, 4)), np.zeros((2, 3, 4)).transpose(1, 0, 2)]
)
def test_array_that_no_header_describes_is_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TensorError):
        TensorLayout.of(array)


# Bytes


@pytest.mark.parametrize("vector", TENSOR_VECTORS, ids=lambda vector: vector["case"])
def test_golden_headers_decode_and_encode(vector: dict[str, Any]) -> None:
    header = bytes.fromhex(vector["hex"])
    fields = vector["fields"]
    layout = decoded(header)
    assert layout.dtype.name == fields["dtype"]
    assert layout.order.name == fields["majorOrder"]
    assert list(layout.shape) == fields["dims"][: fields["ndims"]]
    assert list(layout.declared_strides) == fields["strides"][: fields["ndims"]]
    assert layout.progress_unit.name == fields["progressUnit"]
    assert layout.progress_stride_bytes == fields["progressStrideBytes"]
    assert layout.header == header
    assert seqlock.Layout(header).shape == layout.shape


@pytest.mark.clause("W-8.2-10", "W-8.2-11", "W-8.2-01", "W-8.2-22")
def test_encoded_header_has_its_fields_where_the_schema_says() -> None:
    layout = TensorLayout.build(np.int16, (7, 5, 3), strides=(40, 8, 2), progress_unit=COLUMNS)
    header = layout.header
    assert len(header) == 192
    assert header[:8] == bytes.fromhex("B800340084030100")
    assert struct.unpack_from("<hhBBBI", header, 8) == (4, 1, 3, 0, 2, 8)
    assert struct.unpack_from("<8i", header, 8 + 11) == (7, 5, 3, 0, 0, 0, 0, 0)
    assert struct.unpack_from("<8i", header, 8 + 43) == (40, 8, 2, 0, 0, 0, 0, 0)
    assert header[8 + 75 :] == bytes(109)


@pytest.mark.clause("W-15.8-03", "W-15.8-04", "W-15.8-05")
@pytest.mark.parametrize("order", [(ROW, 1), (COLUMN, 2)])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (Dtype.UINT8, 1),
        (Dtype.INT8, 2),
        (Dtype.UINT16, 3),
        (Dtype.INT16, 4),
        (Dtype.UINT32, 5),
        (Dtype.INT32, 6),
        (Dtype.UINT64, 7),
        (Dtype.INT64, 8),
        (Dtype.FLOAT32, 9),
        (Dtype.FLOAT64, 10),
        (Dtype.BOOLEAN, 11),
        (Dtype.BYTES, 13),
        (Dtype.BIT, 14),
    ],
)
def test_dtype_and_order_keep_their_numbers(dtype: Dtype, number: int, order: tuple[MajorOrder, int]) -> None:
    header = TensorLayout.build(dtype, (2,), order=order[0]).header
    assert struct.unpack_from("<hh", header, 8) == (number, order[1])
    assert (decoded(header).dtype, decoded(header).order) == (dtype, order[0])
    assert (seqlock.Layout(header).dtype, seqlock.Layout(header).order) == (number, order[1])


@pytest.mark.parametrize("length", [0, 191, 193])
def test_header_of_another_length_is_refused(length: int) -> None:
    header = (TensorLayout.build(np.uint8, (1,)).header * 2)[:length]
    assert decode_tensor(header, 1) is DropReason.HEADER_LENGTH
    with pytest.raises(TensorError, match="192 bytes"):
        seqlock.Layout(header)


def test_core_names_the_rule_that_a_header_breaks() -> None:
    header = bytearray(TensorLayout.build(np.uint8, (1,)).header)
    header[8 + 4] = 9
    with pytest.raises(TensorError, match="NDIMS"):
        seqlock.Layout(header)


@pytest.mark.parametrize("dtype", [dtype for dtype in Dtype if dtype is not Dtype.UNKNOWN])
def test_every_layout_survives_its_bytes(dtype: Dtype) -> None:
    for order in (ROW, COLUMN):
        layout = TensorLayout.build(dtype, (8, 16, 3), order=order)
        assert decoded(layout.header) == layout
        assert seqlock.Layout(layout.header).header == layout.header


# Views


@pytest.mark.clause("W-8.2-24", "W-8.2-28")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_view_shows_the_elements_in_either_order(dtype: str, order: Any) -> None:
    source = np.arange(60).reshape(3, 4, 5).astype(dtype).copy(order=order)
    layout = TensorLayout.of(source)
    buffer = b"\xee" * 7 + source.tobytes(order="A")
    np.testing.assert_array_equal(view(buffer, 7, layout), source)
    assert view(buffer, 7, layout).dtype == source.dtype


@pytest.mark.clause("W-8.2-28")
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    gaps=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    order=st.sampled_from([ROW, COLUMN]),
)
def test_element_lies_at_the_sum_of_index_times_stride(shape: list[int], gaps: list[int], order: MajorOrder) -> None:
    strides = [0] * len(shape)
    step = 2
    for i in reversed(range(len(shape))) if order is ROW else range(len(shape)):
        strides[i] = step + gaps[i]
        step = strides[i] * shape[i]
    layout = TensorLayout.build(np.uint16, shape, strides=strides, order=order)
    buffer = np.random.default_rng(1).integers(0, 256, layout.extent, np.uint8).tobytes()
    array = view(buffer, 0, layout)
    for index in np.ndindex(*shape):
        at = sum(i * stride for i, stride in zip(index, strides, strict=True))
        assert array[index] == int.from_bytes(buffer[at : at + 2], "little")


def test_bytes_tensor_is_seen_as_uint8() -> None:
    layout = TensorLayout.build(Dtype.BYTES, (5,))
    assert view(b"hello", 0, layout).tobytes() == b"hello"
    assert view(b"hello", 0, layout).dtype == np.uint8


@pytest.mark.parametrize("order", [ROW, COLUMN])
def test_bit_tensor_is_packed_and_comes_back(order: MajorOrder) -> None:
    values = np.random.default_rng(2).integers(0, 2, (3, 7)).astype(bool)
    packed = pack_bits(values, order)
    layout = TensorLayout.build(Dtype.BIT, (3, 7), order=order)
    assert layout.extent == layout.nbytes == packed.size == 3
    seen = view(packed.tobytes(), 0, layout)
    assert (seen.dtype.str, seen.shape) == ("|u1", (3,))
    np.testing.assert_array_equal(unpack_bits(seen, layout), values)


def test_first_bit_is_the_lowest_of_the_first_byte() -> None:
    assert pack_bits(np.array([True] + [False] * 8 + [True])).tolist() == [1, 2]


def test_bit_tensor_with_strides_is_refused() -> None:
    with pytest.raises(TensorError, match="contiguous"):
        TensorLayout.build(Dtype.BIT, (8, 8), strides=(1, 0))


def test_progress_of_a_bit_tensor_counts_whole_bytes_only() -> None:
    assert TensorLayout.build(Dtype.BIT, (3, 16), progress_unit=ROWS).progress_stride_bytes == 2
    for shape, unit in (((3, 12), ROWS), ((3, 16), COLUMNS), ((3, 1), ROWS)):
        with pytest.raises(TensorError, match="whole bytes"):
            TensorLayout.build(Dtype.BIT, shape, progress_unit=unit)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 5), (0,) * 8])
def test_empty_tensor_keeps_its_shape_and_needs_no_byte(shape: tuple[int, ...]) -> None:
    layout = TensorLayout.build(np.float64, shape)
    assert layout.extent == layout.nbytes == 0
    assert view(b"", 0, layout).shape == shape
    assert decoded(layout.header, 0) == layout


def test_view_is_read_only_unless_asked() -> None:
    layout = TensorLayout.build(np.uint8, (4,))
    buffer = bytearray(4)
    with pytest.raises(ValueError, match="read-only"):
        view(buffer, 0, layout)[0] = 1
    view(buffer, 0, layout, writable=True)[0] = 1
    assert buffer[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        view(b"1234", 0, layout, writable=True)


def test_view_keeps_its_buffer_from_being_resized() -> None:
    buffer = bytearray(4)
    array = view(buffer, 0, TensorLayout.build(np.uint8, (4,)))
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    assert array.sum() == 0


@pytest.mark.clause("W-8.2-01")
def test_max_dims_takes_no_byte() -> None:
    assert TensorHeader.MAX_DIMS == 8
    assert TensorHeader.BLOCK_LENGTH == 184
    header = bytearray(TensorLayout.build(np.uint8, (9,)).header)
    header[8 + 5] = 0xAB  # padAlign
    assert decoded(bytes(header)).shape == (9,)
