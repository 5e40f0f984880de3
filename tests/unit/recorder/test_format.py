"""Records: what is written is read, and no damaged header passes for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.recorder import format as form
from framepool.recorder.format import Kind

SEGMENT = 7
kinds = st.sampled_from([Kind.SEGMENT, Kind.LOSS, Kind.MESSAGE, Kind.PADDING])


def record(kind: Kind = Kind.LOSS, payload: bytes = b"{}", **options: Any) -> bytes:
    return form.encode(kind, payload, segment_id=SEGMENT, number=3, recorded_ns=4, monotonic_ns=5, **options)


@given(st.lists(st.tuples(kinds, st.binary(max_size=300)), max_size=8))
def test_records_follow_one_another(written: list[tuple[Kind, bytes]]) -> None:
    buffer = memoryview(b"".join(record(kind, payload) for kind, payload in written) + bytes(4096))
    found = list(form.walk(buffer, SEGMENT))
    assert [(each.kind, bytes(form.payload(buffer, each))) for each in found] == written
    assert all(each.offset % 64 == each.payload_offset % 64 == 0 and form.is_whole(buffer, each) for each in found)
    assert all((each.prefix.number, each.prefix.recorded_ns, each.prefix.monotonic_ns) == (3, 4, 5) for each in found)


@given(kind=kinds, payload=st.binary(max_size=100), bit=st.integers(0))
def test_one_flipped_bit_is_noticed_wherever_it_is(kind: Kind, payload: bytes, bit: int) -> None:
    damaged = bytearray(record(kind, payload))
    bit %= 8 * (form.HEADER_BYTES[kind] + len(payload))
    damaged[bit // 8] ^= 1 << bit % 8
    found = form.read(memoryview(damaged), 0, SEGMENT)
    assert found is None or not form.is_whole(memoryview(damaged), found)
    assert (found is None) == (bit // 8 < form.HEADER_BYTES[kind])


@given(st.binary(max_size=200), st.integers(0, 200))
def test_anything_else_is_no_record(data: bytes, offset: int) -> None:
    assert form.read(memoryview(data), offset) is None


def test_record_of_another_segment_or_cut_short_is_none() -> None:
    whole = record()
    assert form.read(memoryview(whole), 0, SEGMENT + 1) is None
    assert form.read(memoryview(whole[:-1]), 0, SEGMENT) is None
    assert form.read(memoryview(whole), 0) is not None


def test_padding_fills_a_block() -> None:
    padding = record(Kind.PADDING, b"", record_bytes=4096 - 128)
    assert len(padding) == 4096 - 128
    (found,) = form.walk(memoryview(padding), SEGMENT)
    assert (found.kind, found.end) == (Kind.PADDING, 4096 - 128)


def test_search_finds_the_next_record_behind_damage() -> None:
    damaged = bytearray(record() + record(payload=b"FPRC" * 40) + record(Kind.PADDING, b""))
    second = len(record())
    third = len(damaged) - 64
    damaged[second + 5] ^= 1
    buffer = memoryview(damaged)
    assert form.find(buffer, 0, len(buffer), SEGMENT) == 0
    assert form.find(buffer, second, len(buffer), SEGMENT) == third
    assert form.find(buffer, third + 1, len(buffer), SEGMENT) is None


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_alignment(length: int, expected: int) -> None:
    assert form.aligned(length) == expected
