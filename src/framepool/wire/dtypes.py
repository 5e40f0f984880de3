"""The element types of Wire 15.8: `Dtype` on the wire, `numpy.dtype` in Python, and their sizes.

Sizes where the specification is silent follow decisions.md #31: BOOLEAN and BYTES have one byte, BIT is packed
eight to a byte and contiguous. BYTES and BIT are both arrays of uint8 in numpy; going back, uint8 is UINT8.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from framepool.errors import TensorError
from framepool.wire._generated.control_900 import Dtype

NUMPY_DTYPES: Final[dict[Dtype, np.dtype[Any]]] = {
    Dtype.UINT8: np.dtype("u1"),
    Dtype.INT8: np.dtype("i1"),
    Dtype.UINT16: np.dtype("<u2"),
    Dtype.INT16: np.dtype("<i2"),
    Dtype.UINT32: np.dtype("<u4"),
    Dtype.INT32: np.dtype("<i4"),
    Dtype.UINT64: np.dtype("<u8"),
    Dtype.INT64: np.dtype("<i8"),
    Dtype.FLOAT32: np.dtype("<f4"),
    Dtype.FLOAT64: np.dtype("<f8"),
    Dtype.BOOLEAN: np.dtype("?"),
    Dtype.BYTES: np.dtype("u1"),
    Dtype.BIT: np.dtype("u1"),
}
"""What a payload of each type is viewed as; BIT as its packed bytes. UNKNOWN has none."""

_WIRE_DTYPES = {dtype: wire for wire, dtype in reversed(NUMPY_DTYPES.items())}


def to_numpy(dtype: Dtype) -> np.dtype[Any]:
    """The numpy type of a wire type; `TensorError` for UNKNOWN (decisions.md #31: the frame is dropped)."""
    try:
        return NUMPY_DTYPES[dtype]
    except KeyError:
        raise TensorError(f"no numpy type for {dtype!r}") from None


def from_numpy(dtype: np.dtype[Any] | type | str) -> Dtype:
    """The wire type of a numpy type in the byte order of the wire."""
    given = np.dtype(dtype)
    try:
        return _WIRE_DTYPES[given]
    except KeyError:
        known = ", ".join(sorted({str(each) for each in _WIRE_DTYPES}))
        raise TensorError(f"numpy type {given!r} has no wire type: use one of {known}, little-endian") from None


def element_bytes(dtype: Dtype) -> int:
    """Bytes of one element; BIT has no whole number of them: see `packed_bytes`."""
    if dtype is Dtype.BIT:
        raise TensorError("an element of BIT has no size in bytes: it is packed eight to a byte")
    return to_numpy(dtype).itemsize


def packed_bytes(dtype: Dtype, elements: int) -> int:
    """Bytes of so many elements without gaps."""
    return (elements + 7) // 8 if dtype is Dtype.BIT else elements * element_bytes(dtype)
