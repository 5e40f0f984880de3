"""One consumer as the supervisor knows it: its hellos, its reports, what it was told, and what follows from them.

A report says how far a consumer has come and what it lost, in counters that never go back within an epoch. So the
share of lost frames is a difference of two reports, and counters that go back again and again are those of two
consumers under one id (Wire 10.1.2, 10.4.1).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from framepool.clock import NANOS_PER_SECOND
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode, QosConsumer

REPORTS_KEPT: Final = 64
TWICE: Final = 2
"""A consumer that starts again under its old id goes back once; two that share it do so all the time."""


class ConsumerView:
    """A consumer of a stream."""

    __slots__ = (
        "_back",
        "_window",
        "config",
        "consumer_id",
        "drops_high",
        "duplicate",
        "heard_ns",
        "hello",
        "hello_ns",
        "qos",
        "since_ns",
        "stale",
        "stream_id",
    )

    def __init__(self, stream_id: int, consumer_id: int, now_ns: int) -> None:
        self.stream_id = stream_id
        self.consumer_id = consumer_id
        self.since_ns = now_ns
        self.heard_ns = now_ns
        """When it last said hello or reported."""
        self.hello: ConsumerHello | None = None
        self.hello_ns = 0
        self.config: ConsumerConfig | None = None
        """What it was told last, by whomever."""
        self.qos: QosConsumer | None = None
        self.stale = False
        self.duplicate = False
        self.drops_high = False
        self._window: deque[tuple[int, int, int]] = deque(maxlen=REPORTS_KEPT)
        """Time, newest frame and losses of the last reports."""
        self._back: deque[int] = deque(maxlen=TWICE)
        """When its counters went back."""

    def on_hello(self, hello: ConsumerHello, now_ns: int) -> None:
        self.hello, self.hello_ns, self.heard_ns = hello, now_ns, now_ns

    def on_qos(self, report: QosConsumer, now_ns: int, window_ns: int) -> None:
        before, self.qos, self.heard_ns = self.qos, report, now_ns
        if before is not None and _is_behind(report, before):
            self._back.append(now_ns)
            self._window.clear()
        elif before is not None and report.epoch != before.epoch:
            self._window.clear()
        self._window.append((now_ns, report.last_seq_seen, report.drops_gap + report.drops_late))
        while len(self._window) > 2 and now_ns - self._window[1][0] >= window_ns:
            self._window.popleft()

    @property
    def mode(self) -> Mode | None:
        """The mode in force, as it says itself."""
        newest = self.hello or self.qos
        return None if newest is None else newest.mode

    @property
    def supports_shm(self) -> bool:
        return self.hello is None or self.hello.supports_shm is Bool.TRUE

    @property
    def drops(self) -> int:
        """Everything that it lost."""
        return 0 if self.qos is None else self.qos.drops_gap + self.qos.drops_late

    @property
    def drop_rate(self) -> float:
        """The share of frames that it lost within the window; 0 as long as it tells too little."""
        if len(self._window) < 2:
            return 0.0
        (_, seq, drops), (_, newest_seq, newest_drops) = self._window[0], self._window[-1]
        passed = max(newest_seq - seq, newest_drops - drops)
        return (newest_drops - drops) / passed if passed else 0.0

    @property
    def rate_hz(self) -> float:
        """Frames a second that pass by it, lost ones included."""
        if len(self._window) < 2:
            return 0.0
        (start, seq, _), (end, newest_seq, _) = self._window[0], self._window[-1]
        return (newest_seq - seq) * NANOS_PER_SECOND / (end - start) if end > start else 0.0

    def judged_over(self) -> int:
        """Nanoseconds between the first and the last report that `drop_rate` looks at."""
        return self._window[-1][0] - self._window[0][0] if self._window else 0

    def is_shared(self, now_ns: int, window_ns: int) -> bool:
        """Whether its counters went back more than once lately: more than one go by its id."""
        return len(self._back) == TWICE and now_ns - self._back[0] <= window_ns

    def describe(self, now_ns: int) -> dict[str, Any]:
        """The consumer as plain values."""
        qos, hello, config = self.qos, self.hello, self.config
        return {
            "consumer_id": self.consumer_id,
            "mode": None if self.mode is None else self.mode.name,
            "max_rate_hz": 0 if hello is None else hello.max_rate_hz,
            "supports_shm": self.supports_shm,
            "supports_progress": hello is not None and hello.supports_progress is Bool.TRUE,
            "own_stream": 0 if config is None else config.descriptor_stream_id,
            "fallback": config.payload_fallback_uri if config is not None and config.use_shm is Bool.FALSE else None,
            "epoch": None if qos is None else qos.epoch,
            "last_seq_seen": None if qos is None else qos.last_seq_seen,
            "drops_gap": 0 if qos is None else qos.drops_gap,
            "drops_late": 0 if qos is None else qos.drops_late,
            "drop_rate": round(self.drop_rate, 6),
            "rate_hz": round(self.rate_hz, 3),
            "stale": self.stale,
            "duplicate": self.duplicate,
            "drops_high": self.drops_high,
            "age_s": round((now_ns - self.since_ns) / NANOS_PER_SECOND, 3),
            "heard_ago_s": round((now_ns - self.heard_ns) / NANOS_PER_SECOND, 3),
        }


def _is_behind(report: QosConsumer, before: QosConsumer) -> bool:
    """Whether a counter went back that cannot: losses never do, the newest frame only with a new epoch."""
    return (
        report.epoch < before.epoch
        or (report.epoch == before.epoch and report.last_seq_seen < before.last_seq_seen)
        or report.drops_gap < before.drops_gap
        or report.drops_late < before.drops_late
    )
