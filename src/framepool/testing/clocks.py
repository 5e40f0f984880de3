"""A clock that a nemesis can move: of one process, never the machine's."""

from __future__ import annotations

import time

from framepool.clock import NANOS_PER_SECOND
from framepool.wire._generated.control_900 import ClockDomain


class JumpingClock:
    """CLOCK_MONOTONIC and CLOCK_REALTIME of this host, ahead by as much as it was told to jump."""

    domain = ClockDomain.MONOTONIC

    def __init__(self) -> None:
        self._ahead_ns = 0

    def jump(self, seconds: float) -> None:
        """Moves both clocks; back too, which no real monotonic clock does."""
        self._ahead_ns += round(seconds * NANOS_PER_SECOND)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self._ahead_ns

    def timestamp_ns(self) -> int:
        return self.monotonic_ns()

    def now_ns(self, domain: ClockDomain) -> int:
        return self.monotonic_ns() if domain is ClockDomain.MONOTONIC else time.time_ns() + self._ahead_ns

    def wall_seconds(self) -> int:
        return (time.time_ns() + self._ahead_ns) // NANOS_PER_SECOND
