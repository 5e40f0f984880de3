"""What is going on: a fold over announces, metadata, reports, leases, hellos and status, and over nothing else.

Fed the same messages and readings at the same times, a state is the same: it can be rebuilt from a capture (Wire 10.5).
Time is an argument, the local time of receipt on a monotonic clock; what time alone changes is looked at in `tick`.
All of it comes from outside and is bounded. What to do about it is `policy`'s business, and reading superblocks is
`activity`'s.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Buffer, Callable, Iterator
from typing import Any, Final

import msgspec

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import Config, SupervisorLimits
from framepool.errors import DecodeError
from framepool.service import Directory, Event
from framepool.supervisor.consumers import ConsumerView
from framepool.supervisor.leases import LeaseBook
from framepool.supervisor.notices import Journal, Kind
from framepool.supervisor.streams import CAUSES, Activity, Cause, StreamView
from framepool.wire._generated.control_900 import (
    ConsumerConfig,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.attributes import Metadata, size_of
from framepool.wire.dispatch import Dispatcher, Drop
from framepool.wire.message import Message

log = logging.getLogger(__name__)

SHARED_PERIODS: Final = 4
"""Report periods within which counters that go back twice are those of two consumers."""


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When what counts as what, in nanoseconds and shares."""

    liveness_ns: int = 4 * NANOS_PER_SECOND
    """Of the activity stamp of a producer, and of the announces of a stream (Wire 15.14)."""
    stale_ns: int = 4 * NANOS_PER_SECOND
    """Of the hellos and reports of a consumer (Wire 5)."""
    report_ns: int = NANOS_PER_SECOND
    forget_ns: int = 60 * NANOS_PER_SECOND
    drop_rate: float = 0.05
    drop_window_ns: int = 5 * NANOS_PER_SECOND
    limits: SupervisorLimits = SupervisorLimits()

    @classmethod
    def of(cls, config: Config) -> Thresholds:
        """Those of a configuration."""
        supervisor = config.supervisor
        return cls(
            liveness_ns=round(supervisor.liveness_periods * config.driver.announce_period_ms * NANOS_PER_MILLI),
            stale_ns=round(supervisor.stale_periods * supervisor.report_period_ms * NANOS_PER_MILLI),
            report_ns=supervisor.report_period_ms * NANOS_PER_MILLI,
            forget_ns=supervisor.forget_after_ms * NANOS_PER_MILLI,
            drop_rate=supervisor.drop_rate_limit,
            drop_window_ns=supervisor.drop_window_ms * NANOS_PER_MILLI,
            limits=supervisor.limits,
        )


