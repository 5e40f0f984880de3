"""The judge of `framepool spark events`, without Spark."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from framepool.spark.jobs.outliers import Detector
from tests.support.plain import plain_outliers

NUMBERS = st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.0, 1.0, 2.0, 50.0]), st.floats(-1e6, 1e6))


@given(st.lists(NUMBERS, max_size=60), st.integers(3, 12), st.integers(3, 8), st.floats(0.5, 10))
def test_outliers_are_those_of_a_plain_search(
    values: list[float | None], window: int, least: int, threshold: float
) -> None:
    detector = Detector(window, least, threshold)
    before: list[float] = []
    for value in values:
        found = detector.feed({"mean": value})
        if value is None or math.isnan(value):
            assert not found
            continue
        expected = plain_outliers(before[-window:], value, least=least, threshold=threshold)
        score = expected[2] if expected else 0.0
        if not math.isclose(score, threshold, rel_tol=1e-6):  # at the threshold, rounding decides
            assert bool(found) == (expected is not None)
        before.append(value)
    assert detector.history.get("mean", []) == before[-window:]


def test_one_wild_value_does_not_hide_the_next() -> None:
    detector = Detector(20, 5, 6.0)
    quiet = [10.0, 10.1, 9.9, 10.05, 9.95, 10.0, 10.1, 9.9]
    assert not any(detector.feed({"mean": value}) for value in quiet)
    assert [each.value for value in (90.0, 95.0) for each in detector.feed({"mean": value})] == [90.0, 95.0]
    assert not detector.feed({"mean": 10.02})


def test_where_all_were_equal_any_change_is_infinitely_far() -> None:
    detector = Detector(20, 5, 6.0)
    for _ in range(5):
        assert not detector.feed({"saturated": 0})
    (found,) = detector.feed({"saturated": 3})
    assert found.score == math.inf


def test_a_judge_that_is_taken_up_again_goes_on() -> None:
    first = Detector(20, 5, 6.0)
    for value in (1.0, 2.0, 3.0, 2.0, 1.0):
        first.feed({"mean": value})
    (found,) = Detector(20, 5, 6.0, first.history).feed({"mean": 99.0})
    assert found.median == 2.0
