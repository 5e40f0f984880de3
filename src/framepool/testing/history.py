"""What happened, told by each process for itself, and whether it may have happened: journals and their checker.

Every process of a test appends what it does to a journal of its own, and is killed or stopped as the test likes.
Afterwards `check` reads all journals together and names each thing that no run may show: a frame accepted torn, an
epoch mixed with another, use of regions without a lease, a missing frame that nobody counted, two producers of one
epoch, a lease id granted twice. The journal of a killed process ends with its last whole line.

::

    journal = Journal(path, "camera")
    journal.attached(grant.lease_id, client_id, Role.PRODUCER, stream_id, epoch)
    journal.mapped(stream_id, epoch)
    journal.published(stream_id, epoch, seq, crc)
    …
    assert check(read(paths)) == []
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from framepool.wire._generated.driver_901 import Role

Op = Literal["attached", "lost", "mapped", "published", "received", "missed"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that one process did to one stream, at `t` of the host's monotonic clock."""

    process: str
    op: Op
    t: int
    stream_id: int
    epoch: int = 0
    seq: int = 0
    crc: int = 0
    """Of the payload as this process wrote or read it."""
    sealed: tuple[int, int, int] | None = None
    """Epoch, sequence number and crc that stand in the payload that was received."""
    count: int = 0
    """How many frames were missed."""
    lease_id: int = 0
    client_id: int = 0
    role: Role | None = None


class Journal:
    """The events of one process, a line each; a line is whole before the next one begins, whatever ends the process."""

    def __init__(self, path: str | Path, process: str) -> None:
        self._process = process
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - it lives as long as the journal

    def attached(self, lease_id: int, client_id: int, role: Role, stream_id: int, epoch: int) -> None:
        """A lease was granted."""
        self._write("attached", stream_id, epoch, lease_id=lease_id, client_id=client_id, role=role)

    def lost(self, lease_id: int, stream_id: int) -> None:
        """The end of a lease was noticed, or the lease given back."""
        self._write("lost", stream_id, lease_id=lease_id)

    def mapped(self, stream_id: int, epoch: int) -> None:
        """Regions were mapped; whatever is counted starts anew with them."""
        self._write("mapped", stream_id, epoch)

    def published(self, stream_id: int, epoch: int, seq: int, crc: int) -> None:
        """A frame was committed."""
        self._write("published", stream_id, epoch, seq=seq, crc=crc)

    def received(self, stream_id: int, epoch: int, seq: int, crc: int, sealed: tuple[int, int, int]) -> None:
        """A frame was accepted."""
        self._write("received", stream_id, epoch, seq=seq, crc=crc, sealed=sealed)

    def missed(self, stream_id: int, epoch: int, count: int) -> None:
        """So many frames were counted as missing, late or invalid."""
        self._write("missed", stream_id, epoch, count=count)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, op: Op, stream_id: int, epoch: int = 0, **fields: object) -> None:
        t = time.monotonic_ns()
        event = msgspec.convert(
            {"process": self._process, "op": op, "t": t, "stream_id": stream_id, "epoch": epoch, **fields}, Event
        )
        self._file.write(msgspec.json.encode(event) + b"\n")


def read(paths: Iterable[str | Path]) -> list[Event]:
    """The events of all journals, each journal's in its order. A last line that was cut off is no event."""
    events = []
    for path in paths:
        *lines, _cut = Path(path).read_bytes().split(b"\n")
        events += [msgspec.json.decode(line, type=Event) for line in lines]
    return events


def check(events: Iterable[Event]) -> list[str]:
    """A line for everything that may not happen; an empty list is a history without fault."""
    by_process: dict[tuple[str, int], list[Event]] = defaultdict(list)
    everything = list(events)
    for event in everything:
        by_process[event.process, event.stream_id].append(event)
    found = [fault for own in by_process.values() for fault in _own_faults(own)]
    return found + list(_lease_faults(everything)) + list(_frame_faults(everything))