class State:
    """Streams with their producers and consumers, leases, services, and what happened to them.

    `now_ns` never goes back; a time before the last one counts as that one.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        limits = self.thresholds.limits
        self.streams: dict[int, StreamView] = {}
        self.leases = LeaseBook(limits.max_leases)
        self.journal = Journal(limits.max_notices)
        self.counts: Counter[str] = Counter()
        self._consumers = 0
        self._clock = ManualClock(0)
        self.services = Directory(self._clock)
        self._dispatch = Dispatcher()
        handlers: tuple[tuple[type[Message], Callable[[Any], object]], ...] = (
            (ShmPoolAnnounce, self._on_announce),
            (DataSourceAnnounce, self._on_source),
            (DataSourceMeta, self._on_meta),
            (QosProducer, self._on_qos_producer),
            (QosConsumer, self._on_qos_consumer),
            (ConsumerHello, self._on_hello),
            (ConsumerConfig, self._on_config),
            (ShmAttachRequest, self.leases.on_request),
            (ShmAttachResponse, lambda message: self.leases.on_response(message, self.now_ns)),
            (ShmLeaseKeepalive, lambda message: self.leases.on_keepalive(message, self.now_ns)),
            (ShmLeaseRevoked, self._on_revoked),
            (ShmDriverShutdown, self._on_shutdown),
            (EventMessage, self._on_event),
        )
        for message, handler in handlers:
            self._dispatch.on(message, handler)

    @property
    def now_ns(self) -> int:
        """The time of the last message, reading or tick."""
        return self._clock.monotonic_ns()

    def consumers(self) -> Iterator[ConsumerView]:
        """Of all streams."""
        for stream in self.streams.values():
            yield from stream.consumers.values()

    def consumer(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        stream = self.streams.get(stream_id)
        return None if stream is None else stream.consumers.get(consumer_id)

    # What it is folded from

    def receive(self, data: Buffer, now_ns: int) -> Drop | None:
        """One message of any of the streams, whoever sent it; says why if it was dropped."""
        self._move_to(now_ns)
        return self._dispatch(data)

    def on_activity(self, activity: Activity, now_ns: int) -> None:
        """A reading of a superblock."""
        self._move_to(now_ns)
        stream = self.streams.get(activity.stream_id)
        if stream is None or not stream.on_activity(activity, self.thresholds.liveness_ns):
            return
        assert stream.occupant is not None
        if stream.dead is None:
            self._note(Kind.PRODUCER_BACK, "shows activity again", stream, stream.occupant.producer_id)
        else:
            self._died(stream, stream.occupant.producer_id, stream.dead)

    def tick(self, now_ns: int) -> None:
        """Time has passed: what fell silent is noticed, what is long gone forgotten."""
        self._move_to(now_ns)
        for stream in list(self.streams.values()):
            for producer_id in stream.missed(self.now_ns):
                self._died(stream, producer_id, Cause.NO_PRODUCER)
            for consumer in list(stream.consumers.values()):
                self._tick_consumer(stream, consumer)
            self._tick_stream(stream)
        self.leases.forget(self.now_ns - self.thresholds.forget_ns)

    def describe(self) -> dict[str, Any]:
        """Everything as plain values; the notices are in `journal`."""
        now = self.now_ns
        return {
            "streams": [stream.describe(now) for stream in self.streams.values()],
            "leases": [lease.describe(now) for lease in self.leases.leases.values()],
            "services": [
                {**msgspec.structs.asdict(each), "age_s": round(self.services.age_s(each), 3)}
                for each in self.services.services()
            ],
            "counts": self.statistics(),
        }

    def statistics(self) -> dict[str, int]:
        """How much there is, what was dropped and why, and how often what happened."""
        return {
            "streams": len(self.streams),
            "consumers": self._consumers,
            "leases": len(self.leases.leases),
            "attaches refused": self.leases.refused,
            "leases forgotten": self.leases.forgotten,
            **self._dispatch.statistics(),
            **self.counts,
            **self.services.counts,
            **self.journal.counts,
        }

    # Streams

    def _on_announce(self, announce: ShmPoolAnnounce) -> None:
        now = self.now_ns
        stream = self.streams.get(announce.stream_id)
        if stream is None:
            if len(self.streams) >= self.thresholds.limits.max_streams:
                self._drop("too many streams")
                return
            stream = self.streams[announce.stream_id] = StreamView(announce, now)
            self._note(Kind.STREAM_NEW, f"announced with epoch {announce.epoch}", stream)
        elif stream.is_outdated(announce, now, self.thresholds.liveness_ns):
            self._drop("lower epochs")
            return
        elif announce.epoch != stream.epoch:
            self._note(Kind.EPOCH, f"epoch {announce.epoch} after {stream.epoch}", stream)
        if stream.silent:
            stream.silent = False
            self._note(Kind.STREAM_BACK, f"announced again with epoch {announce.epoch}", stream)
        if stream.on_announce(announce, now):
            self._note(Kind.PRODUCER_NEW, f"produces epoch {announce.epoch}", stream, announce.producer_id)

    def _tick_stream(self, stream: StreamView) -> None:
        silent_ns = self.now_ns - stream.announced_ns
        if silent_ns > self.thresholds.liveness_ns and not stream.silent:
            stream.silent = True
            self._note(Kind.STREAM_SILENT, "is not announced any more", stream)
        if silent_ns > self.thresholds.forget_ns:
            self._note(Kind.STREAM_FORGOTTEN, f"was silent for {silent_ns // NANOS_PER_SECOND} s", stream)
            self._consumers -= len(stream.consumers)
            del self.streams[stream.stream_id]

    def _died(self, stream: StreamView, producer_id: int, cause: Cause) -> None:
        self._note(Kind.PRODUCER_DEAD, str(cause), stream, producer_id)

    def _on_revoked(self, notice: ShmLeaseRevoked) -> None:
        self.leases.on_revoked(notice)
        stream = self.streams.get(notice.stream_id)
        if stream is None:
            return
        detached = notice.reason is LeaseRevokeReason.DETACHED
        if notice.role is Role.CONSUMER:
            if detached:
                stream.departures.append(self.now_ns)
            return
        cause = None if detached else CAUSES[notice.reason]
        if stream.producer_ended(notice.client_id, cause):
            if cause is None:
                self._note(Kind.PRODUCER_LEFT, "gave its lease back", stream, notice.client_id)
            else:
                self._died(stream, notice.client_id, cause)

    def _on_shutdown(self, notice: ShmDriverShutdown) -> None:
        """Ends every lease; no producer is dead for it (Driver 4.12)."""
        for lease in self.leases.leases.values():
            stream = self.streams.get(lease.stream_id)
            if stream is not None and lease.role is Role.PRODUCER:
                stream.producer_ended(lease.client_id, None)
        self.leases.leases.clear()
        self._note(Kind.DRIVER_SHUTDOWN, f"{notice.reason.name} {notice.error_message}".strip())

    def _on_source(self, source: DataSourceAnnounce) -> None:
        stream = self._known(source.stream_id)
        if stream is not None and source.epoch >= stream.epoch:
            stream.name, stream.summary = source.name, source.summary
            stream.meta_version = source.meta_version

    def _on_meta(self, meta: DataSourceMeta) -> None:
        stream = self._known(meta.stream_id)
        if stream is None:
            return
        known = stream.metadata
        if known is not None and (known.version, known.timestamp_ns) == (meta.meta_version, meta.timestamp_ns):
            return
        if size_of(meta.attributes) > self.thresholds.limits.max_metadata_bytes:
            self._drop("metadata too large")
            return
        stream.meta_version = meta.meta_version
        stream.metadata = Metadata(meta.stream_id, meta.meta_version, meta.timestamp_ns, meta.attributes)
        self._note(Kind.METADATA, f"version {meta.meta_version}", stream)

    def _on_qos_producer(self, report: QosProducer) -> None:
        stream = self._known(report.stream_id)
        if stream is not None and report.epoch == stream.epoch:
            stream.on_qos(report, self.now_ns)

    # Consumers

    def _on_hello(self, hello: ConsumerHello) -> None:
        consumer = self._heard(hello.stream_id, hello.consumer_id)
        if consumer is not None:
            consumer.on_hello(hello, self.now_ns)

    def _on_config(self, config: ConsumerConfig) -> None:
        consumer = self.consumer(config.stream_id, config.consumer_id)
        if consumer is not None:
            consumer.config = config

    def _on_qos_consumer(self, report: QosConsumer) -> None:
        consumer = self._heard(report.stream_id, report.consumer_id)
        if consumer is None:
            return
        limits, now = self.thresholds, self.now_ns
        consumer.on_qos(report, now, limits.drop_window_ns)
        stream = self.streams[report.stream_id]
        shared = consumer.is_shared(now, SHARED_PERIODS * limits.report_ns)
        if shared and not consumer.duplicate:
            text = "its counters go back and forth: two consumers have this id"
            self._note(Kind.CONSUMER_DUPLICATE, text, stream, consumer.consumer_id)
        consumer.duplicate = shared
        self._judge_drops(stream, consumer)

    def _judge_drops(self, stream: StreamView, consumer: ConsumerView) -> None:
        limit, rate = self.thresholds.drop_rate, consumer.drop_rate
        long_enough = consumer.judged_over() >= self.thresholds.drop_window_ns // 2
        if not consumer.drops_high and rate > limit and long_enough:
            consumer.drops_high = True
            self._note(Kind.DROPS_HIGH, f"loses {rate:.1%} of its frames", stream, consumer.consumer_id)
        elif consumer.drops_high and rate <= limit / 2 and long_enough:
            consumer.drops_high = False
            self._note(Kind.DROPS_LOW, f"loses {rate:.1%} of its frames", stream, consumer.consumer_id)

    def _heard(self, stream_id: int, consumer_id: int) -> ConsumerView | None:
        """The consumer that says something, of a stream that is announced."""
        stream = self._known(stream_id)
        if stream is None:
            return None
        consumer = stream.consumers.get(consumer_id)
        if consumer is None:
            if self._consumers >= self.thresholds.limits.max_consumers:
                self._drop("too many consumers")
                return None
            consumer = stream.consumers[consumer_id] = ConsumerView(stream_id, consumer_id, self.now_ns)
            self._consumers += 1
            self._note(Kind.CONSUMER_NEW, "is there", stream, consumer_id)
        elif consumer.stale:
            consumer.stale = False
            self._note(Kind.CONSUMER_BACK, "is there again", stream, consumer_id)
        return consumer

    def _tick_consumer(self, stream: StreamView, consumer: ConsumerView) -> None:
        silent_ns = self.now_ns - consumer.heard_ns
        if silent_ns > self.thresholds.stale_ns and not consumer.stale:
            if self._departed(stream, consumer):
                self._forget_consumer(stream, consumer)
                self._note(Kind.CONSUMER_LEFT, "gave its lease back", stream, consumer.consumer_id)
                return
            consumer.stale = True
            self._note(Kind.CONSUMER_STALE, "neither says hello nor reports", stream, consumer.consumer_id)
        if silent_ns > self.thresholds.forget_ns:
            self._forget_consumer(stream, consumer)

    def _departed(self, stream: StreamView, consumer: ConsumerView) -> bool:
        """Whether somebody gave a lease back about when this one fell silent. A lease does not say whose consumer it
        is, so each end of one accounts for one silence."""
        earliest = consumer.heard_ns - self.thresholds.report_ns
        for when_ns in stream.departures:
            if when_ns >= earliest:
                stream.departures.remove(when_ns)
                return True
        return False

    def _forget_consumer(self, stream: StreamView, consumer: ConsumerView) -> None:
        del stream.consumers[consumer.consumer_id]
        self._consumers -= 1

    # The rest

    def _on_event(self, message: EventMessage) -> None:
        try:
            self.services.on_event(Event.of(message))
        except DecodeError:
            self._drop("unreadable events")

    def _known(self, stream_id: int) -> StreamView | None:
        """A stream that is announced; what is said of others is not kept, it comes again."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self.counts["of streams not announced"] += 1
        return stream

    def _move_to(self, now_ns: int) -> None:
        self._clock.advance(max(0, now_ns - self.now_ns))

    def _note(self, kind: Kind, text: str, stream: StreamView | None = None, client_id: int | None = None) -> None:
        stream_id = None if stream is None else stream.stream_id
        self.journal.note(kind, self.now_ns, text, stream_id=stream_id, client_id=client_id)

    def _drop(self, kind: str) -> None:
        """Counts what is not taken in; the first of a kind is logged."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.warning("supervisor: %s", kind)
