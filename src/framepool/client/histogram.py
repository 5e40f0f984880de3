"""How old frames are when they are read: a histogram of fixed size, and the meter that feeds it (Wire 15.7).

The buckets are those of an HDR histogram: exact below 256 ns, then 128 to an octave. What it reports is within 0.4 %
of a value that was recorded, from nanoseconds to 19 hours, in 40 KiB. Times are whole nanoseconds.
"""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from framepool._native.frames import Ages
from framepool.clock import Clock, MonotonicClock
from framepool.wire._generated.control_900 import ClockDomain

BUCKET_BITS: Final = 7
"""2^7 buckets to an octave: the middle of a bucket is at most 1/256 away from any value in it."""

VALUE_BITS: Final = 46
LARGEST: Final = (1 << VALUE_BITS) - 1
"""Longer times, 19.5 hours and more, count as this one; `maximum` still has them as they were."""

EXACT_BITS: Final = BUCKET_BITS + 1
BUCKETS: Final = ((VALUE_BITS - EXACT_BITS) << BUCKET_BITS) + (1 << EXACT_BITS)

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)


Aged = tuple[npt.NDArray[np.int64], int, int, int, int, int]
"""Counts by bucket; how many, how many below 0, their sum, the least and the most (`Ages.take`)."""


class LatencyHistogram:
    """Counts of durations. One writer; a reader in another thread may miss what is being recorded."""

    __slots__ = ("_counts", "count", "maximum", "minimum", "negative", "total")

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self._counts[:] = 0
        self.count = 0
        self.negative = 0
        """Durations below 0, which only a stamp of another clock gives; in no other number here."""
        self.total = 0
        self.minimum: int | None = None
        self.maximum: int | None = None

    def record(self, nanos: int) -> None:
        """Counts one duration."""
        if nanos < 0:
            self.negative += 1
            return
        self._counts[_bucket(nanos if nanos < LARGEST else LARGEST)] += 1
        self.count += 1
        self.total += nanos
        if self.minimum is None or nanos < self.minimum:
            self.minimum = nanos
        if self.maximum is None or nanos > self.maximum:
            self.maximum = nanos

    def record_many(self, nanos: npt.ArrayLike) -> None:
        """Counts an array of integers, as `record` would one by one."""
        values = np.asarray(nanos).ravel()
        if values.size == 0:
            return
        if values.dtype.kind not in "iu":
            raise TypeError(f"durations are whole nanoseconds, not {values.dtype}")
        kept = values[values >= 0]
        self.negative += values.size - kept.size
        if kept.size == 0:
            return
        clipped = np.minimum(kept, LARGEST).astype(np.int64) if kept.dtype.itemsize == 8 else kept.astype(np.int64)
        self._counts += np.bincount(_buckets(clipped), minlength=BUCKETS)
        self._note(kept.size, _exact_sum(kept), int(kept.min()), int(kept.max()))

    def merge(self, other: LatencyHistogram) -> None:
        """Takes the counts of another histogram in; the other stays as it is."""
        self.negative += other.negative
        if other.minimum is not None and other.maximum is not None:
            self._counts += other._counts
            self._note(other.count, other.total, other.minimum, other.maximum)

    def take(self, taken: Aged | None) -> None:
        """Takes over what was counted natively."""
        if taken is None:
            return
        counts, count, negative, total, least, most = taken
        self._counts += counts
        self.negative += negative
        if count:
            self._note(count, total, least, most)

    def percentile(self, percent: float) -> int | None:
        """The least duration that `percent` of all do not exceed, within 0.4 %; None when there are none."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
        if self.minimum is None or self.maximum is None:
            return None
        rank = max(1, math.ceil(percent / 100 * self.count))
        if rank == self.count:
            return self.maximum
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(_middle(bucket), self.minimum), self.maximum)

    @property
    def mean(self) -> float | None:
        """The exact mean; None when there is nothing."""
        return self.total / self.count if self.count else None

    def to_dict(self) -> dict[str, float | int | None]:
        """The numbers that people ask for, in nanoseconds."""
        return {
            "count": self.count,
            "negative": self.negative,
            "min_ns": self.minimum,
            "mean_ns": self.mean,
            **{f"p{percent:g}_ns": self.percentile(percent) for percent in PERCENTILES},
            "max_ns": self.maximum,
        }

    def _note(self, count: int, total: int, least: int, most: int) -> None:
        self.count += count
        self.total += total
        self.minimum = least if self.minimum is None else min(self.minimum, least)
        self.maximum = most if self.maximum is None else max(self.maximum, most)


class LatencyWindow:
    """The percentiles of what came into a histogram since the last look at it."""

    def __init__(self, histogram: LatencyHistogram) -> None:
        self._histogram = histogram
        self._before = histogram._counts.copy()

    def look(self, *percents: float) -> list[int | None]:
        """Of each, the least duration that so many percent do not exceed, within 0.4 %; None where nothing came."""
        now = self._histogram._counts.copy()
        news = now - self._before
        self._before = now
        if news.min() < 0:  # it was reset meanwhile
            news = now
        total = int(news.sum())
        if total == 0:
            return [None] * len(percents)
        reached = np.cumsum(news)
        ranks = [max(1, math.ceil(percent / 100 * total)) for percent in percents]
        return [_middle(int(np.searchsorted(reached, rank))) for rank in ranks]


class LatencyMeter:
    """Latency = now - `SlotHeader.timestamp_ns`, in the clock domain of the stamp (Wire 15.7)."""

    def __init__(self, clock: Clock, domain: ClockDomain | None = ClockDomain.MONOTONIC) -> None:
        """`domain` is what the announce of the stream declares; None when its MONOTONIC clock is another host's, and
        then there is no latency to tell (`decisions.md` #56)."""
        self.domain = domain
        self.ages: Ages | None = None
        """Where frames are counted natively, on a clock of the machine."""
        self._clock = clock
        self._histogram = LatencyHistogram()
        self._settling = threading.Lock()
        if isinstance(clock, MonotonicClock):
            self.ages = Ages(realtime=domain is ClockDomain.REALTIME_SYNCED)

    @property
    def histogram(self) -> LatencyHistogram:
        """All that was counted until now."""
        self.settle()
        return self._histogram

    def settle(self) -> None:
        """Takes over what was counted natively."""
        if self.ages is not None:
            with self._settling:
                taken = self.ages.take()
                if self.domain is not None:
                    self._histogram.take(taken)

    def observe(self, timestamp_ns: int) -> None:
        """Counts the age of a frame that was just read; 0 is no stamp."""
        if self.domain is not None and timestamp_ns:
            self._histogram.record(self._clock.now_ns(self.domain) - timestamp_ns)

    def statistics(self) -> dict[str, float | int | None]:
        return self.histogram.to_dict()


def _bucket(value: int) -> int:
    """Above the exact part, the leading bits of the value choose the bucket and their position the octave."""
    octave = value.bit_length() - EXACT_BITS
    return (octave << BUCKET_BITS) + (value >> octave) if octave > 0 else value


def _buckets(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`_bucket` of each; a double holds values of up to 53 bits exactly, so its exponent is their bit length."""
    octaves = np.maximum(np.frexp(values)[1].astype(np.int64) - EXACT_BITS, 0)
    return (octaves << BUCKET_BITS) + (values >> octaves)


def _middle(bucket: int) -> int:
    """The value that stands for all of a bucket."""
    octave = max(0, (bucket >> BUCKET_BITS) - 1)
    least = (bucket - (octave << BUCKET_BITS)) << octave
    return least + ((1 << octave) >> 1)


def _exact_sum(values: npt.NDArray[np.integer]) -> int:
    """The sum without wrapping round: the upper and lower halves of the words cannot overflow by themselves."""
    words = values.astype(np.uint64)
    return (int((words >> np.uint64(32)).sum()) << 32) + int((words & np.uint64(0xFFFF_FFFF)).sum())