def _own_faults(events: list[Event]) -> Iterator[str]:
    """What one process may not do to one stream, in its own order of events."""
    lease: Event | None = None
    mapped: Event | None = None
    following: int | None = None
    for event in events:
        if event.op == "attached":
            if lease is not None:
                yield f"{_who(event)} got lease {event.lease_id} while it held {lease.lease_id}"
            lease = event
            continue
        if event.op == "lost":
            lease = None
            continue
        if lease is None:
            yield f"{_who(event)} {event.op} seq {event.seq} of epoch {event.epoch} without a lease"
        if event.op == "mapped":
            if mapped is not None and event.epoch < mapped.epoch:
                yield f"{_who(event)} mapped epoch {event.epoch} after epoch {mapped.epoch}"
            mapped, following = event, None
        elif mapped is None or mapped.epoch != event.epoch:
            there = "none" if mapped is None else mapped.epoch
            yield f"{_who(event)} {event.op} in epoch {event.epoch}, mapped was {there}"
        if event.op == "published" and lease is not None and event.epoch != lease.epoch:
            yield f"{_who(event)} published in epoch {event.epoch} with a lease for {lease.epoch}"
        if event.op == "missed" and following is not None:
            following += event.count
        if event.op == "received":
            if following is not None and event.seq != following:
                yield f"{_who(event)} received seq {event.seq} of epoch {event.epoch}, due was {following}"
            following = event.seq + 1


def _lease_faults(events: list[Event]) -> Iterator[str]:
    """A lease id is granted once (Driver 4.8), an epoch has one producer (Driver 5, 6), and whoever had an earlier
    epoch publishes no more once a later one was granted (Driver 4.7)."""
    granted: dict[int, Event] = {}
    producers: dict[tuple[int, int], Event] = {}
    for event in events:
        if event.op != "attached":
            continue
        if event.lease_id in granted:
            yield f"lease {event.lease_id} was granted to {granted[event.lease_id].process} and to {event.process}"
        granted[event.lease_id] = event
        if event.role is not Role.PRODUCER:
            continue
        other = producers.setdefault((event.stream_id, event.epoch), event)
        if other is not event:
            yield f"epoch {event.epoch} of stream {event.stream_id} has producers {other.process} and {event.process}"
    for event in events:
        if event.op != "published":
            continue
        holder = producers.get((event.stream_id, event.epoch))
        if holder is not None and holder.process != event.process:
            yield f"{_who(event)} published in epoch {event.epoch}, which is {holder.process}'s"
        for (stream_id, epoch), later in producers.items():
            if stream_id == event.stream_id and epoch > event.epoch and later.t < event.t:
                yield f"{_who(event)} published in epoch {event.epoch} when {later.process} had epoch {epoch}"


def _frame_faults(events: list[Event]) -> Iterator[str]:
    """What was accepted is whole, is the frame that it claims to be, and is what its producer wrote."""
    written = {(event.stream_id, event.epoch, event.seq): event.crc for event in events if event.op == "published"}
    for event in events:
        if event.op != "received":
            continue
        frame = f"{_who(event)} seq {event.seq} of epoch {event.epoch}"
        if event.sealed is not None and event.sealed[2] != event.crc:
            yield f"{frame}: torn, the payload's crc is {event.crc:08x}, sealed was {event.sealed[2]:08x}"
        if event.sealed is not None and event.sealed[:2] != (event.epoch, event.seq):
            yield f"{frame}: holds the payload of seq {event.sealed[1]} of epoch {event.sealed[0]}"
        crc = written.get((event.stream_id, event.epoch, event.seq))
        if crc is not None and crc != event.crc:
            yield f"{frame}: crc {event.crc:08x}, but {crc:08x} was published"


def _who(event: Event) -> str:
    return f"{event.process}, stream {event.stream_id}:"
