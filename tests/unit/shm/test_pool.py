"""Payload pools: where a slot lies, which pool a payload takes, and what a pool may not be."""

from __future__ import annotations

import pytest

from framepool.errors import NoPoolFits, RegionError, RegionSizeError
from framepool.shm.pool import Pool, check_pools, choose_pool


def pool(pool_id: int = 1, stride: int = 1024, nslots: int = 4) -> Pool:
    return Pool(pool_id, stride, nslots, bytearray(64 + max(0, stride * nslots)))


@pytest.mark.clause("W-9-01", "W-6-03")
def test_slot_k_starts_behind_the_superblock_and_k_strides() -> None:
    assert [pool(stride=128).offset(k) for k in range(4)] == [64, 192, 320, 448]


@pytest.mark.clause("W-9-01")
def test_payload_is_the_pools_own_memory() -> None:
    buffer = bytearray(64 + 4 * 128)
    Pool(1, 128, 4, buffer).payload(2, 5)[:] = b"hello"
    assert buffer[64 + 2 * 128 :].startswith(b"hello")
    assert buffer.count(0) == len(buffer) - 5


@pytest.mark.parametrize(("slot", "nbytes"), [(4, 1), (-1, 1), (0, 129), (0, -1)])
def test_payload_outside_of_the_pool_is_refused(slot: int, nbytes: int) -> None:
    with pytest.raises(IndexError):
        pool(stride=128).payload(slot, nbytes)


@pytest.mark.clause("W-9-03")
@pytest.mark.parametrize(
    ("nbytes", "stride"), [(0, 1024), (1, 1024), (1024, 1024), (1025, 4096), (4096, 4096), (4097, 16384)]
)
def test_smallest_fitting_pool_is_chosen(nbytes: int, stride: int) -> None:
    pools = [pool(1, 16384), pool(2, 1024), pool(3, 4096)]
    assert choose_pool(pools, nbytes).stride_bytes == stride


def test_lowest_id_wins_among_equal_strides() -> None:
    assert choose_pool([pool(7), pool(3), pool(5)], 10).pool_id == 3


def test_payload_larger_than_every_pool_fits_none() -> None:
    with pytest.raises(NoPoolFits, match="1025 bytes do not fit the largest pool stride of 1024"):
        choose_pool([pool(1, 512), pool(2, 1024)], 1025)


@pytest.mark.parametrize("stride", [0, -64, 32, 63, 96, 192, 1000, 2**32])
def test_stride_that_is_no_power_of_two_times_64_is_refused(stride: int) -> None:
    with pytest.raises(RegionError, match="stride"):
        Pool(1, stride, 1, bytearray(1 << 12))


@pytest.mark.parametrize("pool_id", [-1, 65536])
def test_pool_id_that_its_field_cannot_hold_is_refused(pool_id: int) -> None:
    with pytest.raises(RegionError, match="u16"):
        pool(pool_id)


def test_pool_shorter_than_its_slots_is_refused() -> None:
    with pytest.raises(RegionSizeError, match="need 4160 bytes, not 4159"):
        Pool(1, 1024, 4, bytearray(64 + 4 * 1024 - 1))


def test_pool_id_that_comes_twice_is_refused() -> None:
    with pytest.raises(RegionError, match="twice"):
        check_pools([pool(1), pool(1, 2048)], 4)


@pytest.mark.clause("W-9-06")
def test_pool_of_another_number_of_slots_than_the_ring_is_refused() -> None:
    assert set(check_pools([pool(1), pool(2)], 4)) == {1, 2}
    with pytest.raises(RegionError, match="pool 2 has 8 slots, the header ring 4"):
        check_pools([pool(1), pool(2, nslots=8)], 4)
