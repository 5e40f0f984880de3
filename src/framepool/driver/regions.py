"""The driver's files: epochs made, checked, stamped and given up (Driver 3, 9; `decisions.md` #33, #34).

This is the `Regions` of `streams.Authority` on a real filesystem. The current epoch of each stream is mapped, so that
its activity can be stamped; what is superseded stays on disk until the janitor takes it.
"""

from __future__ import annotations

import logging

from framepool.clock import Clock
from framepool.config import ProfileConfig
from framepool.driver.streams import LimitReached
from framepool.errors import AllocationError, RegionError
from framepool.shm.allocator import Allocator
from framepool.shm.epochs import HIGHEST_EPOCH
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import OWN_FILES, AllowedDirectories, OwnerPolicy
from framepool.shm.region import MappedStream, map_stream

log = logging.getLogger(__name__)


class DriverRegions:
    """The epochs of one namespace, and of a second one on hugetlbfs where there is one."""

    def __init__(
        self,
        allocator: Allocator,
        clock: Clock,
        *,
        huge_allocator: Allocator | None = None,
        max_bytes: int = 0,
        owners: OwnerPolicy = OWN_FILES,
    ) -> None:
        self._allocator = allocator
        self._huge_allocator = huge_allocator
        self._clock = clock
        self._max_bytes = max_bytes
        self._owners = owners
        self._allowed = AllowedDirectories(each.base_dir for each in self._allocators)
        self._mapped: dict[tuple[int, int], MappedStream] = {}
        self._highest: dict[int, int] = {}
        self.retired: set[int] = set()
        """Streams of which an epoch was superseded since the janitor last looked."""

    @property
    def hugepages(self) -> bool:
        return self._huge_allocator is not None

    @property
    def mapped_bytes(self) -> int:
        """What the current epochs occupy together."""
        return sum(stream.layout.total_bytes for stream in self._mapped.values())

    def create(self, stream_id: int, profile: ProfileConfig, *, hugepages: bool) -> StreamLayout:
        allocator = self._huge_allocator if hugepages else self._allocator
        if allocator is None:
            raise AllocationError("hugepages were asked for and there is no hugetlbfs to use")
        if self._max_bytes and self.mapped_bytes + profile.epoch_bytes > self._max_bytes:
            raise LimitReached(f"stream {stream_id}: the limit of {self._max_bytes} bytes for all streams is reached")
        epoch = self._next_epoch(stream_id)
        self._highest.pop(stream_id, None)  # unless all goes well, the next one looks at the disk again
        layout = allocator.create(
            stream_id,
            epoch,
            nslots=profile.nslots,
            strides={pool.pool_id: pool.stride_bytes for pool in profile.pools},
            timestamp_ns=self._clock.timestamp_ns(),
        )
        try:
            self._mapped[stream_id, layout.epoch] = map_stream(
                layout, self._allowed, writable=True, owners=self._owners
            )
        except RegionError:
            allocator.remove_epoch(stream_id, layout.epoch)
            raise
        self._highest[stream_id] = epoch
        return layout

    def validate(self, layout: StreamLayout) -> None:
        self._mapped[layout.stream_id, layout.epoch].recheck()

    def refresh(self, layout: StreamLayout, timestamp_ns: int) -> None:
        self._mapped[layout.stream_id, layout.epoch].refresh_activity(timestamp_ns)

    def retire(self, layout: StreamLayout) -> None:
        self._mapped.pop((layout.stream_id, layout.epoch)).close()
        self.retired.add(layout.stream_id)

    def remove_all(self) -> None:
        """Lets go of every mapping and removes the files; the newest directory of each stream stays, empty."""
        for stream in self._mapped.values():
            stream.close()
        self._mapped.clear()
        for allocator in self._allocators:
            for stream_id in allocator.streams():
                try:
                    for epoch in allocator.epochs(stream_id):
                        allocator.remove_epoch(stream_id, epoch)
                except AllocationError as error:  # somebody meddled with this stream; the others go all the same
                    log.warning("%s", error)

    @property
    def _allocators(self) -> list[Allocator]:
        return [self._allocator] + ([self._huge_allocator] if self._huge_allocator else [])

    def _next_epoch(self, stream_id: int) -> int:
        """Higher than on either filesystem: a stream has one count, wherever its epochs lie.

        The namespace is ours alone, so what is on disk has to be read only once. Whatever a killed driver left
        half-made is removed then, and what it left complete is the janitor's.
        """
        highest = self._highest.get(stream_id, HIGHEST_EPOCH)
        if highest < HIGHEST_EPOCH:
            return highest + 1
        for allocator in self._allocators:
            allocator.remove_unfinished(stream_id)
        self.retired.add(stream_id)
        return max(allocator.next_epoch(stream_id, self._clock.wall_seconds) for allocator in self._allocators)
