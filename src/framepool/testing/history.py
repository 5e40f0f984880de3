"""Whether what the journals tell may have happened: the checker.

`check` reads all journals together and names each thing that no run may show: a frame accepted torn, of another epoch
or another stream, or that nobody wrote; a missing frame that nobody counted; use of regions without a lease; two
producers of one stream; a lease id granted twice; an epoch that does not rise; a file mapped from elsewhere than
allowed; a recording that is not what was published less what it says it lost; a replay that is not what was recorded.

What the journals do not tell of is not checked: a history without a listener at the driver has nothing to say of what
the driver granted, one without `allowed` nothing of files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from framepool.testing.journal import Event, Journal, Seal, read
from framepool.testing.recordings import recording_faults
from framepool.testing.violation import Violation, frame_name
from framepool.wire._generated.driver_901 import Role

__all__ = ["Event", "Journal", "Seal", "Violation", "check", "read"]

MEMBERS = frozenset({"attached", "lost", "mapped", "published", "withdrawn", "received", "missed"})


def check(events: Iterable[Event], *, grace_ns: int = 0) -> list[Violation]:
    """Everything that may not happen; an empty list is a history without fault.

    `grace_ns` is for how long a producer may go on in its epoch once another one was granted the next: what the notice
    of it takes at the most. Without one, no frame may be committed later than another process knew of its lease.
    """
    everything = list(events)
    by_process: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in everything:
        if event.op in MEMBERS:
            by_process[event.process, event.stream_id].append(event)
    found = [fault for own in by_process.values() for fault in _own_faults(own)]
    found += _lease_faults(everything)
    found += _producer_faults(everything, grace_ns)
    found += _driver_faults(everything)
    found += _frame_faults(everything)
    found += _file_faults(everything)
    found += recording_faults(everything)
    return found


def _own_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """What one process may not do to one stream, in its own order of events."""
    lease: Event | None = None
    mapped: Event | None = None
    following: int | None = None
    for event in events:
        if event.op == "attached":
            if lease is not None:
                yield Violation.of("two leases", event, f"got lease {event.lease_id} while it held {lease.lease_id}")
            lease = event
            continue
        if event.op == "lost":
            lease = None
            continue
        if lease is None:
            yield Violation.of("no lease", event, f"{event.op} seq {event.seq} of epoch {event.epoch} without a lease")
        if event.op == "mapped":
            if mapped is not None and event.epoch < mapped.epoch:
                yield Violation.of("epoch fell", event, f"mapped epoch {event.epoch} after epoch {mapped.epoch}")
            mapped, following = event, None
        elif mapped is None or mapped.epoch != event.epoch:
            there = "none" if mapped is None else mapped.epoch
            yield Violation.of("wrong epoch", event, f"{event.op} in epoch {event.epoch}, mapped was {there}")
        if event.op == "published" and lease is not None and event.epoch != lease.epoch:
            said = f"published in epoch {event.epoch} with a lease for {lease.epoch}"
            yield Violation.of("wrong epoch", event, said)
        if event.op == "missed" and following is not None:
            following += event.count
        if event.op == "received":
            if following is not None and event.seq != following:
                said = f"received seq {event.seq} of epoch {event.epoch}, due was {following}"
                yield Violation.of("gap not accounted for", event, said)
            following = event.seq + 1


def _lease_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """A lease id is granted once (Driver 4.8), an epoch has one producer (Driver 5, 6)."""
    granted: dict[int, Event] = {}
    producers: dict[tuple[int, int], Event] = {}
    for event in events:
        if event.op != "attached":
            continue
        other = granted.setdefault(event.lease_id, event)
        if other is not event:
            said = f"lease {event.lease_id} was granted to {other.process} and to {event.process}"
            yield Violation.of("lease id reused", event, said, other)
        if event.role is not Role.PRODUCER:
            continue
        other = producers.setdefault((event.stream_id, event.epoch), event)
        if other is not event:
            said = f"epoch {event.epoch} of stream {event.stream_id} has producers {other.process} and {event.process}"
            yield Violation.of("two producers", event, said, other)


def _producer_faults(events: Sequence[Event], grace_ns: int) -> Iterator[Violation]:
    """Nobody publishes in another's epoch, and whoever had an earlier epoch publishes no more once a later one was
    granted (Driver 4.7)."""
    holders: dict[tuple[int, int], Event] = {}
    later: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event.op == "attached" and event.role is Role.PRODUCER:
            holders.setdefault((event.stream_id, event.epoch), event)
            later[event.stream_id].append((event.t, event.epoch))
    ends = {stream_id: _Ends(grants) for stream_id, grants in later.items()}
    since: dict[tuple[str, int, int], int] = {}
    withdrawn = {
        (event.process, event.stream_id, event.epoch, event.seq) for event in events if event.op == "withdrawn"
    }
    for event in events:
        if event.op != "published" or (event.process, event.stream_id, event.epoch, event.seq) in withdrawn:
            continue
        holder = holders.get((event.stream_id, event.epoch))
        if holder is not None and holder.process != event.process:
            said = f"published in epoch {event.epoch}, which is {holder.process}'s"
            yield Violation.of("two producers", event, said, holder)
        newest = ends[event.stream_id].newest(event.t) if event.stream_id in ends else None
        if newest is None or newest <= event.epoch:
            continue
        first = since.setdefault((event.process, event.stream_id, event.epoch), event.t)
        if event.t - first >= grace_ns:
            other = holders[event.stream_id, newest]
            said = f"published in epoch {event.epoch} when {other.process} had epoch {newest}"
            yield Violation.of("two producers", event, said, other)


class _Ends:
    """The highest epoch that was granted until some time."""

    def __init__(self, grants: list[tuple[int, int]]) -> None:
        grants.sort()
        self._times = [t for t, _ in grants]
        self._highest: list[int] = []
        for _, epoch in grants:
            self._highest.append(max(epoch, self._highest[-1]) if self._highest else epoch)

    def newest(self, t: int) -> int | None:
        at = bisect_right(self._times, t - 1)
        return self._highest[at - 1] if at else None


def _driver_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """What the driver was heard to say, in its order: one producer of a stream at a time, whose lease ends before the
    next one is granted; no lease id twice; epochs that only rise, over restarts too (Driver 4.8 to 4.10, 5, 6)."""
    granted: dict[tuple[str, int], Event] = {}
    announced: dict[tuple[str, int], int] = {}
    attached: dict[tuple[str, int], int] = {}
    """Each rises for itself: answers and announces come on two streams, of which neither waits for the other."""
    producer: dict[tuple[str, int], Event] = {}
    for event in events:
        stream = (event.process, event.stream_id)
        if event.op in {"deaf", "shutdown"}:
            producer = {key: lease for key, lease in producer.items() if key[0] != event.process}
            if event.op == "deaf":  # announces of before may be heard again
                announced = {key: epoch for key, epoch in announced.items() if key[0] != event.process}
        elif event.op == "ended":
            if stream in producer and producer[stream].lease_id == event.lease_id:
                del producer[stream]
        elif event.op == "announced":
            yield from _rises(event, announced, stream, strictly=False)
        elif event.op == "granted":
            other = granted.setdefault((event.process, event.lease_id), event)
            if other is not event:
                said = f"lease {event.lease_id} was granted to {other.client_id} and to {event.client_id}"
                yield Violation.of("lease id reused", event, said, other)
            if event.role is Role.PRODUCER:
                yield from _rises(event, attached, stream, strictly=True)
                if stream in producer:
                    before = producer[stream]
                    said = (
                        f"granted to {event.client_id} while lease {before.lease_id} of {before.client_id} had no end"
                    )
                    yield Violation.of("two producers", event, said, before)
                producer[stream] = event


def _rises(
    event: Event, highest: dict[tuple[str, int], int], stream: tuple[str, int], *, strictly: bool
) -> Iterator[Violation]:
    before = highest.get(stream, -1)
    if event.epoch < before or (strictly and event.epoch == before):
        yield Violation.of("epoch fell", event, f"{event.op} epoch {event.epoch} after epoch {before}")
    highest[stream] = max(before, event.epoch)


def _frame_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """What was accepted is whole, is the frame that it claims to be, and is what its producer wrote."""
    written = {(event.stream_id, event.epoch, event.seq): event for event in events if event.op == "published"}
    told = {stream_id for stream_id, _, _ in written}
    sources = {event.stream_id: event.source for event in events if event.op == "bridged"}
    origin: dict[tuple[str, int, int], Event] = {}
    for event in events:
        if event.op not in {"received", "recorded"}:
            continue
        sealed, source = event.sealed, sources.get(event.stream_id)
        name = f"seq {event.seq} of epoch {event.epoch}"
        if sealed is not None:
            yield from _seal_faults(event, sealed, source)
        if source is None:
            key = (event.stream_id, event.epoch, event.seq)
        elif sealed is None:
            continue
        else:
            key = (source, sealed.epoch, event.seq)
            first = origin.setdefault((event.process, event.stream_id, event.epoch), event)
            if first.sealed is not None and first.sealed.epoch != sealed.epoch:
                said = f"{name}: of epoch {sealed.epoch} of its source, others of {first.sealed.epoch}"
                yield Violation.of("wrong epoch", event, said, first)
        original = written.get(key)
        if original is None and key[0] in told:
            yield Violation.of("nobody wrote it", event, f"{event.op} {name}: {frame_name(key)} was never published")
        elif original is not None and original.crc != event.crc:
            said = f"{event.op} {name}: crc {event.crc:08x}, but {original.crc:08x} was published"
            yield Violation.of("torn", event, said, original)


def _seal_faults(event: Event, sealed: Seal, source: int | None) -> Iterator[Violation]:
    """What the payload says of itself against what it was accepted as."""
    name = f"{event.op} seq {event.seq} of epoch {event.epoch}"
    if sealed.crc != event.crc:
        said = f"{name}: torn, the payload's crc is {event.crc:08x}, sealed was {sealed.crc:08x}"
        yield Violation.of("torn", event, said)
    if sealed.seq != event.seq or (source is None and sealed.epoch != event.epoch):
        said = f"{name}: holds the payload of seq {sealed.seq} of epoch {sealed.epoch}"
        yield Violation.of("wrong epoch" if sealed.seq == event.seq else "wrong frame", event, said)
    if sealed.stream_id and sealed.stream_id != (source or event.stream_id):
        yield Violation.of("wrong stream", event, f"{name}: holds a payload of stream {sealed.stream_id}")


def _file_faults(events: Sequence[Event]) -> Iterator[Violation]:
    """Only files below the allowed directories are mapped (Wire 15.21a)."""
    allowed = tuple(event.path.rstrip("/") + "/" for event in events if event.op == "allowed")
    if not allowed:
        return
    for event in events:
        if event.op == "file" and not event.path.startswith(allowed):
            yield Violation.of("mapped elsewhere", event, f"mapped {event.path}")


def summary(events: Iterable[Event]) -> dict[str, int]:
    """How much of each a history has."""
    counts: dict[str, int] = defaultdict(int)
    for event in events:
        counts[event.op] += 1
    return dict(sorted(counts.items()))
