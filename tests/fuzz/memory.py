"""What other processes leave in shared memory: slots, superblocks, announced layouts, the media driver's `cnc.dat`."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

import numpy as np

from framepool.client import gauges
from framepool.errors import DecodeError, RegionError, SuperblockError, TransportError
from framepool.shm.drop import DropReason
from framepool.shm.layout import PoolLayout, StreamLayout
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import map_stream
from framepool.shm.superblock import pool_superblock, read_superblock, ring_superblock, validate_superblock
from framepool.shm.tensor import TensorLayout
from framepool.shm.uri import RegionUri
from framepool.transport import cnc
from framepool.wire._generated.control_900 import ClockDomain, ShmPoolAnnounce
from framepool.wire.constants import HEADER_SLOT_BYTES, LAYOUT_VERSION, SUPERBLOCK_SIZE
from tests.fuzz.draw import Draw
from tests.fuzz.places import scratch
from tests.support.slots import CoreSlots, ModelSlots, Slots

NSLOTS = 4
STRIDES = (256, 4096)
POOL = PoolLayout(1, NSLOTS, 256, RegionUri("/dev/shm/pool"))
LAYOUT = StreamLayout(
    stream_id=7,
    epoch=9,
    layout_version=LAYOUT_VERSION,
    nslots=NSLOTS,
    header_slot_bytes=HEADER_SLOT_BYTES,
    header_uri=RegionUri("/dev/shm/header"),
    pools=(POOL,),
)
_slots: list[Slots] = [ModelSlots(NSLOTS, STRIDES), CoreSlots(NSLOTS, STRIDES)]


def one(data: bytes) -> None:
    draw = Draw(data)
    draw.chosen((_slot, _superblock, _announce, _cnc))(draw)


def _slot(draw: Draw) -> None:
    """The readable and the compiled check agree on a slot, and what they accept lies within its pool."""
    seq = draw.number(8)
    image = draw.bytes(256).ljust(256, b"\0")
    for slots in _slots:
        slots.header[64:] = 0
        slots.slot(seq % NSLOTS)[:] = np.frombuffer(image, np.uint8)
    model, core = (slots.check(seq) for slots in _slots)
    if isinstance(model, DropReason) or isinstance(core, DropReason):
        assert model == core
        return
    for name in ("seq", "pool_id", "payload_slot", "values_len_bytes", "timestamp_ns", "meta_version"):
        assert getattr(model, name) == getattr(core, name)
    for name in ("dtype", "order", "shape", "strides", "progress_unit", "progress_stride_bytes", "nbytes", "extent"):
        assert getattr(model.layout, name) == getattr(core.layout, name)
    assert model.layout.extent <= max(STRIDES)
    for read in ("array", "copy"):
        ours, theirs = getattr(_slots[0], read)(model), getattr(_slots[1], read)(core)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def _superblock(draw: Draw) -> None:
    expected = draw.chosen((ring_superblock(LAYOUT), pool_superblock(LAYOUT, POOL)))
    fd = os.memfd_create("superblock")
    try:
        os.write(fd, draw.rest())
        validate_superblock(read_superblock(fd), expected)
    except SuperblockError:
        pass
    finally:
        os.close(fd)


def _announce(draw: Draw) -> None:
    """A layout that somebody announces is a layout, or refused; nothing of it is here to be mapped."""
    try:
        announce = ShmPoolAnnounce.decode(draw.rest())
        layout = StreamLayout.from_announce(announce)
    except (DecodeError, RegionError):
        return
    again = layout.announce(
        producer_id=announce.producer_id,
        timestamp_ns=announce.announce_timestamp_ns,
        clock_domain=announce.announce_clock_domain,
    )
    assert StreamLayout.from_announce(again) == layout
    try:
        map_stream(layout, AllowedDirectories([scratch()])).close()
    except RegionError:
        return
    raise AssertionError("mapped something that nobody made")


def _cnc(draw: Draw) -> None:
    directory = scratch()
    path = directory / cnc.FILE
    path.write_bytes(draw.rest())
    list(gauges.read(str(directory)))
    try:
        with cnc.CncFile(str(directory)) as file:
            file.status().age()
            list(file.counters())
    except TransportError:
        pass
    finally:
        path.unlink()


def seeds() -> Iterator[bytes]:
    kinds: list[Callable[[Draw], None]] = [_slot, _superblock, _announce, _cnc]
    slots = ModelSlots(NSLOTS, STRIDES)
    for seq, (dtype, shape) in enumerate([("u1", (4,)), ("<f4", (5, 5)), ("<i2", (0,)), ("<u8", (2, 2, 2))]):
        slots.publish(seq, TensorLayout.build(np.dtype(dtype), shape))
        yield bytes([kinds.index(_slot)]) + seq.to_bytes(8, "little") + slots.slot(seq % NSLOTS).tobytes()
    for number, block in enumerate((ring_superblock(LAYOUT), pool_superblock(LAYOUT, POOL))):
        yield bytes([kinds.index(_superblock), number]) + block.encode_body().ljust(SUPERBLOCK_SIZE, b"\0")
    announce = LAYOUT.announce(producer_id=1, timestamp_ns=2, clock_domain=ClockDomain.MONOTONIC)
    yield bytes([kinds.index(_announce)]) + announce.encode()
    ring, clients, metadata, values, errors = 1024, 128, 1024, 256, 0
    file = bytearray(cnc.HEADER_LENGTH + ring + clients + metadata + values + errors)
    cnc.HEADER.pack_into(file, 0, 2 << 8, ring, clients, metadata, values, errors, 10**9, 1, 2, 0)
    at = cnc.HEADER_LENGTH + ring + clients
    key = gauges.KEY.pack(1, 10_000, 3)
    cnc.METADATA.pack_into(file, at, 1, 2111, 0, key.ljust(112, b"\0"), 5, b"label")
    struct.pack_into("<q", file, at + metadata, 77)
    yield bytes([kinds.index(_cnc)]) + bytes(file)
