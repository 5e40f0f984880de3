"""The messages of schema 901, `shm.tensorpool.driver` version 1.

Written by `python -m framepool.wire.codegen` from schemas/driver-901.xml: do not edit.
"""

from __future__ import annotations

from collections.abc import Buffer
from enum import IntEnum
from struct import Struct
from typing import ClassVar, Final, Self

from framepool.wire.cursor import Cursor
from framepool.wire.message import (
    MALFORMED,
    UINT8_NULL,
    UINT16_NULL,
    UINT32_NULL,
    UINT64_NULL,
    UNFIT,
    Block,
    Field,
    FixedMessage,
    Message,
    MessageHeader,
    encode_ascii,
    encode_group,
    malformed,
    optional,
    refuse,
    unfit,
)


class Bool(IntEnum):
    """uint8 on the wire."""

    FALSE = 0
    TRUE = 1


BOOL_OF: Final = {member.value: member for member in Bool}


class ResponseCode(IntEnum):
    """int32 on the wire."""

    OK = 0
    UNSUPPORTED = 1
    INVALID_PARAMS = 2
    REJECTED = 3
    INTERNAL_ERROR = 4


RESPONSE_CODE_OF: Final = {member.value: member for member in ResponseCode}


class Role(IntEnum):
    """uint8 on the wire."""

    PRODUCER = 1
    CONSUMER = 2


ROLE_OF: Final = {member.value: member for member in Role}


class PublishMode(IntEnum):
    """uint8 on the wire."""

    REQUIRE_EXISTING = 1
    EXISTING_OR_CREATE = 2


PUBLISH_MODE_OF: Final = {member.value: member for member in PublishMode}


class LeaseRevokeReason(IntEnum):
    """uint8 on the wire."""

    DETACHED = 1
    EXPIRED = 2
    REVOKED = 3


LEASE_REVOKE_REASON_OF: Final = {member.value: member for member in LeaseRevokeReason}


class ShutdownReason(IntEnum):
    """uint8 on the wire."""

    NORMAL = 0
    ADMIN = 1
    ERROR = 2


SHUTDOWN_REASON_OF: Final = {member.value: member for member in ShutdownReason}


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


