"""Bugs on purpose, for workers of a tortured cluster (`--patch`): each must be seen by the checker."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.pool import Pool
from framepool.driver.leases import Lease, LeaseTable
from framepool.driver.regions import DriverRegions
from framepool.driver.streams import Authority
from framepool.recorder.account import Loss
from framepool.recorder.recording_agent import RecordingAgent
from framepool.shm import region
from framepool.shm.paths import AllowedDirectories
from framepool.wire._generated.driver_901 import Role, ShmLeaseRevoked
from framepool.wire.message import Message


def skip_the_second_check() -> None:
    """A reader that believes what it read without looking whether it was overwritten meanwhile."""

    def leave(self: Frame, *_: object) -> None:
        pass

    Frame.__exit__ = leave  # type: ignore[assignment]


def reuse_an_epoch() -> None:
    """A driver that knows two numbers only."""
    first: dict[int, int] = {}
    made: Counter[int] = Counter()
    proper = DriverRegions._next_epoch

    def next_epoch(self: DriverRegions, stream_id: int) -> int:
        first.setdefault(stream_id, proper(self, stream_id))
        epoch = first[stream_id] + made[stream_id] % 2
        made[stream_id] += 1
        shutil.rmtree(Path(self._allocator.directory) / str(stream_id) / str(epoch), ignore_errors=True)
        return epoch

    DriverRegions._next_epoch = next_epoch  # type: ignore[method-assign]


def forget_the_revoke() -> None:
    """A driver that tells nobody that a lease ended."""
    proper = Authority._lease_ended

    def lease_ended(self: Authority, *arguments: Any) -> None:
        publish = self._publish

        def all_but_that(message: Message) -> None:
            if not isinstance(message, ShmLeaseRevoked):
                publish(message)

        self._publish = all_but_that
        try:
            proper(self, *arguments)
        finally:
            self._publish = publish

    Authority._lease_ended = lease_ended  # type: ignore[method-assign]


def accept_a_foreign_stream() -> None:
    """A connection that gives out a consumer of another stream than was asked for, and neither looks at the id."""
    proper = Pool.consumer

    def consumer(self: Pool, stream: int, **settings: Any) -> Consumer:
        other = proper(self, stream ^ 1, **settings)
        other.stream_id = stream
        return other

    Pool.consumer = consumer  # type: ignore[method-assign, assignment]


def count_drops_wrongly() -> None:
    """A consumer that does not count every tenth frame that it missed."""
    proper = Consumer.counts

    def counts(self: Consumer) -> Counter[str]:
        found: Counter[str] = proper.__get__(self)
        found["late"] -= found["late"] // 10
        found["gap"] -= found["gap"] // 10
        return found

    Consumer.counts = property(counts)  # type: ignore[method-assign, assignment]


def reuse_a_lease_id() -> None:
    """A driver that counts its leases of a kind only."""
    proper = LeaseTable.grant
    first: list[int] = []

    def grant(self: LeaseTable, stream_id: int, client_id: int, role: Role, now_ns: int, epoch: int = 0) -> Lease:
        first.append(self._next_id)
        if role is Role.PRODUCER:
            self._next_id = first[0] + 1_000
        return proper(self, stream_id, client_id, role, now_ns, epoch)

    LeaseTable.grant = grant  # type: ignore[method-assign]


def forget_losses() -> None:
    """A recorder whose loss table lacks every other row."""
    proper = RecordingAgent._owe
    count = [0]

    def owe(self: RecordingAgent, losses: Iterable[Loss]) -> None:
        kept = []
        for loss in losses:
            count[0] += 1
            if count[0] % 2:
                kept.append(loss)
        proper(self, kept)

    RecordingAgent._owe = owe  # type: ignore[method-assign]


def follow_links() -> None:
    """A consumer that opens what the path leads to."""

    def open_file(path: str, allowed: AllowedDirectories, **_: Any) -> int:
        return os.open(path, os.O_RDONLY)

    region.open_region_file = open_file  # type: ignore[assignment]
