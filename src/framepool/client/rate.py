"""How often is often enough: the gate of a RATE_LIMITED reader and the pace of what is sent (Wire 5, 10.1.2, 11).

`Pace` says whether one more is due at a given time; `RateGate` gives it the time of a frame, in the order that Wire 11
recommends. The producer's shared descriptor stream is never paced (`decisions.md` #27): a gate stands before one
reader, in that reader or on a descriptor stream that only it hears.
"""

from __future__ import annotations

import enum

from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.wire.message import UINT64_NULL


class Pace:
    """At most `rate_hz` a second on the average, and up to `burst` at once; a rate of 0 is no limit.

    The schedule advances by one interval for each that passes, and whoever comes up to `burst - 1` intervals before it
    passes too. So in any span of time pass at most its length times the rate, and `burst` more; and a source that is
    only unsteady loses nothing.
    """

    def __init__(self, rate_hz: int, burst: float = 1.5) -> None:
        if rate_hz < 0 or burst < 1:
            raise ValueError(f"{rate_hz} Hz with a burst of {burst}: neither is a limit")
        # Rounded up: a rate is a maximum.
        self._interval_ns = -(-NANOS_PER_SECOND // rate_hz) if rate_hz else 0
        self._slack_ns = int(self._interval_ns * (burst - 1))
        self._due_ns: int | None = None

    def admits(self, now_ns: int) -> bool:
        """Whether one more is due at that time; if so it counts."""
        if self._due_ns is not None and now_ns < self._due_ns - self._slack_ns:
            return False
        self.spend(now_ns)
        return True

    def spend(self, now_ns: int) -> None:
        """Counts one that went without asking; the debt for such never exceeds one burst."""
        due_ns = now_ns if self._due_ns is None else max(self._due_ns, now_ns)
        self._due_ns = min(due_ns, now_ns + self._slack_ns) + self._interval_ns

    def restart(self, now_ns: int) -> None:
        """Starts the schedule anew with one that passed at that time, of a clock that may be another."""
        self._due_ns = now_ns + self._interval_ns


class TimeSource(enum.Enum):
    """Whose time a frame is gated by (Wire 11)."""

    DESCRIPTOR = "descriptor"
    SLOT = "slot"
    LOCAL = "local"


class RateGate:
    """Lets frames through at no more than `max_rate_hz`, 0 being unlimited.

    A frame's time is that of its descriptor, else that of its slot, else the local clock, so a backlog that arrives in
    a burst is thinned as if it had come in time. Where the source changes, or goes back, its times cannot be compared
    with those before; there the local clock decides.
    """

    def __init__(self, max_rate_hz: int, clock: Clock) -> None:
        self.max_rate_hz = max_rate_hz
        self.admitted = 0
        self.skipped = 0
        self._clock = clock
        self._frames = Pace(max_rate_hz)
        self._local = Pace(max_rate_hz)
        self._source: TimeSource | None = None
        self._seen_ns = 0

    def limit(self, max_rate_hz: int) -> None:
        """Sets another rate; the same one changes nothing."""
        if max_rate_hz != self.max_rate_hz:
            self.max_rate_hz = max_rate_hz
            self._frames = Pace(max_rate_hz)
            self._local = Pace(max_rate_hz)

    def admits(self, descriptor_ns: int | None = None, slot_ns: int | None = None) -> bool:
        """Whether a frame with these times is due. 0 in a slot says that its producer gave no time."""
        if self.max_rate_hz == 0 or self._due(descriptor_ns, slot_ns):
            self.admitted += 1
            return True
        self.skipped += 1
        return False

    def statistics(self) -> dict[str, int]:
        return {"max_rate_hz": self.max_rate_hz, "admitted": self.admitted, "skipped": self.skipped}

    def _due(self, descriptor_ns: int | None, slot_ns: int | None) -> bool:
        local_ns = self._clock.monotonic_ns()
        source, time_ns = _time_of(descriptor_ns, slot_ns, local_ns)
        comparable = source is self._source and time_ns >= self._seen_ns
        self._seen_ns = time_ns
        if comparable:
            due = self._frames.admits(time_ns)
            if due:
                self._local.spend(local_ns)
            return due
        # Until one passes there is no schedule in this source's time, so the source stays open too.
        due = self._local.admits(local_ns)
        self._source = source if due else None
        if due:
            self._frames.restart(time_ns)
        return due


def _time_of(descriptor_ns: int | None, slot_ns: int | None, local_ns: int) -> tuple[TimeSource, int]:
    if descriptor_ns is not None:
        return TimeSource.DESCRIPTOR, descriptor_ns
    if slot_ns not in (None, 0, UINT64_NULL):
        assert slot_ns is not None
        return TimeSource.SLOT, slot_ns
    return TimeSource.LOCAL, local_ns
