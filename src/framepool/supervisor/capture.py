"""A state out of a capture: what `framepool tap --json` wrote down, folded as if it were heard now.

A capture has messages and times and no readings of superblocks; what these would have shown, the ends of leases and the
announces show as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from framepool.clock import NANOS_PER_SECOND
from framepool.errors import DecodeError
from framepool.supervisor.state import State

TICKS_PER_SECOND = 10


def read_capture(lines: Iterable[str]) -> Iterator[tuple[int, bytes]]:
    """Time, in nanoseconds since the first message, and bytes of each message; `DecodeError` names a bad line."""
    start: datetime | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            heard, data = datetime.fromisoformat(said["time"]), bytes.fromhex(said["hex"])
            start = start or heard
            elapsed = heard - start
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"line {number} is none of `framepool tap --json`: {error}") from None
        yield (elapsed.days * 86_400 + elapsed.seconds) * NANOS_PER_SECOND + elapsed.microseconds * 1_000, data


def replay(capture: Iterable[tuple[int, bytes]], state: State) -> State:
    """Folds a capture into a state, with time passing as it did."""
    step_ns = NANOS_PER_SECOND // TICKS_PER_SECOND
    due_ns = 0
    for now_ns, data in capture:
        while due_ns <= now_ns:
            state.tick(due_ns)
            due_ns += step_ns
        state.receive(data, now_ns)
    state.tick(max(due_ns, state.now_ns))
    return state
