"""The messages of schema 902, `shm.tensorpool.bridge` version 1.

Written by `python -m framepool.wire.codegen` from schemas/bridge-902.xml: do not edit.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import ClassVar, Final, Self

from framepool.wire.cursor import Cursor
from framepool.wire.message import (
    MALFORMED,
    UNFIT,
    Field,
    Message,
    MessageHeader,
    at_most,
    encode_data,
    malformed,
    unfit,
)


class Bool(IntEnum):
    """uint8 on the wire."""

    FALSE = 0
    TRUE = 1


BOOL_OF: Final = {member.value: member for member in Bool}


class BridgeFrameChunk(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 902: a block of 41 bytes and what follows it."""

    stream_id: int
    epoch: int
    seq: int
    chunk_index: int
    chunk_count: int
    chunk_offset: int
    chunk_length: int
    payload_length: int
    header_included: Bool
    header_bytes: bytes = b""
    payload_bytes: bytes = b""

    SCHEMA: ClassVar[str] = "shm.tensorpool.bridge"
    SCHEMA_ID: ClassVar[int] = 902
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(41, 1, 902, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IQQIIIIIB")
    BLOCK_LENGTH: ClassVar[int] = 41
    MINIMUM_LENGTH: ClassVar[int] = 49
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("epoch", 4, "Q"),
        Field("seq", 12, "Q"),
        Field("chunkIndex", 20, "I", maximum=65_535),
        Field("chunkCount", 24, "I", maximum=65_535),
        Field("chunkOffset", 28, "I"),
        Field("chunkLength", 32, "I", maximum=65_535),
        Field("payloadLength", 36, "I", maximum=1_073_741_824),
        Field("headerIncluded", 40, "B", values=BOOL_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.stream_id,
                self.epoch,
                self.seq,
                at_most(self.chunk_index, 65_535),
                at_most(self.chunk_count, 65_535),
                self.chunk_offset,
                at_most(self.chunk_length, 65_535),
                at_most(self.payload_length, 1_073_741_824),
                BOOL_OF[self.header_included],
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_data(self.header_bytes, 256, "BridgeFrameChunk.header_bytes")
            + encode_data(self.payload_bytes, 1_073_741_824, "BridgeFrameChunk.payload_bytes")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            stream_id,
            epoch,
            seq,
            chunk_index,
            chunk_count,
            chunk_offset,
            chunk_length,
            payload_length,
            header_included,
        ) = cursor.block(cls.BLOCK, "BridgeFrameChunk")
        header_bytes = cursor.data("BridgeFrameChunk.header_bytes", 256)
        payload_bytes = cursor.data("BridgeFrameChunk.payload_bytes", 1_073_741_824)
        try:
            return cls(
                stream_id=stream_id,
                epoch=epoch,
                seq=seq,
                chunk_index=at_most(chunk_index, 65_535),
                chunk_count=at_most(chunk_count, 65_535),
                chunk_offset=chunk_offset,
                chunk_length=at_most(chunk_length, 65_535),
                payload_length=at_most(payload_length, 1_073_741_824),
                header_included=BOOL_OF[header_included],
                header_bytes=header_bytes,
                payload_bytes=payload_bytes,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


MESSAGES: Final[tuple[type[Message], ...]] = (BridgeFrameChunk,)
