"""How frames are cut, and what goes beside the chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool._native.crc32c import crc32c
from framepool.bridge.chunks import (
    CHECKSUM_THERE,
    FIRST_OVERHEAD,
    MAX_CHUNKS,
    ChunkDrop,
    ChunkSizing,
    decode_chunk,
)
from framepool.errors import ConfigurationError
from framepool.wire._generated.bridge_902 import Bool, BridgeFrameChunk
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.support.chunked import EPOCH, STREAM, SentFrame, noise, put

MTU = 1408
SIZING = ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 128)


def decoded(frame: SentFrame, *, sizing: ChunkSizing = SIZING, crc32c: bool = False) -> list[BridgeFrameChunk]:
    return [BridgeFrameChunk.decode(chunk.message) for chunk in frame.chunks(sizing, crc32c=crc32c)]


@given(length=st.integers(0, 20_000), mtu=st.integers(512, 9000), chunk=st.integers(1, 8000), checked=st.booleans())
def test_slices_tile_the_payload(length: int, mtu: int, chunk: int, checked: bool) -> None:
    sizing = ChunkSizing(mtu_bytes=mtu, chunk_bytes=min(chunk, mtu - 128))
    slices = list(sizing.slices(length, crc32c=checked))
    assert len(slices) == sizing.count(length, crc32c=checked) >= 1 + checked
    end = 0
    for index, (offset, size) in enumerate(slices):
        assert offset == end
        assert size <= (sizing.chunk_bytes if index else sizing.first_bytes)
        end += size
    assert end == length


def test_first_chunk_is_shortened_for_the_header() -> None:
    assert FIRST_OVERHEAD == 345
    assert SIZING.first_bytes == MTU - 345
    assert ChunkSizing(mtu_bytes=MTU, chunk_bytes=100).first_bytes == 100
    first, second = SentFrame(1, bytes(1500)).chunks(SIZING)
    assert len(first.message) + 32 == MTU
    assert len(second.message) + 32 < MTU


def test_sizes_that_do_not_fit_the_mtu_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1320"):
        ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 88)
    ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 89)
    with pytest.raises(ConfigurationError):
        ChunkSizing(mtu_bytes=MTU, chunk_bytes=0)
    with pytest.raises(ConfigurationError):
        ChunkSizing(mtu_bytes=2**17, chunk_bytes=2**16)
    with pytest.raises(ConfigurationError, match="345"):
        ChunkSizing(mtu_bytes=345, chunk_bytes=10)


def test_chunks_are_counted_up_to_the_limit_and_beyond() -> None:
    sizing = ChunkSizing(mtu_bytes=512, chunk_bytes=10)
    assert sizing.count(10 * MAX_CHUNKS) == MAX_CHUNKS
    assert sizing.count(10 * MAX_CHUNKS + 1) == MAX_CHUNKS + 1


def test_chunks_of_a_frame_say_what_the_specification_wants() -> None:
    frame = SentFrame(9, noise(9, 4000), trace_id=77)
    chunks = decoded(frame)
    assert len(chunks) == 4
    for index, chunk in enumerate(chunks):
        assert (chunk.stream_id, chunk.epoch, chunk.seq) == (STREAM, EPOCH, 9)
        assert (chunk.chunk_index, chunk.chunk_count, chunk.payload_length) == (index, 4, 4000)
        assert chunk.header_included is (Bool.FALSE if index else Bool.TRUE)
        assert chunk.header_bytes == (b"" if index else frame.header)
        assert len(chunk.payload_bytes) == chunk.chunk_length
    assert b"".join(chunk.payload_bytes for chunk in chunks) == frame.payload


def test_trace_id_goes_beside_the_first_chunk_only() -> None:
    assert [chunk.reserved for chunk in SentFrame(1, bytes(4000), trace_id=2**64 - 1).chunks(SIZING)] == [
        2**64 - 1,
        0,
        0,
        0,
    ]
    assert not any(chunk.reserved for chunk in SentFrame(1, bytes(4000)).chunks(SIZING))


@pytest.mark.clause("B-5.4-01")
@pytest.mark.parametrize("length", [0, 1, 1063, 1064, 4000])
def test_checksum_goes_beside_the_last_chunk_and_changes_no_message(length: int) -> None:
    frame = SentFrame(1, noise(1, length), trace_id=5)
    with_checksum, without = frame.chunks(SIZING, crc32c=True), frame.chunks(SIZING)
    assert len(with_checksum) == max(2, len(without))
    assert with_checksum[0].reserved == 5
    assert with_checksum[-1].reserved == CHECKSUM_THERE | crc32c(frame.header + frame.payload)
    if len(without) > 1:
        assert [chunk.message for chunk in with_checksum] == [chunk.message for chunk in without]


def test_empty_frame_is_one_chunk() -> None:
    (chunk,) = decoded(SentFrame(3, b""))
    assert (chunk.chunk_count, chunk.chunk_length, chunk.payload_length) == (1, 0, 0)
    assert len(chunk.header_bytes) == 256


@pytest.mark.clause("B-11-03", "B-11-04", "B-5.2-27")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunkIndex", 65_536),
        ("chunkCount", 65_536),
        ("chunkLength", 65_536),
        ("payloadLength", 2**30 + 1),
        ("headerIncluded", 2),
    ],
)
def test_value_above_its_maximum_is_malformed(name: str, value: int) -> None:
    (chunk,) = SentFrame(1, b"x").chunks()
    assert isinstance(decode_chunk(chunk.message), BridgeFrameChunk)
    assert decode_chunk(put(chunk.message, name, value)) is ChunkDrop.MALFORMED


def test_foreign_messages_are_told_apart() -> None:
    (chunk,) = SentFrame(1, b"x").chunks()
    other = FrameDescriptor(stream_id=1, epoch=1, seq=1).encode()
    assert decode_chunk(other) is ChunkDrop.SCHEMA
    for at, cause in ((4, ChunkDrop.SCHEMA), (6, ChunkDrop.VERSION), (2, ChunkDrop.TEMPLATE), (0, ChunkDrop.DIALECT)):
        message = bytearray(chunk.message)
        message[at : at + 2] = (53).to_bytes(2, "little")
        assert decode_chunk(bytes(message)) is cause
    announce_of_another_dialect = chunk.message[:4] + (900).to_bytes(2, "little") + chunk.message[6:]
    assert decode_chunk(announce_of_another_dialect) is ChunkDrop.SCHEMA
    assert decode_chunk(b"") is decode_chunk(chunk.message[:-1]) is ChunkDrop.MALFORMED
