"""The numbers of a stream: what an announce may say and what it may not."""

from __future__ import annotations

import msgspec
import pytest

from framepool.errors import RegionError, RegionUriError
from framepool.shm.layout import PoolLayout, StreamLayout
from framepool.shm.uri import RegionUri
from framepool.wire import constants
from framepool.wire._generated.control_900 import Dtype, MajorOrder, ShmPoolAnnounce
from tests.support.regions import announce

URI = RegionUri("/dev/shm/region")
LAYOUT = StreamLayout(7, 3, 1, 8, 256, URI, (PoolLayout(1, 8, 64, URI), PoolLayout(2, 8, 1 << 20, URI)))

# What each layout version stands for. A change of any of these needs a new version, and a new row here.
LAYOUT_VERSIONS = {
    1: {
        "superblock_size": 64,
        "header_slot_bytes": 256,
        "max_dims": 8,
        "dtypes": {
            "UNKNOWN": 0,
            "UINT8": 1,
            "INT8": 2,
            "UINT16": 3,
            "INT16": 4,
            "UINT32": 5,
            "INT32": 6,
            "UINT64": 7,
            "INT64": 8,
            "FLOAT32": 9,
            "FLOAT64": 10,
            "BOOLEAN": 11,
            "BYTES": 13,
            "BIT": 14,
        },
        "major_orders": {"UNKNOWN": 0, "ROW": 1, "COLUMN": 2},
    }
}


def with_pool(message: ShmPoolAnnounce, **changes: object) -> ShmPoolAnnounce:
    """The announce with its first pool changed."""
    first, *rest = message.payload_pools
    return msgspec.structs.replace(message, payload_pools=(msgspec.structs.replace(first, **changes), *rest))


def test_an_announce_gives_its_layout_and_the_sizes_of_its_files() -> None:
    layout = StreamLayout.from_announce(ShmPoolAnnounce.decode(announce(LAYOUT).encode()))
    assert layout == LAYOUT
    assert layout.header_file_bytes == 64 + 8 * 256
    assert [pool.file_bytes for pool in layout.pools] == [64 + 8 * 64, 64 + 8 * (1 << 20)]
    assert layout.total_bytes == 3 * 64 + 8 * (256 + 64 + (1 << 20))


@pytest.mark.clause("W-3-01")
@pytest.mark.parametrize("nslots", [0, 3, 6, 12, 2**32 - 1])
def test_a_number_of_slots_that_is_no_power_of_two_is_refused(nslots: int) -> None:
    message = announce(
        LAYOUT,
        header_nslots=nslots,
        payload_pools=tuple(msgspec.structs.replace(p, pool_nslots=nslots) for p in announce(LAYOUT).payload_pools),
    )
    with pytest.raises(RegionError, match="must be a power of two"):
        StreamLayout.from_announce(message)


@pytest.mark.clause("W-9-06")
@pytest.mark.parametrize("nslots", [4, 16, 0])
def test_a_pool_with_another_number_of_slots_than_the_ring_is_refused(nslots: int) -> None:
    with pytest.raises(RegionError, match=f"pool 1: nslots is {nslots}, the header ring has 8"):
        StreamLayout.from_announce(with_pool(announce(LAYOUT), pool_nslots=nslots))


@pytest.mark.clause("W-15.22-12")
@pytest.mark.parametrize("stride", [0, 1, 32, 63, 65, 96, 192, 4097, 2**32 - 64])
def test_a_stride_that_is_not_64_times_a_power_of_two_is_refused(stride: int) -> None:
    with pytest.raises(RegionError, match=f"stride_bytes is {stride}, must be 64 times a power of two"):
        StreamLayout.from_announce(with_pool(announce(LAYOUT), stride_bytes=stride))


