"""Statistics of single frames against plain Python, on every type and awkward shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.spark.jobs.measures import measure
from tests.support.awkward import DTYPES, some_array
from tests.support.plain import plain_measures, same


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    seed=st.integers(0, 99),
    order=st.sampled_from("CF"),
)
def test_every_figure_equals_plain_arithmetic(dtype: str, shape: tuple[int, ...], seed: int, order: str) -> None:
    array = np.asarray(some_array(np.random.default_rng(seed), dtype, shape), order=order)  # type: ignore[call-overload]
    told, expected = measure(array, 8), plain_measures(array, 8)
    for name, value in expected.items():
        if name != "histogram":
            assert same(told[name], value), (name, told[name], value)
    assert sum(told["histogram"]) == expected["elements"] - expected["not_finite"]
    if array.dtype.itemsize <= 2:
        assert told["histogram"] == expected["histogram"]


def test_elements_that_are_no_numbers_are_counted_and_left_out() -> None:
    array = np.array([[np.nan, 1.0], [np.inf, 3.0]], np.float32)
    told = measure(array, 4)
    assert (told["elements"], told["not_finite"], told["mean"], told["maximum"]) == (4, 2, 2.0, 3.0)
    assert told["centroid"] == [1.0, 1.0]
    nothing = measure(np.full(3, np.nan), 4)
    assert (nothing["mean"], nothing["centroid"], nothing["histogram"]) == (None, None, [0, 0, 0, 0])


@pytest.mark.parametrize(("given", "count"), [(None, 2), (10.0, 3)])
def test_saturation_is_the_top_of_the_type_or_what_is_given(given: float | None, count: int) -> None:
    assert measure(np.array([255, 255, 12, 3], np.uint8), 4, given)["saturated"] == count