class ShmAttachRequest(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 901: a block of 24 bytes."""

    correlation_id: int
    stream_id: int
    client_id: int
    role: Role
    expected_layout_version: int
    max_dims: int
    publish_mode: PublishMode | None = None
    require_hugepages: Bool | None = None

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(24, 1, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sqIIBIBBB")
    BLOCK: ClassVar[Struct] = Struct("<qIIBIBBB")
    BLOCK_LENGTH: ClassVar[int] = 24
    MINIMUM_LENGTH: ClassVar[int] = 24
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("correlationId", 0, "q"),
        Field("streamId", 8, "I"),
        Field("clientId", 12, "I"),
        Field("role", 16, "B", values=ROLE_OF),
        Field("expectedLayoutVersion", 17, "I"),
        Field("maxDims", 21, "B"),
        Field("publishMode", 22, "B", null=UINT8_NULL, values=PUBLISH_MODE_OF),
        Field("requireHugepages", 23, "B", null=UINT8_NULL, values=BOOL_OF),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.correlation_id,
                self.stream_id,
                self.client_id,
                ROLE_OF[self.role],
                self.expected_layout_version,
                self.max_dims,
                UINT8_NULL if self.publish_mode is None else PUBLISH_MODE_OF[self.publish_mode],
                UINT8_NULL if self.require_hugepages is None else BOOL_OF[self.require_hugepages],
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            (
                header,
                correlation_id,
                stream_id,
                client_id,
                role,
                expected_layout_version,
                max_dims,
                publish_mode,
                require_hugepages,
            ) = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    correlation_id=correlation_id,
                    stream_id=stream_id,
                    client_id=client_id,
                    role=ROLE_OF[role],
                    expected_layout_version=expected_layout_version,
                    max_dims=max_dims,
                    publish_mode=None if publish_mode == UINT8_NULL else PUBLISH_MODE_OF[publish_mode],
                    require_hugepages=None if require_hugepages == UINT8_NULL else BOOL_OF[require_hugepages],
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class ShmAttachResponse(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 2 of schema 901: a block of 51 bytes and what follows it."""

    correlation_id: int
    code: ResponseCode
    lease_id: int | None = None
    lease_expiry_timestamp_ns: int | None = None
    stream_id: int | None = None
    epoch: int | None = None
    layout_version: int | None = None
    header_nslots: int | None = None
    header_slot_bytes: int | None = None
    max_dims: int | None = None
    payload_pools: tuple[PayloadPool, ...] = ()
    header_region_uri: str = ""
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 2
    HEADER: ClassVar[MessageHeader] = MessageHeader(51, 2, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<qiQQIQIIHB")
    BLOCK_LENGTH: ClassVar[int] = 51
    MINIMUM_LENGTH: ClassVar[int] = 63
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("correlationId", 0, "q"),
        Field("code", 8, "i", values=RESPONSE_CODE_OF),
        Field("leaseId", 12, "Q", null=UINT64_NULL),
        Field("leaseExpiryTimestampNs", 20, "Q", null=UINT64_NULL),
        Field("streamId", 28, "I", null=UINT32_NULL),
        Field("epoch", 32, "Q", null=UINT64_NULL),
        Field("layoutVersion", 40, "I", null=UINT32_NULL),
        Field("headerNslots", 44, "I", null=UINT32_NULL),
        Field("headerSlotBytes", 48, "H", null=UINT16_NULL),
        Field("maxDims", 50, "B", null=UINT8_NULL),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.correlation_id,
                RESPONSE_CODE_OF[self.code],
                optional(self.lease_id, UINT64_NULL),
                optional(self.lease_expiry_timestamp_ns, UINT64_NULL),
                optional(self.stream_id, UINT32_NULL),
                optional(self.epoch, UINT64_NULL),
                optional(self.layout_version, UINT32_NULL),
                optional(self.header_nslots, UINT32_NULL),
                optional(self.header_slot_bytes, UINT16_NULL),
                optional(self.max_dims, UINT8_NULL),
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_group(self.payload_pools, 10, "ShmAttachResponse.payload_pools")
            + encode_ascii(self.header_region_uri, 1_073_741_824, "ShmAttachResponse.header_region_uri")
            + encode_ascii(self.error_message, 1_073_741_824, "ShmAttachResponse.error_message")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            correlation_id,
            code,
            lease_id,
            lease_expiry_timestamp_ns,
            stream_id,
            epoch,
            layout_version,
            header_nslots,
            header_slot_bytes,
            max_dims,
        ) = cursor.block(cls.BLOCK, "ShmAttachResponse")
        payload_pools = cursor.group("ShmAttachResponse.payload_pools", PayloadPool)
        header_region_uri = cursor.ascii("ShmAttachResponse.header_region_uri", 1_073_741_824)
        error_message = cursor.ascii("ShmAttachResponse.error_message", 1_073_741_824)
        try:
            return cls(
                correlation_id=correlation_id,
                code=RESPONSE_CODE_OF[code],
                lease_id=None if lease_id == UINT64_NULL else lease_id,
                lease_expiry_timestamp_ns=(
                    None if lease_expiry_timestamp_ns == UINT64_NULL else lease_expiry_timestamp_ns
                ),
                stream_id=None if stream_id == UINT32_NULL else stream_id,
                epoch=None if epoch == UINT64_NULL else epoch,
                layout_version=None if layout_version == UINT32_NULL else layout_version,
                header_nslots=None if header_nslots == UINT32_NULL else header_nslots,
                header_slot_bytes=None if header_slot_bytes == UINT16_NULL else header_slot_bytes,
                max_dims=None if max_dims == UINT8_NULL else max_dims,
                payload_pools=payload_pools,
                header_region_uri=header_region_uri,
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ShmDetachRequest(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 3 of schema 901: a block of 25 bytes."""

    correlation_id: int
    lease_id: int
    stream_id: int
    client_id: int
    role: Role

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 3
    HEADER: ClassVar[MessageHeader] = MessageHeader(25, 3, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sqQIIB")
    BLOCK: ClassVar[Struct] = Struct("<qQIIB")
    BLOCK_LENGTH: ClassVar[int] = 25
    MINIMUM_LENGTH: ClassVar[int] = 25
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("correlationId", 0, "q"),
        Field("leaseId", 8, "Q"),
        Field("streamId", 16, "I"),
        Field("clientId", 20, "I"),
        Field("role", 24, "B", values=ROLE_OF),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.correlation_id,
                self.lease_id,
                self.stream_id,
                self.client_id,
                ROLE_OF[self.role],
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, correlation_id, lease_id, stream_id, client_id, role = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    correlation_id=correlation_id,
                    lease_id=lease_id,
                    stream_id=stream_id,
                    client_id=client_id,
                    role=ROLE_OF[role],
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class ShmDetachResponse(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 4 of schema 901: a block of 12 bytes and what follows it."""

    correlation_id: int
    code: ResponseCode
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 4
    HEADER: ClassVar[MessageHeader] = MessageHeader(12, 4, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<qi")
    BLOCK_LENGTH: ClassVar[int] = 12
    MINIMUM_LENGTH: ClassVar[int] = 16
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("correlationId", 0, "q"),
        Field("code", 8, "i", values=RESPONSE_CODE_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.correlation_id, RESPONSE_CODE_OF[self.code])
        except UNFIT:
            unfit(self)
        return block + encode_ascii(self.error_message, 1_073_741_824, "ShmDetachResponse.error_message")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        correlation_id, code = cursor.block(cls.BLOCK, "ShmDetachResponse")
        error_message = cursor.ascii("ShmDetachResponse.error_message", 1_073_741_824)
        try:
            return cls(
                correlation_id=correlation_id,
                code=RESPONSE_CODE_OF[code],
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ShmLeaseKeepalive(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 5 of schema 901: a block of 25 bytes."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    client_timestamp_ns: int

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 5
    HEADER: ClassVar[MessageHeader] = MessageHeader(25, 5, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sQIIBQ")
    BLOCK: ClassVar[Struct] = Struct("<QIIBQ")
    BLOCK_LENGTH: ClassVar[int] = 25
    MINIMUM_LENGTH: ClassVar[int] = 25
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("leaseId", 0, "Q"),
        Field("streamId", 8, "I"),
        Field("clientId", 12, "I"),
        Field("role", 16, "B", values=ROLE_OF),
        Field("clientTimestampNs", 17, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.lease_id,
                self.stream_id,
                self.client_id,
                ROLE_OF[self.role],
                self.client_timestamp_ns,
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, lease_id, stream_id, client_id, role, client_timestamp_ns = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    lease_id=lease_id,
                    stream_id=stream_id,
                    client_id=client_id,
                    role=ROLE_OF[role],
                    client_timestamp_ns=client_timestamp_ns,
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class ShmDriverShutdown(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 6 of schema 901: a block of 9 bytes and what follows it."""

    timestamp_ns: int
    reason: ShutdownReason
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 6
    HEADER: ClassVar[MessageHeader] = MessageHeader(9, 6, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<QB")
    BLOCK_LENGTH: ClassVar[int] = 9
    MINIMUM_LENGTH: ClassVar[int] = 13
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("timestampNs", 0, "Q"),
        Field("reason", 8, "B", values=SHUTDOWN_REASON_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.timestamp_ns, SHUTDOWN_REASON_OF[self.reason])
        except UNFIT:
            unfit(self)
        return block + encode_ascii(self.error_message, 1_073_741_824, "ShmDriverShutdown.error_message")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        timestamp_ns, reason = cursor.block(cls.BLOCK, "ShmDriverShutdown")
        error_message = cursor.ascii("ShmDriverShutdown.error_message", 1_073_741_824)
        try:
            return cls(
                timestamp_ns=timestamp_ns,
                reason=SHUTDOWN_REASON_OF[reason],
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ShmLeaseRevoked(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 7 of schema 901: a block of 26 bytes and what follows it."""

    timestamp_ns: int
    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    reason: LeaseRevokeReason
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 7
    HEADER: ClassVar[MessageHeader] = MessageHeader(26, 7, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<QQIIBB")
    BLOCK_LENGTH: ClassVar[int] = 26
    MINIMUM_LENGTH: ClassVar[int] = 30
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("timestampNs", 0, "Q"),
        Field("leaseId", 8, "Q"),
        Field("streamId", 16, "I"),
        Field("clientId", 20, "I"),
        Field("role", 24, "B", values=ROLE_OF),
        Field("reason", 25, "B", values=LEASE_REVOKE_REASON_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.timestamp_ns,
                self.lease_id,
                self.stream_id,
                self.client_id,
                ROLE_OF[self.role],
                LEASE_REVOKE_REASON_OF[self.reason],
            )
        except UNFIT:
            unfit(self)
        return block + encode_ascii(self.error_message, 1_073_741_824, "ShmLeaseRevoked.error_message")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            timestamp_ns,
            lease_id,
            stream_id,
            client_id,
            role,
            reason,
        ) = cursor.block(cls.BLOCK, "ShmLeaseRevoked")
        error_message = cursor.ascii("ShmLeaseRevoked.error_message", 1_073_741_824)
        try:
            return cls(
                timestamp_ns=timestamp_ns,
                lease_id=lease_id,
                stream_id=stream_id,
                client_id=client_id,
                role=ROLE_OF[role],
                reason=LEASE_REVOKE_REASON_OF[reason],
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ShmDriverShutdownRequest(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 8 of schema 901: a block of 9 bytes and what follows it."""

    correlation_id: int
    reason: ShutdownReason
    token: str = ""
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.driver"
    SCHEMA_ID: ClassVar[int] = 901
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 8
    HEADER: ClassVar[MessageHeader] = MessageHeader(9, 8, 901, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<qB")
    BLOCK_LENGTH: ClassVar[int] = 9
    MINIMUM_LENGTH: ClassVar[int] = 17
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("correlationId", 0, "q"),
        Field("reason", 8, "B", values=SHUTDOWN_REASON_OF),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.correlation_id, SHUTDOWN_REASON_OF[self.reason])
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_ascii(self.token, 1_073_741_824, "ShmDriverShutdownRequest.token")
            + encode_ascii(self.error_message, 1_073_741_824, "ShmDriverShutdownRequest.error_message")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        correlation_id, reason = cursor.block(cls.BLOCK, "ShmDriverShutdownRequest")
        token = cursor.ascii("ShmDriverShutdownRequest.token", 1_073_741_824)
        error_message = cursor.ascii("ShmDriverShutdownRequest.error_message", 1_073_741_824)
        try:
            return cls(
                correlation_id=correlation_id,
                reason=SHUTDOWN_REASON_OF[reason],
                token=token,
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


MESSAGES: Final[tuple[type[Message], ...]] = (
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmLeaseKeepalive,
    ShmDriverShutdown,
    ShmLeaseRevoked,
    ShmDriverShutdownRequest,
)
