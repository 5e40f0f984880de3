"""The messages of schema 905, `shm.tensorpool.event` version 1.

Written by `python -m framepool.wire.codegen` from schemas/event-905.xml: do not edit.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import ClassVar, Final, Self

from framepool.wire.cursor import Cursor
from framepool.wire.message import (
    MALFORMED,
    UINT32_NULL,
    UINT64_NULL,
    UNFIT,
    Field,
    Message,
    MessageHeader,
    encode_ascii,
    encode_data,
    exactly,
    malformed,
    optional,
    unfit,
)


class Format(IntEnum):
    """int8 on the wire."""

    NOTHING = 0
    UINT8 = 1
    INT8 = 2
    UINT16 = 3
    INT16 = 4
    UINT32 = 5
    INT32 = 6
    UINT64 = 7
    INT64 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    BOOLEAN = 11
    STRING = 12
    BYTES = 13
    BIT = 14
    REF = 15


FORMAT_OF: Final = {member.value: member for member in Format}


class EventMessage(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 905: a block of 40 bytes and what follows it."""

    timestamp_ns: int
    correlation_id: int
    format: Format
    pad: bytes = bytes(3)
    ref_stream_id: int | None = None
    ref_epoch: int | None = None
    ref_seq: int | None = None
    tag: str = ""
    key: str = ""
    value: bytes = b""

    SCHEMA: ClassVar[str] = "shm.tensorpool.event"
    SCHEMA_ID: ClassVar[int] = 905
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(40, 1, 905, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    EXTENSIBLE: ClassVar[bool] = True
    BLOCK: ClassVar[Struct] = Struct("<qqb3sIQQ")
    BLOCK_LENGTH: ClassVar[int] = 40
    MINIMUM_LENGTH: ClassVar[int] = 52
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("timestampNs", 0, "q"),
        Field("correlationId", 8, "q"),
        Field("format", 16, "b", values=FORMAT_OF),
        Field("pad", 17, "3s"),
        Field("refStreamId", 20, "I", null=UINT32_NULL),
        Field("refEpoch", 24, "Q", null=UINT64_NULL),
        Field("refSeq", 32, "Q", null=UINT64_NULL),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.timestamp_ns,
                self.correlation_id,
                FORMAT_OF[self.format],
                exactly(self.pad, 3),
                optional(self.ref_stream_id, UINT32_NULL),
                optional(self.ref_epoch, UINT64_NULL),
                optional(self.ref_seq, UINT64_NULL),
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_ascii(self.tag, 1_073_741_824, "EventMessage.tag")
            + encode_ascii(self.key, 1_073_741_824, "EventMessage.key")
            + encode_data(self.value, 1_073_741_824, "EventMessage.value")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            timestamp_ns,
            correlation_id,
            format,
            pad,
            ref_stream_id,
            ref_epoch,
            ref_seq,
        ) = cursor.block(cls.BLOCK, "EventMessage")
        cursor.skip_extension("EventMessage")
        tag = cursor.ascii("EventMessage.tag", 1_073_741_824)
        key = cursor.ascii("EventMessage.key", 1_073_741_824)
        value = cursor.data("EventMessage.value", 1_073_741_824)
        try:
            return cls(
                timestamp_ns=timestamp_ns,
                correlation_id=correlation_id,
                format=FORMAT_OF[format],
                pad=pad,
                ref_stream_id=None if ref_stream_id == UINT32_NULL else ref_stream_id,
                ref_epoch=None if ref_epoch == UINT64_NULL else ref_epoch,
                ref_seq=None if ref_seq == UINT64_NULL else ref_seq,
                tag=tag,
                key=key,
                value=value,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


MESSAGES: Final[tuple[type[Message], ...]] = (EventMessage,)
