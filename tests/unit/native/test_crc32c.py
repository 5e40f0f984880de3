"""CRC32C in C: both implementations say what the readable twin says, in one piece and in many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool._native.crc32c import crc32c, crc32c_portable
from framepool.client.crc32c import crc32c as twin

both = pytest.mark.parametrize("summed", [crc32c, crc32c_portable])
Crc = Callable[..., int]


def some(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@both
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_values(summed: Crc, data: bytes, crc: int) -> None:
    assert summed(data) == crc


@both
@pytest.mark.parametrize("size", [1, 7, 8, 9, 767, 768, 769, 1535, 12_287, 12_288, 12_289, 70_000, 200_003])
def test_every_length_around_the_stretches_is_what_the_twin_says(summed: Crc, size: int) -> None:
    data = some(size)
    assert summed(data) == twin(data)
    assert summed(memoryview(some(size + 1))[1:], 77) == twin(some(size + 1)[1:], 77), "unaligned, and going on"


@both
@given(size=st.integers(0, 40_000), cuts=st.lists(st.integers(0, 40_000), max_size=4))
def test_goes_on_where_it_stopped(summed: Crc, size: int, cuts: list[int]) -> None:
    data = some(size, seed=size)
    crc = start = 0
    for end in [*sorted(min(cut, size) for cut in cuts), size]:
        crc = summed(data[start:end], crc)
        start = end
    assert crc == summed(data)


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        crc32c(memoryview(bytes(64))[::2])
