"""What happened, told by each process for itself: one line for each thing that it did.

A process appends to a journal of its own, and is killed or stopped as the test likes; the journal of a killed process
ends with its last whole line. A producer writes *before* it commits, so that whatever others accept is in its journal.

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
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

import msgspec

from framepool.wire._generated.driver_901 import Role

Op = Literal[
    # members of a stream
    "attached", "lost", "mapped", "published", "withdrawn", "received", "missed",
    # who listens to the driver
    "granted", "ended", "announced", "shutdown", "deaf",
    # recordings
    "recorded", "unrecorded", "replayed",
    # any process, and whoever set the stage
    "file", "allowed", "bridged",
]  # fmt: skip


class Seal(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Which frame a payload says that it is, with the crc that stands in it. 0 is a stream that it does not name."""

    epoch: int
    seq: int
    crc: int
    stream_id: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One thing that one process did or saw, at `t` of its host's monotonic clock."""

    process: str
    op: Op
    t: int
    stream_id: int = 0
    epoch: int = 0
    seq: int = 0
    crc: int = 0
    """Of the payload as this process wrote or read it."""
    sealed: Seal | None = None
    """What the payload that was read says of itself."""
    count: int = 0
    """How many frames: missed, or not recorded from `seq` on; -1 if nobody knows."""
    lease_id: int = 0
    client_id: int = 0
    role: Role | None = None
    source: int = 0
    """The stream that a bridged one comes from."""
    path: str = ""
    """A file that is mapped, or a directory that files may be mapped from."""


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
        """A frame is about to be committed."""
        self._write("published", stream_id, epoch, seq=seq, crc=crc)

    def withdrawn(self, stream_id: int, epoch: int, seq: int) -> None:
        """It was not committed after all."""
        self._write("withdrawn", stream_id, epoch, seq=seq)

    def received(self, stream_id: int, epoch: int, seq: int, crc: int, sealed: Seal | None = None) -> None:
        """A frame was accepted."""
        self._write("received", stream_id, epoch, seq=seq, crc=crc, sealed=sealed)

    def missed(self, stream_id: int, epoch: int, count: int) -> None:
        """So many frames were counted as missing, late or invalid."""
        self._write("missed", stream_id, epoch, count=count)

    def granted(self, lease_id: int, client_id: int, role: Role, stream_id: int, epoch: int) -> None:
        """The driver was heard to grant a lease."""
        self._write("granted", stream_id, epoch, lease_id=lease_id, client_id=client_id, role=role)

    def ended(self, lease_id: int, stream_id: int) -> None:
        """The driver was heard to end a lease."""
        self._write("ended", stream_id, lease_id=lease_id)

    def announced(self, stream_id: int, epoch: int) -> None:
        """The driver was heard to announce an epoch."""
        self._write("announced", stream_id, epoch)

    def shutdown(self) -> None:
        """The driver was heard to end all leases."""
        self._write("shutdown")

    def deaf(self) -> None:
        """Something the driver said may have been missed: it died, or nothing carried its words."""
        self._write("deaf")

    def recorded(self, stream_id: int, epoch: int, seq: int, crc: int, sealed: Seal | None = None) -> None:
        """A frame is in a recording; in the order of the recording."""
        self._write("recorded", stream_id, epoch, seq=seq, crc=crc, sealed=sealed)

    def unrecorded(self, stream_id: int, epoch: int, first_seq: int, count: int) -> None:
        """So many frames are in the loss table of a recording; -1 where it does not say how many."""
        self._write("unrecorded", stream_id, epoch, seq=first_seq, count=count)

    def replayed(self, stream_id: int, epoch: int, seq: int, crc: int) -> None:
        """A frame came out of a replay that was this one when it was recorded; in the order in which they came."""
        self._write("replayed", stream_id, epoch, seq=seq, crc=crc)

    def files(self, paths: Iterable[str]) -> None:
        """These files are mapped now."""
        for path in paths:
            self._write("file", path=path)

    def allowed(self, directory: str) -> None:
        """Files of this directory may be mapped."""
        self._write("allowed", path=directory)

    def bridged(self, source: int, dest: int) -> None:
        """One stream is made of another by bridges: other epochs, the same sequence and payloads."""
        self._write("bridged", dest, source=source)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(
        self,
        op: Op,
        stream_id: int = 0,
        epoch: int = 0,
        *,
        seq: int = 0,
        crc: int = 0,
        sealed: Seal | None = None,
        count: int = 0,
        lease_id: int = 0,
        client_id: int = 0,
        role: Role | None = None,
        source: int = 0,
        path: str = "",
    ) -> None:
        event = Event(
            process=self._process,
            op=op,
            t=time.monotonic_ns(),
            stream_id=stream_id,
            epoch=epoch,
            seq=seq,
            crc=crc,
            sealed=sealed,
            count=count,
            lease_id=lease_id,
            client_id=client_id,
            role=role,
            source=source,
            path=path,
        )
        self._file.write(msgspec.json.encode(event) + b"\n")


def read(paths: Iterable[str | Path]) -> list[Event]:
    """The events of all journals, each journal's in its order. A last line that was cut off is no event."""
    decode = msgspec.json.Decoder(Event).decode
    events: list[Event] = []
    for path in paths:
        *lines, _cut = Path(path).read_bytes().split(b"\n")
        events += map(decode, lines)
    return events
