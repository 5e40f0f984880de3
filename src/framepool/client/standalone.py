"""Streams without a driver: a producer that owns its files, and consumers that follow announces alone (Wire 3, 15.14).

For a single program that wants nobody beside it, and for producers of other makes. The producer counts epochs on disk
as a driver does, writes and syncs everything before it announces, and stamps its activity; the consumer has no lease,
so a stale announce or a silent superblock is all that tells it that the producer is gone.
"""

from __future__ import annotations

import contextlib
import os

from framepool._native.frames import Changes
from framepool.agent import Timers
from framepool.client.attach import new_client_id
from framepool.client.mapping import Mapping
from framepool.client.plane import ControlPlane, Place
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.config import Config, ProfileConfig
from framepool.errors import MediaDriverLost
from framepool.shm.allocator import Allocator
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.shm.region import MappedStream, map_stream
from framepool.transport.aeron import Publication
from framepool.wire._generated.control_900 import ShmPoolAnnounce


class AnnouncedPlace(Place):
    """A consumer's place at a stream that is announced, whoever owns it."""

    def __init__(
        self, plane: ControlPlane, stream_id: int, *, allowed: AllowedDirectories, owners: OwnerPolicy | None = None
    ) -> None:
        policy = owners or OwnerPolicy()
        self.stream_id = stream_id
        self._plane = plane
        self.mapping = Mapping(
            stream_id,
            open_stream=lambda layout: map_stream(layout, allowed, owners=policy, ahead=True),
            clock=plane.clock,
        )
        self.changes = self.mapping.changes
        self._timers = Timers(plane.clock)
        self._timers.every(NANOS_PER_SECOND, self.mapping.check_activity)

    @property
    def stream(self) -> MappedStream | None:
        return self.mapping.stream

    def unmap(self, why: str) -> None:
        with self._plane.lock():
            self.mapping.unmap(why)

    def identity(self) -> tuple[int, int] | None:
        return None if self.mapping.epoch is None else (0, self.mapping.epoch)

    def refusal(self) -> str:
        return self.mapping.last_refusal

    def rejected(self) -> str:
        return "" if self.mapping.stream is not None else self.mapping.last_refusal

    def do_work(self) -> int:
        return self._timers.poll()

    @property
    def takes_long(self) -> bool:
        return self.mapping.will_map

    def settle(self) -> int:
        return self.mapping.settle()

    def on_announce(self, announce: ShmPoolAnnounce) -> None:
        self.mapping.hear(announce)

    def close(self) -> None:
        self.mapping.unmap("closed")

    def statistics(self) -> dict[str, object]:
        return {"mapping": self.mapping.statistics()}


class OwnedPlace(Place):
    """A producer's place at a stream of its own: it makes the files, announces them and removes them.

    The namespace is locked as a driver locks it, so no driver and no second producer works in it (Driver 2.1).
    """

    def __init__(
        self,
        plane: ControlPlane,
        stream_id: int,
        profile: ProfileConfig,
        allocator: Allocator,
        announces: Publication,
        config: Config,
    ) -> None:
        self.stream_id = stream_id
        self.producer_id = new_client_id()
        self._clock = plane.clock
        self._profile = profile
        self._allocator = allocator
        self._announces = announces
        self._period_ns = config.driver.announce_period_ms * NANOS_PER_MILLI
        self._timers = Timers(plane.clock)
        self._lock = allocator.lock()
        self._regions: MappedStream | None = None
        self.changes = Changes()

    def start(self) -> None:
        """Makes an epoch, complete and synced, and only then begins to announce it (Wire 15.14)."""
        try:
            self._allocator.remove_unfinished(self.stream_id)
            layout = self._allocator.create(
                self.stream_id,
                self._allocator.next_epoch(self.stream_id, self._clock.wall_seconds),
                nslots=self._profile.nslots,
                strides={pool.pool_id: pool.stride_bytes for pool in self._profile.pools},
                timestamp_ns=self._clock.timestamp_ns(),
            )
            allowed = AllowedDirectories([self._allocator.base_dir])
            self._regions = map_stream(layout, allowed, writable=True, ahead=True)
            self.changes.count += 1
        except BaseException:
            self._lock.release()
            raise
        self._remove_older(layout.epoch)
        self._timers.every(self._period_ns, self.announce, first_ns=0)

    @property
    def stream(self) -> MappedStream | None:
        return self._regions

    def unmap(self, why: str) -> None:
        """A producer keeps what it owns; it closes it at the end."""

    def identity(self) -> tuple[int, int] | None:
        return None if self._regions is None else (self.producer_id, self._regions.layout.epoch)

    def refusal(self) -> str:
        return ""

    def do_work(self) -> int:
        return self._timers.poll()

    def announce(self) -> None:
        """Stamps the regions and tells of them."""
        if self._regions is None:
            return
        now = self._clock.timestamp_ns()
        self._regions.refresh_activity(now)
        message = self._regions.layout.announce(
            producer_id=self.producer_id, timestamp_ns=now, clock_domain=self._clock.domain
        )
        with contextlib.suppress(MediaDriverLost):  # the plane waits for it
            self._announces.offer(message.encode())

    def close(self) -> None:
        """Removes the files; the newest directory stays, empty, to keep the count of epochs (`decisions.md` #33)."""
        regions, self._regions = self._regions, None
        if regions is not None:
            self.changes.count += 1
            regions.close()
            self._allocator.remove_epoch(self.stream_id, regions.layout.epoch)
            self._lock.release()

    def statistics(self) -> dict[str, object]:
        epoch = None if self._regions is None else self._regions.layout.epoch
        return {"owned": True, "epoch": epoch, "producer_id": self.producer_id, "pid": os.getpid()}

    def _remove_older(self, epoch: int) -> None:
        for older in self._allocator.epochs(self.stream_id):
            if older < epoch:
                self._allocator.remove_epoch(self.stream_id, older)
