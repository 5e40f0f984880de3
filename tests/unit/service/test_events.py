"""Events: every format both ways, references, and what is refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from framepool.errors import DecodeError, EncodeError
from framepool.service.events import Event, Format, Ref, Value
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.values import NUMBERS, decode_value, encode_value, format_of

RANGES = {
    Format.UINT8: (0, 2**8 - 1),
    Format.INT8: (-(2**7), 2**7 - 1),
    Format.UINT16: (0, 2**16 - 1),
    Format.INT16: (-(2**15), 2**15 - 1),
    Format.UINT32: (0, 2**32 - 1),
    Format.INT32: (-(2**31), 2**31 - 1),
    Format.UINT64: (0, 2**64 - 1),
    Format.INT64: (-(2**63), 2**63 - 1),
}
references = st.builds(
    Ref,
    st.integers(0, 2**32 - 2),
    st.integers(0, 2**64 - 2),
    st.integers(0, 2**64 - 2),
)
whole_bytes = st.integers(0, 8).flatmap(lambda n: st.lists(st.booleans(), min_size=8 * n, max_size=8 * n))
CASES: dict[Format, st.SearchStrategy[Any]] = {
    **{format: st.integers(low, high) for format, (low, high) in RANGES.items()},
    Format.FLOAT32: st.floats(width=32, allow_nan=False),
    Format.FLOAT64: st.floats(allow_nan=False),
    Format.NOTHING: st.none(),
    Format.BOOLEAN: st.booleans(),
    Format.STRING: st.text(st.characters(codec="utf-8")),
    Format.BYTES: st.binary(),
    Format.BIT: whole_bytes.map(tuple),
    Format.REF: references,
}
named = st.sampled_from(list(Format)).flatmap(lambda format: st.tuples(st.just(format), CASES[format]))
ascii_text = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)


def sent(value: Any, format: Format | None = None, **fields: Any) -> Event:
    return Event.decode(Event(tag="t", key="k", value=value, format=format, **fields).encode())


@given(named, ascii_text, ascii_text, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@pytest.mark.clause("S-5.1-03")
def test_every_value_comes_back_in_the_format_that_was_named(
    case: tuple[Format, Any], tag: str, key: str, correlation_id: int, timestamp_ns: int
) -> None:
    format, value = case
    event = Event(
        tag=tag, key=key, value=value, format=format, correlation_id=correlation_id, timestamp_ns=timestamp_ns
    )
    back = Event.decode(event.encode())
    assert (back.tag, back.key, back.format) == (tag, key, format)
    assert (back.correlation_id, back.timestamp_ns) == (correlation_id, timestamp_ns)
    assert back.value == value
    assert type(back.value) is type(value)
    assert back.ref == (value if format is Format.REF else None)


@pytest.mark.clause("S-5.1-03")
@pytest.mark.parametrize("format", RANGES)
def test_whole_numbers_fill_their_format_and_no_more(format: Format) -> None:
    low, high = RANGES[format]
    size = high.bit_length() // 8 + (low < 0)
    for value in (low, high):
        assert encode_value(value, format) == (format, value.to_bytes(size, "little", signed=low < 0))
        assert decode_value(format, value.to_bytes(size, "little", signed=low < 0)) == value
    for value in (low - 1, high + 1):
        with pytest.raises(EncodeError, match="range"):
            encode_value(value, format)


@pytest.mark.clause("S-5.1-03")
def test_formats_have_the_numbers_of_the_specification() -> None:
    names = "NOTHING UINT8 INT8 UINT16 INT16 UINT32 INT32 UINT64 INT64 FLOAT32 FLOAT64 BOOLEAN STRING BYTES BIT REF"
    assert [format.name for format in sorted(Format)] == names.split()
    assert len(Format) == 16
    assert [encode_value(value, format)[0].value for format, value in EXAMPLES] == [format.value for format in Format]


EXAMPLES: list[tuple[Format, Any]] = [
    (Format.NOTHING, None),
    *((format, 1) for format in RANGES),
    (Format.FLOAT32, 0.5),
    (Format.FLOAT64, 0.5),
    (Format.BOOLEAN, True),
    (Format.STRING, "x"),
    (Format.BYTES, b"x"),
    (Format.BIT, (True,)),
    (Format.REF, Ref(1, 2, 3)),
]


@pytest.mark.parametrize(
    ("value", "format", "data"),
    [
        (None, Format.NOTHING, ""),
        (True, Format.BOOLEAN, "01"),
        (False, Format.BOOLEAN, "00"),
        (5, Format.INT64, "0500000000000000"),
        (-1, Format.INT64, "ffffffffffffffff"),
        (2**63, Format.UINT64, "0000000000000080"),
        (1.5, Format.FLOAT64, "000000000000f83f"),
        ("aé", Format.STRING, "61c3a9"),
        (b"\x00\xff", Format.BYTES, "00ff"),
        (bytearray(b"ab"), Format.BYTES, "6162"),
        ((True, False, True, False, False, False, False, False, True), Format.BIT, "0501"),
        (Ref(1, 2, 3), Format.REF, ""),
        (np.uint8(7), Format.UINT8, "07"),
        (np.int16(-2), Format.INT16, "feff"),
        (np.float32(1.5), Format.FLOAT32, "0000c03f"),
        (np.float64(1.5), Format.FLOAT64, "000000000000f83f"),
        (np.bool_(True), Format.BOOLEAN, "01"),
    ],
)
def test_value_chooses_the_documented_format(value: Any, format: Format, data: str) -> None:
    assert encode_value(value) == (format, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("value", "format", "why"),
    [
        (256, Format.UINT8, "range"),
        (-1, Format.UINT64, "range"),
        (2**64, None, "range"),
        (1e300, Format.FLOAT32, "range"),
        (10**400, Format.FLOAT64, "range"),
        (True, Format.UINT8, "no UINT8"),
        (1.0, Format.INT32, "no INT32"),
        ("1", Format.INT32, "range of INT32|no INT32"),
        (1, Format.BOOLEAN, "no BOOLEAN"),
        (1, Format.STRING, "no STRING"),
        ("text", Format.BYTES, "no BYTES"),
        ("\ud800", None, "no STRING"),
        ((1, 0), Format.BIT, "no BIT"),
        (0, Format.NOTHING, "no NOTHING"),
        ((1, 2, 3), Format.REF, "no REF"),
        ({}, None, "no value of an event"),
        ((1, 2), None, "no value of an event"),
        (np.complex64(1), None, "no wire type"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_name(value: Any, format: Format | None, why: str) -> None:
    with pytest.raises(EncodeError, match=why):
        sent(value, format)


@given(st.sampled_from([format for format in Format if format is not Format.REF]), st.binary(max_size=24))
def test_any_bytes_are_a_value_of_their_format_or_refused(format: Format, data: bytes) -> None:
    try:
        value = decode_value(format, data)
    except DecodeError:
        return
    assume(not (isinstance(value, float) and math.isnan(value)))
    assert encode_value(value, format) == (format, data)


@pytest.mark.parametrize(
    ("format", "data"),
    [
        (Format.UINT32, bytes(3)),
        (Format.FLOAT64, bytes(4)),
        (Format.BOOLEAN, b"\2"),
        (Format.BOOLEAN, b""),
        (Format.STRING, b"\xff"),
        (Format.NOTHING, b"x"),
    ],
)
def test_value_that_is_not_of_its_format_is_a_decode_error(format: Format, data: bytes) -> None:
    with pytest.raises(DecodeError, match=format.name):
        decode_value(format, data)


@pytest.mark.clause("S-5.1-02", "S-5.1-04")
def test_block_has_the_offsets_of_the_specification_and_absent_references_are_null() -> None:
    data = Event(tag="tag", key="ke", value=b"v", correlation_id=-2, timestamp_ns=3).encode()
    assert struct.unpack_from("<4H", data) == (40, 1, 905, 1)
    body = data[8:]
    assert struct.unpack_from("<qq", body) == (3, -2)
    assert (body[16], body[17:20]) == (Format.BYTES, bytes(3))
    assert struct.unpack_from("<I", body, 20) == (2**32 - 1,)
    assert struct.unpack_from("<QQ", body, 24) == (2**64 - 1, 2**64 - 1)
    assert body[40:] == b"\3\0\0\0tag\2\0\0\0ke\1\0\0\0v"
    assert Event.decode(data).ref is None


@given(references)
@pytest.mark.clause("S-5.2-01", "S-5.2-02")
def test_reference_stands_in_its_fields_and_not_in_the_value(reference: Ref) -> None:
    message = Event(tag="t", key="k", value=reference).message()
    assert message.format is Format.REF
    assert (message.ref_stream_id, message.ref_epoch, message.ref_seq) == (
        reference.stream_id,
        reference.epoch,
        reference.seq,
    )
    assert message.value == b""


@pytest.mark.clause("S-5.2-03", "S-5.2-04")
@pytest.mark.parametrize("format", [Format.NOTHING, Format.STRING, Format.BYTES, Format.REF])
def test_no_value_and_a_whole_reference_are_that_reference(format: Format) -> None:
    fields = {"ref_stream_id": 10_000, "ref_epoch": 2, "ref_seq": 3}
    assert Event.of(message(format, **fields)).value == Ref(10_000, 2, 3)
    for missing in fields:
        partial = message(format, **{**fields, missing: None})
        if format is Format.REF:
            with pytest.raises(DecodeError, match="REF without"):
                Event.of(partial)
        else:
            event = Event.of(partial)
            assert event.ref is None
            assert not isinstance(event.value, Ref)


def message(format: Format, **fields: Any) -> EventMessage:
    return EventMessage(timestamp_ns=0, correlation_id=0, format=format, tag="t", key="k", **fields)


def test_value_and_reference_stand_side_by_side() -> None:
    event = sent("dark", ref=Ref(1, 2, 3))
    assert (event.value, event.ref) == ("dark", Ref(1, 2, 3))


@pytest.mark.parametrize("value", [None, "", b"", ()])
def test_empty_value_beside_a_reference_is_refused(value: Value) -> None:
    with pytest.raises(EncodeError, match="reads as the reference"):
        sent(value, ref=Ref(1, 2, 3))


def test_two_references_in_one_event_are_refused() -> None:
    with pytest.raises(EncodeError, match="beside"):
        sent(Ref(1, 2, 3), ref=Ref(1, 2, 4))
    assert sent(Ref(1, 2, 3), ref=Ref(1, 2, 3)).value == Ref(1, 2, 3)


def test_bytes_beside_a_ref_are_none_of_its_value() -> None:
    fields = {"ref_stream_id": 1, "ref_epoch": 2, "ref_seq": 3}
    assert Event.of(message(Format.REF, value=b"unrelated", **fields)).value == Ref(1, 2, 3)


@pytest.mark.parametrize("reference", [Ref(2**32 - 1, 0, 0), Ref(0, 2**64 - 1, 0), Ref(0, 0, -1)])
def test_reference_that_the_fields_cannot_hold_is_refused(reference: Ref) -> None:
    with pytest.raises(EncodeError, match="ref_"):
        sent(reference)


@pytest.mark.clause("S-5.1-01")
@pytest.mark.parametrize("version", [1, 2])
def test_longer_block_is_read_as_far_as_it_is_known(version: int) -> None:
    event = Event(tag="service:x", key="go", value=25, correlation_id=42, timestamp_ns=7)
    assert Event.decode(extended(event, b"trace id", version=version)) == Event.of(event.message())


def extended(event: Event, more: bytes, *, version: int = 2) -> bytes:
    """The event as somebody says it whose schema has more fields."""
    data = event.encode()
    return struct.pack("<4H", 40 + len(more), 1, 905, version) + data[8:48] + more + data[48:]


def test_json_says_every_value() -> None:
    said = [sent(value).plain()["value"] for value in (None, True, 5, 0.5, "x", b"\1\2", (True,) * 8, Ref(1, 2, 3))]
    assert said == [None, True, 5, 0.5, "x", "0102", "11111111", {"stream_id": 1, "epoch": 2, "seq": 3}]
    assert Event(tag="t", key="k", value=5).plain()["format"] == "INT64"


def test_every_number_format_has_a_layout() -> None:
    assert set(NUMBERS) == {*RANGES, Format.FLOAT32, Format.FLOAT64}
    assert format_of(5) is Format.INT64
