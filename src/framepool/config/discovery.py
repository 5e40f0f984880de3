"""Discovery: where it is asked, what a provider answers to whom, and the drivers that a registry listens to."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec

from framepool.config.section import IdRange, NotNegative, Positive, Section, StreamId
from framepool.errors import ConfigurationError
from framepool.transport import channel
from framepool.transport.settings import MIB, check_term_length

ClientId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")]
"""Of hosts and driver instances: they stand in tags and messages, so printable US-ASCII without spaces."""
NameOrNone = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[\x21-\x7e]*$")]

PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "198.18.0.0/15",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)


class AccessRule(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who sees what. With one rule or more, a stream is shown to a client only if some rule names both."""

    clients: tuple[ClientId, ...] = ()
    """Client ids as the requests state them, which proves nothing; none is everybody."""
    drivers: tuple[str, ...] = ()
    """Driver instances; none is every driver."""
    streams: tuple[IdRange, ...] = ()
    """Ranges of stream ids; none is every stream."""

    def __post_init__(self) -> None:
        for low, high in self.streams:
            if low > high:
                raise ValueError(f"streams run backwards: {low} to {high}")


class DiscoveryLimits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a provider keeps and answers at the most."""

    max_streams: Positive = 65_536
    """Streams of all drivers in the index; announces of further ones are dropped."""
    max_tags: Positive = 64
    """Tags of a stream; metadata with more is shown without tags."""
    max_name_bytes: Positive = 256
    """Bytes of a name or tag; a longer name is not shown, metadata with a longer tag is shown without tags."""
    max_announce_bytes: Positive = 16_384
    """Bytes of an announce; larger ones are dropped."""
    max_results: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_000
    """Results of a response; a request that matches more gets an ERROR that says so."""
    requests_per_second: NotNegative = 1_000
    """Of each client id; 0 is no limit."""
    max_clients: Positive = 4_096
    """Client ids whose requests are counted at a time."""


class ResponseConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a provider sends answers: a request names the channel, so that this is what a stranger may cause."""

    media: tuple[Literal["ipc", "udp"], ...] = ("ipc", "udp")
    """Media of response channels that are accepted."""
    networks: tuple[str, ...] = PRIVATE_NETWORKS
    """Networks that the endpoint of a UDP channel must be in; endpoints are addresses, never names."""
    max_endpoints: Positive = 64
    """Response endpoints kept open; the one that was idle for longest is closed for a new one."""
    endpoints_per_second: Positive = 50
    """How many new ones are opened a second at the most."""
    term_length: Positive = MIB
    """Bytes of a term buffer where the request names none; an eighth of it is the longest response."""
    max_term_length: Positive = 4 * MIB
    """The longest term buffer that a request may name."""
    timeout_ms: Positive = 5_000
    """How long an answer waits for its reader."""

    def __post_init__(self) -> None:
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ValueError(f"networks: {error}") from error
        try:
            check_term_length(self.term_length, "term_length")
            check_term_length(self.max_term_length, "max_term_length")
        except ConfigurationError as error:
            raise ValueError(str(error)) from error


class DiscoveryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Discovery: a driver answers for its own streams, a registry for those of many drivers."""

    embedded: bool = True
    """Whether a driver answers by itself, on its control endpoint and on the one below."""
    channel: str = "aeron:ipc"
    """Where a provider that runs with this file listens for requests, and where clients ask: always if it is local,
    else only without `registries`."""
    stream_id: NotNegative = 0
    """The Aeron stream of requests; 0 is `stream_ids.discovery_request`."""
    registries: tuple[str, ...] = ()
    """Channels of the registries that clients ask; of several, each has the same answers."""
    response_channel: str = ""
    """Where clients take the answers of UDP registries: `aeron:udp?endpoint=ADDRESS:PORT` with an address of this host;
    by default the one that leads to the registry, with a free port. Local answers come over IPC."""
    response_stream_id: NotNegative = 0
    """The Aeron stream of answers; 0 is `stream_ids.discovery_response`."""
    payload_fallback_uri: str = ""
    """Where the payloads of a stream of another host come from that no bridge makes a stream of this one: an Aeron
    channel or `bridge://ID`. Empty: `Pool.consumer` refuses such a stream."""
    driver_instance_id: NameOrNone = ""
    """The name of this driver, unique among all drivers; by default the host name and the namespace."""
    host: NameOrNone = ""
    """The name of this host; by default its boot id. Only streams of this host can be attached to."""
    announce_channels: tuple[str, ...] = ()
    """Channels on which a driver repeats its announces and the metadata of its streams, for registries."""
    access: tuple[AccessRule, ...] = ()
    """Who sees which streams; without a rule everybody sees all."""
    limits: DiscoveryLimits = DiscoveryLimits()
    """What a provider keeps and answers at the most."""
    responses: ResponseConfig = ResponseConfig()
    """Where answers may go."""

    def __post_init__(self) -> None:
        check_channels(channel=self.channel)
        if self.response_channel:
            check_channels(response_channel=self.response_channel)
        for each in self.registries:
            check_channels(registries=each)
        for each in self.announce_channels:
            check_channels(announce_channels=each)
        if len(set(self.announce_channels)) != len(self.announce_channels):
            raise ValueError("announce_channels names a channel twice")


class SourceConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A driver that a registry listens to. Whatever comes on its channel and streams is this driver's: messages do
    not say who sent them."""

    driver_instance_id: Name
    """The name of the driver: its `discovery.driver_instance_id`."""
    host: Name
    """The name of its host: its `discovery.host`."""
    channel: str
    """Where its announces come: the other end of one of its `discovery.announce_channels`."""
    announce_stream_id: NotNegative = 0
    """The Aeron stream of announces; 0 is `stream_ids.announce`."""
    metadata_stream_id: NotNegative = 0
    """The Aeron stream of metadata; 0 is `stream_ids.metadata`."""
    control_channel: Annotated[str, msgspec.Meta(min_length=1)] = "aeron:ipc"
    """Where the driver takes attach requests, as clients of its host see it."""
    control_stream_id: StreamId = 1000
    """The Aeron stream of attach requests."""
    announce_period_ms: Positive = 1_000
    """Its `driver.announce_period_ms`; three of them without an announce are the end of a stream."""

    def __post_init__(self) -> None:
        check_channels(channel=self.channel, control_channel=self.control_channel)


class RegistryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The registry: `framepool registry` listens at `discovery.channel` and knows these drivers."""

    media_driver: Literal["embedded", "external"] = "embedded"
    """Whether the registry runs an Aeron media driver in its own process or uses the one of `aeron.directory`."""
    instance: str = ""
    """Tells registries apart that are commanded over one control plane: `service:registry:<instance>`."""
    sources: tuple[SourceConfig, ...] = ()
    """The drivers, each on a channel or stream of its own."""

    def __post_init__(self) -> None:
        heard: dict[tuple[object, ...], str] = {}
        named: set[str] = set()
        for source in self.sources:
            if source.driver_instance_id in named:
                raise ValueError(f"driver {source.driver_instance_id!r} is configured twice")
            named.add(source.driver_instance_id)
            for stream in (("announce", source.announce_stream_id), ("metadata", source.metadata_stream_id)):
                where = (*_identity(source.channel), *stream)
                other = heard.setdefault(where, source.driver_instance_id)
                if other != source.driver_instance_id:
                    raise ValueError(
                        f"drivers {other!r} and {source.driver_instance_id!r} have one channel and stream for "
                        f"{stream[0]}, and messages do not say whose they are: give each a port, stream ids or a "
                        "session-id of its own"
                    )


def _identity(name: str) -> tuple[str | None, ...]:
    """What makes one channel another, for whoever listens."""
    media, parameters = channel.parse(name)
    return media, *(parameters.get(key) for key in ("endpoint", "control", "session-id"))


def check_channels(**channels: str) -> None:
    """Raises ValueError, with the name of the key, for what is no channel."""
    for name, value in channels.items():
        try:
            channel.parse(value)
        except ConfigurationError as error:
            raise ValueError(f"{name}: {error}") from error
