"""What a runner does between duty cycles that found nothing to do."""

from __future__ import annotations

import time
from typing import Protocol


class IdleStrategy(Protocol):
    """Told after each duty cycle how much work it did."""

    def idle(self, work: int) -> None:
        """Waits a little when `work` is 0, and not at all otherwise."""


class BusySpin:
    """Never waits: the lowest latency for a core of its own."""

    def idle(self, work: int) -> None:
        pass


class Sleeping:
    """Sleeps a fixed time: the lowest load, for control planes."""

    def __init__(self, seconds: float = 0.001) -> None:
        self._seconds = seconds

    def idle(self, work: int) -> None:
        if work == 0:
            time.sleep(self._seconds)


class Backoff:
    """Yields a few times, then sleeps twice as long each time up to a limit; work resets it."""

    def __init__(self, *, yields: int = 20, min_park: float = 50e-6, max_park: float = 1e-3) -> None:
        self._yields = yields
        self._min_park = min_park
        self._max_park = max_park
        self._idle_cycles = 0
        self._park = min_park

    def idle(self, work: int) -> None:
        if work > 0:
            self._idle_cycles = 0
            self._park = self._min_park
            return
        self._idle_cycles += 1
        if self._idle_cycles <= self._yields:
            time.sleep(0)
            return
        time.sleep(self._park)
        self._park = min(self._park * 2, self._max_park)
