"""Element types: the wire's, numpy's and their sizes."""

from __future__ import annotations

import numpy as np
import pytest

from framepool.errors import TensorError
from framepool.wire._generated.control_900 import Dtype
from framepool.wire.dtypes import NUMPY_DTYPES, element_bytes, from_numpy, packed_bytes, to_numpy

SIZES = {
    Dtype.UINT8: 1,
    Dtype.INT8: 1,
    Dtype.UINT16: 2,
    Dtype.INT16: 2,
    Dtype.UINT32: 4,
    Dtype.INT32: 4,
    Dtype.UINT64: 8,
    Dtype.INT64: 8,
    Dtype.FLOAT32: 4,
    Dtype.FLOAT64: 8,
    Dtype.BOOLEAN: 1,
    Dtype.BYTES: 1,
}


@pytest.mark.parametrize(("dtype", "size"), SIZES.items())
def test_element_has_its_size(dtype: Dtype, size: int) -> None:
    assert element_bytes(dtype) == to_numpy(dtype).itemsize == size
    assert packed_bytes(dtype, 7) == 7 * size


@pytest.mark.parametrize("dtype", [each for each in SIZES if each is not Dtype.BYTES])
def test_numpy_type_comes_back_as_the_wire_type(dtype: Dtype) -> None:
    assert from_numpy(to_numpy(dtype)) is dtype
    assert to_numpy(dtype).name.upper() == {"BOOLEAN": "BOOL"}.get(dtype.name, dtype.name)


def test_bytes_and_bits_are_viewed_as_uint8_which_stays_uint8() -> None:
    assert to_numpy(Dtype.BYTES) == to_numpy(Dtype.BIT) == np.uint8
    assert from_numpy(np.uint8) is Dtype.UINT8


@pytest.mark.parametrize(("bits", "size"), [(0, 0), (1, 1), (8, 1), (9, 2), (64, 8), (65, 9)])
def test_bits_are_packed_eight_to_a_byte(bits: int, size: int) -> None:
    assert packed_bytes(Dtype.BIT, bits) == size


def test_bit_has_no_element_size() -> None:
    with pytest.raises(TensorError, match="packed eight to a byte"):
        element_bytes(Dtype.BIT)


def test_unknown_type_is_refused() -> None:
    for ask in (to_numpy, element_bytes, lambda dtype: packed_bytes(dtype, 1)):
        with pytest.raises(TensorError, match="no numpy type"):
            ask(Dtype.UNKNOWN)
    assert set(NUMPY_DTYPES) == set(Dtype) - {Dtype.UNKNOWN}


@pytest.mark.parametrize("dtype", [">u2", "f2", "c8", "S4", "U1", "O", "M8[ns]", [("a", "u1")]])
def test_numpy_type_without_a_wire_type_is_refused(dtype: object) -> None:
    with pytest.raises(TensorError, match="has no wire type"):
        from_numpy(np.dtype(dtype))  # type: ignore[call-overload]
