"""Which epoch of a stream is mapped: the mapping state machine (Wire 10.1.1, 15.1, 15.2, 15.21; Driver 4.9, 6).

Announces are soft state: stale ones and replayed ones are ignored, the highest epoch wins, and every change of
epoch is a hard boundary, unmapped first and mapped anew. Files are opened through a callable that does all checks of
`shm.region`, so this module only decides when.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable

from framepool._native.frames import Changes
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.errors import RegionError, SuperblockError
from framepool.shm.layout import StreamLayout
from framepool.shm.pool import Pool
from framepool.shm.region import MappedStream
from framepool.wire._generated.control_900 import ClockDomain, ShmPoolAnnounce, ShmRegionSuperblock

log = logging.getLogger(__name__)

Open = Callable[[StreamLayout], MappedStream]


def ring_parts(stream: MappedStream) -> tuple[memoryview, int, list[Pool]]:
    """What a `RingReader` or `RingWriter` over these regions is made of."""
    layout = stream.layout
    pools = [
        Pool(pool.pool_id, pool.stride_bytes, pool.nslots, stream.pools[pool.pool_id].buffer) for pool in layout.pools
    ]
    return stream.header.buffer, layout.nslots, pools


class MappingState(enum.Enum):
    """Wire 15.12."""

    UNMAPPED = "unmapped"
    MAPPED = "mapped"
    FALLBACK = "fallback"
    """Told to leave shared memory alone: of a consumer, never of a mapping."""


class Mapping:
    """The regions of one stream in one process: all of one epoch, or none."""

    def __init__(
        self, stream_id: int, *, open_stream: Open, clock: Clock, freshness_ns: int = 3 * NANOS_PER_SECOND
    ) -> None:
        self.stream_id = stream_id
        self.stream: MappedStream | None = None
        self.changes = Changes()
        """Of `stream`."""
        self.last_refusal = ""
        self.counts: Counter[str] = Counter()
        self._open_stream = open_stream
        self._clock = clock
        self._freshness_ns = freshness_ns
        self._join_ns = clock.monotonic_ns()
        self._pid = 0
        self._domain: ClockDomain | None = None
        self._highest_epoch = -1
        self._highest_seen_ns = 0
        self._least_epoch = 0
        self._damaged_epoch: int | None = None
        self.doubt = ""
        """Why what is announced is not believed: the files of that epoch changed while they were mapped. Only the
        driver can say which are the right ones, so its word is needed, not its announce."""
        self._announced_ns = 0
        self._heard: list[ShmPoolAnnounce] = []

    @property
    def state(self) -> MappingState:
        return MappingState.UNMAPPED if self.stream is None else MappingState.MAPPED

    @property
    def epoch(self) -> int | None:
        """The mapped epoch."""
        return None if self.stream is None else self.stream.layout.epoch

    def on_layout(self, layout: StreamLayout) -> None:
        """Maps what an attach response named: the driver's word, as fresh as the answer itself."""
        self._heard.clear()
        self._damaged_epoch, self.doubt = None, ""
        self._note(layout.epoch)
        if self.epoch != layout.epoch:
            self._map(layout)

    def hear(self, announce: ShmPoolAnnounce) -> None:
        """Keeps an announce for `settle`. Only the newest counts, and before it one of a higher epoch (#20): whoever
        comes late to a stream whose epochs change quickly does not map them all."""
        self._heard = [*(higher for higher in self._heard[:1] if higher.epoch > announce.epoch), announce]

    @property
    def will_map(self) -> bool:
        """Whether `settle` may map files of another epoch."""
        return any(announce.epoch != self.epoch for announce in self._heard)

    def settle(self) -> int:
        """Follows what was heard; maps files, so it takes a while."""
        heard, self._heard = self._heard, []
        for announce in heard:
            self.on_announce(announce)
        return len(heard)

    def on_announce(self, announce: ShmPoolAnnounce) -> None:
        """Follows a fresh announce of this stream; anything else is ignored and counted."""
        if announce.stream_id != self.stream_id:
            return
        if not self._is_fresh(announce):
            self.counts["stale announces"] += 1
            return
        self._domain = announce.announce_clock_domain
        if announce.epoch == self.epoch:
            self._note(announce.epoch)
            self._announced_ns = announce.announce_timestamp_ns
            self._recheck()
            return
        if announce.epoch == self._damaged_epoch:
            self.counts["damaged epochs"] += 1
            self.doubt = self.last_refusal
            return
        if self.stream is not None:
            self.unmap(f"epoch {announce.epoch} announced")
        if announce.epoch < self._least_epoch or self._is_outdone(announce.epoch):
            self.counts["lower epochs"] += 1
            return
        self._note(announce.epoch)
        try:
            layout = StreamLayout.from_announce(announce)
        except RegionError as error:
            self._refuse(error)
            return
        self._map(layout)
        self._announced_ns = announce.announce_timestamp_ns

    def on_producer_revoked(self, timestamp_ns: int) -> None:
        """The producer's lease ended at that time: only a later epoch may be mapped now (Driver 4.9).

        Notices and announces come on two streams. An announce may overtake the notice it answers; its stamp tells.
        """
        self._heard = [announce for announce in self._heard if announce.announce_timestamp_ns > timestamp_ns]
        if self.stream is not None and timestamp_ns >= self._announced_ns:
            self._least_epoch = self.stream.layout.epoch + 1
            self.unmap("the producer's lease ended")

    def check_activity(self) -> None:
        """Unmaps when the writer's sign of life is stale or comes from another process (Wire 7.1, 15.14)."""
        if self.stream is None:
            return
        try:
            block = self.stream.superblock()
        except RegionError as error:
            self.unmap(str(error))
            return
        if block.pid != self._pid:
            self._least_epoch = self.stream.layout.epoch + 1
            self.unmap(f"the writer changed from pid {self._pid} to {block.pid} within epoch {block.epoch}")
        elif self._is_silent(block):
            self.unmap("the regions show no activity")

    def unmap(self, why: str) -> None:
        """Lets go of all regions; frames in flight are dropped with them."""
        stream, self.stream = self.stream, None
        if stream is not None:
            self.changes.count += 1
            log.info("stream %d: epoch %d unmapped: %s", self.stream_id, stream.layout.epoch, why)
            self.counts["unmapped"] += 1
            stream.close()

    def statistics(self) -> dict[str, object]:
        return {"state": self.state.value, "epoch": self.epoch, "last_refusal": self.last_refusal, **self.counts}

    def _map(self, layout: StreamLayout) -> None:
        self.unmap(f"epoch {layout.epoch} takes its place")
        self._announced_ns = 0
        try:
            stream = self._open_stream(layout)
        except RegionError as error:
            self._refuse(error)
            return
        try:
            block = stream.superblock()
            if self._is_silent(block):
                raise SuperblockError(f"{layout.header_uri.path}: shows no activity, its writer is dead")
        except RegionError as error:
            stream.close()
            self._refuse(error)
            return
        self._pid = block.pid
        self.stream = stream
        self.changes.count += 1
        self.last_refusal = ""
        self.counts["mapped"] += 1

    def _recheck(self) -> None:
        assert self.stream is not None
        try:
            self.stream.recheck()
        except RegionError as error:
            self._damaged_epoch = self.stream.layout.epoch
            self.last_refusal = str(error)
            self.unmap(str(error))

    def _refuse(self, error: RegionError) -> None:
        self.last_refusal = str(error)
        self.counts["refused"] += 1
        log.warning("stream %d: not mapped: %s", self.stream_id, error)

    def _is_fresh(self, announce: ShmPoolAnnounce) -> bool:
        """Not older than the window in its own clock domain and, for MONOTONIC only, not from before we joined."""
        domain, stamp = announce.announce_clock_domain, announce.announce_timestamp_ns
        if domain is ClockDomain.MONOTONIC and stamp < self._join_ns:
            return False
        return self._clock.now_ns(domain) - stamp <= self._freshness_ns

    def _is_silent(self, block: ShmRegionSuperblock) -> bool:
        """Whether the activity stamp is stale; its clock is not known before the first announce (decisions.md #23)."""
        return (
            self._domain is not None
            and self._clock.now_ns(self._domain) - block.activity_timestamp_ns > self._freshness_ns
        )

    def _is_outdone(self, epoch: int) -> bool:
        """Whether a higher epoch was announced within the window (`decisions.md` #20)."""
        silence_ns = self._clock.monotonic_ns() - self._highest_seen_ns
        return epoch < self._highest_epoch and silence_ns <= self._freshness_ns

    def _note(self, epoch: int) -> None:
        self._highest_epoch = epoch
        self._highest_seen_ns = self._clock.monotonic_ns()
