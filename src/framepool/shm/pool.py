"""A payload pool: equal slots of raw bytes behind a superblock (Wire 9, 15.5).

Which file the bytes live in and whether it may be mapped is `region` and `superblock`'s concern; which slot a
frame takes is the header ring's.
"""

from __future__ import annotations

from collections.abc import Buffer, Sequence
from dataclasses import dataclass, field

from framepool.errors import NoPoolFits, RegionError, RegionSizeError
from framepool.shm.layout import is_stride
from framepool.shm.ring import check_nslots
from framepool.wire.constants import SUPERBLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Pool:
    """`nslots` payload slots of `stride_bytes` each in `buffer`, which starts with the superblock.

    Raises RegionError for a stride that is not 64 * 2^k (decisions.md #32) or a pool id that its field cannot
    hold, RegionSizeError for a buffer shorter than its slots.
    """

    pool_id: int
    stride_bytes: int
    nslots: int
    buffer: Buffer = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        check_nslots(self.nslots)
        if not 0 <= self.pool_id <= 0xFFFF:
            raise RegionError(f"pool id {self.pool_id} is not a u16")
        if not is_stride(self.stride_bytes) or self.stride_bytes > 0xFFFFFFFF:
            raise RegionError(f"pool {self.pool_id}: stride {self.stride_bytes} is not 64 * 2^k (Wire 15.22)")
        if (size := memoryview(self.buffer).nbytes) < (needed := self.offset(self.nslots)):
            raise RegionSizeError(
                f"pool {self.pool_id}: {self.nslots} slots of {self.stride_bytes} need {needed} bytes, not {size}"
            )

    def offset(self, slot: int) -> int:
        """Where payload slot `slot` starts in the file (Wire 9)."""
        return SUPERBLOCK_SIZE + slot * self.stride_bytes

    def payload(self, slot: int, nbytes: int) -> memoryview:
        """The first `nbytes` of a slot, in place; writable if the buffer is."""
        if not 0 <= slot < self.nslots or not 0 <= nbytes <= self.stride_bytes:
            raise IndexError(f"{nbytes} bytes of slot {slot} are not in {self}")
        offset = self.offset(slot)
        return memoryview(self.buffer).cast("B")[offset : offset + nbytes]


def choose_pool(pools: Sequence[Pool], nbytes: int) -> Pool:
    """The smallest pool that holds `nbytes`; of equals the lowest id (Wire 9, decisions.md #35).

    Raises NoPoolFits when even the largest is too small: the frame is dropped, nobody waits.
    """
    fitting = [pool for pool in pools if pool.stride_bytes >= nbytes]
    if not fitting:
        largest = max((pool.stride_bytes for pool in pools), default=0)
        raise NoPoolFits(f"{nbytes} bytes do not fit the largest pool stride of {largest}; configure a larger pool")
    return min(fitting, key=lambda pool: (pool.stride_bytes, pool.pool_id))


def check_pools(pools: Sequence[Pool], nslots: int) -> dict[int, Pool]:
    """The pools of one ring by id; RegionError if one has another number of slots or an id comes twice (Wire 15.5)."""
    by_id: dict[int, Pool] = {}
    for pool in pools:
        if pool.nslots != nslots:
            raise RegionError(f"pool {pool.pool_id} has {pool.nslots} slots, the header ring {nslots} (Wire 15.5)")
        if pool.pool_id in by_id:
            raise RegionError(f"pool id {pool.pool_id} comes twice")
        by_id[pool.pool_id] = pool
    return by_id
