"""Who consumes a stream, as its producer knows it: hellos, grants, rates and the end (Wire 5, 10.1.2, 10.1.3).

A consumer may ask for a descriptor stream of its own, and for one for FrameProgress. `ConsumerRegistry` decides whether
it gets them, tells it so, and tells the owner which publications to open and close; the shared streams go on for all of
them, unthrottled. A consumer counts as gone when neither hello nor report came for a while. The other side is `hello`.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

import msgspec

from framepool.client.hello import SHARED, Endpoint, Send
from framepool.client.rate import RateGate
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import IdRange, StreamIds
from framepool.errors import ConfigurationError
from framepool.transport import channel as aeron_channel
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode, QosConsumer

log = logging.getLogger(__name__)

LONGEST_CHANNEL = 256
HARMLESS = frozenset({"alias", "tether"})
"""What a consumer may name in a channel: nothing that costs the producer memory."""
HARMLESS_UDP = HARMLESS | {"endpoint", "interface", "control", "control-mode", "ttl"}


class RegistrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer grants its consumers."""

    interval_ns: int = NANOS_PER_SECOND
    """How often consumers say hello or report."""
    stale_after: float = 4.0
    """In intervals without either (Wire 5: 3 to 5)."""
    max_consumers: int = 256
    descriptor_ids: IdRange = StreamIds().consumer_descriptor
    control_ids: IdRange = StreamIds().consumer_control
    allow_udp: bool = False
    """Whether a consumer may ask for a UDP channel; the producer would send wherever it says."""
    cap_stream_mode: bool = False
    """Whether max_rate_hz also holds for STREAM consumers on a descriptor stream of their own (`decisions.md` #27)."""
    payload_fallback_uri: str = ""
    """Where consumers without shared memory are sent."""

    def __post_init__(self) -> None:
        if not 3 <= self.stale_after <= 5:
            raise ValueError(f"stale_after is {self.stale_after}, must be from 3 to 5 intervals (Wire 5)")
        if self.interval_ns < 1 or self.max_consumers < 1:
            raise ValueError("interval_ns and max_consumers are at least 1")


class Publications(Protocol):
    """The owner's hands: the publications of single consumers."""

    def open(self, endpoint: Endpoint) -> bool:
        """Begins a publication there; False declines the request."""

    def close(self, endpoint: Endpoint) -> None:
        """Ends it."""


class RegisteredConsumer:
    """A consumer as its producer knows it."""

    __slots__ = ("control", "descriptor", "gate", "heard_ns", "hello")

    def __init__(self, hello: ConsumerHello, heard_ns: int, clock: Clock) -> None:
        self.hello = hello
        self.heard_ns = heard_ns
        self.descriptor = SHARED
        self.control = SHARED
        self.gate = RateGate(0, clock)
        """Stands before its own descriptor stream."""

    @property
    def wants_progress(self) -> bool:
        return self.hello.supports_progress is Bool.TRUE


