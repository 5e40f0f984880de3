"""Deadlines for agents: what is due is called from the duty cycle, on the agent's own thread.

Periodic timers keep their phase and skip what they missed: an agent that was stopped for a minute announces
once when it resumes, not sixty times.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from framepool.clock import Clock

Callback = Callable[[], None]


class Timer:
    """One scheduled call; `cancel()` at any time, also from inside a callback."""

    __slots__ = ("_callback", "_period_ns", "deadline_ns")

    def __init__(self, callback: Callback, deadline_ns: int, period_ns: int) -> None:
        self._callback: Callback | None = callback
        self.deadline_ns = deadline_ns
        self._period_ns = period_ns

    @property
    def active(self) -> bool:
        """Whether a call is still to come."""
        return self._callback is not None

    def cancel(self) -> None:
        """No further call."""
        self._callback = None


class Timers:
    """The timers of one agent, in the order of their deadlines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._ties = count()

    def after(self, delay_ns: int, callback: Callback) -> Timer:
        """Calls `callback` once, `delay_ns` from now."""
        return self._push(Timer(callback, self._clock.monotonic_ns() + delay_ns, 0))

    def every(self, period_ns: int, callback: Callback, *, first_ns: int | None = None) -> Timer:
        """Calls `callback` each `period_ns`, first after `first_ns` (default one period)."""
        if period_ns <= 0:
            raise ValueError("a period is above 0 ns")
        delay = period_ns if first_ns is None else first_ns
        return self._push(Timer(callback, self._clock.monotonic_ns() + delay, period_ns))

    def poll(self) -> int:
        """Calls everything that is due and returns how many calls that was.

        A callback that raises is not called again in this turn; its period goes on and the error is the
        caller's.
        """
        now = self._clock.monotonic_ns()
        fired = 0
        while self._heap and self._heap[0][0] <= now:
            _, _, timer = heapq.heappop(self._heap)
            callback = timer._callback
            if callback is None:
                continue
            if timer._period_ns:
                missed = (now - timer.deadline_ns) // timer._period_ns
                timer.deadline_ns += (missed + 1) * timer._period_ns
                self._push(timer)
            else:
                timer.cancel()
            callback()
            fired += 1
        return fired

    def next_deadline_ns(self) -> int | None:
        """When the next call is due, for a caller that wants to sleep until then; None if there is none."""
        while self._heap and not self._heap[0][2].active:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _push(self, timer: Timer) -> Timer:
        heapq.heappush(self._heap, (timer.deadline_ns, next(self._ties), timer))
        return timer
