"""Who cleans up: superseded epochs of a running driver, and what dead ones left (Wire 15.21a.7; Driver 4.1).

An epoch goes when nobody can want it any more. Its directory is reached by descriptors only, so no link leads the
janitor elsewhere, and the newest directory of a stream stays, emptied, because it keeps the count (`decisions.md`
#33). Files that somebody still has mapped stay in memory until they let go.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Collection, Iterator, Sequence

import msgspec

from framepool.agent import Timers
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.driver.streams import Authority
from framepool.errors import AllocationError, FramepoolError
from framepool.shm.allocator import Allocator
from framepool.shm.tree import effective_user
from framepool.wire._generated.control_900 import ClockDomain, ShmRegionSuperblock

log = logging.getLogger(__name__)

SWEEP_PERIOD_NS = 2 * NANOS_PER_SECOND


class Removal(msgspec.Struct, frozen=True):
    """An epoch that was, or would be, removed."""

    directory: str
    stream_id: int
    epoch: int
    reason: str


class Janitor:
    """The agent that keeps a running driver's own streams to two epochs each, but for what leases name.

    It looks at a stream when one of its epochs was retired, one stream a cycle, and now and then again at those whose
    epochs a lease held back or that could not be removed. So a stream whose producer comes and goes does not fill the
    filesystem, and streams that nothing happens to cost nothing.
    """

    role = "janitor"

    def __init__(self, authority: Authority, allocators: Sequence[Allocator], retired: set[int], clock: Clock) -> None:
        self._authority = authority
        self._allocators = allocators
        self._retired = retired
        self._timers = Timers(clock)
        self._held: set[int] = set()
        self.removed = 0

    def on_start(self) -> None:
        self.look_at_all()
        self._timers.every(SWEEP_PERIOD_NS, lambda: self._retired.update(self._held))

    def do_work(self) -> int:
        self._timers.poll()
        if not self._retired:
            return 0
        self.sweep(self._retired.pop())
        return 1

    def on_close(self) -> None:
        pass

    def look_at_all(self) -> None:
        """Every stream in its turn, one a cycle."""
        self._retired.update(self._authority.streams)

    def sweep(self, stream_id: int) -> int:
        """Removes what is superseded of one stream; returns how much that was."""
        self._held.discard(stream_id)
        stream = self._authority.streams.get(stream_id)
        if stream is None:
            return 0
        current = None if stream.layout is None else stream.layout.epoch
        leased = {lease.epoch for lease in self._authority.leases if lease.stream_id == stream_id}
        if current is None or leased - {current}:
            self._held.add(stream_id)
        removed = 0
        try:
            for allocator in self._allocators:
                removed += len(sweep_own(allocator, stream_id, current, leased))
        except AllocationError as error:
            log.warning("superseded epochs stay: %s", error)
            self._held.add(stream_id)
        self.removed += removed
        return removed


def superseded(allocator: Allocator, stream_id: int, current: int | None, leased: Collection[int]) -> list[int]:
    """The epochs of a running driver's own stream that are older than the previous one and that no lease names.

    A stream without a current epoch had no room for one: then the previous one goes too, to make room.
    """
    epochs = allocator.epochs(stream_id)
    if current is None:
        older = [epoch for epoch in epochs if allocator.read_superblock(stream_id, epoch) is not None]
    else:
        older = [epoch for epoch in epochs if epoch < current][:-1]
    return [epoch for epoch in older if epoch not in leased]


def sweep_own(allocator: Allocator, stream_id: int, current: int | None, leased: Collection[int]) -> list[Removal]:
    """Removes what `superseded` names."""
    removed = []
    for epoch in superseded(allocator, stream_id, current, leased):
        allocator.remove_epoch(stream_id, epoch)
        removed.append(Removal(allocator.directory, stream_id, epoch, "superseded"))
    return removed


def abandoned(base_dir: str, clock: Clock, freshness_ns: int) -> Iterator[tuple[Allocator, Removal]]:
    """Epochs below a base that no running process keeps: no driver holds the namespace, the activity is stale and
    the process that made them is dead. Only this user's namespaces are looked at, and looking changes nothing."""
    for allocator in namespaces(base_dir):
        with allocator.unused() as unused:
            if not unused:
                continue  # its driver lives
            for stream_id in allocator.streams():
                for epoch in allocator.epochs(stream_id):
                    block = allocator.read_superblock(stream_id, epoch)
                    if block is not None and is_dead(block, clock, freshness_ns):
                        reason = f"made by process {block.pid}, which is gone"
                        yield allocator, Removal(allocator.directory, stream_id, epoch, reason)


def is_dead(block: ShmRegionSuperblock, clock: Clock, freshness_ns: int) -> bool:
    """Stale by either clock, because a superblock does not say which one stamped it, and of a process that is gone."""
    stamp = block.activity_timestamp_ns
    fresh = any(abs(clock.now_ns(domain) - stamp) <= freshness_ns for domain in ClockDomain)
    return not fresh and not process_lives(block.pid)


def process_lives(pid: int) -> bool:
    """Whether a process of this id exists; one that we may not signal does."""
    if not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def namespaces(base_dir: str) -> Iterator[Allocator]:
    """The namespaces of this user below a base, private ones and those shared with a group."""
    user = effective_user()
    directory = f"{base_dir}/tensorpool-{user}"
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
        info = os.stat(directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return
    group = info.st_gid if info.st_mode & stat.S_ISGID else None
    for name in names:
        try:
            allocator = Allocator(base_dir, name, user=user, group=group, sync=False)
            allocator.streams()
        except FramepoolError as error:
            log.info("%s/%s: passed over: %s", directory, name, error)
            continue
        yield allocator
