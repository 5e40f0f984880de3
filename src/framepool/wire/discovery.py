"""Discovery messages by halves: a response of results that are encoded already, and what can still be read of a
request that is malformed (Discovery 5.2).

A provider answers the same streams again and again, so it keeps their encoding. A requester whose message cannot be
decoded is told so if its endpoint, at least, can be read.
"""

from __future__ import annotations

from collections.abc import Buffer, Sequence
from typing import NamedTuple

from framepool.errors import DecodeError
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus, Result, Tag
from framepool.wire.cursor import DATA_LENGTH, GROUP_DIMENSIONS, Cursor
from framepool.wire.message import MESSAGE_HEADER, MessageHeader

TEXT_MAXIMUM = 1_073_741_824
RESPONSE_OVERHEAD = DiscoveryResponse.BLOCK_LENGTH + MESSAGE_HEADER.size + GROUP_DIMENSIONS.size + DATA_LENGTH.size
"""Bytes of a response besides its results."""


def encode_found(request_id: int, results: Sequence[bytes]) -> bytes:
    """The response OK with these results, each as `Result.encode_body` gives it."""
    return b"".join(
        (
            DiscoveryResponse.HEADER_BYTES,
            DiscoveryResponse.BLOCK.pack(request_id, DiscoveryStatus.OK),
            GROUP_DIMENSIONS.pack(Result.BLOCK_LENGTH, len(results)),
            *results,
            DATA_LENGTH.pack(0),
        )
    )


class SalvagedRequest(NamedTuple):
    """Who sent a request that is malformed, and where the answer goes."""

    request_id: int
    client_id: int
    response_stream_id: int
    response_channel: str
    reason: str


def salvage_request(buffer: Buffer) -> SalvagedRequest | None:
    """The sender of a request of our version that cannot be decoded; None if it does not say where to answer."""
    cursor = Cursor(buffer)
    try:
        header = MessageHeader._make(cursor.block(MESSAGE_HEADER, "messageHeader"))
        DiscoveryRequest.check_header(header)
        request_id, client_id, response_stream_id, *_ = cursor.block(DiscoveryRequest.BLOCK, "DiscoveryRequest")
        _skip_tags(cursor)
        channel = cursor.ascii("DiscoveryRequest.response_channel", TEXT_MAXIMUM)
    except DecodeError:
        return None
    try:
        DiscoveryRequest.decode(buffer)
    except DecodeError as error:
        return SalvagedRequest(request_id, client_id, response_stream_id, channel, str(error))
    return None


def _skip_tags(cursor: Cursor) -> None:
    """Moves over the tags without reading them: their bytes may be what is wrong."""
    block_length, count = cursor.block(GROUP_DIMENSIONS, "DiscoveryRequest.tags")
    if block_length != Tag.BLOCK_LENGTH:
        raise DecodeError("tags of another dialect")
    for _ in range(count):
        cursor.data("Tag.tag", TEXT_MAXIMUM)
