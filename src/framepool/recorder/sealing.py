"""From a written segment to a part of the recording: index, manifest entry, and the removal of what is too old.

An agent of its own: an index of many frames takes longer than the disk can be left waiting. `Frontier` puts together
what the disk made durable and what is sealed, for the watermark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter, deque
from typing import Final

from framepool.agent import Timers
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import RecorderConfig
from framepool.discovery.host import this_host
from framepool.recorder.account import Reason
from framepool.recorder.contents import Contents
from framepool.recorder.index import has_arrow, write_index
from framepool.recorder.manifest import Activity, Manifest, OpenEntry, SegmentEntry, Watermark
from framepool.recorder.segments import Flush, Segment
from framepool.wire._generated.control_900 import ClockDomain

log = logging.getLogger(__name__)

RETENTION_PERIOD_NS: Final = NANOS_PER_SECOND
RETRY_PERIOD_NS: Final = NANOS_PER_SECOND
FORGOTTEN_NS: Final = 3600 * NANOS_PER_SECOND
"""A hold that ran out so long ago is one of a reader that died."""


def seal(manifest: Manifest, contents: Contents) -> SegmentEntry:
    """Writes the index of a segment that is durable, and makes it part of the recording."""
    indexed = has_arrow()
    if indexed:
        write_index(manifest.segments, contents)
    entry = contents.entry(indexed=indexed)
    manifest.publish(entry)
    return entry


class Frontier:
    """How far the recording is durable. Called by the disk's thread and by the sealer's."""

    def __init__(self, manifest: Manifest, clock: Clock, ordinal: int) -> None:
        self.ordinal = ordinal
        """Frames below are durable, and readers in other processes were told so."""
        self._durable = ordinal
        self._manifest = manifest
        self._clock = clock
        self._boot_id = this_host()
        self._turn = threading.Lock()
        self._open: dict[int, OpenEntry] = {}
        self._frames = 0
        self._lost: dict[Reason, int] = {}

    def flushed(self, flush: Flush) -> None:
        """A flush is durable: tells so."""
        with self._turn:
            self._note(flush.segment, flush.bytes, flush.end_ordinal)
            self._frames, self._lost = flush.frames, flush.lost
            self._tell(Activity.RECORDING)

    def ended(self, segment: Segment) -> None:
        """A segment is durable to its end: tells so."""
        with self._turn:
            self._note(segment, segment.contents.bytes, segment.end_ordinal)
            self._tell(Activity.RECORDING)

    def sealed(self, number: int) -> None:
        """A segment has its entry."""
        with self._turn:
            self._open.pop(number, None)
            self._tell(Activity.RECORDING)

    def stalled(self) -> None:
        """The disk takes nothing: tells so, as far as it takes that."""
        with self._turn:
            self._tell(Activity.STALLED)

    def tell(self, activity: Activity, frames: int, lost: dict[Reason, int]) -> None:
        """Says again what is durable, and what the recorder does."""
        with self._turn:
            self._frames, self._lost = frames, lost
            self._tell(activity)

    def retry(self) -> None:
        """Tells what could not be told while the disk was full."""
        if self.ordinal < self._durable:
            with self._turn:
                self._tell(Activity.RECORDING)

    def _note(self, segment: Segment, length: int, end_ordinal: int) -> None:
        contents = segment.contents
        self._durable = end_ordinal
        self._open[contents.number] = OpenEntry(
            number=contents.number,
            file=contents.file,
            segment_id=f"{contents.segment_id:016x}",
            bytes=length,
            first_ordinal=contents.first_ordinal,
            end_ordinal=end_ordinal,
        )

    def _tell(self, activity: Activity) -> None:
        watermark = Watermark(
            ordinal=self._durable,
            recorded_ns=self._clock.now_ns(ClockDomain.REALTIME_SYNCED),
            activity=activity,
            open=tuple(self._open.values()),
            pid=os.getpid(),
            boot_id=self._boot_id,
            frames=self._frames,
            lost=self._lost,
        )
        with contextlib.suppress(OSError):  # a full disk: the disk itself says so, and what is durable stays so
            self._manifest.advance(watermark)
            self.ordinal = watermark.ordinal


class Retention:
    """Which segments are too many or too old."""

    def __init__(self, manifest: Manifest, config: RecorderConfig, clock: Clock) -> None:
        self._manifest = manifest
        self._config = config
        self._clock = clock
        self._kept = deque(manifest.entries())
        self._bytes = sum(entry.bytes for entry in self._kept)

    @property
    def kept(self) -> tuple[SegmentEntry, ...]:
        return tuple(self._kept)

    def add(self, entry: SegmentEntry) -> None:
        self._kept.append(entry)
        self._bytes += entry.bytes

    def apply(self) -> list[SegmentEntry]:
        """Removes the oldest segments as far as the rules say so and nobody holds them; says which.

        The newest stays: it says which frames are accounted for.
        """
        removed = []
        now_ns = self._clock.now_ns(ClockDomain.REALTIME_SYNCED)
        needed = self._needed_from(now_ns)
        while len(self._kept) > 1 and self._is_over(self._kept[0], now_ns) and self._kept[0].end_ordinal <= needed:
            entry = self._kept.popleft()
            self._bytes -= entry.bytes
            self._manifest.remove(entry)
            removed.append(entry)
        return removed

    def _is_over(self, entry: SegmentEntry, now_ns: int) -> bool:
        config = self._config
        if config.retain_bytes and self._bytes > config.retain_bytes - config.segment_bytes:
            return True
        newest_ns = entry.last_recorded_ns
        too_old = config.retain_seconds and newest_ns is not None
        return bool(too_old) and now_ns - (newest_ns or 0) > config.retain_seconds * NANOS_PER_SECOND

    def _needed_from(self, now_ns: int) -> int:
        """The lowest ordinal that a reader holds. Holds that ran out long ago are cleared away."""
        live = []
        for name, hold in self._manifest.holds().items():
            if hold.expires_ns > now_ns:
                live.append(hold.ordinal)
            elif hold.expires_ns < now_ns - FORGOTTEN_NS:
                self._manifest.release(name)
        return min(live, default=2**63)


class Sealer:
    """Seals segments that the disk has written, and removes what is too old. An agent."""

    role = "recorder sealer"

    def __init__(self, manifest: Manifest, config: RecorderConfig, clock: Clock, frontier: Frontier) -> None:
        self.counts: Counter[str] = Counter()
        self.written: deque[Segment] = deque()
        """Segments that wait to be sealed."""
        self._manifest = manifest
        self._clock = clock
        self._frontier = frontier
        self._retention = Retention(manifest, config, clock)
        self._timers = Timers(clock)
        self._timers.every(RETENTION_PERIOD_NS, self._retain)
        self._timers.every(RETRY_PERIOD_NS, frontier.retry)
        self._retry_at_ns = 0
        self.refusal = ""

    @property
    def is_idle(self) -> bool:
        return not self.written

    def take(self, segment: Segment) -> None:
        """A segment is durable to its end: what the disk calls."""
        self._frontier.ended(segment)
        self.written.append(segment)

    def on_start(self) -> None:
        if not has_arrow():
            log.warning(
                "no index is written: it needs pyarrow; later: framepool recordings index %s", self._manifest.path
            )

    def do_work(self) -> int:
        done = self._timers.poll()
        if not self.written or (self.refusal and self._clock.monotonic_ns() < self._retry_at_ns):
            return done
        try:
            self._seal(self.written[0])
        except OSError as error:
            self._retry_at_ns = self._clock.monotonic_ns() + NANOS_PER_SECOND
            self.refusal = error.strerror or type(error).__name__
            self.counts["refused"] += 1
            return done
        self.refusal = ""
        self.written.popleft()
        return done + 1

    def on_close(self) -> None:
        pass

    def statistics(self) -> dict[str, object]:
        return {"waiting": len(self.written), "refusal": self.refusal, **self.counts}

    def _seal(self, segment: Segment) -> None:
        entry = seal(self._manifest, segment.contents)
        self._frontier.sealed(entry.number)
        self._retention.add(entry)
        self.counts["sealed"] += 1
        self._retain()

    def _retain(self) -> None:
        try:
            removed = self._retention.apply()
        except OSError as error:
            log.error("retention of %s: %s", self._manifest.path, error)
            return
        self.counts["removed"] += len(removed)
