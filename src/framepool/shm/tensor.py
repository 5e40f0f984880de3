"""What the 192 bytes of a TensorHeader say: dtype, order, shape, strides and progress (Wire 8.2, 15.8).

A `TensorLayout` is a value that broke no rule, built from the caller's words (`TensorError` if the header cannot
describe them) or decoded from bytes (a `DropReason` if they break a rule). `view` lays it over a buffer as a numpy
array. The compiled twin is `_native.seqlock.Layout`.

Two dtypes have no numpy equal. BYTES comes as uint8. BIT, always contiguous, comes as the 1-D uint8 array of its
packed bytes; `unpack_bits` and `pack_bits` turn it into booleans and back, element i being bit i % 8 of byte i // 8
in the tensor's own order.
"""

from __future__ import annotations

import operator
from collections.abc import Buffer, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from framepool.errors import TensorError
from framepool.shm.drop import DropReason
from framepool.wire._generated.control_900 import (
    DTYPE_OF,
    MAJOR_ORDER_OF,
    PROGRESS_UNIT_OF,
    Dtype,
    MajorOrder,
    ProgressUnit,
    TensorHeader,
)
from framepool.wire.constants import MAX_DIMS, MESSAGE_HEADER_BYTES, TENSOR_HEADER_BYTES
from framepool.wire.dtypes import NUMPY_DTYPES, element_bytes, from_numpy
from framepool.wire.message import MESSAGE_HEADER, MessageHeader

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_UINT32_MAX: Final = 2**32 - 1

_REFUSALS: Final = {
    DropReason.TOO_LARGE: "has more bytes than an address can count",
    DropReason.BIT_STRIDES: "has strides, but BIT tensors are contiguous: leave them out",
    DropReason.STRIDE_ORDER: "has strides that contradict its order: the outer dimension has the larger one",
    DropReason.STRIDE_OVERLAP: "has strides that let elements overlap",
    DropReason.PROGRESS_AXIS: "has no columns to count progress in",
    DropReason.PROGRESS_STRIDE_ZERO: "needs a progress stride above 0",
    DropReason.PROGRESS_STRIDE: "has another progress stride than its rows or columns have in whole bytes",
    DropReason.EXTENT: "reaches over more than the 4 GiB that values_len_bytes can say",
}


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A tensor as its header describes it. `strides` are effective, `declared_strides` as written (0 = inferred)."""

    dtype: Dtype
    order: MajorOrder
    shape: tuple[int, ...]
    declared_strides: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from element to element along each dimension; empty for BIT, whose elements have none."""
    progress_unit: ProgressUnit
    progress_stride_bytes: int
    nbytes: int
    """Bytes of all elements, without the gaps of strides."""
    extent: int
    """Bytes from the first to the end of the last element: what the payload must hold."""

    @property
    def header(self) -> bytes:
        """The encoded TensorHeader with its message header; dims and strides beyond ndims are zero (Wire 8.2)."""
        beyond = (0,) * (MAX_DIMS - len(self.shape))
        return TensorHeader(
            dtype=self.dtype,
            major_order=self.order,
            ndims=len(self.shape),
            progress_unit=self.progress_unit,
            progress_stride_bytes=self.progress_stride_bytes,
            dims=self.shape + beyond,
            strides=self.declared_strides + beyond,
        ).encode()

    @classmethod
    def build(
        cls,
        dtype: npt.DTypeLike | Dtype,
        shape: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        order: MajorOrder = MajorOrder.ROW,
        progress_unit: ProgressUnit = ProgressUnit.NONE,
        progress_stride_bytes: int | None = None,
    ) -> TensorLayout:
        """The layout of these words, contiguous unless strides say otherwise; a stride of 0 is inferred.

        BYTES and BIT are asked for by their `Dtype`. The progress stride is that of the layout unless given.
        Raises TensorError for what the header cannot describe.
        """
        wire = dtype if isinstance(dtype, Dtype) else from_numpy(np.dtype(dtype))
        dims = _whole("dimension", shape)
        if not 1 <= len(dims) <= MAX_DIMS:
            hint = ": publish a scalar as shape (1,)" if not dims else ""
            raise TensorError(f"{len(dims)} dimensions, 1 to {MAX_DIMS} are possible{hint}")
        declared = (0,) * len(dims) if strides is None else _whole("stride", strides)
        if len(declared) != len(dims):
            raise TensorError(f"{len(declared)} strides for {len(dims)} dimensions")
        if wire is Dtype.UNKNOWN or order is MajorOrder.UNKNOWN:
            raise TensorError(f"{wire.name} and {order.name}: UNKNOWN cannot be published")
        beyond = (0,) * (MAX_DIMS - len(dims))
        words = TensorHeader(
            dtype=wire,
            major_order=order,
            ndims=len(dims),
            progress_unit=progress_unit,
            progress_stride_bytes=progress_stride_bytes or 0,
            dims=dims + beyond,
            strides=declared + beyond,
        )
        if progress_unit is not ProgressUnit.NONE and progress_stride_bytes is None:
            words = replace(words, progress_stride_bytes=_progress_stride(words))
        if not 0 <= words.progress_stride_bytes <= _UINT32_MAX:
            raise TensorError(f"a progress stride of {words.progress_stride_bytes} is not a u32")
        layout = _layout(words)
        if isinstance(layout, DropReason):
            raise TensorError(f"a {wire.name} tensor of shape {dims} and strides {declared} {_REFUSALS[layout]}")
        return layout

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> TensorLayout:
        """The layout in which `array` lies in memory: contiguous in either order, or strided without overlap."""
        if array.flags.c_contiguous or array.flags.f_contiguous:
            order = MajorOrder.ROW if array.flags.c_contiguous else MajorOrder.COLUMN
            return cls.build(array.dtype, array.shape, order=order)
        if any(dim > 1 and stride <= 0 for dim, stride in zip(array.shape, array.strides, strict=True)):
            raise TensorError(f"strides {array.strides} run backwards or repeat elements: publish a copy")
        # Only dimensions that are stepped along have an order; numpy leaves the strides of the others open.
        stepped = [stride for dim, stride in zip(array.shape, array.strides, strict=True) if dim > 1]
        order = MajorOrder.ROW if stepped == sorted(stepped, reverse=True) else MajorOrder.COLUMN
        return cls.build(array.dtype, array.shape, strides=_settled(array, order), order=order)


