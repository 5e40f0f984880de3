"""Superblocks: what is written, what is compared, and every single-bit flip."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from framepool.errors import SuperblockError
from framepool.shm.layout import StreamLayout
from framepool.shm.region import map_stream
from framepool.shm.superblock import pool_superblock, read_superblock, ring_superblock, validate_superblock
from framepool.wire._generated.control_900 import RegionType, ShmRegionSuperblock
from tests.support.regions import EPOCH, STREAM, allow, leaves_no_trace, make_stream

UNCHECKED_BYTES = set(range(40, 64))  # pid, start_timestamp_ns, activity_timestamp_ns
UNCHECKED_IN_RING = set(range(36, 40))  # stride_bytes: decisions.md #3
UNCHECKED_IN_POOL = set(range(32, 36))  # slot_bytes: decisions.md #3


def files(layout: StreamLayout) -> list[Path]:
    return [Path(layout.header_uri.path), *(Path(pool.uri.path) for pool in layout.pools)]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.clause("W-6-01", "W-7.1-06")
def test_every_region_begins_with_a_superblock_of_the_right_magic(base_dir: Path) -> None:
    for path in files(make_stream(base_dir)):
        head = path.read_bytes()[:64]
        assert head[:8] == bytes.fromhex("314D48534C504F54")
        assert int.from_bytes(head[:8], "little") == 0x544F504C53484D31
        assert ShmRegionSuperblock.decode_body(head).stream_id == STREAM


@pytest.mark.clause("W-6-02")
def test_the_superblock_is_little_endian(base_dir: Path) -> None:
    layout = make_stream(base_dir, stream_id=0x01020304, epoch=0x05060708090A0B0C)
    head = Path(layout.pools[1].uri.path).read_bytes()[:64]
    expected = (
        "314D48534C504F54"  # magic
        "01000000"  # layout_version
        "0C0B0A0908070605"  # epoch
        "04030201"  # stream_id
        "0200"  # region_type
        "0200"  # pool_id
        "04000000"  # nslots
        "00100000"  # slot_bytes
        "00100000"  # stride_bytes
    )
    assert head[:40].hex().upper() == expected
    assert head[40:48] == os.getpid().to_bytes(8, "little")
    assert head[48:64] == (1_000).to_bytes(8, "little") * 2


@pytest.mark.clause("W-7.1-10", "W-7.1-11")
def test_ring_and_pools_say_what_they_are(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    ring, *pools = (ShmRegionSuperblock.decode_body(path.read_bytes()) for path in files(layout))
    assert (ring.region_type, ring.pool_id, ring.slot_bytes, ring.stride_bytes) == (RegionType.HEADER_RING, 0, 256, 0)
    assert [(p.region_type, p.pool_id, p.slot_bytes, p.stride_bytes) for p in pools] == [
        (RegionType.PAYLOAD_POOL, 1, 64, 64),
        (RegionType.PAYLOAD_POOL, 2, 4096, 4096),
    ]
    assert {p.nslots for p in (ring, *pools)} == {4}
    assert {p.epoch for p in (ring, *pools)} == {EPOCH}


@pytest.mark.clause("W-7.1-07", "W-15.1-01")
@pytest.mark.parametrize("region", [0, 2], ids=["ring", "pool"])
def test_every_single_bit_flip_of_a_checked_field_is_refused(base_dir: Path, region: int) -> None:
    layout = make_stream(base_dir)
    path = files(layout)[region]
    head = path.read_bytes()[:64]
    unchecked = UNCHECKED_BYTES | (UNCHECKED_IN_RING if region == 0 else UNCHECKED_IN_POOL)
    allowed = allow(base_dir)
    for bit in range(64 * 8):
        at, mask = divmod(bit, 8)
        overwrite(path, at, bytes([head[at] ^ (1 << mask)]))
        with leaves_no_trace(base_dir):
            if at in unchecked:
                map_stream(layout, allowed).close()
            else:
                with pytest.raises(SuperblockError, match=str(path)):
                    map_stream(layout, allowed)
        overwrite(path, at, head[at : at + 1])


@pytest.mark.clause("W-15.1-01", "W-7.1-08", "W-15.20-01")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 0x54504F4C53484D31),
        ("layout_version", 2),
        ("epoch", EPOCH + 1),
        ("stream_id", STREAM + 1),
        ("region_type", RegionType.PAYLOAD_POOL),
        ("pool_id", 1),
        ("nslots", 8),
        ("slot_bytes", 512),
    ],
)
def test_a_ring_that_contradicts_its_announce_is_refused_by_field(base_dir: Path, field: str, value: int) -> None:
    expected = ring_superblock(make_stream(base_dir))
    validate_superblock(expected, expected)
    with pytest.raises(SuperblockError, match=f"^{field} is"):
        validate_superblock(msgspec.structs.replace(expected, **{field: value}), expected)


@pytest.mark.clause("W-15.1-01")
@pytest.mark.parametrize(
    ("field", "value"),
    [("region_type", RegionType.HEADER_RING), ("pool_id", 2), ("nslots", 2), ("stride_bytes", 128)],
)
def test_a_pool_that_contradicts_its_announce_is_refused_by_field(base_dir: Path, field: str, value: int) -> None:
    layout = make_stream(base_dir)
    expected = pool_superblock(layout, layout.pools[0])
    validate_superblock(expected, expected)
    with pytest.raises(SuperblockError, match=f"^{field} is"):
        validate_superblock(msgspec.structs.replace(expected, **{field: value}), expected)


@pytest.mark.clause("W-7.1-10", "W-3-01", "W-15.22-12")
@pytest.mark.parametrize(
    ("region", "field", "value"),
    [
        (0, "pool_id", 1),
        (0, "nslots", 6),
        (0, "nslots", 0),
        (0, "slot_bytes", 512),
        (1, "nslots", 6),
        (1, "stride_bytes", 0),
        (1, "stride_bytes", 32),
        (1, "stride_bytes", 192),
    ],
)
def test_an_impossible_superblock_is_refused_even_if_it_is_expected(
    base_dir: Path, region: int, field: str, value: int
) -> None:
    layout = make_stream(base_dir)
    block = ring_superblock(layout) if region == 0 else pool_superblock(layout, layout.pools[0])
    impossible = msgspec.structs.replace(block, **{field: value})
    with pytest.raises(SuperblockError, match=field):
        validate_superblock(impossible, impossible)


@pytest.mark.clause("W-7.1-11")
def test_pools_that_changed_places_are_refused(base_dir: Path) -> None:
    layout = make_stream(base_dir, strides={1: 64, 2: 64})
    first, second = (Path(pool.uri.path) for pool in layout.pools)
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    with leaves_no_trace(base_dir), pytest.raises(SuperblockError, match="pool_id is 2, announced is 1"):
        map_stream(layout, allow(base_dir))


@pytest.mark.parametrize("length", [0, 1, 63])
def test_a_short_superblock_is_refused(base_dir: Path, length: int) -> None:
    path = base_dir / "short"
    path.write_bytes(b"\x31" * length)
    with path.open("rb") as file, pytest.raises(SuperblockError, match=f"{length} of 64 bytes"):
        read_superblock(file.fileno())
