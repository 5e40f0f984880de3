"""Timers against a plain model, with a manual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.agent import Timers
from framepool.clock import ManualClock


def test_one_shot_fires_once_at_its_deadline() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    fired: list[str] = []
    timer = timers.after(100, lambda: fired.append("a"))
    clock.advance(99)
    assert timers.poll() == 0
    clock.advance(1)
    assert timers.poll() == 1
    assert fired == ["a"]
    assert not timer.active
    clock.advance(1000)
    assert timers.poll() == 0


def test_periodic_keeps_its_phase_and_skips_what_it_missed() -> None:
    clock = ManualClock(0)
    timers = Timers(clock)
    at: list[int] = []
    timers.every(10, lambda: at.append(clock.monotonic_ns()))
    for step in (10, 3, 7, 25, 5):
        clock.advance(step)
        timers.poll()
    assert at == [10, 20, 45, 50]


def test_first_call_may_come_at_once() -> None:
    timers = Timers(ManualClock())
    fired: list[int] = []
    timers.every(10, lambda: fired.append(1), first_ns=0)
    assert timers.poll() == 1


def test_cancelled_timer_is_silent_also_when_cancelled_by_another() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    fired: list[str] = []
    second = timers.after(20, lambda: fired.append("second"))
    timers.after(10, second.cancel)
    clock.advance(30)
    assert timers.poll() == 1
    assert fired == []
    assert timers.next_deadline_ns() is None


def test_failing_callback_raises_and_keeps_its_period() -> None:
    clock = ManualClock()
    timers = Timers(clock)

    def fail() -> None:
        raise ValueError("bad")

    timers.every(10, fail)
    for _ in range(2):
        clock.advance(10)
        with pytest.raises(ValueError, match="bad"):
            timers.poll()


def test_period_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="period"):
        Timers(ManualClock()).every(0, lambda: None)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.lists(st.integers(0, 120), max_size=20))
def test_each_period_fires_once_per_poll_in_which_a_boundary_passed(periods: list[int], steps: list[int]) -> None:
    clock = ManualClock(0)
    timers = Timers(clock)
    counts = [0] * len(periods)

    def bump(index: int) -> None:
        counts[index] += 1

    for index, period in enumerate(periods):
        timers.every(period, lambda index=index: bump(index))  # type: ignore[misc]
    expected = [0] * len(periods)
    now = 0
    for step in steps:
        for index, period in enumerate(periods):
            expected[index] += (now + step) // period > now // period
        now += step
        clock.advance(step)
        timers.poll()
        deadline = timers.next_deadline_ns()
        assert deadline is not None
        assert deadline == min((now // period + 1) * period for period in periods)
    assert counts == expected
