"""Messages that a supervisor hears, with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

import msgspec

from framepool.service import Event
from framepool.wire._generated.control_900 import (
    Attribute,
    Bool,
    ClockDomain,
    ConsumerConfig,
    ConsumerHello,
    DataSourceAnnounce,
    DataSourceMeta,
    Mode,
    PayloadPool,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)

STREAM = 10_000
PRODUCER = 7
CONSUMER = 90
EPOCH = 5


def announce(**changes: Any) -> ShmPoolAnnounce:
    fields: dict[str, Any] = {
        "stream_id": STREAM,
        "producer_id": PRODUCER,
        "epoch": EPOCH,
        "announce_timestamp_ns": 1,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": 4,
        "header_slot_bytes": 256,
        "payload_pools": (PayloadPool(pool_id=1, pool_nslots=4, stride_bytes=64, region_uri="shm:file?path=/x/1"),),
        "header_region_uri": "shm:file?path=/x/h",
    }
    return ShmPoolAnnounce(**{**fields, **changes})


def source(**changes: Any) -> DataSourceAnnounce:
    fields: dict[str, Any] = {
        "stream_id": STREAM,
        "producer_id": PRODUCER,
        "epoch": EPOCH,
        "meta_version": 1,
        "name": "camera",
        "summary": "uint16 2048x2048",
    }
    return DataSourceAnnounce(**{**fields, **changes})


def meta(**changes: Any) -> DataSourceMeta:
    attributes = (Attribute(key="gain", format="application/json", value=b"3"),)
    fields: dict[str, Any] = {"stream_id": STREAM, "meta_version": 1, "timestamp_ns": 9, "attributes": attributes}
    return DataSourceMeta(**{**fields, **changes})


def hello(**changes: Any) -> ConsumerHello:
    fields: dict[str, Any] = {
        "stream_id": STREAM,
        "consumer_id": CONSUMER,
        "supports_shm": Bool.TRUE,
        "supports_progress": Bool.FALSE,
        "mode": Mode.STREAM,
        "max_rate_hz": 0,
        "expected_layout_version": 1,
        "descriptor_stream_id": 0,
        "control_stream_id": 0,
    }
    return ConsumerHello(**{**fields, **changes})


def consumer_config(**changes: Any) -> ConsumerConfig:
    fields: dict[str, Any] = {
        "stream_id": STREAM,
        "consumer_id": CONSUMER,
        "use_shm": Bool.TRUE,
        "mode": Mode.STREAM,
        "descriptor_stream_id": 0,
        "control_stream_id": 0,
    }
    return ConsumerConfig(**{**fields, **changes})


def qos(last_seq_seen: int = 0, drops_gap: int = 0, drops_late: int = 0, **changes: Any) -> QosConsumer:
    fields: dict[str, Any] = {"stream_id": STREAM, "consumer_id": CONSUMER, "epoch": EPOCH, "mode": Mode.STREAM}
    counters = {"last_seq_seen": last_seq_seen, "drops_gap": drops_gap, "drops_late": drops_late}
    return QosConsumer(**{**fields, **counters, **changes})


def qos_producer(current_seq: int = 0, **changes: Any) -> QosProducer:
    fields: dict[str, Any] = {"stream_id": STREAM, "producer_id": PRODUCER, "epoch": EPOCH}
    return QosProducer(**{**fields, "current_seq": current_seq, **changes})


def revoked(**changes: Any) -> ShmLeaseRevoked:
    fields: dict[str, Any] = {
        "timestamp_ns": 1,
        "lease_id": 1,
        "stream_id": STREAM,
        "client_id": PRODUCER,
        "role": Role.PRODUCER,
        "reason": LeaseRevokeReason.EXPIRED,
    }
    return ShmLeaseRevoked(**{**fields, **changes})


def attach_request(**changes: Any) -> ShmAttachRequest:
    fields: dict[str, Any] = {
        "correlation_id": 11,
        "stream_id": STREAM,
        "client_id": PRODUCER,
        "role": Role.PRODUCER,
        "expected_layout_version": 0,
        "max_dims": 0,
    }
    return ShmAttachRequest(**{**fields, **changes})


def attach_response(**changes: Any) -> ShmAttachResponse:
    fields: dict[str, Any] = {
        "correlation_id": 11,
        "code": ResponseCode.OK,
        "lease_id": 1,
        "stream_id": STREAM,
        "epoch": EPOCH,
    }
    return ShmAttachResponse(**{**fields, **changes})


def keepalive(**changes: Any) -> ShmLeaseKeepalive:
    fields: dict[str, Any] = {
        "lease_id": 1,
        "stream_id": STREAM,
        "client_id": PRODUCER,
        "role": Role.PRODUCER,
        "client_timestamp_ns": 1,
    }
    return ShmLeaseKeepalive(**{**fields, **changes})


def shutdown() -> ShmDriverShutdown:
    return ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL)


def status(tag: str = "service:limiter", state: str = "running") -> Event:
    said = {"state": state, "host": "h", "pid": 1}
    return Event(tag=tag, key="status", value=msgspec.json.encode(said).decode())
