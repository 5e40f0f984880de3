"""The plan of stream ids (`decisions.md` section 0) and the channel of each logical stream (Wire 5)."""

from __future__ import annotations

import itertools

from framepool.config.section import IdRange, Section, StreamId
from framepool.errors import ConfigurationError
from framepool.transport import channel


class StreamIds(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Aeron stream ids of the control plane and the ranges of tensor streams (Wire 15.11)."""

    control: StreamId = 1000
    """Requests to the driver and its answers, hellos and configuration of consumers."""
    announce: StreamId = 1001
    """ShmPoolAnnounce."""
    descriptor: StreamId = 1100
    """FrameDescriptor of all tensor streams."""
    qos: StreamId = 1200
    """QoS reports."""
    metadata: StreamId = 1300
    """Metadata of data sources."""
    service_control: StreamId = 1400
    """Commands to services."""
    service_status: StreamId = 1401
    """Their echo."""
    discovery_request: StreamId = 7000
    """Questions to discovery."""
    discovery_response: StreamId = 7004
    """Its answers, unless the question names another."""
    bridge_payload: StreamId = 3000
    """Chunks between bridges."""
    bridge_control: StreamId = 3001
    """Control messages between bridges."""
    bridge_metadata: StreamId = 3002
    """Metadata between bridges."""
    pools: IdRange = (10_000, 10_999)
    """Tensor streams that people name."""
    driver_allocated: IdRange = (20_000, 29_999)
    """Tensor streams that programs make on demand."""
    consumer_descriptor: IdRange = (31_000, 31_999)
    """Descriptor streams of single consumers."""
    consumer_control: IdRange = (32_000, 32_999)
    """Progress streams of single consumers."""
    bridge_destinations: IdRange = (50_000, 59_999)
    """Tensor streams that bridges make."""

    def __post_init__(self) -> None:
        taken: list[tuple[int, int, str]] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            low, high = value if isinstance(value, tuple) else (value, value)
            if low > high:
                raise ValueError(f"range {name} runs backwards: {low} to {high}")
            taken.append((low, high, name))
        taken.sort()
        for (_, high, name), (low, _, other) in itertools.pairwise(taken):
            if low <= high:
                raise ValueError(f"stream ids of {name} and {other} overlap at {low}")


class Channels(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Aeron channel of each logical stream (Wire 5); on one host all of them are IPC (Wire 15.16)."""

    control: str = "aeron:ipc"
    """Of control messages."""
    announce: str = "aeron:ipc"
    """Of announces."""
    descriptor: str = "aeron:ipc"
    """Of descriptors."""
    qos: str = "aeron:ipc"
    """Of QoS reports."""
    metadata: str = "aeron:ipc"
    """Of metadata."""
    service_control: str = "aeron:ipc"
    """Of commands to services."""
    service_status: str = "aeron:ipc"
    """Of what services say: accepted commands and status."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            try:
                channel.parse(getattr(self, name))
            except ConfigurationError as error:
                raise ValueError(f"{name}: {error}") from error
