"""Bounded reads: any buffer is taken, none is read past its end, and lengths that lie cost no memory."""

from __future__ import annotations

import array
import mmap
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from framepool.errors import DecodeError
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import DataSourceMeta, FrameDescriptor, ShmPoolAnnounce
from framepool.wire._generated.discovery_910 import DiscoveryResponse
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.cursor import Cursor
from framepool.wire.message import Message
from tests.golden.vectors import example

ANNOUNCE = example("ShmPoolAnnounce", "three_pools").encoded
DESCRIPTOR = example("FrameDescriptor", "typical").encoded


def buffers(data: bytes) -> list[object]:
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    fours = data + bytes(-len(data) % 4)
    return [
        data,
        bytearray(data),
        memoryview(data),
        memoryview(b"xx" + data)[2:],
        mapped,
        array.array("B", data),
        np.frombuffer(data, np.uint8),
        np.frombuffer(data, np.uint8).reshape(2, -1) if len(data) % 2 == 0 else data,
        array.array("I", fours) if len(fours) == len(data) else data,
        np.frombuffer(data, ">u2") if len(data) % 2 == 0 else data,
    ]


@pytest.mark.parametrize("data", [ANNOUNCE, DESCRIPTOR], ids=["announce", "descriptor"])
def test_every_kind_of_buffer_is_decoded(data: bytes) -> None:
    expected = dispatch.decode(data)
    for buffer in buffers(data):
        assert type(expected).decode(buffer) == expected  # type: ignore[arg-type]
        assert dispatch.decode(buffer) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [ShmPoolAnnounce, FrameDescriptor])
def test_buffer_with_gaps_is_refused(message: type[Message]) -> None:
    with pytest.raises(DecodeError, match="not contiguous"):
        message.decode(memoryview(bytes(400))[::2])


@pytest.mark.parametrize("message", [ShmPoolAnnounce, FrameDescriptor])
def test_empty_array_of_two_dimensions_is_just_too_short(message: type[Message]) -> None:
    with pytest.raises(DecodeError, match="needs 8 bytes at offset 0, 0 are left"):
        message.decode(np.zeros((0, 3), np.uint8))


def test_offset_outside_of_the_buffer_is_refused() -> None:
    for offset in (-1, 49):
        with pytest.raises(DecodeError, match="lies outside"):
            Cursor(DESCRIPTOR, offset)
        with pytest.raises(DecodeError, match="lies outside"):
            FrameDescriptor.decode_body(DESCRIPTOR, offset)


def test_decoded_message_keeps_no_hold_on_the_buffer() -> None:
    for data in (ANNOUNCE, DESCRIPTOR, example("BridgeFrameChunk", "last_chunk").encoded):
        buffer = bytearray(data)
        message = dispatch.decode(buffer)
        buffer.clear()
        assert message.encode() == data


def lies() -> dict[str, bytes]:
    announce = bytearray(ANNOUNCE)
    struct.pack_into("<H", announce, 8 + 35 + 2, 65535)
    response = bytearray(example("DiscoveryResponse", "two_results").encoded)
    struct.pack_into("<H", response, 8 + 9 + 2, 65535)
    inner = bytearray(example("DiscoveryResponse", "two_results").encoded)
    struct.pack_into("<H", inner, 8 + 9 + 4 + 39 + 2, 65535)
    links = bytearray(example("TraceLinkSet", "two_parents").encoded)
    struct.pack_into("<H", links, 8 + 28 + 2, 65535)
    data = bytearray(example("DataSourceAnnounce", "typical").encoded)
    struct.pack_into("<I", data, 8 + 20, 1_073_741_824)
    attributes = DataSourceMeta.HEADER_BYTES + bytes(16) + struct.pack("<HH", 0, 65535) + bytes(12 * 1000)
    return {
        "pools": bytes(announce),
        "results": bytes(response),
        "inner pools": bytes(inner),
        "parents": bytes(links),
        "length": bytes(data),
        "attributes of no bytes": attributes,
    }


@pytest.mark.parametrize("lie", lies().values(), ids=lies().keys())
def test_count_or_length_that_lies_costs_no_memory(lie: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=r"claims 65535 entries|needs 1073741824 bytes"):
            dispatch.decode(lie)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000 + 20 * len(lie)


def test_as_many_entries_as_the_buffer_holds_are_decoded() -> None:
    attributes = DataSourceMeta.HEADER_BYTES + bytes(16) + struct.pack("<HH", 0, 65535) + bytes(12 * 65535)
    assert len(DataSourceMeta.decode(attributes).attributes) == 65535
    parents = TraceLinkSet.HEADER_BYTES + bytes(28) + struct.pack("<HH", 8, 65535) + bytes(8 * 65535)
    assert len(TraceLinkSet.decode(parents).parents) == 65535
    with pytest.raises(DecodeError, match="claims 65535 entries, 524279 bytes are left"):
        TraceLinkSet.decode(parents[:-1])


def test_minimum_length_is_what_an_empty_entry_takes() -> None:
    response = example("DiscoveryResponse", "two_results").decode()
    assert isinstance(response, DiscoveryResponse)
    result = response.results[0]
    numbers: Any = dict.fromkeys(result.__struct_fields__[:9], 0)
    empty = type(result)(**numbers)
    assert len(empty.encode_body()) == type(result).MINIMUM_LENGTH == 39 + 2 * 4 + 4 * 4
