"""The numbers of a stream's regions: how many slots, how large, in which files (Wire 3, 9, 10.1.1, 15.5, 15.22).

Frozen values, made from an announce (or an attach response, which carries the same fields) by a consumer and by the
allocator for a producer. `validate` holds the rules that need no file; everything about files is elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from framepool.errors import RegionError
from framepool.shm.uri import RegionUri
from framepool.wire._generated.control_900 import ClockDomain, PayloadPool, ShmPoolAnnounce
from framepool.wire.constants import HEADER_SLOT_BYTES, LAYOUT_VERSION, SUPERBLOCK_SIZE

STRIDE_UNIT: Final = 64
_U16: Final = 2**16 - 1
_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1


class AnnouncedPool(Protocol):
    """An entry of `payload_pools` in any message that announces regions."""

    @property
    def pool_id(self) -> int: ...
    @property
    def pool_nslots(self) -> int: ...
    @property
    def stride_bytes(self) -> int: ...
    @property
    def region_uri(self) -> str: ...


class Announce(Protocol):
    """What ShmPoolAnnounce and ShmAttachResponse have in common."""

    @property
    def stream_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def layout_version(self) -> int: ...
    @property
    def header_nslots(self) -> int: ...
    @property
    def header_slot_bytes(self) -> int: ...
    @property
    def payload_pools(self) -> Sequence[AnnouncedPool]: ...
    @property
    def header_region_uri(self) -> str: ...


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def is_stride(value: int) -> bool:
    """64 times a power of two: 64, 128, 256, … (Wire 15.22, decisions.md #32)."""
    return value >= STRIDE_UNIT and is_power_of_two(value)


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One payload pool."""

    pool_id: int
    nslots: int
    stride_bytes: int
    uri: RegionUri

    @property
    def file_bytes(self) -> int:
        """Superblock and slots (Wire 9)."""
        return SUPERBLOCK_SIZE + self.nslots * self.stride_bytes


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The header ring of a stream's epoch and its pools."""

    stream_id: int
    epoch: int
    layout_version: int
    nslots: int
    header_slot_bytes: int
    header_uri: RegionUri
    pools: tuple[PoolLayout, ...]

    @classmethod
    def from_announce(cls, announce: Announce) -> StreamLayout:
        """Reads the URIs (RegionUriError) and checks the numbers (RegionError) of an announce."""
        layout = cls(
            stream_id=announce.stream_id,
            epoch=announce.epoch,
            layout_version=announce.layout_version,
            nslots=announce.header_nslots,
            header_slot_bytes=announce.header_slot_bytes,
            header_uri=RegionUri.parse(announce.header_region_uri),
            pools=tuple(
                PoolLayout(pool.pool_id, pool.pool_nslots, pool.stride_bytes, RegionUri.parse(pool.region_uri))
                for pool in announce.payload_pools
            ),
        )
        layout.validate()
        return layout

    def announce(self, *, producer_id: int, timestamp_ns: int, clock_domain: ClockDomain) -> ShmPoolAnnounce:
        """What tells others of these regions (Wire 10.1.1); the reverse of `from_announce`."""
        return ShmPoolAnnounce(
            stream_id=self.stream_id,
            producer_id=producer_id,
            epoch=self.epoch,
            announce_timestamp_ns=timestamp_ns,
            announce_clock_domain=clock_domain,
            layout_version=self.layout_version,
            header_nslots=self.nslots,
            header_slot_bytes=self.header_slot_bytes,
            payload_pools=tuple(
                PayloadPool(
                    pool_id=pool.pool_id,
                    pool_nslots=pool.nslots,
                    stride_bytes=pool.stride_bytes,
                    region_uri=str(pool.uri),
                )
                for pool in self.pools
            ),
            header_region_uri=str(self.header_uri),
        )

    @property
    def header_file_bytes(self) -> int:
        """Superblock and slots (Wire 8.1)."""
        return SUPERBLOCK_SIZE + self.nslots * self.header_slot_bytes

    @property
    def total_bytes(self) -> int:
        """What all files of the epoch hold together."""
        return self.header_file_bytes + sum(pool.file_bytes for pool in self.pools)

    def validate(self) -> None:
        """Raises RegionError, naming the field, unless this is a layout of Wire v1.2 that we can map."""
        self._validate_header()
        if not self.pools:
            raise RegionError(f"stream {self.stream_id}: the layout has no payload pool")
        seen: set[int] = set()
        for pool in self.pools:
            self._validate_pool(pool)
            if pool.pool_id in seen:
                raise RegionError(f"stream {self.stream_id}: pool_id {pool.pool_id} is there twice")
            seen.add(pool.pool_id)
        if self.total_bytes > sys.maxsize:
            raise RegionError(f"stream {self.stream_id}: {self.total_bytes} bytes cannot be addressed on this machine")

    def _validate_header(self) -> None:
        _require_range("stream_id", self.stream_id, _U32)
        _require_range("epoch", self.epoch, _U64)
        _require_range("header_nslots", self.nslots, _U32)
        if self.layout_version != LAYOUT_VERSION:
            raise RegionError(
                f"layout_version is {self.layout_version}, this version of framepool knows {LAYOUT_VERSION}"
            )
        if self.header_slot_bytes != HEADER_SLOT_BYTES:
            raise RegionError(f"header_slot_bytes is {self.header_slot_bytes}, must be {HEADER_SLOT_BYTES}")
        if not is_power_of_two(self.nslots):
            raise RegionError(f"header_nslots is {self.nslots}, must be a power of two")

    def _validate_pool(self, pool: PoolLayout) -> None:
        _require_range("pool_id", pool.pool_id, _U16)
        _require_range("stride_bytes", pool.stride_bytes, _U32)
        if pool.nslots != self.nslots:
            raise RegionError(f"pool {pool.pool_id}: nslots is {pool.nslots}, the header ring has {self.nslots}")
        if not is_stride(pool.stride_bytes):
            raise RegionError(
                f"pool {pool.pool_id}: stride_bytes is {pool.stride_bytes}, must be 64 times a power of two"
            )


def _require_range(name: str, value: int, highest: int) -> None:
    if not 0 <= value <= highest:
        raise RegionError(f"{name} is {value}, must be from 0 to {highest}")
