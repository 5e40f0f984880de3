"""What is asked of discovery (Discovery 5.1)."""

from __future__ import annotations

import msgspec

from framepool.discovery.address import Address
from framepool.discovery.stream import Stream
from framepool.wire._generated.discovery_910 import DiscoveryRequest, Tag
from framepool.wire.attributes import check_text
from framepool.wire.message import UINT32_NULL, UINT64_NULL

NAME_LIMIT = 256
TAG_LIMIT = 255


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which streams: all that is given must hold (Discovery 5.1). Nothing given is all streams."""

    name: str | None = None
    tags: tuple[str, ...] = ()
    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_text("the name of a stream", self.name, NAME_LIMIT)
            if not self.name:
                raise ValueError("an empty name asks for nothing; leave it out to ask for all streams")
        for tag in self.tags:
            check_text("a tag", tag, TAG_LIMIT)
            if not tag:
                raise ValueError("an empty tag asks for nothing")
        for field, null in (("stream_id", UINT32_NULL), ("producer_id", UINT32_NULL), ("data_source_id", UINT64_NULL)):
            value = getattr(self, field)
            if value is not None and not 0 <= value < null:
                raise ValueError(f"{field} is {value}, must be 0 to {null - 1}")

    def request(self, request_id: int, client_id: int, address: Address) -> DiscoveryRequest:
        """The question as a message."""
        return DiscoveryRequest(
            request_id=request_id,
            client_id=client_id,
            response_channel=address.response_channel,
            response_stream_id=address.response_stream_id,
            stream_id=self.stream_id,
            producer_id=self.producer_id,
            data_source_id=self.data_source_id,
            data_source_name=self.name or "",
            tags=tuple(Tag(tag=tag) for tag in dict.fromkeys(self.tags)),
        )

    def matches(self, stream: Stream) -> bool:
        """Whether a result is one that was asked for; names and tags byte for byte (Discovery 5.1)."""
        return (
            (self.name is None or stream.name == self.name)
            and (self.stream_id is None or stream.stream_id == self.stream_id)
            and (self.producer_id is None or stream.producer_id == self.producer_id)
            and (self.data_source_id is None or stream.data_source_id == self.data_source_id)
            and set(self.tags) <= set(stream.tags)
        )

    def __str__(self) -> str:
        asked = [f"name {self.name!r}"] if self.name is not None else []
        asked += [f"tag {tag!r}" for tag in self.tags]
        for field in ("stream_id", "producer_id", "data_source_id"):
            value = getattr(self, field)
            if value is not None:
                asked.append(f"{field} {value}")
        return " and ".join(asked) or "all streams"
