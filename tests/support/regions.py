"""Streams on disk for tests, and what a process holds of them: open descriptors and maps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from framepool.shm.allocator import Allocator
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import AllowedDirectories
from framepool.wire._generated.control_900 import ClockDomain, PayloadPool, ShmPoolAnnounce

STREAM = 7
EPOCH = 3
STRIDES: Mapping[int, int] = {1: 64, 2: 4096}


def make_stream(
    base: Path, *, stream_id: int = STREAM, epoch: int = EPOCH, nslots: int = 4, strides: Mapping[int, int] = STRIDES
) -> StreamLayout:
    """A small stream on disk, as a driver would make it."""
    return Allocator(base, "test", user="tester").create(
        stream_id, epoch, nslots=nslots, strides=strides, timestamp_ns=1_000
    )


def allow(base: Path) -> AllowedDirectories:
    return AllowedDirectories([base])


def announce(layout: StreamLayout, **changes: object) -> ShmPoolAnnounce:
    """The announce of a layout, with fields changed at will."""
    fields: dict[str, object] = {
        "stream_id": layout.stream_id,
        "producer_id": 1,
        "epoch": layout.epoch,
        "announce_timestamp_ns": 0,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": layout.layout_version,
        "header_nslots": layout.nslots,
        "header_slot_bytes": layout.header_slot_bytes,
        "payload_pools": tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=pool.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=str(pool.uri),
            )
            for pool in layout.pools
        ),
        "header_region_uri": str(layout.header_uri),
    }
    return ShmPoolAnnounce(**{**fields, **changes})  # type: ignore[arg-type]


def open_descriptors() -> dict[str, str]:
    """What this process has open, by descriptor."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found


def maps_below(base: Path) -> list[str]:
    """Lines of /proc/self/maps for files below `base`."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{base}/" in line]


@contextmanager
def leaves_no_trace(base: Path) -> Iterator[None]:
    """Asserts that the block ends with no descriptor more than it began with and no map below `base`. What a test
    before this one left to the collector may be closed meanwhile."""
    before = open_descriptors()
    yield
    assert open_descriptors().items() <= before.items()
    assert maps_below(base) == []