def decode_tensor(header: Buffer, values_len_bytes: int) -> TensorLayout | DropReason:
    """The layout in the `headerBytes` of a slot with that much payload, or the first rule broken (Wire 8.2, 8.3)."""
    if memoryview(header).nbytes != TENSOR_HEADER_BYTES:
        return DropReason.HEADER_LENGTH
    message = MessageHeader._make(MESSAGE_HEADER.unpack_from(header))
    if message.schema_id != TensorHeader.SCHEMA_ID:
        return DropReason.HEADER_SCHEMA
    if message.version != TensorHeader.SCHEMA_VERSION:
        return DropReason.HEADER_VERSION
    if message.template_id != TensorHeader.TEMPLATE_ID:
        return DropReason.HEADER_TEMPLATE
    if message.block_length != TensorHeader.BLOCK_LENGTH:
        return DropReason.HEADER_BLOCK_LENGTH
    dtype, order, ndims, _pad_align, unit, *_ = TensorHeader.BLOCK.unpack_from(header, MESSAGE_HEADER_BYTES)
    if dtype not in DTYPE_OF or dtype == Dtype.UNKNOWN:
        return DropReason.DTYPE
    if order not in MAJOR_ORDER_OF or order == MajorOrder.UNKNOWN:
        return DropReason.MAJOR_ORDER
    if not 1 <= ndims <= MAX_DIMS:
        return DropReason.NDIMS
    if unit not in PROGRESS_UNIT_OF:
        return DropReason.PROGRESS_UNIT
    layout = _layout(TensorHeader.decode_body(header, MESSAGE_HEADER_BYTES))
    if isinstance(layout, TensorLayout) and layout.extent > values_len_bytes:
        return DropReason.EXTENT
    return layout


def view(buffer: Buffer, offset: int, layout: TensorLayout, *, writable: bool = False) -> npt.NDArray[np.generic]:
    """The tensor that starts at `offset` of `buffer`, in place; BIT as its packed bytes.

    The array keeps an export of the buffer alive: a mapping cannot be closed under it.
    """
    exported = memoryview(buffer)
    # ndarray(buffer=) gives the export back at once and frombuffer keeps it: hence the step in between.
    raw = np.frombuffer(exported if writable else exported.toreadonly(), np.uint8)
    if writable and not raw.flags.writeable:
        raise ValueError("the buffer is read-only")
    dtype = NUMPY_DTYPES[layout.dtype]
    if layout.dtype is Dtype.BIT:
        return np.ndarray((layout.extent,), dtype, raw, offset)
    return np.ndarray(layout.shape, dtype, raw, offset, layout.strides)


def unpack_bits(packed: npt.NDArray[np.generic], layout: TensorLayout) -> npt.NDArray[np.bool_]:
    """A BIT tensor as booleans of its shape: a private copy."""
    bits = np.unpackbits(packed.view(np.uint8), count=prod(layout.shape), bitorder="little")
    return bits.astype(np.bool_).reshape(layout.shape, order=_numpy_order(layout.order))


def pack_bits(values: npt.NDArray[np.bool_], order: MajorOrder = MajorOrder.ROW) -> npt.NDArray[np.uint8]:
    """The payload of a BIT tensor."""
    return np.packbits(values.ravel(order=_numpy_order(order)), bitorder="little")


