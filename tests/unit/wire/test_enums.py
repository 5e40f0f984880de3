"""The numbers of the enumerations as the specifications print them, on the wire, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import pytest

from framepool.errors import DecodeError, EncodeError
from framepool.wire._generated.driver_901 import ShmAttachRequest
from framepool.wire.dispatch import MESSAGES
from framepool.wire.message import Field, Message
from tests.golden.vectors import ALL, example

RESPONSE_CODE = {"OK": 0, "UNSUPPORTED": 1, "INVALID_PARAMS": 2, "REJECTED": 3, "INTERNAL_ERROR": 4}
DTYPE = {
    "UNKNOWN": 0,
    "UINT8": 1,
    "INT8": 2,
    "UINT16": 3,
    "INT16": 4,
    "UINT32": 5,
    "INT32": 6,
    "UINT64": 7,
    "INT64": 8,
    "FLOAT32": 9,
    "FLOAT64": 10,
    "BOOLEAN": 11,
    "BYTES": 13,
    "BIT": 14,
}
FORMAT = {"NOTHING": 0, **{name: value for name, value in DTYPE.items() if value}, "STRING": 12, "REF": 15}


@dataclass(frozen=True)
class Table:
    """An enumeration, and a field of a message that carries it."""

    clauses: tuple[str, ...]
    message: str
    case: str
    field: str
    offset: int
    code: str
    values: dict[str, int]
    invalid: tuple[int, ...]
    null: int | None = None

    @property
    def carrier(self) -> Message:
        return example(self.message, self.case).decode()


BOOL = {"FALSE": 0, "TRUE": 1}
TABLES = [
    Table(("W-16-05",), "ConsumerHello", "typical", "supports_shm", 8, "B", BOOL, (2, 255)),
    Table(("W-16-06",), "QosConsumer", "typical", "mode", 40, "B", {"STREAM": 1, "RATE_LIMITED": 2}, (0, 3)),
    Table(
        ("W-16-07",),
        "FrameProgress",
        "typical",
        "state",
        28,
        "B",
        {"UNKNOWN": 0, "STARTED": 1, "PROGRESS": 2, "COMPLETE": 3},
        (4, 255),
    ),
    Table(
        ("W-16-08",),
        "TensorHeader",
        "image_u16_row_major",
        "progress_unit",
        6,
        "B",
        {"NONE": 0, "ROWS": 1, "COLUMNS": 2},
        (3, 255),
    ),
    Table(
        ("W-16-09",),
        "ShmPoolAnnounce",
        "typical",
        "announce_clock_domain",
        24,
        "B",
        {"MONOTONIC": 1, "REALTIME_SYNCED": 2},
        (0, 3),
    ),
    Table(("W-16-10",), "ControlResponse", "ok", "code", 8, "i", RESPONSE_CODE, (5, -1)),
    Table(
        ("W-16-11",),
        "ShmRegionSuperblock",
        "header_ring",
        "region_type",
        24,
        "h",
        {"HEADER_RING": 1, "PAYLOAD_POOL": 2},
        (0, 3, -1),
    ),
    Table(("W-15.8-03", "W-15.8-05"), "TensorHeader", "image_u16_row_major", "dtype", 0, "h", DTYPE, (12, 15, -1)),
    Table(
        ("W-15.8-04", "W-15.8-05"),
        "TensorHeader",
        "image_u16_row_major",
        "major_order",
        2,
        "h",
        {"UNKNOWN": 0, "ROW": 1, "COLUMN": 2},
        (3, -1),
    ),
    Table(("D-A-05",), "ShmAttachRequest", "typical", "require_hugepages", 23, "B", BOOL, (2, 254), 255),
    Table(("D-A-06",), "ShmAttachResponse", "ok", "code", 8, "i", RESPONSE_CODE, (5, -1)),
    Table(("D-A-07",), "ShmAttachRequest", "typical", "role", 16, "B", {"PRODUCER": 1, "CONSUMER": 2}, (0, 3)),
    Table(
        ("D-A-08",),
        "ShmAttachRequest",
        "typical",
        "publish_mode",
        22,
        "B",
        {"REQUIRE_EXISTING": 1, "EXISTING_OR_CREATE": 2},
        (0, 3),
        255,
    ),
    Table(
        ("D-A-09",),
        "ShmLeaseRevoked",
        "expired",
        "reason",
        25,
        "B",
        {"DETACHED": 1, "EXPIRED": 2, "REVOKED": 3},
        (0, 4),
    ),
    Table(("D-A-10",), "ShmDriverShutdown", "error", "reason", 8, "B", {"NORMAL": 0, "ADMIN": 1, "ERROR": 2}, (3,)),
    Table(
        ("N-15-02",),
        "DiscoveryResponse",
        "not_found",
        "status",
        8,
        "B",
        {"OK": 1, "NOT_FOUND": 2, "ERROR": 3},
        (0, 4),
    ),
    Table(("B-11-04",), "BridgeFrameChunk", "last_chunk", "header_included", 40, "B", BOOL, (2, 255)),
    Table(("S-5.1-03",), "EventMessage", "typical_string", "format", 16, "b", FORMAT, (16, -1)),
]
PARAMETERS = [
    pytest.param(table, id=f"{table.message}.{table.field}", marks=pytest.mark.clause(*table.clauses))
    for table in TABLES
]


@pytest.mark.parametrize("table", PARAMETERS)
def test_every_value_has_its_number_on_the_wire(table: Table) -> None:
    carrier = table.carrier
    kind = type(getattr(carrier, table.field))
    assert {member.name: member.value for member in kind} == table.values
    for name, number in table.values.items():
        message = msgspec.structs.replace(carrier, **{table.field: kind[name]})
        body = message.encode_body()
        assert body[table.offset :][: struct.calcsize(table.code)] == struct.pack(f"<{table.code}", number)
        assert getattr(type(carrier).decode(message.encode()), table.field) is kind[name]


@pytest.mark.parametrize("table", PARAMETERS)
def test_number_that_is_no_value_is_refused_both_ways(table: Table) -> None:
    carrier = table.carrier
    for number in table.invalid:
        tampered = bytearray(carrier.encode())
        struct.pack_into(f"<{table.code}", tampered, 8 + table.offset, number)
        with pytest.raises(DecodeError, match=f"{number} is no valid value"):
            type(carrier).decode(tampered)
        with pytest.raises(EncodeError, match=f"{table.message}.{table.field}: {number} is none of"):
            msgspec.structs.replace(carrier, **{table.field: number}).encode()


@pytest.mark.clause("D-A-05", "D-A-08")
@pytest.mark.parametrize("table", [table for table in TABLES if table.null is not None], ids=lambda table: table.field)
def test_null_number_of_an_optional_enumeration_is_absent(table: Table) -> None:
    absent = msgspec.structs.replace(table.carrier, **{table.field: None})
    assert absent.encode_body()[table.offset] == table.null
    assert getattr(type(absent).decode(absent.encode()), table.field) is None


def first_invalid(field: Field) -> int:
    """A number that fits the field and is neither a value nor the null value of it."""
    assert field.values is not None
    return next(number for number in range(256) if number not in field.values and number != field.null)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_enumeration_of_every_message_is_checked_both_ways(message: type[Message]) -> None:
    carrier = next(vector for vector in ALL if vector.message is message).decode()
    for name, field in zip(message.__struct_fields__, message.FIELDS, strict=False):
        if field.values is None:
            continue
        invalid = first_invalid(field)
        tampered = bytearray(carrier.encode())
        struct.pack_into(f"<{field.code}", tampered, 8 + field.offset, invalid)
        with pytest.raises(DecodeError, match=rf"{message.__name__}\.{field.name}: {invalid} is no valid value"):
            message.decode(tampered)
        with pytest.raises(EncodeError, match=rf"{message.__name__}\.{name}: {invalid} is none of"):
            msgspec.structs.replace(carrier, **{name: invalid}).encode()


def test_absent_enumeration_is_not_blamed_for_an_invalid_one() -> None:
    request = bytearray(example("ShmAttachRequest", "nulls").encoded)
    request[8 + 23] = 2
    with pytest.raises(DecodeError, match=r"ShmAttachRequest\.requireHugepages: 2 is no valid value"):
        ShmAttachRequest.decode(request)
