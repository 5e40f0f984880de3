"""Where time comes from.

Two questions have different answers: *how long ago* (always the monotonic clock, which no one sets) and *what
stamp goes into a message* (the clock domain that the announce declares, Wire 10.1.1). A clock answers both, so
that an agent given a `ManualClock` runs through hours of leases in a test without waiting.
"""

from __future__ import annotations

import time
from typing import Protocol

from framepool.wire._generated.control_900 import ClockDomain

NANOS_PER_SECOND = 1_000_000_000
NANOS_PER_MILLI = 1_000_000


class Clock(Protocol):
    """What agents ask for the time."""

    @property
    def domain(self) -> ClockDomain:
        """The domain of `timestamp_ns`, as it stands in `ShmPoolAnnounce.announceClockDomain`."""

    def monotonic_ns(self) -> int:
        """For durations, deadlines and expiry: never goes back, whatever the wall clock does."""

    def timestamp_ns(self) -> int:
        """For messages and superblocks: now, in this clock's domain."""

    def now_ns(self, domain: ClockDomain) -> int:
        """Now as a stamp of another domain would say it: to tell the age of what others stamped."""

    def wall_seconds(self) -> int:
        """Seconds since 1970: only for values that must rise over reboots (`decisions.md` #33)."""


class MonotonicClock:
    """CLOCK_MONOTONIC of this host, the default: stamps compare within one host only (Wire 15.7)."""

    domain = ClockDomain.MONOTONIC

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def timestamp_ns(self) -> int:
        return time.monotonic_ns()

    def now_ns(self, domain: ClockDomain) -> int:
        return time.monotonic_ns() if domain is ClockDomain.MONOTONIC else time.time_ns()

    def wall_seconds(self) -> int:
        return int(time.time())


class RealtimeSyncedClock(MonotonicClock):
    """CLOCK_REALTIME, for hosts whose clocks are disciplined to each other (PTP, NTP).

    Unsynchronised realtime is not permitted (Wire 10.1.1), so the error budget has to be stated; it says how far
    two such hosts may be apart and widens freshness windows by that much.
    """

    domain = ClockDomain.REALTIME_SYNCED

    def __init__(self, error_budget_ns: int) -> None:
        if error_budget_ns <= 0:
            raise ValueError("a synchronised clock needs an error budget above 0 ns: say how good the sync is")
        self.error_budget_ns = error_budget_ns

    def timestamp_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that stands still until it is told to move: for tests of agents and state machines."""

    def __init__(
        self,
        start_ns: int = NANOS_PER_SECOND,
        *,
        domain: ClockDomain = ClockDomain.MONOTONIC,
        wall_seconds: int = 1_700_000_000,
    ) -> None:
        self.domain = domain
        self._start_ns = start_ns
        self._now_ns = start_ns
        self._wall_start = wall_seconds

    def monotonic_ns(self) -> int:
        return self._now_ns

    def timestamp_ns(self) -> int:
        return self._now_ns if self.domain is ClockDomain.MONOTONIC else self._realtime_ns()

    def now_ns(self, domain: ClockDomain) -> int:
        return self._now_ns if domain is ClockDomain.MONOTONIC else self._realtime_ns()

    def _realtime_ns(self) -> int:
        return self._wall_start * NANOS_PER_SECOND + self._now_ns - self._start_ns

    def wall_seconds(self) -> int:
        return self._wall_start + (self._now_ns - self._start_ns) // NANOS_PER_SECOND

    def advance(self, nanos: int) -> None:
        """Moves time on by `nanos`, which may not be negative."""
        if nanos < 0:
            raise ValueError("time does not go back")
        self._now_ns += nanos
