"""The supervisor: when it calls somebody dead, stale or too slow, and what it does about it (Wire 10.5, 15.14)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from framepool.config.section import IdRange, Positive, Section
from framepool.errors import ConfigurationError
from framepool.transport import channel

Periods = Annotated[float, msgspec.Meta(ge=3, le=5)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
ConsumerId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
When = Literal["hello", "no_shm", "rate_limited", "drops", "producer_dead"]
Then = Literal["rate_limit", "stream", "fallback", "command"]


class SupervisorRule(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the supervisor does when something is so. Of the rules that fit a consumer, the first one counts."""

    when: When
    """`hello`: a consumer is there; `no_shm`: it does without shared memory; `rate_limited`: it asks for fewer frames;
    `drops`: it loses more than `drop_rate_limit`; `producer_dead`: the producer of a stream died."""
    then: Then
    """`rate_limit`: told to take fewer frames; `stream`: told to take all, which declines its wish for fewer;
    `fallback`: sent to `payload_fallback_uri`; `command`: a service is told something."""
    streams: tuple[IdRange, ...] = ()
    """Ranges of stream ids; none is every stream."""
    consumers: tuple[ConsumerId, ...] = ()
    """Consumer ids; none is every consumer."""
    payload_fallback_uri: str = ""
    """Of `fallback`: where payloads come from, `aeron:udp?endpoint=…|stream-id=N` or `bridge://ID`."""
    service: str = ""
    """Of `command`: the tag of the service, such as `service:camera`."""
    command: str = ""
    """Of `command`: what it is told, such as `start`."""
    value: bool | int | float | str | None = None
    """Of `command`: the value, if it takes one."""

    def __post_init__(self) -> None:
        for low, high in self.streams:
            if low > high:
                raise ValueError(f"streams run backwards: {low} to {high}")
        if self.when == "producer_dead" and (self.then != "command" or self.consumers):
            raise ValueError("producer_dead concerns a stream: it goes with then = 'command' and without consumers")
        if (self.then == "fallback") != bool(self.payload_fallback_uri):
            raise ValueError("then = 'fallback' and payload_fallback_uri go together")
        if self.payload_fallback_uri:
            check_fallback(self.payload_fallback_uri)
        if (self.then == "command") != bool(self.service and self.command):
            raise ValueError("then = 'command' goes with service and command")
        if self.then == "stream" and self.when not in {"hello", "rate_limited"}:
            raise ValueError(f"then = 'stream' declines a wish for fewer frames: it does not go with {self.when!r}")


class SupervisorLimits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a supervisor remembers; what goes beyond is dropped and counted."""

    max_streams: Positive = 4_096
    """Streams."""
    max_consumers: Positive = 16_384
    """Consumers of all streams together."""
    max_leases: Positive = 16_384
    """Leases."""
    max_metadata_bytes: Positive = 16_384
    """Of the metadata of one stream; larger ones are known by their version only."""
    max_notices: Positive = 4_096
    """Of what happened, the last so many."""


class SupervisorConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The supervisor."""

    instance: str = ""
    """Tells supervisors apart that share a control plane: `service:supervisor:<instance>`."""
    liveness_periods: Periods = 4.0
    """A producer whose activity stamp is older than so many announce periods is dead, and a stream that was not
    announced for as long is silent (Wire 15.14)."""
    report_period_ms: Positive = 1_000
    """How often consumers say hello and report."""
    stale_periods: Periods = 4.0
    """A consumer that did neither for so many of these periods is stale."""
    drop_rate_limit: Fraction = 0.05
    """The share of frames that a consumer may lose before that is told; 1 never tells."""
    drop_window_ms: Positive = 5_000
    """Over how long the share is taken."""
    forget_after_ms: Positive = 60_000
    """After how long streams that are silent and consumers that are stale are forgotten."""
    config_interval_ms: Positive = 1_000
    """How often a consumer is told the same at the most."""
    metrics_host: str = "127.0.0.1"
    """Where the figures for Prometheus are served."""
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """0 serves none."""
    read_activity: bool = True
    """Whether the superblocks of announced streams are read for their activity; over UDP none ever is."""
    limits: SupervisorLimits = SupervisorLimits()
    """How much it remembers."""
    rules: tuple[SupervisorRule, ...] = ()
    """What it does about what it sees; without a rule it only tells."""


def check_fallback(uri: str) -> None:
    """Raises ValueError for what is no place that payloads come from (Wire 10.1.3)."""
    scheme, _, rest = uri.partition(":")
    if scheme == "aeron":
        try:
            channel.parse(uri)
        except ConfigurationError as error:
            raise ValueError(f"payload_fallback_uri: {error}") from error
    elif scheme != "bridge" or not rest.removeprefix("//") or not rest.startswith("//"):
        raise ValueError(f"payload_fallback_uri {uri!r}: say aeron:udp?endpoint=…|stream-id=N or bridge://ID")
