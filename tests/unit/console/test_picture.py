"""Pictures out of frames: which part, how many pixels, which values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from framepool.console.picture import Picture, Region, Wish, clipped, decoded, encoded, picture, plane

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")


def test_a_small_image_comes_as_it_is() -> None:
    image = np.arange(12, dtype=np.uint16).reshape(3, 4)
    found = picture(image, Wish(size=64))
    assert found.step == 1
    assert found.values.dtype == np.uint16
    np.testing.assert_array_equal(found.values, image)
    assert found.region == Region(0, 0, 4, 3)


def test_what_is_drawn_is_private_also_when_nothing_is_thinned_out() -> None:
    image = np.zeros((3, 4), np.uint16)
    found = picture(image, Wish(size=64))
    image[:] = 7
    assert not found.values.any()


def test_a_large_image_is_thinned_out_to_the_size_and_keeps_its_mean() -> None:
    image = np.tile(np.array([[10, 20], [30, 40]], np.uint16), (500, 700))
    found = picture(image, Wish(size=100))
    assert found.step == 14
    assert found.values.shape == (1000 // 14, 1400 // 14)
    flat = np.full((1000, 1400), 1234, np.uint16)
    assert set(np.unique(picture(flat, Wish(size=100)).values)) == {1234}


def test_a_region_is_cut_out_in_the_pixels_of_the_frame() -> None:
    image = np.arange(100 * 200, dtype=np.uint16).reshape(100, 200)
    found = picture(image, Wish(size=64, region=Region(x=150, y=40, width=20, height=10)))
    np.testing.assert_array_equal(found.values, image[40:50, 150:170])
    assert found.region == Region(150, 40, 20, 10)


@given(
    st.one_of(st.none(), st.builds(Region, *[st.integers(-(2**40), 2**40)] * 4)),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
)
def test_a_region_never_leaves_the_image(region: Region | None, width: int, height: int) -> None:
    inside = clipped(region, width, height)
    assert 0 <= inside.x < inside.x + inside.width <= width
    assert 0 <= inside.y < inside.y + inside.height <= height


def test_colours_are_three_of_eight_bits() -> None:
    image = np.zeros((4, 5, 4), np.uint16)
    image[..., 1] = 0x8000
    found = picture(image, Wish())
    assert found.values.shape == (4, 5, 3)
    assert found.values.dtype == np.uint8
    assert tuple(found.values[0, 0]) == (0, 0x80, 0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "float16", "int32", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_of_colours_that_cannot_be_shown_the_first_is(dtype: str, size: int) -> None:
    image = np.zeros((4, 6, 3), dtype)
    image[..., 0] = 1
    found = picture(image, Wish(size=size))
    assert found.region == Region(0, 0, 6, 4)
    assert found.values.ndim == 2
    assert set(np.unique(found.values)) == {1}


@pytest.mark.parametrize(
    ("shape", "rows"), [((7,), 1), ((), 1), ((2, 3, 5), 3), ((4, 5, 1), 4), ((2, 2, 6, 9), 6), ((4, 5, 3), 4)]
)
def test_of_other_shapes_a_plane_is_shown(shape: tuple[int, ...], rows: int) -> None:
    assert plane(np.zeros(shape, np.uint8)).shape[0] == rows


@given(
    image=st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=40))
    ),
    size=st.integers(1, 50),
    fortran=st.booleans(),
)
def test_any_array_becomes_a_message_that_says_the_same(image: np.ndarray[Any, Any], size: int, fortran: bool) -> None:
    image = np.asfortranarray(image) if fortran and image.ndim else image
    if image.size == 0:
        return
    with np.errstate(all="ignore"):
        found = picture(image, Wish(size=size))
    other = encoded(Picture(np.zeros((1, 3), np.uint8), Region(0, 0, 3, 1), 1))
    (header, values), (last, _) = decoded(encoded(found, stream=1, seq=2) + other)
    assert last["columns"] == 3
    assert header["type"] in {"uint8", "uint16", "float32"}
    assert max(header["rows"], header["columns"]) <= size
    np.testing.assert_array_equal(values, found.values)


def test_an_image_without_pixels_is_a_picture_without_values() -> None:
    ((header, values),) = decoded(encoded(picture(np.zeros((0, 8), np.uint8), Wish())))
    assert header["rows"] == 0
    assert values.size == 0


def test_values_in_a_message_stand_where_a_typed_array_may_begin() -> None:
    for name in ("x", "xy", "xyz", "xyzu", "xyzuv"):
        message = encoded(Picture(np.zeros((2, 2), np.float32), Region(0, 0, 2, 2), 1), name=name)
        assert (len(message) - 16) % 8 == 0
