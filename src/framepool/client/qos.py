"""Reports of how producers and consumers fare, once a second, and what is learned from those of others (Wire 10.4).

Each is a pure object: it is turned by its owner, asks for the numbers when a report is due, and hears the reports
of all on the shared stream, its own among them. From these a consumer notices that somebody else goes by its id
(Wire 10.1.2); which consumers still live is the `registry`'s business.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import msgspec

from framepool.agent import Timers
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.wire._generated.control_900 import Mode, QosConsumer, QosProducer
from framepool.wire.message import Message

Publish = Callable[[Message], object]
"""Puts a message on its stream; False, and nothing else, says that it was not taken."""

REMEMBERED_REPORTS: Final = 64
"""Own reports that have not come back yet, by which they are known when they do."""


class ProducerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer has to report."""

    producer_id: int
    epoch: int
    current_seq: int
    """Of the last frame published; 0 before there is one."""
    watermark: int | None = None
    """Of the pools, as the deployment defines it; None leaves it out."""


class ConsumerReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer has to report; the counters never go back."""

    epoch: int
    last_seq_seen: int
    drops_gap: int
    """Frames that no descriptor told of."""
    drops_late: int
    """Frames that a descriptor told of and whose slot was not, or no longer, theirs (`decisions.md` #25)."""
    mode: Mode = Mode.STREAM


class ProducerQos:
    """Reports a producer (Wire 10.4.2)."""

    def __init__(
        self,
        stream_id: int,
        *,
        read: Callable[[], ProducerReading | None],
        publish: Publish,
        clock: Clock,
        period_ns: int = NANOS_PER_SECOND,
    ) -> None:
        self.stream_id = stream_id
        self.counts: Counter[str] = Counter()
        self._read = read
        self._publish = publish
        self._timers = Timers(clock)
        self._timers.every(period_ns, self._report, first_ns=0)

    def do_work(self) -> int:
        """Sends the report that is due; there is none while `read` gives None, that is without a lease."""
        return self._timers.poll()

    def due_ns(self) -> int:
        """When the next report is due."""
        return self._timers.next_deadline_ns() or 0

    def statistics(self) -> dict[str, int]:
        return dict(self.counts)

    def _report(self) -> None:
        reading = self._read()
        if reading is None:
            return
        report = QosProducer(
            stream_id=self.stream_id,
            producer_id=reading.producer_id,
            epoch=reading.epoch,
            current_seq=reading.current_seq,
            watermark=reading.watermark,
        )
        self.counts["lost" if self._publish(report) is False else "sent"] += 1


class ConsumerQos:
    """Reports a consumer (Wire 10.4.1) and notices another one with its id (Wire 10.1.2).

    A report has no mark of its sender. Reports of one publication arrive in the order they were sent, so a report
    with our id is ours if it is equal to one that has not come back yet; one too many is somebody else's, even if
    it says the very same.
    """

    def __init__(
        self,
        stream_id: int,
        consumer_id: int,
        *,
        read: Callable[[], ConsumerReading | None],
        publish: Publish,
        clock: Clock,
        on_collision: Callable[[int], object] = lambda consumer_id: None,
        period_ns: int = NANOS_PER_SECOND,
    ) -> None:
        self.stream_id = stream_id
        self.consumer_id = consumer_id
        self.collided = False
        """Whether somebody else goes by this id, until `renew`."""
        self.counts: Counter[str] = Counter()
        self._read = read
        self._publish = publish
        self._on_collision = on_collision
        self._not_back_yet: deque[QosConsumer] = deque(maxlen=REMEMBERED_REPORTS)
        self._period_ns = period_ns
        self._timers = Timers(clock)
        self._timer = self._timers.every(period_ns, self._report, first_ns=0)

    def do_work(self) -> int:
        """Sends the report that is due; there is none while `read` gives None."""
        return self._timers.poll()

    def due_ns(self) -> int:
        """When the next report is due."""
        return self._timers.next_deadline_ns() or 0

    def on_qos_consumer(self, report: QosConsumer) -> None:
        """Any report of the shared stream. `on_collision` is called once for an id that is not ours alone."""
        if report.stream_id != self.stream_id or report.consumer_id != self.consumer_id:
            return
        if report in self._not_back_yet:
            while self._not_back_yet.popleft() != report:
                self.counts["never came back"] += 1
            return
        self.counts["foreign reports"] += 1
        if not self.collided:
            self.collided = True
            self._on_collision(self.consumer_id)

    def renew(self, consumer_id: int) -> None:
        """Goes by a new id from now on, and reports under it at once."""
        self.consumer_id = consumer_id
        self.collided = False
        self._not_back_yet.clear()
        self._timer.cancel()
        self._timer = self._timers.every(self._period_ns, self._report, first_ns=0)
        self.counts["renewed"] += 1

    def statistics(self) -> dict[str, object]:
        return {"consumer_id": self.consumer_id, "collided": self.collided, **self.counts}

    def _report(self) -> None:
        reading = self._read()
        if reading is None:
            return
        report = QosConsumer(
            stream_id=self.stream_id,
            consumer_id=self.consumer_id,
            epoch=reading.epoch,
            last_seq_seen=reading.last_seq_seen,
            drops_gap=reading.drops_gap,
            drops_late=reading.drops_late,
            mode=reading.mode,
        )
        self._not_back_yet.append(report)  # before it is sent: it may be heard before `publish` returns
        if self._publish(report) is False:
            self._not_back_yet.pop()
            self.counts["lost"] += 1
        else:
            self.counts["sent"] += 1
