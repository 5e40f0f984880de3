"""One stream as the supervisor knows it: its epochs, its producer and whether that lives, its metadata.

A producer is dead when its activity stamp stands still, when its lease ended without its own doing, or when the driver
announces that the stream has none (Wire 15.14; Driver 4.7, 8). The last two say the same on two streams, in either
order, so a producer that is merely gone is judged a moment later. Stamps of other hosts are not looked at; announces
count by the time of their receipt (`decisions.md` #56).
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Any, Final

import msgspec

from framepool.clock import NANOS_PER_SECOND
from framepool.supervisor.consumers import ConsumerView
from framepool.wire._generated.control_900 import QosProducer, ShmPoolAnnounce
from framepool.wire._generated.driver_901 import LeaseRevokeReason
from framepool.wire.attributes import Metadata

GRACE_NS: Final = NANOS_PER_SECOND // 4
"""For the end of a lease to be told, after a stream was announced without its producer."""


MOST_MISSING: Final = 16
MOST_DEPARTURES: Final = 256


class Health(StrEnum):
    """How a stream fares."""

    LIVE = "live"
    """A producer holds it and shows activity."""
    VACANT = "vacant"
    """It is announced and has no producer; the last one left in good order, if there was one."""
    DEAD = "dead"
    """Its last producer died."""
    SILENT = "silent"
    """It is not announced any more."""


class Cause(StrEnum):
    """What the death of a producer was seen by."""

    ACTIVITY = "activity stale"
    EXPIRED = "lease expired"
    REVOKED = "lease revoked"
    NO_PRODUCER = "no producer announced"


CAUSES: Final = {LeaseRevokeReason.EXPIRED: Cause.EXPIRED, LeaseRevokeReason.REVOKED: Cause.REVOKED}


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The activity stamp of a superblock, read at some time: like a message, a thing that the state is folded from."""

    stream_id: int
    epoch: int
    timestamp_ns: int
    """As it stands there, by the clock that the announce declares."""
    age_ns: int
    """How old it was when it was read, by that clock."""


class Producer(msgspec.Struct, frozen=True):
    """Who published an epoch."""

    producer_id: int
    epoch: int


