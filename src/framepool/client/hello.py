"""How a consumer introduces itself, and what it is told: ConsumerHello and ConsumerConfig (Wire 5, 10.1.2, 10.1.3, 11).

`Introduction` repeats the hello and keeps the `Assignment`, which says where to listen, at which rate, and whether to
read shared memory at all. It is soft state: what is lost is made up for by the answer to the next hello. The other side
is `registry`; subscriptions belong to the owner.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Self

import msgspec

from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import IdRange
from framepool.errors import ConfigurationError
from framepool.transport import channel as aeron_channel
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode
from framepool.wire.constants import LAYOUT_VERSION
from framepool.wire.message import Message

log = logging.getLogger(__name__)

Send = Callable[[Message], bool]
"""Puts a message on the shared control stream; False when Aeron did not take it."""


class Endpoint(msgspec.Struct, frozen=True):
    """A channel and a stream id of a consumer's own, both or none: empty and 0 is the shared stream (Wire 10.1.3)."""

    channel: str = ""
    stream_id: int = 0

    def __post_init__(self) -> None:
        if bool(self.channel) != bool(self.stream_id):
            raise ConfigurationError(
                f"channel {self.channel!r} with stream id {self.stream_id}: a stream of a consumer's own needs both"
            )

    def __bool__(self) -> bool:
        return bool(self.channel)

    @classmethod
    def within(cls, ids: IdRange, channel: str = "aeron:ipc") -> Self:
        """A wish for a stream in this range, at random, so that consumers seldom wish for the same."""
        low, high = ids
        return cls(channel, low + secrets.randbelow(high - low + 1))


SHARED = Endpoint()


def new_consumer_id() -> int:
    """A random id: consumers that choose their own seldom choose the same (Wire 10.1.2)."""
    return 1 + secrets.randbelow(2**32 - 2)


class ConsumerWishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer says of itself and asks for."""

    mode: Mode = Mode.STREAM
    max_rate_hz: int = 0
    """0 is unlimited."""
    supports_shm: bool = True
    supports_progress: bool = False
    progress_interval_us: int | None = None
    progress_bytes_delta: int | None = None
    progress_major_delta_units: int | None = None
    descriptor: Endpoint = SHARED
    """A descriptor stream of its own, if it wants one."""
    control: Endpoint = SHARED
    """A stream of its own for FrameProgress, if it wants one."""
    interval_ns: int = NANOS_PER_SECOND
    """How often it says so."""
    forced_rate_hz: int = 30
    """The rate when it is told to be RATE_LIMITED and has named none itself."""
    consumer_id: int | None = None
    """An id that was assigned to it, as by a supervisor; None chooses one at random."""


class Fallback(msgspec.Struct, frozen=True):
    """Where payloads come from instead of shared memory (Wire 10.1.3)."""

    uri: str
    unsupported: str = ""
    """Why it cannot be used; empty if it can."""

    @property
    def supported(self) -> bool:
        return not self.unsupported

    @classmethod
    def of(cls, uri: str) -> Self:
        """`aeron:…` and `bridge://<id>` are known; any other scheme is unsupported."""
        scheme, _, rest = uri.partition(":")
        if not uri:
            return cls(uri, "no payload_fallback_uri was given")
        if scheme == "bridge":
            return cls(uri, "" if rest.startswith("//") and len(rest) > 2 else "it names no bridge")
        if scheme != "aeron":
            return cls(uri, f"scheme {scheme!r} is not defined")
        try:
            aeron_channel.parse(uri)
        except ConfigurationError as error:
            return cls(uri, str(error))
        return cls(uri)


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a consumer right now."""

    mode: Mode
    max_rate_hz: int = 0
    descriptor: Endpoint = SHARED
    """Where to take descriptors from, instead of the shared stream (Wire 5)."""
    control: Endpoint = SHARED
    """Where to take FrameProgress from; everything else still comes on the shared control stream (Wire 5)."""
    fallback: Fallback | None = None
    """Not None: shared memory is not to be read (FALLBACK of Wire 15.12)."""

    @property
    def local_rate_hz(self) -> int:
        """What the consumer's own gate lets through: a stream of its own has the producer's cap already."""
        return self.max_rate_hz if self.mode is Mode.RATE_LIMITED and not self.descriptor else 0