def _layout(words: TensorHeader) -> TensorLayout | DropReason:
    """The rules about shape, strides and progress, in the order of DropReason; the one place that knows them."""
    dtype, order = words.dtype, words.major_order
    shape, declared = words.dims[: words.ndims], words.strides[: words.ndims]
    if any(dim < 0 for dim in shape):
        return DropReason.NEGATIVE_DIM
    size = _element(dtype) * prod(max(1, dim) for dim in shape)
    if size > _INT64_MAX:
        return DropReason.TOO_LARGE
    if any(stride < 0 for stride in declared):
        return DropReason.NEGATIVE_STRIDE
    if dtype is Dtype.BIT and any(declared):
        return DropReason.BIT_STRIDES
    strides = _effective_strides(words)

    # `span` is what the dimensions so far reach over: the next one must step beyond it.
    inner, span = 0, _element(dtype)
    for i in _outwards(order, len(shape)):
        if strides[i] < inner:
            return DropReason.STRIDE_ORDER
        if strides[i] < span:
            return DropReason.STRIDE_OVERLAP
        inner = strides[i]
        span += (max(1, shape[i]) - 1) * strides[i]

    if reason := _progress_rule(words, strides):
        return reason
    if dtype is Dtype.BIT:
        span, size = -(-span // 8), -(-size // 8)
    if 0 in shape:
        span = size = 0
    if span > _UINT32_MAX:
        return DropReason.EXTENT
    return TensorLayout(
        dtype=dtype,
        order=order,
        shape=shape,
        declared_strides=declared,
        strides=() if dtype is Dtype.BIT else strides,
        progress_unit=words.progress_unit,
        progress_stride_bytes=words.progress_stride_bytes,
        nbytes=size,
        extent=span,
    )


def _element(dtype: Dtype) -> int:
    """Bytes of an element; of BIT, whose strides are counted in bits until the end, one bit."""
    return 1 if dtype is Dtype.BIT else element_bytes(dtype)


def _outwards(order: MajorOrder, ndims: int) -> Sequence[int]:
    """The dimensions from the innermost to the outermost."""
    return range(ndims)[::-1] if order is MajorOrder.ROW else range(ndims)


def _effective_strides(words: TensorHeader) -> tuple[int, ...]:
    """Each stride as declared or, where 0, that of the contiguous layout (decisions.md #31).

    A dimension of 0 counts as 1, as numpy has it, so that an empty tensor has strides as well.
    """
    strides = list(words.strides[: words.ndims])
    contiguous = _element(words.dtype)
    for i in _outwards(words.major_order, words.ndims):
        strides[i] = strides[i] or contiguous
        contiguous *= max(1, words.dims[i])
    return tuple(strides)


def _progress_rule(words: TensorHeader, strides: tuple[int, ...]) -> DropReason | None:
    """Rows are dimension 0, columns dimension 1, in either order (decisions.md #30)."""
    if words.progress_unit is ProgressUnit.NONE:
        return None
    axis = words.progress_unit - ProgressUnit.ROWS
    if axis >= words.ndims:
        return DropReason.PROGRESS_AXIS
    if words.progress_stride_bytes == 0:
        return DropReason.PROGRESS_STRIDE_ZERO
    if strides[axis] != words.progress_stride_bytes * _per_byte(words.dtype):
        return DropReason.PROGRESS_STRIDE
    return None


def _progress_stride(words: TensorHeader) -> int:
    """What the layout itself says; where there is none in whole bytes, one that `_progress_rule` refuses."""
    axis = words.progress_unit - ProgressUnit.ROWS
    if axis >= words.ndims:
        return 0
    return min(-(-_effective_strides(words)[axis] // _per_byte(words.dtype)), _UINT32_MAX)


def _per_byte(dtype: Dtype) -> int:
    """How many units of a stride make a byte."""
    return 8 if dtype is Dtype.BIT else 1


def _whole(what: str, values: Sequence[int]) -> tuple[int, ...]:
    """The values as ints that an int32 field holds; TensorError else."""
    try:
        whole = tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise TensorError(f"{what}s {values!r}: {error}") from None
    for value in whole:
        if not 0 <= value <= _INT32_MAX:
            raise TensorError(f"{what} {value} is not between 0 and {_INT32_MAX}")
    return whole


def _settled(array: npt.NDArray[np.generic], order: MajorOrder) -> tuple[int, ...]:
    """The strides of `array`, those of dimensions without a step chosen to suit the order."""
    strides = list(array.strides)
    span = array.itemsize
    inner = 0
    for i in _outwards(order, array.ndim):
        if array.shape[i] <= 1:
            strides[i] = max(span, inner)
        inner = strides[i]
        span += (max(1, array.shape[i]) - 1) * strides[i]
    return tuple(strides)


def _numpy_order(order: MajorOrder) -> Literal["C", "F"]:
    return "C" if order is MajorOrder.ROW else "F"
