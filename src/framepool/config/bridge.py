"""The UDP bridge: which streams go where, and over which channels (Bridge 2.3, 4, 7.1, 9, 10).

`[bridge]` is an instance and the link that its mappings use unless they name another one of `[bridge.links]`;
`[[mappings]]` are its streams, each in one direction. What contradicts itself, or would send a stream back to where it
came from, is refused when the file is read, and in the same words when a mapping is added at run time.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from framepool.config.plan import StreamIds
from framepool.config.section import IdRange, NotNegative, Positive, Section, StreamId
from framepool.errors import ConfigurationError
from framepool.transport import channel

DEFAULT_MTU = 1408
"""Aeron's own, of a channel that names none."""
MTU_ALLOWANCE = 128
"""What Aeron, IP, UDP and the head of a chunk take of a datagram, generously (Bridge 5.2)."""
SMALLEST_MTU = 512
"""The first chunk carries 345 bytes beside its payload (`decisions.md` #53)."""
LARGEST_MTU = 65_504

Role = Literal["sender", "receiver"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


class LinkConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The streams between two bridges: chunks, control messages and metadata.

    A channel names what its own end needs: a sender's the other host (`aeron:udp?endpoint=HOST:PORT`), a receiver's
    the address it listens on. Multicast endpoints and `control-mode=dynamic` reach many receivers.
    """

    payload_channel: str
    """Aeron UDP channel of chunks."""
    payload_stream_id: StreamId
    """Their Aeron stream."""
    control_channel: str
    """Aeron channel of forwarded announces and, where they are on, QoS and progress."""
    control_stream_id: StreamId
    """Their Aeron stream."""
    metadata_channel: str = ""
    """Aeron UDP channel of forwarded metadata, another one than that of control; empty forwards none."""
    metadata_stream_id: NotNegative = 0
    """Its Aeron stream; 0 is `stream_ids.bridge_metadata`."""
    mtu_bytes: NotNegative = 0
    """The MTU that chunks are sized by; 0 is that of the payload channel."""

    def __post_init__(self) -> None:
        payload = _media("payload_channel", self.payload_channel, udp=True)
        control = _media("control_channel", self.control_channel, udp=False)
        if self.metadata_channel:
            metadata = _media("metadata_channel", self.metadata_channel, udp=True)
            if metadata == control:
                raise ValueError("metadata_channel is control_channel: metadata has a channel of its own (Bridge 7.2)")
        if payload == control and self.payload_stream_id == self.control_stream_id:
            raise ValueError(f"chunks and control messages share stream {self.payload_stream_id} of one channel")
        if self.metadata_channel and payload == metadata and self.payload_stream_id == self.metadata_stream_id:
            raise ValueError(f"chunks and metadata share stream {self.payload_stream_id} of one channel")
        named = _mtu_of(self.payload_channel)
        if self.mtu_bytes and named and self.mtu_bytes > named:
            raise ValueError(f"mtu_bytes {self.mtu_bytes} is more than the payload channel's own mtu of {named}")
        if self.mtu % 32 or not SMALLEST_MTU <= self.mtu <= LARGEST_MTU:
            raise ValueError(f"an MTU is a multiple of 32 from {SMALLEST_MTU} to {LARGEST_MTU}, not {self.mtu}")

    @property
    def mtu(self) -> int:
        """What one datagram holds: as configured, else as the payload channel says, else Aeron's default."""
        return self.mtu_bytes or _mtu_of(self.payload_channel) or DEFAULT_MTU

    def streams(self, ids: StreamIds) -> Iterator[tuple[str, tuple[str, str, str], int]]:
        """What flows over this link: its name, where (media, endpoint, control), and the Aeron stream."""
        yield "payload", _media("payload_channel", self.payload_channel, udp=True), self.payload_stream_id
        yield "control", _media("control_channel", self.control_channel, udp=False), self.control_stream_id
        if self.metadata_channel:
            where = _media("metadata_channel", self.metadata_channel, udp=True)
            yield "metadata", where, self.metadata_stream_id or ids.bridge_metadata


class BridgeConfig(LinkConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bridge: it sends streams of this host to others, or makes theirs appear here, or both."""

    instance_id: Name
    """What this bridge is called: in logs, as `service:bridge:<instance_id>`, and in the tags of what it brings."""
    role: Role = "sender"
    """What mappings do that do not say it themselves."""
    chunk_bytes: NotNegative = 0
    """Payload bytes of a chunk, at the most `mtu_bytes - 128`; 0 is as many as that."""
    max_chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 65_535
    """No chunk is longer, sent or received."""
    max_payload_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**30)] = 2**30
    """No frame is larger, sent or received."""
    dest_stream_id_range: tuple[StreamId, ...] | str = ()
    """Ids for destinations that a mapping leaves open, both ends included: `[50_000, 50_099]` or `"50000-50099"`."""
    reserved_ranges: tuple[IdRange, ...] = ()
    """Ids that other bridges of this host may take."""
    forward_metadata: bool | None = None
    """Whether names and attributes of sources go along; unset is yes, where there is a metadata channel."""
    source_metadata_stream_id: NotNegative = 0
    """The local Aeron stream that a sender takes metadata from; 0 is `stream_ids.metadata`."""
    forward_qos: bool = False
    """Whether QoS reports go along."""
    forward_progress: bool = False
    """Whether the progress of frames goes along; every mapping then needs both of its control streams."""
    assembly_timeout_ms: Positive = 250
    """How long a frame may take to arrive in full (Bridge 5.3a)."""
    crc32c: bool = False
    """Whether frames carry a checksum beside their chunks (Bridge 5.4). A receiver that has it on drops frames
    without one: turn it on at the sender first."""
    links: dict[Name, LinkConfig] = msgspec.field(default_factory=dict)
    """Further links by name, for mappings that go elsewhere or the other way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.forward_metadata and not self.metadata_channel:
            raise ValueError("forward_metadata = true needs a metadata_channel to forward it on (Bridge 7.1)")
        if self.destinations is not None and self.destinations[0] > self.destinations[1]:
            raise ValueError(f"dest_stream_id_range {self.dest_stream_id_range} runs backwards")

    @property
    def destinations(self) -> IdRange | None:
        """The range that destinations are taken from, if there is one."""
        if not self.dest_stream_id_range:
            return None
        if isinstance(self.dest_stream_id_range, str):
            parts: Sequence[str | int] = self.dest_stream_id_range.split("-")
        else:
            parts = self.dest_stream_id_range
        try:
            low, high = map(int, parts)
        except ValueError:
            raise ValueError(f"dest_stream_id_range {self.dest_stream_id_range!r} is not LOW-HIGH") from None
        return low, high

    def link(self, name: str = "") -> LinkConfig:
        """A link by name; the empty name is the bridge's own."""
        return self.links[name] if name else self

    def chunk_size(self, mtu: int) -> int:
        """Payload bytes of a chunk at this MTU: the smallest of all bounds (Bridge 10)."""
        bounds = (self.chunk_bytes, mtu - MTU_ALLOWANCE, self.max_chunk_bytes)
        return min(bound for bound in bounds if bound)

    def forwards_metadata(self, link: LinkConfig) -> bool:
        """Whether metadata goes over a link: it is asked for or left open, and there is a way (`decisions.md` #57)."""
        return self.forward_metadata is not False and bool(link.metadata_channel)


class MappingConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stream of the source host, made to appear as a stream of the destination host."""

    source_stream_id: StreamId
    """The stream on the source host."""
    dest_stream_id: NotNegative = 0
    """The stream on the destination host; 0 is the first free one of `dest_stream_id_range`."""
    profile: str = "default"
    """How the destination is laid out: checked against what the driver made if `[profiles]` has it, and used by a
    receiver without a driver. A frame goes into the smallest pool that holds it."""
    metadata_stream_id: NotNegative = 0
    """The stream that forwarded metadata is about at the destination; 0 is the destination itself."""
    source_control_stream_id: NotNegative = 0
    """The Aeron stream of the source host that progress and QoS are taken from; 0 takes none."""
    dest_control_stream_id: NotNegative = 0
    """The Aeron stream of the destination host that they are repeated on; 0 repeats none."""
    source_qos_stream_id: NotNegative = 0
    """Where QoS is taken from, if that is elsewhere than progress: framepool's own is on `stream_ids.qos`."""
    dest_qos_stream_id: NotNegative = 0
    """Where QoS is repeated, if that is elsewhere than progress."""
    role: Role | None = None
    """What this instance does: `sender` on the source host, `receiver` on the destination host; unset is
    `bridge.role`."""
    link: str = ""
    """One of `[bridge.links]`; empty is the channels of `[bridge]` itself."""
    driverless: bool = False
    """Whether a receiver owns the destination itself, on a host without a driver, and counts its epochs."""

    def metadata_about(self, dest_stream_id: int) -> int:
        """The stream id in metadata that is published at the destination (`decisions.md` #58)."""
        return self.metadata_stream_id or dest_stream_id


def check_bridge(
    bridge: BridgeConfig,
    mappings: Sequence[MappingConfig],
    ids: StreamIds,
    *,
    static: Iterable[int] = (),
    profiles: Container[str] = (),
) -> None:
    """Raises `ValueError` for what cannot work together; `static` are streams that the driver is configured with."""
    if not mappings:
        raise ValueError("mappings: a bridge needs at least one")
    for mapping in mappings:
        _check_mapping(bridge, mapping, ids)
        if mapping.driverless and mapping.profile != "default" and mapping.profile not in profiles:
            raise ValueError(f"mapping of stream {mapping.source_stream_id}: no profile {mapping.profile!r}")
    _check_destinations(bridge, mappings, ids, static)
    sending = [mapping for mapping in mappings if direction(bridge, mapping) == "sender"]
    receiving = [mapping for mapping in mappings if direction(bridge, mapping) == "receiver"]
    _check_distinct(sending, receiving)
    _check_loops(sending, receiving)
    _check_links(bridge, sending, receiving, ids)


def direction(bridge: BridgeConfig, mapping: MappingConfig) -> Role:
    """What this instance does for a mapping."""
    return mapping.role or bridge.role


def _check_mapping(bridge: BridgeConfig, mapping: MappingConfig, ids: StreamIds) -> None:
    what = f"mapping of stream {mapping.source_stream_id}"
    if mapping.link and mapping.link not in bridge.links:
        raise ValueError(f"{what}: no link {mapping.link!r}; known: {sorted(bridge.links)}")
    if bridge.forward_progress and not (mapping.source_control_stream_id and mapping.dest_control_stream_id):
        raise ValueError(
            f"{what}: forward_progress needs source_control_stream_id and dest_control_stream_id (Bridge 9)"
        )
    if bridge.forward_metadata and not bridge.link(mapping.link).metadata_channel:
        raise ValueError(f"{what}: forward_metadata = true, and link {mapping.link!r} has no metadata_channel")
    receiving = direction(bridge, mapping) == "receiver"
    if mapping.driverless and not receiving:
        raise ValueError(f"{what}: driverless is for receivers")
    if mapping.dest_stream_id == 0 and receiving and bridge.destinations is None:
        raise ValueError(f"{what}: no dest_stream_id, and no dest_stream_id_range to take one from (Bridge 4)")
    for low, high, name in _control_plane(ids):
        if low <= mapping.dest_stream_id <= high:
            raise ValueError(f"{what}: dest_stream_id {mapping.dest_stream_id} is of stream_ids.{name}")


def _check_destinations(
    bridge: BridgeConfig, mappings: Sequence[MappingConfig], ids: StreamIds, static: Iterable[int]
) -> None:
    """The ids that destinations are taken from are nobody else's (Bridge 4, 10)."""
    if bridge.destinations is None:
        return
    taken = [(low, high, f"stream_ids.{name}") for low, high, name in _control_plane(ids)]
    taken += [(*ids.pools, "stream_ids.pools"), (*ids.driver_allocated, "stream_ids.driver_allocated")]
    taken += [(low, high, "reserved_ranges") for low, high in bridge.reserved_ranges]
    taken += [(stream, stream, "a configured stream") for stream in static]
    for mapping in mappings:
        named = [mapping.dest_stream_id, mapping.metadata_stream_id]
        named += [mapping.source_control_stream_id, mapping.dest_control_stream_id]
        named += [mapping.source_qos_stream_id, mapping.dest_qos_stream_id]
        taken += [(stream, stream, f"the mapping of {mapping.source_stream_id}") for stream in named if stream]
    first, last = bridge.destinations
    receiving = [mapping for mapping in mappings if direction(bridge, mapping) == "receiver"]
    if sum(mapping.dest_stream_id == 0 for mapping in receiving) > last - first + 1:
        raise ValueError(f"dest_stream_id_range {first}-{last} has too few ids for the mappings that need one")
    for low, high, name in taken:
        if low <= last and first <= high:
            raise ValueError(f"dest_stream_id_range {first}-{last} overlaps {name} at {max(low, first)}")


def _check_distinct(sending: Sequence[MappingConfig], receiving: Sequence[MappingConfig]) -> None:
    """No two mappings of one direction do the same, and the directions have ids of their own (Bridge 2.3)."""
    for group in (sending, receiving):
        for one, other in itertools.combinations(group, 2):
            if (one.link, one.source_stream_id) == (other.link, other.source_stream_id):
                raise ValueError(f"stream {one.source_stream_id} is mapped twice on one link")
    for one, other in itertools.combinations(receiving, 2):
        if one.dest_stream_id and one.dest_stream_id == other.dest_stream_id:
            raise ValueError(f"stream {one.dest_stream_id} is the destination of two mappings")
        if one.metadata_stream_id and one.metadata_stream_id == other.metadata_stream_id:
            raise ValueError(f"metadata of two sources would be about stream {one.metadata_stream_id}")
    for out, back in itertools.product(sending, receiving):
        if out.source_stream_id == back.source_stream_id:
            raise ValueError(f"stream {out.source_stream_id} is the source of a mapping in either direction")
        if out.dest_stream_id and out.dest_stream_id == back.dest_stream_id:
            raise ValueError(f"stream {out.dest_stream_id} is the destination of a mapping in either direction")


def _check_loops(sending: Iterable[MappingConfig], receiving: Iterable[MappingConfig]) -> None:
    """No stream comes back to where it came from. The other hosts count as one: which of them is at the end of a
    channel cannot be told from here."""
    onward: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for mapping in sending:
        onward.setdefault(("here", mapping.source_stream_id), []).append(("there", mapping.dest_stream_id))
    for mapping in receiving:
        onward.setdefault(("there", mapping.source_stream_id), []).append(("here", mapping.dest_stream_id))
    for start, next_to in onward.items():
        reached = set(next_to)
        ahead = list(reached)
        while ahead:
            further = set(onward.get(ahead.pop(), ())) - reached
            reached |= further
            ahead += further
        if start in reached:
            raise ValueError(f"the mappings send stream {start[1]} back to where it came from; use other ids")


def _check_links(
    bridge: BridgeConfig, sending: Iterable[MappingConfig], receiving: Iterable[MappingConfig], ids: StreamIds
) -> None:
    """The streams of links are not those of the host, and in either direction others where the channel is the same."""
    out = {mapping.link for mapping in sending}
    back = {mapping.link for mapping in receiving}
    local = [*_control_plane(ids), (*ids.pools, "pools"), (*ids.driver_allocated, "driver_allocated")]
    for name in out | back:
        for kind, _, stream_id in bridge.link(name).streams(ids):
            for low, high, taken in local:
                if low <= stream_id <= high:
                    raise ValueError(f"{kind}_stream_id {stream_id} is of stream_ids.{taken} (Bridge 4)")
    for one, other in itertools.product(out, back):
        there, here = list(bridge.link(one).streams(ids)), list(bridge.link(other).streams(ids))
        for (kind, where, stream_id), (twin, elsewhere, twin_id) in itertools.product(there, here):
            if (where, stream_id) == (elsewhere, twin_id):
                raise ValueError(
                    f"{kind} and {twin} of the two directions share stream {stream_id} of one channel: give the way "
                    "back a link with other stream ids (Bridge 2.3)"
                )


def _control_plane(ids: StreamIds) -> Iterator[tuple[int, int, str]]:
    """The ids of the plan that are no tensor streams and not the bridges' own."""
    for name in ids.__struct_fields__:
        if name.startswith("bridge_") or name in {"pools", "driver_allocated"}:
            continue
        value = getattr(ids, name)
        low, high = value if isinstance(value, tuple) else (value, value)
        yield low, high, name


def _media(name: str, text: str, *, udp: bool) -> tuple[str, str, str]:
    """What tells one channel from another."""
    try:
        media, parameters = channel.parse(text)
    except ConfigurationError as error:
        raise ValueError(f"{name}: {error}") from error
    if udp and media != "udp":
        raise ValueError(f"{name}: {text!r} must be a UDP channel, aeron:udp?…")
    if media == "udp" and not ("endpoint" in parameters or "control" in parameters):
        raise ValueError(f"{name}: {text!r} names neither an endpoint nor a control address")
    return media, parameters.get("endpoint", ""), parameters.get("control", "")


def _mtu_of(text: str) -> int:
    """The MTU that a channel names, 0 if it names none."""
    _, parameters = channel.parse(text)
    named = parameters.get("mtu", "0").lower()
    factor = {"k": 1024, "m": 1024**2}.get(named[-1:], 1)
    try:
        return int(named.removesuffix("k").removesuffix("m")) * factor
    except ValueError:
        raise ValueError(f"{text!r}: mtu={named} is no size") from None
