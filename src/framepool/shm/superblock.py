"""The first 64 bytes of every region: built by its maker, compared with the announce by everybody else (Wire 7.1).

The comparison is pure; the bytes come by `pread`, never from a map, so that a file that was cut off after it was
checked is a short read and not a SIGBUS.
"""

from __future__ import annotations

import os
from typing import Final

from framepool.errors import DecodeError, SuperblockError
from framepool.shm.layout import PoolLayout, StreamLayout, is_power_of_two, is_stride
from framepool.wire._generated.control_900 import RegionType, ShmRegionSuperblock
from framepool.wire.constants import HEADER_SLOT_BYTES, SUPERBLOCK_MAGIC, SUPERBLOCK_SIZE

_COMPARED: Final = ("layout_version", "epoch", "stream_id", "region_type", "pool_id", "nslots")
_SIZE_FIELD: Final = {RegionType.HEADER_RING: "slot_bytes", RegionType.PAYLOAD_POOL: "stride_bytes"}


def ring_superblock(layout: StreamLayout, *, pid: int = 0, timestamp_ns: int = 0) -> ShmRegionSuperblock:
    """The superblock of a header ring: slots of 256 bytes, no stride, pool 0 (decisions.md #3)."""
    return ShmRegionSuperblock(
        magic=SUPERBLOCK_MAGIC,
        layout_version=layout.layout_version,
        epoch=layout.epoch,
        stream_id=layout.stream_id,
        region_type=RegionType.HEADER_RING,
        pool_id=0,
        nslots=layout.nslots,
        slot_bytes=HEADER_SLOT_BYTES,
        stride_bytes=0,
        pid=pid,
        start_timestamp_ns=timestamp_ns,
        activity_timestamp_ns=timestamp_ns,
    )


def pool_superblock(
    layout: StreamLayout, pool: PoolLayout, *, pid: int = 0, timestamp_ns: int = 0
) -> ShmRegionSuperblock:
    """The superblock of a payload pool: slot and stride are the same number (decisions.md #3)."""
    return ShmRegionSuperblock(
        magic=SUPERBLOCK_MAGIC,
        layout_version=layout.layout_version,
        epoch=layout.epoch,
        stream_id=layout.stream_id,
        region_type=RegionType.PAYLOAD_POOL,
        pool_id=pool.pool_id,
        nslots=pool.nslots,
        slot_bytes=pool.stride_bytes,
        stride_bytes=pool.stride_bytes,
        pid=pid,
        start_timestamp_ns=timestamp_ns,
        activity_timestamp_ns=timestamp_ns,
    )


def validate_superblock(block: ShmRegionSuperblock, expected: ShmRegionSuperblock) -> None:
    """Raises SuperblockError, naming the field, unless `block` is what `expected` says it should be (Wire 15.1).

    Compared are slot_bytes for the ring and stride_bytes for a pool, the ones that an announce carries. pid and the
    timestamps tell of the maker and its life, not of the layout: whoever watches them does so elsewhere.
    """
    if block.magic != SUPERBLOCK_MAGIC:
        raise SuperblockError(f"magic is {block.magic:#018x}, must be {SUPERBLOCK_MAGIC:#018x}")
    compared = (*_COMPARED, _SIZE_FIELD[expected.region_type])
    for name in compared:
        found, wanted = getattr(block, name), getattr(expected, name)
        if found != wanted:
            raise SuperblockError(f"{name} is {found}, announced is {wanted}")
    if not is_power_of_two(block.nslots):
        raise SuperblockError(f"nslots is {block.nslots}, must be a power of two")
    if block.region_type == RegionType.HEADER_RING:
        if block.pool_id != 0:
            raise SuperblockError(f"pool_id of a header ring is {block.pool_id}, must be 0")
        if block.slot_bytes != HEADER_SLOT_BYTES:
            raise SuperblockError(f"slot_bytes is {block.slot_bytes}, must be {HEADER_SLOT_BYTES}")
    elif not is_stride(block.stride_bytes):
        raise SuperblockError(f"stride_bytes is {block.stride_bytes}, must be 64 times a power of two")


def read_superblock(fd: int) -> ShmRegionSuperblock:
    """The superblock of an open region file; SuperblockError if it is cut off or cannot be read."""
    data = os.pread(fd, SUPERBLOCK_SIZE, 0)
    if len(data) != SUPERBLOCK_SIZE:
        raise SuperblockError(f"the superblock is cut off: {len(data)} of {SUPERBLOCK_SIZE} bytes")
    try:
        return ShmRegionSuperblock.decode_body(data)
    except DecodeError as error:
        raise SuperblockError(f"the superblock cannot be read: {error}") from error
