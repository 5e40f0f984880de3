"""Which frames a rate limit lets through, by whose time, with a clock that the test moves."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.client.rate import Pace, RateGate
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock

MS = NANOS_PER_MILLI
START = 5_000_000 * MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def through(gate: RateGate, times: list[int]) -> list[int]:
    """Which of these descriptor times pass."""
    return [time for time in times if gate.admits(descriptor_ns=time)]


def test_no_limit_lets_everything_through(clock: ManualClock) -> None:
    gate = RateGate(0, clock)
    assert all(gate.admits() for _ in range(100))


@pytest.mark.clause("W-11-05")
def test_burst_is_gated_by_the_times_in_its_descriptors(clock: ManualClock) -> None:
    gate = RateGate(100, clock)
    times = [START + i * MS for i in range(1_000)]
    passed = through(gate, times)
    assert 99 <= len(passed) <= 102
    assert passed[0] == START


def test_descriptor_time_goes_before_slot_time(clock: ManualClock) -> None:
    gate = RateGate(100, clock)
    assert gate.admits(descriptor_ns=START, slot_ns=1)
    assert not any(gate.admits(descriptor_ns=START + 1, slot_ns=i * NANOS_PER_SECOND) for i in range(2, 50))


@pytest.mark.clause("W-11-06")
def test_without_descriptor_times_the_slot_times_count(clock: ManualClock) -> None:
    gate = RateGate(100, clock)
    passed = [i for i in range(1_000) if gate.admits(slot_ns=START + i * MS)]
    assert 99 <= len(passed) <= 102


@pytest.mark.clause("W-11-06")
@pytest.mark.parametrize("slot_ns", [None, 0, 2**64 - 1])
def test_without_any_time_the_local_clock_counts(clock: ManualClock, slot_ns: int | None) -> None:
    gate = RateGate(10, clock)
    passed = 0
    for _ in range(100):
        passed += gate.admits(slot_ns=slot_ns)
        clock.advance(10 * MS)
    assert 9 <= passed <= 11
    assert gate.statistics() == {"max_rate_hz": 10, "admitted": passed, "skipped": 100 - passed}


def test_unsteady_source_at_the_very_rate_loses_nothing(clock: ManualClock) -> None:
    gate = RateGate(10, clock)
    jitter = [0, 20 * MS, -20 * MS, 5 * MS, -15 * MS]
    times = [START + i * 100 * MS + jitter[i % 5] for i in range(100)]
    assert through(gate, times) == times


def test_rate_that_does_not_divide_the_source_is_reached(clock: ManualClock) -> None:
    gate = RateGate(30, clock)
    passed = through(gate, [START + i * 10 * MS for i in range(1_000)])
    assert 295 <= len(passed) <= 302


def test_clock_that_jumps_ahead_and_back_does_not_silence_the_stream(clock: ManualClock) -> None:
    gate = RateGate(10, clock)
    assert gate.admits(descriptor_ns=START + 10**6 * NANOS_PER_SECOND)
    passed = 0
    for i in range(100):
        clock.advance(10 * MS)
        passed += gate.admits(descriptor_ns=START + i * 10 * MS)
    assert 9 <= passed <= 11


def test_source_that_changes_all_the_time_is_gated_by_the_local_clock(clock: ManualClock) -> None:
    gate = RateGate(10, clock)
    passed = 0
    for i in range(100):
        passed += gate.admits(descriptor_ns=START + i) if i % 2 else gate.admits(slot_ns=7 * START + i)
        clock.advance(10 * MS)
    assert 9 <= passed <= 12


def test_another_limit_takes_effect_and_the_same_one_changes_nothing(clock: ManualClock) -> None:
    gate = RateGate(1, clock)
    assert gate.admits()
    gate.limit(1)
    assert not gate.admits()
    gate.limit(0)
    assert gate.admits()


def test_limits_that_limit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        Pace(-1)
    with pytest.raises(ValueError, match="neither"):
        Pace(1, burst=0.5)


steps = st.lists(st.integers(0, 400 * MS), min_size=2, max_size=60)


@given(steps, st.integers(1, 1_000), st.sampled_from([1, 1.5, 4]))
def test_no_span_holds_more_than_the_rate_and_one_burst(gaps: list[int], rate: int, burst: float) -> None:
    pace = Pace(rate, burst)
    passed = [time for time in accumulate(gaps) if pace.admits(time)]
    for i, first in enumerate(passed):
        for count, last in enumerate(passed[i:], start=1):
            assert count <= (last - first) * rate / NANOS_PER_SECOND + burst + 1e-6


@given(steps, st.integers(1, 1_000))
def test_whoever_waited_a_full_interval_passes(gaps: list[int], rate: int) -> None:
    pace = Pace(rate)
    last = None
    for time in accumulate(gaps):
        admitted = pace.admits(time)
        if last is None or time - last >= 1.5 * NANOS_PER_SECOND / rate + 1:
            assert admitted
        if admitted:
            last = time


@given(steps)
def test_debt_of_what_went_without_asking_is_one_burst(gaps: list[int]) -> None:
    pace = Pace(10, burst=4)
    for time in accumulate(gaps):
        pace.spend(time)
    assert pace.admits(sum(gaps) + 400 * MS)