class Introduction:
    """One consumer of one stream: says hello at the start and each interval, and obeys what it is told."""

    def __init__(
        self,
        stream_id: int,
        *,
        send: Send,
        clock: Clock,
        wishes: ConsumerWishes | None = None,
        consumer_id: int | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.consumer_id = consumer_id or new_consumer_id()
        self.wishes = wishes or ConsumerWishes()
        self.rejected = False
        """Whether shared memory that was found must not be used: then none is asked for."""
        self.assignment = self._unassigned()
        self.counts: Counter[str] = Counter()
        self._send = send
        self._clock = clock
        self._due_ns: int | None = None

    def start(self) -> None:
        """The first hello leaves with the next `do_work`."""
        self._due_ns = self._clock.monotonic_ns()

    def reject(self, rejected: bool) -> bool:
        """Shared memory was found unusable, or is usable again: says hello at once. Where payloads came from instead is
        over with the reason for it; True if that changed the assignment."""
        if rejected == self.rejected:
            return False
        self.rejected = rejected
        if self._due_ns is not None:
            self.start()
        if rejected or self.assignment.fallback is None or not self.wishes.supports_shm:
            return False
        self.assignment = msgspec.structs.replace(self.assignment, fallback=None)
        return True

    def stop(self) -> None:
        """No more hellos: producers close what was this consumer's own once it counts as gone."""
        self._due_ns = None

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        if self._due_ns is None or now_ns < self._due_ns or not self._send(self.hello()):
            return 0
        self._due_ns = now_ns + self.wishes.interval_ns
        self.counts["hellos"] += 1
        return 1

    def due_ns(self) -> int:
        """When the next hello is due."""
        return self._due_ns or 0

    def hello(self) -> ConsumerHello:
        """What is said. Mode and rate are those in force, and without shared memory no streams are asked for, so that
        the producer's answer does not undo what another authority decided."""
        wishes, now = self.wishes, self.assignment
        descriptor, control = (wishes.descriptor, wishes.control) if now.fallback is None else (SHARED, SHARED)
        return ConsumerHello(
            stream_id=self.stream_id,
            consumer_id=self.consumer_id,
            supports_shm=Bool(wishes.supports_shm and not self.rejected),
            supports_progress=Bool(wishes.supports_progress),
            mode=now.mode,
            max_rate_hz=now.max_rate_hz,
            expected_layout_version=LAYOUT_VERSION,
            progress_interval_us=wishes.progress_interval_us,
            progress_bytes_delta=wishes.progress_bytes_delta,
            progress_major_delta_units=wishes.progress_major_delta_units,
            descriptor_stream_id=descriptor.stream_id,
            control_stream_id=control.stream_id,
            descriptor_channel=descriptor.channel,
            control_channel=control.channel,
        )

    def on_config(self, config: ConsumerConfig) -> bool:
        """Obeys a configuration for this consumer; True if the assignment changed. Others' are not its business."""
        if (config.stream_id, config.consumer_id) != (self.stream_id, self.consumer_id):
            return False
        fallback = None if config.use_shm is Bool.TRUE else Fallback.of(config.payload_fallback_uri)
        assignment = Assignment(
            mode=config.mode,
            max_rate_hz=self._rate(config.mode),
            descriptor=self._assigned(config.descriptor_channel, config.descriptor_stream_id),
            control=self._assigned(config.control_channel, config.control_stream_id),
            fallback=fallback,
        )
        if assignment == self.assignment:
            return False
        if fallback is not None and not fallback.supported:
            self.counts["fallback unsupported"] += 1
            log.warning(
                "stream %d: told to leave shared memory for %r: %s", self.stream_id, fallback.uri, fallback.unsupported
            )
        self.counts["configured"] += 1
        self.assignment = assignment
        return True

    def renew(self) -> int:
        """Takes another id, because somebody else has this one, and says hello with it (Wire 10.1.2).

        What was assigned was assigned to the old id; the owner goes back to the shared streams.
        """
        taken = self.consumer_id
        while self.consumer_id == taken:
            self.consumer_id = new_consumer_id()
        self.assignment = self._unassigned()
        self.counts["renewed"] += 1
        if self._due_ns is not None:
            self.start()
        return self.consumer_id

    def statistics(self) -> dict[str, object]:
        now = self.assignment
        return {
            "consumer_id": self.consumer_id,
            "mode": now.mode.name,
            "max_rate_hz": now.max_rate_hz,
            "descriptor_stream": now.descriptor.stream_id,
            "control_stream": now.control.stream_id,
            "fallback": now.fallback.uri if now.fallback else None,
            **self.counts,
        }

    def _unassigned(self) -> Assignment:
        return Assignment(mode=self.wishes.mode, max_rate_hz=self.wishes.max_rate_hz)

    def _rate(self, mode: Mode) -> int:
        """The own rate; one that never asked for RATE_LIMITED and named none gets the rate for that case."""
        if mode is Mode.RATE_LIMITED and self.wishes.mode is not Mode.RATE_LIMITED:
            return self.wishes.max_rate_hz or self.wishes.forced_rate_hz
        return self.wishes.max_rate_hz

    def _assigned(self, channel: str, stream_id: int) -> Endpoint:
        """What was assigned; empty and 0 is declined, and what is neither is no assignment (Wire 10.1.3)."""
        try:
            endpoint = Endpoint(channel, stream_id)
            if endpoint:
                aeron_channel.parse(channel)
        except ConfigurationError as error:
            self.counts["malformed assignment"] += 1
            log.warning("stream %d: assigned stream not used: %s", self.stream_id, error)
            return SHARED
        return endpoint
