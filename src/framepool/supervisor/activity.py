"""Signs of life in shared memory: the activity stamps of superblocks, read now and then (Wire 7.1, 15.14).

Only of streams that have a producer, of this host, and by `pread` after every check that a mapping would make: a
supervisor reads what anybody announces and maps none of it. A few files are kept open; which stream is read when
depends on how many there are and not on what they do.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final

from framepool.clock import Clock
from framepool.errors import RegionError
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import OWN_FILES, AllowedDirectories, OwnerPolicy, open_region_file
from framepool.shm.superblock import read_superblock, ring_superblock, validate_superblock
from framepool.supervisor.streams import Activity, StreamView
from framepool.wire._generated.control_900 import ShmPoolAnnounce

log = logging.getLogger(__name__)

READ_PER_CYCLE: Final = 32
"""Few, because messages wait meanwhile."""
MOST_OPEN: Final = 256


class ActivityReader:
    """Reads the header rings of streams, in turn."""

    def __init__(self, allowed: AllowedDirectories, clock: Clock, owners: OwnerPolicy = OWN_FILES) -> None:
        self.counts: Counter[str] = Counter()
        self._allowed = allowed
        self._owners = owners
        self._clock = clock
        self._due: deque[StreamView] = deque()
        self._open: OrderedDict[int, tuple[StreamLayout, int]] = OrderedDict()

    def begin(self, streams: Iterable[StreamView]) -> None:
        """A new turn: all streams that have a producer are read once. One that is not over goes on instead."""
        if not self._due:
            self._due.extend(stream for stream in streams if stream.occupant is not None)

    def read(self) -> Iterator[Activity]:
        """Some readings of the turn."""
        for _ in range(min(READ_PER_CYCLE, len(self._due))):
            stream = self._due.popleft()
            try:
                yield self._read(stream.announce)
                self.counts["read"] += 1
            except (RegionError, OSError) as error:
                self.counts["unreadable"] += 1
                if self.counts["unreadable"].bit_count() == 1:  # the 1st, 2nd, 4th …: a flood does not fill the log
                    log.info("activity of stream %d cannot be read: %s", stream.stream_id, error)

    def close(self) -> None:
        self._due.clear()
        for stream_id in list(self._open):
            self._let_go(stream_id)

    def _read(self, announce: ShmPoolAnnounce) -> Activity:
        layout = StreamLayout.from_announce(announce)
        try:
            block = read_superblock(self._file(layout))
            validate_superblock(block, ring_superblock(layout))
        except RegionError:
            self._let_go(layout.stream_id)
            raise
        return Activity(
            stream_id=block.stream_id,
            epoch=block.epoch,
            timestamp_ns=block.activity_timestamp_ns,
            age_ns=self._clock.now_ns(announce.announce_clock_domain) - block.activity_timestamp_ns,
        )

    def _file(self, layout: StreamLayout) -> int:
        """The open header ring of the announced epoch; that of another epoch is closed."""
        known = self._open.get(layout.stream_id)
        if known is not None and known[0] == layout:
            self._open.move_to_end(layout.stream_id)
            return known[1]
        self._let_go(layout.stream_id)
        uri = layout.header_uri
        fd = open_region_file(
            uri.path,
            self._allowed,
            expected_size=layout.header_file_bytes,
            owners=self._owners,
            require_hugepages=uri.require_hugepages,
        )
        self._open[layout.stream_id] = (layout, fd)
        if len(self._open) > MOST_OPEN:
            self._let_go(next(iter(self._open)))
        return fd

    def _let_go(self, stream_id: int) -> None:
        known = self._open.pop(stream_id, None)
        if known is not None:
            os.close(known[1])