@pytest.mark.clause("W-15.22-12", "W-15.22-13")
@pytest.mark.parametrize("stride", [64, 128, 4096, 1 << 20, 1 << 31])
def test_any_stride_of_64_times_a_power_of_two_is_accepted_whatever_the_page_size(stride: int) -> None:
    layout = StreamLayout.from_announce(with_pool(announce(LAYOUT), stride_bytes=stride))
    assert layout.pools[0].stride_bytes == stride


@pytest.mark.clause("W-15.20-01")
@pytest.mark.parametrize("header_slot_bytes", [0, 128, 255, 512])
def test_header_slots_of_another_size_are_refused(header_slot_bytes: int) -> None:
    with pytest.raises(RegionError, match="header_slot_bytes"):
        StreamLayout.from_announce(announce(LAYOUT, header_slot_bytes=header_slot_bytes))


@pytest.mark.clause("W-7.1-08", "W-8.2-02")
@pytest.mark.parametrize("layout_version", [0, 2, 2**32 - 1])
def test_a_layout_version_that_we_do_not_know_is_refused(layout_version: int) -> None:
    with pytest.raises(RegionError, match="layout_version"):
        StreamLayout.from_announce(announce(LAYOUT, layout_version=layout_version))


@pytest.mark.clause("W-8.2-02", "W-15.8-02", "W-15.20-01")
def test_the_numbers_of_a_layout_version_never_change() -> None:
    assert LAYOUT_VERSIONS[constants.LAYOUT_VERSION] == {
        "superblock_size": constants.SUPERBLOCK_SIZE,
        "header_slot_bytes": constants.HEADER_SLOT_BYTES,
        "max_dims": constants.MAX_DIMS,
        "dtypes": {member.name: member.value for member in Dtype},
        "major_orders": {member.name: member.value for member in MajorOrder},
    }


def test_an_announce_without_pools_is_refused() -> None:
    with pytest.raises(RegionError, match="no payload pool"):
        StreamLayout.from_announce(announce(LAYOUT, payload_pools=()))


def test_an_announce_with_a_pool_id_twice_is_refused() -> None:
    with pytest.raises(RegionError, match="pool_id 2 is there twice"):
        StreamLayout.from_announce(with_pool(announce(LAYOUT), pool_id=2))


@pytest.mark.clause("W-15.22-06", "W-15.22-07")
@pytest.mark.parametrize("uri", ["", "shm:memfd?path=/a", "file:///a", "shm:file?path=/a|foo=1"])
def test_an_announce_with_a_bad_uri_is_refused_wherever_it_stands(uri: str) -> None:
    with pytest.raises(RegionUriError):
        StreamLayout.from_announce(announce(LAYOUT, header_region_uri=uri))
    with pytest.raises(RegionUriError):
        StreamLayout.from_announce(with_pool(announce(LAYOUT), region_uri=uri))


def test_sizes_that_no_machine_can_address_are_refused() -> None:
    pools = tuple(PoolLayout(pool_id, 1 << 31, 1 << 31, URI) for pool_id in range(3))
    with pytest.raises(RegionError, match="cannot be addressed"):
        StreamLayout(7, 3, 1, 1 << 31, 256, URI, pools).validate()


@pytest.mark.parametrize(
    ("layout", "field"),
    [
        (StreamLayout(-1, 3, 1, 8, 256, URI, LAYOUT.pools), "stream_id"),
        (StreamLayout(2**32, 3, 1, 8, 256, URI, LAYOUT.pools), "stream_id"),
        (StreamLayout(7, 2**64, 1, 8, 256, URI, LAYOUT.pools), "epoch"),
        (StreamLayout(7, 3, 1, 2**32, 256, URI, LAYOUT.pools), "header_nslots"),
        (StreamLayout(7, 3, 1, 8, 256, URI, (PoolLayout(2**16, 8, 64, URI),)), "pool_id"),
        (StreamLayout(7, 3, 1, 8, 256, URI, (PoolLayout(1, 8, 2**32, URI),)), "stride_bytes"),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused(layout: StreamLayout, field: str) -> None:
    with pytest.raises(RegionError, match=field):
        layout.validate()
