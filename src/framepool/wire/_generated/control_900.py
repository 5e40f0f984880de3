"""The messages of schema 900, `shm.tensorpool.control` version 1.

Written by `python -m framepool.wire.codegen` from schemas/control-900.xml: do not edit.
"""

from __future__ import annotations

from collections.abc import Buffer
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
    FixedMessage,
    Message,
    MessageHeader,
    encode_ascii,
    encode_data,
    encode_group,
    exactly,
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


class Mode(IntEnum):
    """uint8 on the wire."""

    STREAM = 1
    RATE_LIMITED = 2


MODE_OF: Final = {member.value: member for member in Mode}


class FrameProgressState(IntEnum):
    """uint8 on the wire."""

    UNKNOWN = 0
    STARTED = 1
    PROGRESS = 2
    COMPLETE = 3


FRAME_PROGRESS_STATE_OF: Final = {member.value: member for member in FrameProgressState}


class ProgressUnit(IntEnum):
    """uint8 on the wire."""

    NONE = 0
    ROWS = 1
    COLUMNS = 2


PROGRESS_UNIT_OF: Final = {member.value: member for member in ProgressUnit}


class ResponseCode(IntEnum):
    """int32 on the wire."""

    OK = 0
    UNSUPPORTED = 1
    INVALID_PARAMS = 2
    REJECTED = 3
    INTERNAL_ERROR = 4


RESPONSE_CODE_OF: Final = {member.value: member for member in ResponseCode}


class ClockDomain(IntEnum):
    """uint8 on the wire."""

    MONOTONIC = 1
    REALTIME_SYNCED = 2


CLOCK_DOMAIN_OF: Final = {member.value: member for member in ClockDomain}


class RegionType(IntEnum):
    """int16 on the wire."""

    HEADER_RING = 1
    PAYLOAD_POOL = 2


REGION_TYPE_OF: Final = {member.value: member for member in RegionType}


class Dtype(IntEnum):
    """int16 on the wire."""

    UNKNOWN = 0
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
    BYTES = 13
    BIT = 14


DTYPE_OF: Final = {member.value: member for member in Dtype}


class MajorOrder(IntEnum):
    """int16 on the wire."""

    UNKNOWN = 0
    ROW = 1
    COLUMN = 2


MAJOR_ORDER_OF: Final = {member.value: member for member in MajorOrder}


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


