"""What may be in a recording, and what comes out of a replay: recorded = published minus losses, replayed = recorded.

Rules only; `evidence` reads recordings and plays them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from framepool.testing.journal import Event
from framepool.testing.violation import Violation, frame_name

Epoch = tuple[int, int]


def recording_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """Each frame is recorded once or lost once, none is both, and between the first and the last that an account of an
    epoch speaks of, all that was published is one of the two."""
    kept: dict[Epoch, dict[int, Event]] = defaultdict(dict)
    lost: dict[Epoch, list[Event]] = defaultdict(list)
    for event in events:
        epoch = (event.stream_id, event.epoch)
        if event.op == "unrecorded":
            lost[epoch].append(event)
        elif event.op == "recorded":
            if event.seq in kept[epoch]:
                yield Violation.of("recorded twice", event, f"recorded {frame_name((*epoch, event.seq))} twice")
            kept[epoch][event.seq] = event
    if not kept and not lost:
        return
    published: dict[Epoch, list[Event]] = defaultdict(list)
    for event in events:
        if event.op == "published":
            published[event.stream_id, event.epoch].append(event)
    withdrawn = {(event.stream_id, event.epoch, event.seq) for event in events if event.op == "withdrawn"}
    for epoch in sorted({*kept, *lost}):
        due = [event for event in published[epoch] if (*epoch, event.seq) not in withdrawn]
        yield from _account_faults(epoch, kept[epoch], lost[epoch], due)
    yield from _replay_faults(events)


def _account_faults(
    epoch: Epoch, kept: dict[int, Event], rows: list[Event], published: list[Event]
) -> Iterator[Violation]:
    rows.sort(key=lambda row: row.seq)
    end = max((*kept, *(row.seq + row.count - 1 for row in rows if row.count >= 0)), default=-1)
    open_from = min((row.seq for row in rows if row.count < 0), default=None)
    """Of an epoch that ended while nobody recorded, nobody knows how many there were."""
    spans = [(row.seq, row.seq + row.count, row) for row in rows if row.count >= 0]
    for (_, before, _), (first, _, row) in itertools.pairwise(spans):
        if first < before:
            yield Violation.of("lost twice", row, f"the loss table has {frame_name((*epoch, first))} twice")
    seqs = sorted(kept)
    for first, after, row in spans:
        at = bisect_left(seqs, first)
        if at < len(seqs) and seqs[at] < after:
            yield Violation.of("recorded and lost", row, f"{frame_name((*epoch, seqs[at]))} is recorded and lost")
    begin = min((*kept, *(row.seq for row in rows)), default=0)
    starts = [first for first, _, _ in spans]
    for event in published:
        if not begin <= event.seq <= end or event.seq in kept:
            continue
        if open_from is not None and event.seq >= open_from:
            continue
        at = bisect_right(starts, event.seq) - 1
        if at < 0 or event.seq >= spans[at][1]:
            said = f"{frame_name((*epoch, event.seq))} is neither recorded nor lost"
            yield Violation.of("recording incomplete", event, said)


def _replay_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """What was replayed is what was recorded: bit for bit, in the same order, and all of it."""
    order: dict[int, list[Event]] = defaultdict(list)
    replays: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.op == "recorded":
            order[event.stream_id].append(event)
        elif event.op == "replayed":
            replays[event.stream_id].append(event)
    for stream_id, replayed in replays.items():
        recorded = order[stream_id]
        place = {(event.epoch, event.seq): number for number, event in enumerate(recorded)}
        due = 0
        for event in replayed:
            name = frame_name((stream_id, event.epoch, event.seq))
            at = place.get((event.epoch, event.seq))
            if at is None:
                yield Violation.of("replay differs", event, f"replayed {name}, which is not recorded")
                continue
            if recorded[at].crc != event.crc:
                said = f"replayed {name} with crc {event.crc:08x}, recorded was {recorded[at].crc:08x}"
                yield Violation.of("replay differs", event, said, recorded[at])
            if at != due:
                yield Violation.of("replay differs", event, f"replayed {name}, number {at}, when number {due} was due")
            due = at + 1
        if due != len(recorded):
            yield Violation.of("replay differs", replayed[-1], f"{len(recorded) - due} frames were not replayed")