class ConsumerRegistry:
    """The consumers of one stream: who lives, what they asked for and what they were given.

    `taken` are the stream ids given so far; registries of one process share it, so that none is given twice.
    """

    def __init__(
        self,
        stream_id: int,
        *,
        send: Send,
        publications: Publications,
        clock: Clock,
        settings: RegistrySettings | None = None,
        taken: set[int] | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.consumers: dict[int, RegisteredConsumer] = {}
        self.counts: Counter[str] = Counter()
        self._send = send
        self._publications = publications
        self._clock = clock
        self._settings = settings or RegistrySettings()
        self._taken = set() if taken is None else taken

    def on_hello(self, hello: ConsumerHello) -> bool:
        """Takes a consumer in, or its news; answers what it asked for. True if what it says of itself changed."""
        if hello.stream_id != self.stream_id:
            return False
        now_ns = self._clock.monotonic_ns()
        consumer = self.consumers.get(hello.consumer_id)
        if consumer is None:
            if len(self.consumers) >= self._settings.max_consumers:
                self.counts["too many"] += 1
                self._answer(hello, SHARED, SHARED)
                return False
            consumer = self.consumers[hello.consumer_id] = RegisteredConsumer(hello, now_ns, self._clock)
            self.counts["joined"] += 1
            changed = True
        else:
            changed = consumer.hello != hello
        consumer.hello = hello
        consumer.heard_ns = now_ns
        self._grant(consumer)
        self._answer(hello, consumer.descriptor, consumer.control)
        return changed

    def on_qos(self, report: QosConsumer) -> None:
        """A report is a sign of life as good as a hello (Wire 5)."""
        if report.stream_id == self.stream_id and (consumer := self.consumers.get(report.consumer_id)):
            consumer.heard_ns = self._clock.monotonic_ns()

    def do_work(self) -> int:
        """Lets those go that were silent for too long; to be called at least once per interval."""
        patience_ns = self._settings.stale_after * self._settings.interval_ns
        now_ns = self._clock.monotonic_ns()
        stale = [key for key, consumer in self.consumers.items() if now_ns - consumer.heard_ns > patience_ns]
        for consumer_id in stale:
            self.counts["stale"] += 1
            self.disconnect(consumer_id)
        return len(stale)

    def disconnect(self, consumer_id: int) -> None:
        """Forgets a consumer and closes what was its own (Wire 10.1.3)."""
        consumer = self.consumers.pop(consumer_id, None)
        if consumer is not None:
            self._close(consumer.descriptor)
            self._close(consumer.control)

    def close(self) -> None:
        for consumer_id in list(self.consumers):
            self.disconnect(consumer_id)

    def hellos(self) -> list[ConsumerHello]:
        """What those that live said last: for `ProgressStream.agree`."""
        return [consumer.hello for consumer in self.consumers.values()]

    def descriptor_targets(self) -> list[Endpoint]:
        """The streams of single consumers that the next descriptor goes to, beside the shared one, which has them all;
        asking counts as sending."""
        return [
            consumer.descriptor
            for consumer in self.consumers.values()
            if consumer.descriptor and consumer.gate.admits()
        ]

    def progress_targets(self) -> list[Endpoint]:
        """Where FrameProgress goes: streams of single consumers and, once, SHARED, if anybody listens there."""
        listeners = [consumer for consumer in self.consumers.values() if consumer.wants_progress]
        own = [consumer.control for consumer in listeners if consumer.control]
        return own if len(own) == len(listeners) else [*own, SHARED]

    def statistics(self) -> dict[str, int]:
        own = [consumer for consumer in self.consumers.values() if consumer.descriptor or consumer.control]
        return {"consumers": len(self.consumers), "with_own_streams": len(own), **self.counts}

    def _grant(self, consumer: RegisteredConsumer) -> None:
        hello, settings = consumer.hello, self._settings
        consumer.descriptor = self._settle(
            consumer.descriptor, hello.descriptor_channel, hello.descriptor_stream_id, settings.descriptor_ids
        )
        consumer.control = self._settle(
            consumer.control, hello.control_channel, hello.control_stream_id, settings.control_ids
        )
        capped = hello.mode is Mode.RATE_LIMITED or settings.cap_stream_mode
        consumer.gate.limit(hello.max_rate_hz if capped else 0)

    def _settle(self, current: Endpoint, channel: str, stream_id: int, ids: IdRange) -> Endpoint:
        """What the consumer has from now on, given what it has and what it asks for."""
        if (current.channel, current.stream_id) == (channel, stream_id):
            return current
        self._close(current)
        if not channel and not stream_id:
            return SHARED
        if why := self._objection(channel, stream_id, ids):
            self.counts["declined"] += 1
            log.debug("stream %d: %r with id %d declined: %s", self.stream_id, channel[:80], stream_id, why)
            return SHARED
        endpoint = Endpoint(channel, stream_id)
        if not self._publications.open(endpoint):
            self.counts["declined"] += 1
            return SHARED
        self._taken.add(stream_id)
        self.counts["granted"] += 1
        return endpoint

    def _objection(self, channel: str, stream_id: int, ids: IdRange) -> str:
        """Why a request is declined; empty if it is not (Wire 5, 10.1.2)."""
        if not channel or not stream_id:
            return "channel and id go together"
        if len(channel) > LONGEST_CHANNEL:
            return "the channel is too long"
        try:
            media, parameters = aeron_channel.parse(channel)
        except ConfigurationError as error:
            return str(error)
        if media == "udp" and not (self._settings.allow_udp and "endpoint" in parameters):
            return "UDP is not allowed, or has no endpoint"
        if refused := parameters.keys() - (HARMLESS_UDP if media == "udp" else HARMLESS):
            return f"the producer alone sets {', '.join(sorted(refused))}"
        low, high = ids
        if not low <= stream_id <= high:
            return f"ids are from {low} to {high}"
        if stream_id in self._taken:
            return "the id is taken"
        return ""

    def _answer(self, hello: ConsumerHello, descriptor: Endpoint, control: Endpoint) -> None:
        """Tells a consumer what it has, if it asked for anything or is to get its payloads elsewhere."""
        asked = (
            hello.descriptor_channel or hello.descriptor_stream_id or hello.control_channel or hello.control_stream_id
        )
        elsewhere = "" if hello.supports_shm is Bool.TRUE else self._settings.payload_fallback_uri
        if not asked and not elsewhere:
            return
        config = ConsumerConfig(
            stream_id=hello.stream_id,
            consumer_id=hello.consumer_id,
            use_shm=hello.supports_shm,
            mode=hello.mode,
            descriptor_stream_id=descriptor.stream_id,
            control_stream_id=control.stream_id,
            payload_fallback_uri=elsewhere,
            descriptor_channel=descriptor.channel,
            control_channel=control.channel,
        )
        if not self._send(config):
            self.counts["answers lost"] += 1

    def _close(self, endpoint: Endpoint) -> None:
        if endpoint:
            self._taken.discard(endpoint.stream_id)
            self._publications.close(endpoint)
