"""Clocks: what never goes back, what the announce declares, and what a test can move."""

from __future__ import annotations

import time

import pytest

from framepool.clock import NANOS_PER_SECOND, ManualClock, MonotonicClock, RealtimeSyncedClock
from framepool.wire._generated.control_900 import ClockDomain


def test_monotonic_clock_stamps_with_the_monotonic_clock() -> None:
    clock = MonotonicClock()
    assert clock.domain is ClockDomain.MONOTONIC
    before = time.monotonic_ns()
    assert before <= clock.monotonic_ns() <= clock.timestamp_ns() <= time.monotonic_ns()


def test_realtime_clock_stamps_with_realtime_and_measures_with_monotonic() -> None:
    clock = RealtimeSyncedClock(error_budget_ns=1_000_000)
    assert clock.domain is ClockDomain.REALTIME_SYNCED
    assert abs(clock.timestamp_ns() - time.time_ns()) < 5 * NANOS_PER_SECOND
    assert abs(clock.monotonic_ns() - time.monotonic_ns()) < 5 * NANOS_PER_SECOND


def test_stamps_of_the_other_domain_can_be_aged() -> None:
    clock = MonotonicClock()
    assert abs(clock.now_ns(ClockDomain.REALTIME_SYNCED) - time.time_ns()) < 5 * NANOS_PER_SECOND
    assert abs(clock.now_ns(ClockDomain.MONOTONIC) - time.monotonic_ns()) < 5 * NANOS_PER_SECOND
    manual = ManualClock(5, wall_seconds=100)
    manual.advance(7)
    assert manual.now_ns(ClockDomain.REALTIME_SYNCED) == 100 * NANOS_PER_SECOND + 7
    assert manual.now_ns(ClockDomain.MONOTONIC) == 12


def test_unsynchronised_realtime_is_refused() -> None:
    with pytest.raises(ValueError, match="error budget"):
        RealtimeSyncedClock(error_budget_ns=0)


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5, wall_seconds=100)
    assert (clock.monotonic_ns(), clock.timestamp_ns(), clock.wall_seconds()) == (5, 5, 100)
    clock.advance(2 * NANOS_PER_SECOND)
    assert clock.monotonic_ns() == 5 + 2 * NANOS_PER_SECOND
    assert clock.wall_seconds() == 102
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
