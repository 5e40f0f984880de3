"""The shortest failing history: what is left when everything is dropped without which the checker still complains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from framepool.testing.history import check
from framepool.testing.journal import Event
from framepool.testing.violation import Violation

PATIENCE = 30.0
"""Seconds for making it shorter; what is left by then is failing too, only longer."""
STAGE = frozenset({"allowed", "bridged"})


def shortest(
    events: Sequence[Event], violation: Violation, *, grace_ns: int = 0, patience: float = PATIENCE
) -> list[Event]:
    """Events of this history that break the same rule at the same frame, as few as were found in time."""
    deadline = time.monotonic() + patience

    def fails(some: Sequence[Event]) -> bool:
        return any(_same(violation, found) for found in check(some, grace_ns=grace_ns))

    left = list(events)
    for narrower in _narrower(left, violation):
        if fails(narrower):
            left = narrower
            break
    for process in sorted({event.process for event in left}):
        without = [event for event in left if event.process != process]
        if len(without) < len(left) and time.monotonic() < deadline and fails(without):
            left = without
    return _fewer(left, fails, deadline)


def _same(one: Violation, other: Violation) -> bool:
    """Whether they are of the same rule and the same thing: the words may name other numbers in a shorter history."""
    return (one.rule, one.process, one.stream_id, one.epoch, one.seq) == (
        other.rule, other.process, other.stream_id, other.epoch, other.seq,
    )  # fmt: skip


def _narrower(events: Sequence[Event], violation: Violation) -> list[list[Event]]:
    """Guesses at what has to do with it, the boldest first."""
    streams = {violation.stream_id}
    streams |= {event.source for event in events if event.op == "bridged" and event.stream_id == violation.stream_id}
    near = [event for event in events if event.op in STAGE or event.stream_id in streams]
    one_epoch = [event for event in near if event.epoch in {0, violation.epoch}]
    around = [
        event
        for event in one_epoch
        if event.op not in {"published", "received", "recorded", "replayed"} or abs(event.seq - violation.seq) <= 64
    ]
    return [around, one_epoch, near]


def _fewer(events: list[Event], fails: Callable[[Sequence[Event]], bool], deadline: float) -> list[Event]:
    """Drops pieces, large ones first, as long as what is left fails (delta debugging)."""
    size = max(1, len(events) // 2)
    while time.monotonic() < deadline:
        at, dropped = 0, False
        while at < len(events) and time.monotonic() < deadline:
            without = events[:at] + events[at + size :]
            if without and fails(without):
                events, dropped = without, True
            else:
                at += size
        if size == 1 and not dropped:
            break
        size = max(1, size // 2)
    return events
