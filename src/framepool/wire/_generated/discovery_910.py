"""The messages of schema 910, `shm.tensorpool.discovery` version 1.

Written by `python -m framepool.wire.codegen` from schemas/discovery-910.xml: do not edit.
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
    Block,
    Field,
    Message,
    MessageHeader,
    encode_ascii,
    encode_group,
    malformed,
    optional,
    unfit,
)


class DiscoveryStatus(IntEnum):
    """uint8 on the wire."""

    OK = 1
    NOT_FOUND = 2
    ERROR = 3


DISCOVERY_STATUS_OF: Final = {member.value: member for member in DiscoveryStatus}


class Tag(Block, frozen=True, kw_only=True, rename="camel"):
    """An entry of a group: a block of 0 bytes."""

    tag: str = ""

    BLOCK: ClassVar[Struct] = Struct("<")
    BLOCK_LENGTH: ClassVar[int] = 0
    MINIMUM_LENGTH: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def encode_body(self) -> bytes:
        return encode_ascii(self.tag, 1_073_741_824, "Tag.tag")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        tag = cursor.ascii("Tag.tag", 1_073_741_824)
        return cls(tag=tag)


class PayloadPool(Block, frozen=True, kw_only=True, rename="camel"):
    """An entry of a group: a block of 10 bytes."""

    pool_id: int
    pool_nslots: int
    stride_bytes: int
    region_uri: str = ""

    BLOCK: ClassVar[Struct] = Struct("<HII")
    BLOCK_LENGTH: ClassVar[int] = 10
    MINIMUM_LENGTH: ClassVar[int] = 14
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("poolId", 0, "H"),
        Field("poolNslots", 2, "I"),
        Field("strideBytes", 6, "I"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.pool_id, self.pool_nslots, self.stride_bytes)
        except UNFIT:
            unfit(self)
        return block + encode_ascii(self.region_uri, 1_073_741_824, "PayloadPool.region_uri")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        pool_id, pool_nslots, stride_bytes = cursor.block(cls.BLOCK, "PayloadPool")
        region_uri = cursor.ascii("PayloadPool.region_uri", 1_073_741_824)
        return cls(pool_id=pool_id, pool_nslots=pool_nslots, stride_bytes=stride_bytes, region_uri=region_uri)


class Result(Block, frozen=True, kw_only=True, rename="camel"):
    """An entry of a group: a block of 39 bytes."""

    stream_id: int
    producer_id: int
    epoch: int
    layout_version: int
    header_nslots: int
    header_slot_bytes: int
    max_dims: int
    data_source_id: int | None = None
    driver_control_stream_id: int
    payload_pools: tuple[PayloadPool, ...] = ()
    tags: tuple[Tag, ...] = ()
    header_region_uri: str = ""
    data_source_name: str = ""
    driver_instance_id: str = ""
    driver_control_channel: str = ""

    BLOCK: ClassVar[Struct] = Struct("<IIQIIHBQI")
    BLOCK_LENGTH: ClassVar[int] = 39
    MINIMUM_LENGTH: ClassVar[int] = 63
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("producerId", 4, "I"),
        Field("epoch", 8, "Q"),
        Field("layoutVersion", 16, "I"),
        Field("headerNslots", 20, "I"),
        Field("headerSlotBytes", 24, "H"),
        Field("maxDims", 26, "B"),
        Field("dataSourceId", 27, "Q", null=UINT64_NULL),
        Field("driverControlStreamId", 35, "I"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.stream_id,
                self.producer_id,
                self.epoch,
                self.layout_version,
                self.header_nslots,
                self.header_slot_bytes,
                self.max_dims,
                optional(self.data_source_id, UINT64_NULL),
                self.driver_control_stream_id,
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_group(self.payload_pools, 10, "Result.payload_pools")
            + encode_group(self.tags, 0, "Result.tags")
            + encode_ascii(self.header_region_uri, 1_073_741_824, "Result.header_region_uri")
            + encode_ascii(self.data_source_name, 1_073_741_824, "Result.data_source_name")
            + encode_ascii(self.driver_instance_id, 1_073_741_824, "Result.driver_instance_id")
            + encode_ascii(self.driver_control_channel, 1_073_741_824, "Result.driver_control_channel")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        (
            stream_id,
            producer_id,
            epoch,
            layout_version,
            header_nslots,
            header_slot_bytes,
            max_dims,
            data_source_id,
            driver_control_stream_id,
        ) = cursor.block(cls.BLOCK, "Result")
        payload_pools = cursor.group("Result.payload_pools", PayloadPool)
        tags = cursor.group("Result.tags", Tag)
        header_region_uri = cursor.ascii("Result.header_region_uri", 1_073_741_824)
        data_source_name = cursor.ascii("Result.data_source_name", 1_073_741_824)
        driver_instance_id = cursor.ascii("Result.driver_instance_id", 1_073_741_824)
        driver_control_channel = cursor.ascii("Result.driver_control_channel", 1_073_741_824)
        return cls(
            stream_id=stream_id,
            producer_id=producer_id,
            epoch=epoch,
            layout_version=layout_version,
            header_nslots=header_nslots,
            header_slot_bytes=header_slot_bytes,
            max_dims=max_dims,
            data_source_id=None if data_source_id == UINT64_NULL else data_source_id,
            driver_control_stream_id=driver_control_stream_id,
            payload_pools=payload_pools,
            tags=tags,
            header_region_uri=header_region_uri,
            data_source_name=data_source_name,
            driver_instance_id=driver_instance_id,
            driver_control_channel=driver_control_channel,
        )


class DiscoveryRequest(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 910: a block of 32 bytes and what follows it."""

    request_id: int
    client_id: int
    response_stream_id: int
    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None
    tags: tuple[Tag, ...] = ()
    response_channel: str = ""
    data_source_name: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.discovery"
    SCHEMA_ID: ClassVar[int] = 910
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(32, 1, 910, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<QIIIIQ")
    BLOCK_LENGTH: ClassVar[int] = 32
    MINIMUM_LENGTH: ClassVar[int] = 44
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("requestId", 0, "Q"),
        Field("clientId", 8, "I"),
        Field("responseStreamId", 12, "I"),
        Field("streamId", 16, "I", null=UINT32_NULL),
        Field("producerId", 20, "I", null=UINT32_NULL),
        Field("dataSourceId", 24, "Q", null=UINT64_NULL),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.request_id,
                self.client_id,
                self.response_stream_id,
                optional(self.stream_id, UINT32_NULL),
                optional(self.producer_id, UINT32_NULL),
                optional(self.data_source_id, UINT64_NULL),
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_group(self.tags, 0, "DiscoveryRequest.tags")
            + encode_ascii(self.response_channel, 1_073_741_824, "DiscoveryRequest.response_channel")
            + encode_ascii(self.data_source_name, 1_073_741_824, "DiscoveryRequest.data_source_name")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        (
            request_id,
            client_id,
            response_stream_id,
            stream_id,
            producer_id,
            data_source_id,
        ) = cursor.block(cls.BLOCK, "DiscoveryRequest")
        tags = cursor.group("DiscoveryRequest.tags", Tag)
        response_channel = cursor.ascii("DiscoveryRequest.response_channel", 1_073_741_824)
        data_source_name = cursor.ascii("DiscoveryRequest.data_source_name", 1_073_741_824)
        return cls(
            request_id=request_id,
            client_id=client_id,
            response_stream_id=response_stream_id,
            stream_id=None if stream_id == UINT32_NULL else stream_id,
            producer_id=None if producer_id == UINT32_NULL else producer_id,
            data_source_id=None if data_source_id == UINT64_NULL else data_source_id,
            tags=tags,
            response_channel=response_channel,
            data_source_name=data_source_name,
        )


class DiscoveryResponse(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 2 of schema 910: a block of 9 bytes and what follows it."""

    request_id: int
    status: DiscoveryStatus
    results: tuple[Result, ...] = ()
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.discovery"
    SCHEMA_ID: ClassVar[int] = 910
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 2
    HEADER: ClassVar[MessageHeader] = MessageHeader(9, 2, 910, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<QB")
    BLOCK_LENGTH: ClassVar[int] = 9
    MINIMUM_LENGTH: ClassVar[int] = 17
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("requestId", 0, "Q"),
        Field("status", 8, "B", values=DISCOVERY_STATUS_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.request_id, DISCOVERY_STATUS_OF[self.status])
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_group(self.results, 39, "DiscoveryResponse.results")
            + encode_ascii(self.error_message, 1_073_741_824, "DiscoveryResponse.error_message")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        request_id, status = cursor.block(cls.BLOCK, "DiscoveryResponse")
        results = cursor.group("DiscoveryResponse.results", Result)
        error_message = cursor.ascii("DiscoveryResponse.error_message", 1_073_741_824)
        try:
            return cls(
                request_id=request_id,
                status=DISCOVERY_STATUS_OF[status],
                results=results,
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


MESSAGES: Final[tuple[type[Message], ...]] = (
    DiscoveryRequest,
    DiscoveryResponse,
)