class StreamView:
    """A stream that was announced."""

    def __init__(self, announce: ShmPoolAnnounce, now_ns: int) -> None:
        self.stream_id = announce.stream_id
        self.announce = announce
        self.since_ns = now_ns
        self.announced_ns = now_ns
        """When it was last announced, by receipt."""
        self.epoch_ns = now_ns
        """When its epoch was first announced."""
        self.epochs = 1
        self.silent = False
        self.occupant: Producer | None = None
        """Who produces, as far as is known."""
        self.dead: Cause | None = None
        """What the death of the last producer was seen by."""
        self.ended: Producer | None = None
        """Whose lease ended last: announces that still name it do not bring it back."""
        self.missing: dict[int, int] = {}
        """Producers that announces stopped to name, and since when: why is not known yet."""
        self.activity: Activity | None = None
        self.name = ""
        self.summary = ""
        self.meta_version: int | None = None
        self.metadata: Metadata | None = None
        self.qos: QosProducer | None = None
        self.qos_ns = 0
        self.rate_hz = 0.0
        """Frames a second, by the producer's last two reports."""
        self.departures: deque[int] = deque(maxlen=MOST_DEPARTURES)
        """When consumers gave their leases back: as many of them may fall silent without being called stale."""
        self.consumers: dict[int, ConsumerView] = {}

    @property
    def epoch(self) -> int:
        return self.announce.epoch

    @property
    def producer_id(self) -> int:
        """Who is announced; 0 is nobody."""
        return self.announce.producer_id

    @property
    def health(self) -> Health:
        if self.dead is not None:
            return Health.DEAD
        if self.silent:
            return Health.SILENT
        return Health.VACANT if self.occupant is None else Health.LIVE

    def is_outdated(self, announce: ShmPoolAnnounce, now_ns: int, window_ns: int) -> bool:
        """Whether a higher epoch is announced still: then this one does not count (Wire 10.1.1, `decisions.md` #20)."""
        return announce.epoch < self.epoch and now_ns - self.announced_ns <= window_ns

    def on_announce(self, announce: ShmPoolAnnounce, now_ns: int) -> bool:
        """Follows an announce that counts; True if it names a producer that was not there, or not alive."""
        if announce.epoch != self.epoch:
            self.epoch_ns, self.epochs = now_ns, self.epochs + 1
            self.activity = self.qos = None
            self.rate_hz = 0.0
        self.announce, self.announced_ns = announce, now_ns
        named = Producer(announce.producer_id, announce.epoch)
        before = self.occupant
        if before is not None and before.producer_id != named.producer_id:
            self.occupant = None
            if self.dead is None:
                self.missing[before.producer_id] = now_ns
                keep_newest(self.missing, MOST_MISSING)
        if named.producer_id == 0 or named in (self.ended, before):
            return False
        self.occupant = named
        was_dead, self.dead = self.dead, None
        return before is None or before.producer_id != named.producer_id or was_dead is not None

    def on_qos(self, report: QosProducer, now_ns: int) -> None:
        before, elapsed_ns = self.qos, now_ns - self.qos_ns
        if before is not None and report.epoch == before.epoch and elapsed_ns > 0:
            self.rate_hz = max(0, report.current_seq - before.current_seq) * NANOS_PER_SECOND / elapsed_ns
        self.qos, self.qos_ns = report, now_ns

    def on_activity(self, activity: Activity, timeout_ns: int) -> bool:
        """Takes a reading of the epoch in; True if it changes whether the producer counts as dead."""
        if activity.epoch != self.epoch:
            return False
        self.activity = activity
        stale = activity.age_ns > timeout_ns
        if self.occupant is None or (self.dead is not None) == stale:
            return False
        self.dead = Cause.ACTIVITY if stale else None
        return True

    def producer_ended(self, producer_id: int, cause: Cause | None) -> bool:
        """A producer's lease ended; with a cause it died. False if that is no producer of the stream, or no news."""
        if self.occupant is not None and self.occupant.producer_id == producer_id:
            self.ended, self.occupant = self.occupant, None
        elif self.missing.pop(producer_id, None) is None:
            return False
        elif self.occupant is not None:
            return True  # and another one has its place already
        known = cause is not None and self.dead is not None
        if not known:
            self.dead = cause
        return not known

    def missed(self, now_ns: int) -> list[int]:
        """The producers that are gone for long enough to be called dead."""
        overdue = [producer_id for producer_id, since_ns in self.missing.items() if now_ns - since_ns > GRACE_NS]
        for producer_id in overdue:
            del self.missing[producer_id]
            if self.occupant is None:
                self.dead = Cause.NO_PRODUCER
        return overdue

    def describe(self, now_ns: int) -> dict[str, Any]:
        """The stream with its consumers as plain values."""
        announce, qos, activity = self.announce, self.qos, self.activity
        return {
            "stream_id": self.stream_id,
            "name": self.name,
            "summary": self.summary,
            "health": self.health.value,
            "cause": None if self.dead is None else self.dead.value,
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "epochs_seen": self.epochs,
            "layout_version": announce.layout_version,
            "nslots": announce.header_nslots,
            "strides": [pool.stride_bytes for pool in announce.payload_pools],
            "bytes": announce.header_nslots
            * (announce.header_slot_bytes + sum(pool.stride_bytes for pool in announce.payload_pools)),
            "current_seq": None if qos is None else qos.current_seq,
            "rate_hz": round(self.rate_hz, 3),
            "watermark": None if qos is None else qos.watermark,
            "meta_version": self.meta_version,
            "metadata": {} if self.metadata is None else {key: _shown(value) for key, value in self.metadata.items()},
            "activity_age_s": None if activity is None else round(activity.age_ns / NANOS_PER_SECOND, 3),
            "announced_ago_s": round((now_ns - self.announced_ns) / NANOS_PER_SECOND, 3),
            "epoch_age_s": round((now_ns - self.epoch_ns) / NANOS_PER_SECOND, 3),
            "consumers": [each.describe(now_ns) for each in self.consumers.values()],
        }


def keep_newest(found: dict[Any, Any], most: int) -> int:
    """Bounds what comes from outside: the oldest go; how many that was."""
    gone = max(0, len(found) - most)
    for _ in range(gone):
        del found[next(iter(found))]
    return gone


def _shown(value: Any) -> Any:
    """A value as JSON has it; bytes and messages by their size and name."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, None | bool | int | float | str | list | dict):
        return value
    return type(value).__name__
