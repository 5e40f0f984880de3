"""What discovery says of a stream, judged before anybody sees it (Discovery 5.2, 7).

A `Stream` is a snapshot: it names who has a stream and where to ask for it, and nothing that could be mapped. Region
URIs, epoch and layout to be used come from the driver in answer to an attach request, so that URIs are not even kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from framepool.discovery.address import LAST_STREAM_ID
from framepool.discovery.host import hosts_of
from framepool.errors import ConfigurationError
from framepool.transport import channel
from framepool.wire._generated.discovery_910 import Result
from framepool.wire.constants import HEADER_SLOT_BYTES, MAX_DIMS

LONGEST_CHANNEL: Final = 1_024


class Fault(StrEnum):
    """Why a result is not used."""

    CHANNEL = "no usable control channel"
    CONTROL_STREAM = "no usable control stream"
    NSLOTS = "pool_nslots is not header_nslots"
    LAYOUT = "not the layout of version 1"
    NOT_ASKED = "not what was asked for"
    STALE = "a newer epoch was announced"


ASK_AGAIN: Final = frozenset({Fault.NSLOTS, Fault.LAYOUT, Fault.STALE})
"""What a provider may have right the next time (Discovery 7; `decisions.md` #47)."""


class StreamPool(msgspec.Struct, frozen=True, kw_only=True):
    """A size class of a stream."""

    pool_id: int
    stride_bytes: int
    """The largest payload."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as discovery found it: what it is called, who owns it, and where. A snapshot, which grants nothing.

    >>> (found,) = pool.discover("camera")
    >>> found.stream_id, found.tags[0], found.local
    (10000, 'lab:3', True)
    >>> reader = pool.consumer(found)                       # attaches to the driver that the result names
    """

    stream_id: int
    """The id of the tensor stream; unique within its driver."""
    name: str = ""
    """What its producer calls it, byte for byte; "" is no name."""
    epoch: int
    """The generation of its files when the answer was given."""
    layout_version: int
    """Of its shared memory, as the provider says; what counts is the driver's."""
    nslots: int
    """Slots of its ring."""
    pools: tuple[StreamPool, ...] = ()
    """Its size classes."""
    tags: tuple[str, ...] = ()
    """All its tags, in their own case."""
    data_source_id: int | None = None
    """The number of its data source, if it has one."""
    producer_id: int
    """The client that produces it; 0 is nobody right now."""
    driver: str
    """The instance of the driver that owns it."""
    control_channel: str
    """Where that driver takes attach requests."""
    control_stream_id: int
    """On which Aeron stream."""
    host: str = ""
    """The host that its memory is on; "" if the provider does not say."""
    local: bool = False
    """Whether that is this host: only then can it be attached to."""

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it (Discovery 6.1, 8): the driver and the id.

        >>> pool.discover("camera")[0].key[1]
        10000
        """
        return self.driver, self.stream_id


def read(result: Result, here: str) -> Stream | Fault:
    """The stream that a result describes, on the host `here` or elsewhere; or why it is not to be used."""
    if not 0 < result.driver_control_stream_id <= LAST_STREAM_ID:
        return Fault.CONTROL_STREAM
    if not _is_channel(result.driver_control_channel):
        return Fault.CHANNEL
    if any(pool.pool_nslots != result.header_nslots for pool in result.payload_pools):
        return Fault.NSLOTS
    if result.header_slot_bytes != HEADER_SLOT_BYTES or result.max_dims != MAX_DIMS:
        return Fault.LAYOUT
    tags = tuple(tag.tag for tag in result.tags)
    hosts = hosts_of(tags)
    return Stream(
        stream_id=result.stream_id,
        name=result.data_source_name,
        epoch=result.epoch,
        layout_version=result.layout_version,
        nslots=result.header_nslots,
        pools=tuple(StreamPool(pool_id=pool.pool_id, stride_bytes=pool.stride_bytes) for pool in result.payload_pools),
        tags=tags,
        data_source_id=result.data_source_id,
        producer_id=result.producer_id,
        driver=result.driver_instance_id,
        control_channel=result.driver_control_channel,
        control_stream_id=result.driver_control_stream_id,
        host=" ".join(sorted(hosts)),
        local=hosts == {here},
    )


def newest(streams: Iterable[Stream]) -> list[Stream]:
    """One of each driver and stream, of the highest epoch, in order (Discovery 7)."""
    best: dict[tuple[str, int], Stream] = {}
    for stream in streams:
        known = best.get(stream.key)
        if known is None or stream.epoch > known.epoch:
            best[stream.key] = stream
    return sorted(best.values(), key=lambda stream: (stream.name, stream.stream_id, stream.driver))


def _is_channel(name: str) -> bool:
    if not name or len(name) > LONGEST_CHANNEL:
        return False
    try:
        channel.parse(name)
    except ConfigurationError:
        return False
    return True