class Attribute(Block, frozen=True, kw_only=True, rename="camel"):
    """An entry of a group: a block of 0 bytes."""

    key: str = ""
    format: str = ""
    value: bytes = b""

    BLOCK: ClassVar[Struct] = Struct("<")
    BLOCK_LENGTH: ClassVar[int] = 0
    MINIMUM_LENGTH: ClassVar[int] = 12
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def encode_body(self) -> bytes:
        return (
            encode_ascii(self.key, 1_073_741_824, "Attribute.key")
            + encode_ascii(self.format, 1_073_741_824, "Attribute.format")
            + encode_data(self.value, 1_073_741_824, "Attribute.value")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        key = cursor.ascii("Attribute.key", 1_073_741_824)
        format = cursor.ascii("Attribute.format", 1_073_741_824)
        value = cursor.data("Attribute.value", 1_073_741_824)
        return cls(key=key, format=format, value=value)


class ShmPoolAnnounce(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 1 of schema 900: a block of 35 bytes and what follows it."""

    stream_id: int
    producer_id: int
    epoch: int
    announce_timestamp_ns: int
    announce_clock_domain: ClockDomain
    layout_version: int
    header_nslots: int
    header_slot_bytes: int
    payload_pools: tuple[PayloadPool, ...] = ()
    header_region_uri: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 1
    HEADER: ClassVar[MessageHeader] = MessageHeader(35, 1, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIQQBIIH")
    BLOCK_LENGTH: ClassVar[int] = 35
    MINIMUM_LENGTH: ClassVar[int] = 43
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("producerId", 4, "I"),
        Field("epoch", 8, "Q"),
        Field("announceTimestampNs", 16, "Q"),
        Field("announceClockDomain", 24, "B", values=CLOCK_DOMAIN_OF),
        Field("layoutVersion", 25, "I"),
        Field("headerNslots", 29, "I"),
        Field("headerSlotBytes", 33, "H"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.stream_id,
                self.producer_id,
                self.epoch,
                self.announce_timestamp_ns,
                CLOCK_DOMAIN_OF[self.announce_clock_domain],
                self.layout_version,
                self.header_nslots,
                self.header_slot_bytes,
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_group(self.payload_pools, 10, "ShmPoolAnnounce.payload_pools")
            + encode_ascii(self.header_region_uri, 1_073_741_824, "ShmPoolAnnounce.header_region_uri")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            stream_id,
            producer_id,
            epoch,
            announce_timestamp_ns,
            announce_clock_domain,
            layout_version,
            header_nslots,
            header_slot_bytes,
        ) = cursor.block(cls.BLOCK, "ShmPoolAnnounce")
        payload_pools = cursor.group("ShmPoolAnnounce.payload_pools", PayloadPool)
        header_region_uri = cursor.ascii("ShmPoolAnnounce.header_region_uri", 1_073_741_824)
        try:
            return cls(
                stream_id=stream_id,
                producer_id=producer_id,
                epoch=epoch,
                announce_timestamp_ns=announce_timestamp_ns,
                announce_clock_domain=CLOCK_DOMAIN_OF[announce_clock_domain],
                layout_version=layout_version,
                header_nslots=header_nslots,
                header_slot_bytes=header_slot_bytes,
                payload_pools=payload_pools,
                header_region_uri=header_region_uri,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ConsumerHello(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 2 of schema 900: a block of 39 bytes and what follows it."""

    stream_id: int
    consumer_id: int
    supports_shm: Bool
    supports_progress: Bool
    mode: Mode
    max_rate_hz: int
    expected_layout_version: int
    progress_interval_us: int | None = None
    progress_bytes_delta: int | None = None
    progress_major_delta_units: int | None = None
    descriptor_stream_id: int
    control_stream_id: int
    descriptor_channel: str = ""
    control_channel: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 2
    HEADER: ClassVar[MessageHeader] = MessageHeader(39, 2, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIBBBIIIIIII")
    BLOCK_LENGTH: ClassVar[int] = 39
    MINIMUM_LENGTH: ClassVar[int] = 47
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("consumerId", 4, "I"),
        Field("supportsShm", 8, "B", values=BOOL_OF),
        Field("supportsProgress", 9, "B", values=BOOL_OF),
        Field("mode", 10, "B", values=MODE_OF),
        Field("maxRateHz", 11, "I"),
        Field("expectedLayoutVersion", 15, "I"),
        Field("progressIntervalUs", 19, "I", null=UINT32_NULL),
        Field("progressBytesDelta", 23, "I", null=UINT32_NULL),
        Field("progressMajorDeltaUnits", 27, "I", null=UINT32_NULL),
        Field("descriptorStreamId", 31, "I"),
        Field("controlStreamId", 35, "I"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.stream_id,
                self.consumer_id,
                BOOL_OF[self.supports_shm],
                BOOL_OF[self.supports_progress],
                MODE_OF[self.mode],
                self.max_rate_hz,
                self.expected_layout_version,
                optional(self.progress_interval_us, UINT32_NULL),
                optional(self.progress_bytes_delta, UINT32_NULL),
                optional(self.progress_major_delta_units, UINT32_NULL),
                self.descriptor_stream_id,
                self.control_stream_id,
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_ascii(self.descriptor_channel, 1_073_741_824, "ConsumerHello.descriptor_channel")
            + encode_ascii(self.control_channel, 1_073_741_824, "ConsumerHello.control_channel")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            stream_id,
            consumer_id,
            supports_shm,
            supports_progress,
            mode,
            max_rate_hz,
            expected_layout_version,
            progress_interval_us,
            progress_bytes_delta,
            progress_major_delta_units,
            descriptor_stream_id,
            control_stream_id,
        ) = cursor.block(cls.BLOCK, "ConsumerHello")
        descriptor_channel = cursor.ascii("ConsumerHello.descriptor_channel", 1_073_741_824)
        control_channel = cursor.ascii("ConsumerHello.control_channel", 1_073_741_824)
        try:
            return cls(
                stream_id=stream_id,
                consumer_id=consumer_id,
                supports_shm=BOOL_OF[supports_shm],
                supports_progress=BOOL_OF[supports_progress],
                mode=MODE_OF[mode],
                max_rate_hz=max_rate_hz,
                expected_layout_version=expected_layout_version,
                progress_interval_us=None if progress_interval_us == UINT32_NULL else progress_interval_us,
                progress_bytes_delta=None if progress_bytes_delta == UINT32_NULL else progress_bytes_delta,
                progress_major_delta_units=(
                    None if progress_major_delta_units == UINT32_NULL else progress_major_delta_units
                ),
                descriptor_stream_id=descriptor_stream_id,
                control_stream_id=control_stream_id,
                descriptor_channel=descriptor_channel,
                control_channel=control_channel,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class ConsumerConfig(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 3 of schema 900: a block of 18 bytes and what follows it."""

    stream_id: int
    consumer_id: int
    use_shm: Bool
    mode: Mode
    descriptor_stream_id: int
    control_stream_id: int
    payload_fallback_uri: str = ""
    descriptor_channel: str = ""
    control_channel: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 3
    HEADER: ClassVar[MessageHeader] = MessageHeader(18, 3, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIBBII")
    BLOCK_LENGTH: ClassVar[int] = 18
    MINIMUM_LENGTH: ClassVar[int] = 30
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("consumerId", 4, "I"),
        Field("useShm", 8, "B", values=BOOL_OF),
        Field("mode", 9, "B", values=MODE_OF),
        Field("descriptorStreamId", 10, "I"),
        Field("controlStreamId", 14, "I"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.stream_id,
                self.consumer_id,
                BOOL_OF[self.use_shm],
                MODE_OF[self.mode],
                self.descriptor_stream_id,
                self.control_stream_id,
            )
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_ascii(self.payload_fallback_uri, 1_073_741_824, "ConsumerConfig.payload_fallback_uri")
            + encode_ascii(self.descriptor_channel, 1_073_741_824, "ConsumerConfig.descriptor_channel")
            + encode_ascii(self.control_channel, 1_073_741_824, "ConsumerConfig.control_channel")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        (
            stream_id,
            consumer_id,
            use_shm,
            mode,
            descriptor_stream_id,
            control_stream_id,
        ) = cursor.block(cls.BLOCK, "ConsumerConfig")
        payload_fallback_uri = cursor.ascii("ConsumerConfig.payload_fallback_uri", 1_073_741_824)
        descriptor_channel = cursor.ascii("ConsumerConfig.descriptor_channel", 1_073_741_824)
        control_channel = cursor.ascii("ConsumerConfig.control_channel", 1_073_741_824)
        try:
            return cls(
                stream_id=stream_id,
                consumer_id=consumer_id,
                use_shm=BOOL_OF[use_shm],
                mode=MODE_OF[mode],
                descriptor_stream_id=descriptor_stream_id,
                control_stream_id=control_stream_id,
                payload_fallback_uri=payload_fallback_uri,
                descriptor_channel=descriptor_channel,
                control_channel=control_channel,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class FrameDescriptor(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 4 of schema 900: a block of 40 bytes."""

    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int | None = None
    meta_version: int | None = None
    trace_id: int | None = None

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 4
    HEADER: ClassVar[MessageHeader] = MessageHeader(40, 4, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIQQQIQ")
    BLOCK: ClassVar[Struct] = Struct("<IQQQIQ")
    BLOCK_LENGTH: ClassVar[int] = 40
    MINIMUM_LENGTH: ClassVar[int] = 40
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("epoch", 4, "Q"),
        Field("seq", 12, "Q"),
        Field("timestampNs", 20, "Q", null=UINT64_NULL),
        Field("metaVersion", 28, "I", null=UINT32_NULL),
        Field("traceId", 32, "Q", null=0),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.stream_id,
                self.epoch,
                self.seq,
                optional(self.timestamp_ns, UINT64_NULL),
                optional(self.meta_version, UINT32_NULL),
                optional(self.trace_id, 0),
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, stream_id, epoch, seq, timestamp_ns, meta_version, trace_id = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    stream_id=stream_id,
                    epoch=epoch,
                    seq=seq,
                    timestamp_ns=None if timestamp_ns == UINT64_NULL else timestamp_ns,
                    meta_version=None if meta_version == UINT32_NULL else meta_version,
                    trace_id=None if trace_id == 0 else trace_id,
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class FrameProgress(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 11 of schema 900: a block of 29 bytes."""

    stream_id: int
    epoch: int
    seq: int
    payload_bytes_filled: int
    state: FrameProgressState

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 11
    HEADER: ClassVar[MessageHeader] = MessageHeader(29, 11, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIQQQB")
    BLOCK: ClassVar[Struct] = Struct("<IQQQB")
    BLOCK_LENGTH: ClassVar[int] = 29
    MINIMUM_LENGTH: ClassVar[int] = 29
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("epoch", 4, "Q"),
        Field("seq", 12, "Q"),
        Field("payloadBytesFilled", 20, "Q"),
        Field("state", 28, "B", values=FRAME_PROGRESS_STATE_OF),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.stream_id,
                self.epoch,
                self.seq,
                self.payload_bytes_filled,
                FRAME_PROGRESS_STATE_OF[self.state],
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, stream_id, epoch, seq, payload_bytes_filled, state = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    stream_id=stream_id,
                    epoch=epoch,
                    seq=seq,
                    payload_bytes_filled=payload_bytes_filled,
                    state=FRAME_PROGRESS_STATE_OF[state],
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class QosConsumer(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 5 of schema 900: a block of 41 bytes."""

    stream_id: int
    consumer_id: int
    epoch: int
    last_seq_seen: int
    drops_gap: int
    drops_late: int
    mode: Mode

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 5
    HEADER: ClassVar[MessageHeader] = MessageHeader(41, 5, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIIQQQQB")
    BLOCK: ClassVar[Struct] = Struct("<IIQQQQB")
    BLOCK_LENGTH: ClassVar[int] = 41
    MINIMUM_LENGTH: ClassVar[int] = 41
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("consumerId", 4, "I"),
        Field("epoch", 8, "Q"),
        Field("lastSeqSeen", 16, "Q"),
        Field("dropsGap", 24, "Q"),
        Field("dropsLate", 32, "Q"),
        Field("mode", 40, "B", values=MODE_OF),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.stream_id,
                self.consumer_id,
                self.epoch,
                self.last_seq_seen,
                self.drops_gap,
                self.drops_late,
                MODE_OF[self.mode],
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            (
                header,
                stream_id,
                consumer_id,
                epoch,
                last_seq_seen,
                drops_gap,
                drops_late,
                mode,
            ) = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    stream_id=stream_id,
                    consumer_id=consumer_id,
                    epoch=epoch,
                    last_seq_seen=last_seq_seen,
                    drops_gap=drops_gap,
                    drops_late=drops_late,
                    mode=MODE_OF[mode],
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class QosProducer(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 6 of schema 900: a block of 28 bytes."""

    stream_id: int
    producer_id: int
    epoch: int
    current_seq: int
    watermark: int | None = None

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 6
    HEADER: ClassVar[MessageHeader] = MessageHeader(28, 6, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIIQQI")
    BLOCK: ClassVar[Struct] = Struct("<IIQQI")
    BLOCK_LENGTH: ClassVar[int] = 28
    MINIMUM_LENGTH: ClassVar[int] = 28
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("producerId", 4, "I"),
        Field("epoch", 8, "Q"),
        Field("currentSeq", 16, "Q"),
        Field("watermark", 24, "I", null=UINT32_NULL),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.stream_id,
                self.producer_id,
                self.epoch,
                self.current_seq,
                optional(self.watermark, UINT32_NULL),
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, stream_id, producer_id, epoch, current_seq, watermark = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    stream_id=stream_id,
                    producer_id=producer_id,
                    epoch=epoch,
                    current_seq=current_seq,
                    watermark=None if watermark == UINT32_NULL else watermark,
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class ShmRegionSuperblock(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 50 of schema 900: a block of 64 bytes."""

    magic: int
    layout_version: int
    epoch: int
    stream_id: int
    region_type: RegionType
    pool_id: int
    nslots: int
    slot_bytes: int
    stride_bytes: int
    pid: int
    start_timestamp_ns: int
    activity_timestamp_ns: int

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 50
    HEADER: ClassVar[MessageHeader] = MessageHeader(64, 50, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sQIQIhHIIIQQQ")
    BLOCK: ClassVar[Struct] = Struct("<QIQIhHIIIQQQ")
    BLOCK_LENGTH: ClassVar[int] = 64
    MINIMUM_LENGTH: ClassVar[int] = 64
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("magic", 0, "Q"),
        Field("layoutVersion", 8, "I"),
        Field("epoch", 12, "Q"),
        Field("streamId", 20, "I"),
        Field("regionType", 24, "h", values=REGION_TYPE_OF),
        Field("poolId", 26, "H"),
        Field("nslots", 28, "I"),
        Field("slotBytes", 32, "I"),
        Field("strideBytes", 36, "I"),
        Field("pid", 40, "Q"),
        Field("startTimestampNs", 48, "Q"),
        Field("activityTimestampNs", 56, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.magic,
                self.layout_version,
                self.epoch,
                self.stream_id,
                REGION_TYPE_OF[self.region_type],
                self.pool_id,
                self.nslots,
                self.slot_bytes,
                self.stride_bytes,
                self.pid,
                self.start_timestamp_ns,
                self.activity_timestamp_ns,
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            (
                header,
                magic,
                layout_version,
                epoch,
                stream_id,
                region_type,
                pool_id,
                nslots,
                slot_bytes,
                stride_bytes,
                pid,
                start_timestamp_ns,
                activity_timestamp_ns,
            ) = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    magic=magic,
                    layout_version=layout_version,
                    epoch=epoch,
                    stream_id=stream_id,
                    region_type=REGION_TYPE_OF[region_type],
                    pool_id=pool_id,
                    nslots=nslots,
                    slot_bytes=slot_bytes,
                    stride_bytes=stride_bytes,
                    pid=pid,
                    start_timestamp_ns=start_timestamp_ns,
                    activity_timestamp_ns=activity_timestamp_ns,
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class SlotHeader(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 51 of schema 900: a block of 60 bytes and what follows it."""

    seq_commit: int
    values_len_bytes: int
    payload_slot: int
    pool_id: int
    payload_offset: int
    timestamp_ns: int
    meta_version: int
    pad: bytes = bytes(26)
    header_bytes: bytes = b""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 51
    HEADER: ClassVar[MessageHeader] = MessageHeader(60, 51, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<QIIHIQI26s")
    BLOCK_LENGTH: ClassVar[int] = 60
    MINIMUM_LENGTH: ClassVar[int] = 64
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("seqCommit", 0, "Q"),
        Field("valuesLenBytes", 8, "I"),
        Field("payloadSlot", 12, "I"),
        Field("poolId", 16, "H"),
        Field("payloadOffset", 18, "I"),
        Field("timestampNs", 22, "Q"),
        Field("metaVersion", 30, "I"),
        Field("pad", 34, "26s"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(
                self.seq_commit,
                self.values_len_bytes,
                self.payload_slot,
                self.pool_id,
                self.payload_offset,
                self.timestamp_ns,
                self.meta_version,
                exactly(self.pad, 26),
            )
        except UNFIT:
            unfit(self)
        return block + encode_data(self.header_bytes, 1_073_741_824, "SlotHeader.header_bytes")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        (
            seq_commit,
            values_len_bytes,
            payload_slot,
            pool_id,
            payload_offset,
            timestamp_ns,
            meta_version,
            pad,
        ) = cursor.block(cls.BLOCK, "SlotHeader")
        header_bytes = cursor.data("SlotHeader.header_bytes", 1_073_741_824)
        return cls(
            seq_commit=seq_commit,
            values_len_bytes=values_len_bytes,
            payload_slot=payload_slot,
            pool_id=pool_id,
            payload_offset=payload_offset,
            timestamp_ns=timestamp_ns,
            meta_version=meta_version,
            pad=pad,
            header_bytes=header_bytes,
        )


class TensorHeader(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 52 of schema 900: a block of 184 bytes."""

    dtype: Dtype
    major_order: MajorOrder
    ndims: int
    pad_align: int = 0
    progress_unit: ProgressUnit
    progress_stride_bytes: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    pad: bytes = bytes(109)

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 52
    HEADER: ClassVar[MessageHeader] = MessageHeader(184, 52, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8shhBBBI8i8i109s")
    MAX_DIMS: ClassVar[int] = 8
    BLOCK: ClassVar[Struct] = Struct("<hhBBBI8i8i109s")
    BLOCK_LENGTH: ClassVar[int] = 184
    MINIMUM_LENGTH: ClassVar[int] = 184
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("dtype", 0, "h", values=DTYPE_OF),
        Field("majorOrder", 2, "h", values=MAJOR_ORDER_OF),
        Field("ndims", 4, "B"),
        Field("padAlign", 5, "B"),
        Field("progressUnit", 6, "B", values=PROGRESS_UNIT_OF),
        Field("progressStrideBytes", 7, "I"),
        Field("dims", 11, "8i"),
        Field("strides", 43, "8i"),
        Field("pad", 75, "109s"),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                DTYPE_OF[self.dtype],
                MAJOR_ORDER_OF[self.major_order],
                self.ndims,
                self.pad_align,
                PROGRESS_UNIT_OF[self.progress_unit],
                self.progress_stride_bytes,
                *exactly(self.dims, 8),
                *exactly(self.strides, 8),
                exactly(self.pad, 109),
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            values = cls.MESSAGE.unpack(buffer)
            if values[0] == cls.HEADER_BYTES:
                return cls(
                    dtype=DTYPE_OF[values[1]],
                    major_order=MAJOR_ORDER_OF[values[2]],
                    ndims=values[3],
                    pad_align=values[4],
                    progress_unit=PROGRESS_UNIT_OF[values[5]],
                    progress_stride_bytes=values[6],
                    dims=values[7:15],
                    strides=values[15:23],
                    pad=values[23],
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class DataSourceAnnounce(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 7 of schema 900: a block of 20 bytes and what follows it."""

    stream_id: int
    producer_id: int
    epoch: int
    meta_version: int
    name: str = ""
    summary: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 7
    HEADER: ClassVar[MessageHeader] = MessageHeader(20, 7, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIQI")
    BLOCK_LENGTH: ClassVar[int] = 20
    MINIMUM_LENGTH: ClassVar[int] = 28
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("producerId", 4, "I"),
        Field("epoch", 8, "Q"),
        Field("metaVersion", 16, "I"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.stream_id, self.producer_id, self.epoch, self.meta_version)
        except UNFIT:
            unfit(self)
        return (
            block
            + encode_ascii(self.name, 1_073_741_824, "DataSourceAnnounce.name")
            + encode_ascii(self.summary, 1_073_741_824, "DataSourceAnnounce.summary")
        )

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        stream_id, producer_id, epoch, meta_version = cursor.block(cls.BLOCK, "DataSourceAnnounce")
        name = cursor.ascii("DataSourceAnnounce.name", 1_073_741_824)
        summary = cursor.ascii("DataSourceAnnounce.summary", 1_073_741_824)
        return cls(
            stream_id=stream_id,
            producer_id=producer_id,
            epoch=epoch,
            meta_version=meta_version,
            name=name,
            summary=summary,
        )


class DataSourceMeta(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 8 of schema 900: a block of 16 bytes and what follows it."""

    stream_id: int
    meta_version: int
    timestamp_ns: int
    attributes: tuple[Attribute, ...] = ()

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 8
    HEADER: ClassVar[MessageHeader] = MessageHeader(16, 8, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIQ")
    BLOCK_LENGTH: ClassVar[int] = 16
    MINIMUM_LENGTH: ClassVar[int] = 20
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("metaVersion", 4, "I"),
        Field("timestampNs", 8, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.stream_id, self.meta_version, self.timestamp_ns)
        except UNFIT:
            unfit(self)
        return block + encode_group(self.attributes, 0, "DataSourceMeta.attributes")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        stream_id, meta_version, timestamp_ns = cursor.block(cls.BLOCK, "DataSourceMeta")
        attributes = cursor.group("DataSourceMeta.attributes", Attribute)
        return cls(
            stream_id=stream_id,
            meta_version=meta_version,
            timestamp_ns=timestamp_ns,
            attributes=attributes,
        )


class ControlResponse(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 9 of schema 900: a block of 12 bytes and what follows it."""

    correlation_id: int
    code: ResponseCode
    error_message: str = ""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 9
    HEADER: ClassVar[MessageHeader] = MessageHeader(12, 9, 900, 1)
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
        return block + encode_ascii(self.error_message, 1_073_741_824, "ControlResponse.error_message")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        start = cursor.offset
        correlation_id, code = cursor.block(cls.BLOCK, "ControlResponse")
        error_message = cursor.ascii("ControlResponse.error_message", 1_073_741_824)
        try:
            return cls(
                correlation_id=correlation_id,
                code=RESPONSE_CODE_OF[code],
                error_message=error_message,
            )
        except MALFORMED:
            malformed(cls, cursor.view, start)


class MetaBlobAnnounce(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 10 of schema 900: a block of 28 bytes."""

    stream_id: int
    meta_version: int
    blob_type: int
    total_len: int
    checksum: int

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 10
    HEADER: ClassVar[MessageHeader] = MessageHeader(28, 10, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIIIQQ")
    BLOCK: ClassVar[Struct] = Struct("<IIIQQ")
    BLOCK_LENGTH: ClassVar[int] = 28
    MINIMUM_LENGTH: ClassVar[int] = 28
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("metaVersion", 4, "I"),
        Field("blobType", 8, "I"),
        Field("totalLen", 12, "Q"),
        Field("checksum", 20, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(
                self.stream_id,
                self.meta_version,
                self.blob_type,
                self.total_len,
                self.checksum,
            )
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, stream_id, meta_version, blob_type, total_len, checksum = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(
                    stream_id=stream_id,
                    meta_version=meta_version,
                    blob_type=blob_type,
                    total_len=total_len,
                    checksum=checksum,
                )
        except MALFORMED:
            pass
        refuse(cls, buffer)


class MetaBlobChunk(Message, frozen=True, kw_only=True, rename="camel"):
    """Template 12 of schema 900: a block of 16 bytes and what follows it."""

    stream_id: int
    meta_version: int
    chunk_offset: int
    bytes_: bytes = b""

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 12
    HEADER: ClassVar[MessageHeader] = MessageHeader(16, 12, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    BLOCK: ClassVar[Struct] = Struct("<IIQ")
    BLOCK_LENGTH: ClassVar[int] = 16
    MINIMUM_LENGTH: ClassVar[int] = 20
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("metaVersion", 4, "I"),
        Field("chunkOffset", 8, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            block = self.BLOCK.pack(self.stream_id, self.meta_version, self.chunk_offset)
        except UNFIT:
            unfit(self)
        return block + encode_data(self.bytes_, 1_073_741_824, "MetaBlobChunk.bytes_")

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        stream_id, meta_version, chunk_offset = cursor.block(cls.BLOCK, "MetaBlobChunk")
        bytes_ = cursor.data("MetaBlobChunk.bytes_", 1_073_741_824)
        return cls(stream_id=stream_id, meta_version=meta_version, chunk_offset=chunk_offset, bytes_=bytes_)


class MetaBlobComplete(FixedMessage, frozen=True, kw_only=True, rename="camel"):
    """Template 13 of schema 900: a block of 16 bytes."""

    stream_id: int
    meta_version: int
    checksum: int

    SCHEMA: ClassVar[str] = "shm.tensorpool.control"
    SCHEMA_ID: ClassVar[int] = 900
    SCHEMA_VERSION: ClassVar[int] = 1
    TEMPLATE_ID: ClassVar[int] = 13
    HEADER: ClassVar[MessageHeader] = MessageHeader(16, 13, 900, 1)
    HEADER_BYTES: ClassVar[bytes] = HEADER.encode()
    MESSAGE: ClassVar[Struct] = Struct("<8sIIQ")
    BLOCK: ClassVar[Struct] = Struct("<IIQ")
    BLOCK_LENGTH: ClassVar[int] = 16
    MINIMUM_LENGTH: ClassVar[int] = 16
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("streamId", 0, "I"),
        Field("metaVersion", 4, "I"),
        Field("checksum", 8, "Q"),
    )

    def encode_body(self) -> bytes:
        try:
            return self.BLOCK.pack(self.stream_id, self.meta_version, self.checksum)
        except UNFIT:
            unfit(self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        try:
            header, stream_id, meta_version, checksum = cls.MESSAGE.unpack(buffer)
            if header == cls.HEADER_BYTES:
                return cls(stream_id=stream_id, meta_version=meta_version, checksum=checksum)
        except MALFORMED:
            pass
        refuse(cls, buffer)


MESSAGES: Final[tuple[type[Message], ...]] = (
    ShmPoolAnnounce,
    ConsumerHello,
    ConsumerConfig,
    FrameDescriptor,
    FrameProgress,
    QosConsumer,
    QosProducer,
    ShmRegionSuperblock,
    SlotHeader,
    TensorHeader,
    DataSourceAnnounce,
    DataSourceMeta,
    ControlResponse,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
)
