"""The messages of schema 904, `shm.tensorpool.trace` version 1.

Written by `python -m framepool.wire.codegen` from schemas/trace-904.xml: do not edit.
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar, Final, Self

from framepool.wire.cursor import Cursor
from framepool.wire.message import (
    UNFIT,
    Block,
    Field,
    Message,
    MessageHeader,
    encode_group,
    unfit,
)


class Parent(Block, frozen=True, kw_only=True, rename="camel"):
    """An entry of a group: a block of 8 bytes."""

    trace_id: int

    BLOCK: ClassVar[Struct] = Struct("<Q")
    BLOCK_LENGTH: ClassVar[int] = 8
    MINIMUM_LENGTH: ClassVar[int] = 8
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("traceId", 0, "Q"),)

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(self.trace_id)
        except UNFIT:
            unfit(self)

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        (trace_id,) = cursor.block(cls.BLOCK, "Parent")
        return cls(trace_id=trace_id)


class TraceLinkSet(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 904: a block of 28 bytes and what follows it."""

    stream_id: int
    epoch: int
    seq: int
    trace_id: int
    parents: tuple[Parent, ...] = ()

    SCHEMA: ClassVar[str] = "shm.tensorpool.trace"
    SCHEMA_ID: ClassVar[int] = 904
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(28, 1, 904, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IQQQ")
    BLOCK_LENGTH: ClassVar[int] = 28
    MINIMUM_LENGTH: ClassVar[int] = 32
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("epoch", 4, "Q"),
        Field("seq", 12, "Q"),
        Field("traceId", 20, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.stream_id, self.epoch, self.seq, self.trace_id)
        except UNFIT:
            unfit(self)
        return block + encode_group(self.parents, 8, "TraceLinkSet.parents")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        stream_id, epoch, seq, trace_id = cursor.block(cls.BLOCK, "TraceLinkSet")
        parents = cursor.group("TraceLinkSet.parents", Parent)
        return cls(stream_id=stream_id, epoch=epoch, seq=seq, trace_id=trace_id, parents=parents)


MESSAGES: Final[tuple[type[Message], ...]] = (TraceLinkSet,)
