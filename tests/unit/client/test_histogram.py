"""The latency histogram against exact percentiles, and the meter against a clock that the test moves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from framepool.client.histogram import LARGEST, LatencyHistogram, LatencyMeter
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.wire._generated.control_900 import ClockDomain

HOUR = 3_600 * NANOS_PER_SECOND
ERROR = 1 / 256

durations = hnp.arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 12 * HOUR))
percents = st.one_of(st.sampled_from([0.0, 50.0, 99.0, 99.9, 100.0]), st.floats(0, 100))


def filled(values: npt.ArrayLike) -> LatencyHistogram:
    histogram = LatencyHistogram()
    histogram.record_many(values)
    return histogram


@given(durations, percents)
def test_percentiles_are_within_the_error_of_the_exact_ones(values: npt.NDArray[np.int64], percent: float) -> None:
    found = filled(values).percentile(percent)
    exact = int(np.percentile(values, percent, method="inverted_cdf"))
    assert found is not None
    assert abs(found - exact) <= exact * ERROR


@pytest.mark.parametrize("scale", [1_000, 50_000, 3 * NANOS_PER_MILLI, 5 * NANOS_PER_SECOND, HOUR])
def test_error_bound_holds_from_a_microsecond_to_hours(scale: int) -> None:
    values = np.random.default_rng(scale).lognormal(np.log(scale), 0.5, 20_000).astype(np.int64)
    histogram = filled(values)
    for percent in (1, 10, 50, 90, 99, 99.9):
        exact = int(np.percentile(values, percent, method="inverted_cdf"))
        assert histogram.percentile(percent) == pytest.approx(exact, rel=ERROR)
    assert histogram.mean == pytest.approx(values.mean())


@given(hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(-1_000, 2 * LARGEST)))
def test_recording_many_is_recording_each(values: npt.NDArray[np.int64]) -> None:
    one_by_one = LatencyHistogram()
    for value in values.tolist():
        one_by_one.record(value)
    together = filled(values)
    assert together.to_dict() == one_by_one.to_dict()
    assert (together._counts == one_by_one._counts).all()


@given(durations, durations, percents)
def test_merged_histograms_are_the_histogram_of_both(
    some: npt.NDArray[np.int64], others: npt.NDArray[np.int64], percent: float
) -> None:
    merged, added = filled(some), filled(others)
    before = added.to_dict()
    merged.merge(added)
    both = filled(np.concatenate([some, others]))
    assert merged.to_dict() == both.to_dict()
    assert merged.percentile(percent) == both.percentile(percent)
    assert added.to_dict() == before


def test_negative_durations_are_counted_apart() -> None:
    histogram = filled([-5, 10, -1])
    histogram.record(-7)
    assert histogram.negative == 3
    assert histogram.count == 1
    assert histogram.minimum == histogram.maximum == 10
    total = filled([-1])
    total.merge(histogram)
    assert (total.negative, total.count) == (4, 1)


def test_an_empty_histogram_has_no_percentiles() -> None:
    histogram = LatencyHistogram()
    histogram.record_many([])
    assert histogram.percentile(50) is None
    assert histogram.mean is None
    histogram.merge(LatencyHistogram())
    assert histogram.to_dict()["min_ns"] is None


def test_reset_forgets() -> None:
    histogram = filled([1, 2, -3])
    histogram.reset()
    assert histogram.to_dict() == LatencyHistogram().to_dict()
    assert histogram.percentile(50) is None


def test_durations_beyond_the_range_stay_in_the_last_bucket() -> None:
    histogram = LatencyHistogram()
    histogram.record(2**70)
    histogram.record_many(np.array([0, 2**64 - 1], np.uint64))
    assert histogram.count == 3
    assert histogram.percentile(50) == pytest.approx(LARGEST, rel=ERROR)
    assert histogram.maximum == 2**70
    assert histogram.total == 2**70 + 2**64 - 1


def test_small_integer_types_are_taken_as_they_are() -> None:
    assert filled(np.array([3, 200, -1], np.int16)).to_dict() == filled([3, 200, -1]).to_dict()
    assert filled(np.array([250], np.uint8)).maximum == 250


@pytest.mark.parametrize("bad", [[0.5], ["x"], [True]])
def test_only_integers_are_durations(bad: list[object]) -> None:
    with pytest.raises(TypeError, match="whole nanoseconds"):
        LatencyHistogram().record_many(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("percent", [-1, 100.1, float("nan")])
def test_a_percentile_lies_between_0_and_100(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        LatencyHistogram().percentile(percent)


def test_dictionary_has_what_people_ask_for() -> None:
    assert filled([100, 200]).to_dict() == {
        "count": 2,
        "negative": 0,
        "min_ns": 100,
        "mean_ns": 150.0,
        "p50_ns": 100,
        "p90_ns": 200,
        "p99_ns": 200,
        "p99.9_ns": 200,
        "max_ns": 200,
    }


@pytest.mark.clause("W-15.7-03")
@pytest.mark.parametrize("domain", list(ClockDomain))
def test_latency_is_now_minus_the_stamp_of_the_slot(domain: ClockDomain) -> None:
    clock = ManualClock(domain=domain)
    meter = LatencyMeter(clock, domain)
    stamp = clock.timestamp_ns()
    clock.advance(5 * NANOS_PER_MILLI)
    meter.observe(stamp)
    assert meter.statistics()["max_ns"] == 5 * NANOS_PER_MILLI


def test_a_stamp_of_another_hosts_clock_gives_no_latency() -> None:
    meter = LatencyMeter(ManualClock(), None)
    meter.observe(1)
    assert meter.histogram.count == meter.histogram.negative == 0


def test_a_frame_without_a_stamp_gives_no_latency() -> None:
    meter = LatencyMeter(ManualClock())
    meter.observe(0)
    assert meter.histogram.count == 0


def test_a_stamp_ahead_of_the_clock_is_told_apart() -> None:
    clock = ManualClock()
    meter = LatencyMeter(clock)
    meter.observe(clock.timestamp_ns() + 1)
    assert meter.histogram.negative == 1
    assert meter.histogram.count == 0
