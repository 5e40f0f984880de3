"""When regions are mapped and when they are let go, on real files and with a clock that the test moves."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from framepool.client.mapping import Mapping, MappingState
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.shm.allocator import Allocator
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import map_stream
from framepool.wire._generated.control_900 import ClockDomain, ShmPoolAnnounce

STREAM = 10_000


class World:
    """A namespace on disk, a clock, and the mapping under test."""

    def __init__(self, base: Path) -> None:
        self.clock = ManualClock(1_000 * NANOS_PER_SECOND)
        self.allocator = Allocator(base, "test", sync=False)
        allowed = AllowedDirectories([base])
        self.mapping = Mapping(STREAM, open_stream=lambda layout: map_stream(layout, allowed), clock=self.clock)

    def epoch(self, epoch: int) -> StreamLayout:
        return self.allocator.create(STREAM, epoch, nslots=4, strides={1: 64}, timestamp_ns=self.clock.timestamp_ns())

    def announce(
        self,
        layout: StreamLayout,
        *,
        age_ns: int = 0,
        domain: ClockDomain = ClockDomain.MONOTONIC,
        alive: bool = True,
    ) -> ShmPoolAnnounce:
        """What a driver would announce now, or did some time ago; a living one stamps the regions with it."""
        if alive:
            with open(layout.header_uri.path, "r+b") as file:
                file.seek(56)
                file.write(self.clock.now_ns(domain).to_bytes(8, "little"))
        stamp = self.clock.now_ns(domain) - age_ns
        return layout.announce(producer_id=1, timestamp_ns=stamp, clock_domain=domain)


@pytest.fixture
def world(base_dir: Path) -> World:
    return World(base_dir)


@pytest.mark.clause("W-15.21-04", "W-15.2-05", "W-15.1-04")
def test_announce_maps_and_a_new_epoch_remaps(world: World) -> None:
    world.mapping.on_announce(world.announce(world.epoch(5)))
    assert world.mapping.state is MappingState.MAPPED
    old = world.mapping.stream
    world.mapping.on_announce(world.announce(world.epoch(6)))
    assert world.mapping.epoch == 6
    assert old is not None
    assert all(region.closed for region in old.regions)


def test_announce_of_another_stream_changes_nothing(world: World) -> None:
    layout = world.allocator.create(STREAM + 1, 5, nslots=4, strides={1: 64}, timestamp_ns=0)
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED


@pytest.mark.clause("W-10.1.1-06", "W-10.1.1-07")
def test_stale_announce_is_ignored(world: World) -> None:
    layout = world.epoch(5)
    world.clock.advance(10 * NANOS_PER_SECOND)
    world.mapping.on_announce(world.announce(layout, age_ns=3 * NANOS_PER_SECOND + 1))
    assert world.mapping.state is MappingState.UNMAPPED
    world.mapping.on_announce(world.announce(layout, age_ns=3 * NANOS_PER_SECOND))
    assert world.mapping.state is MappingState.MAPPED


@pytest.mark.clause("W-10.1.1-08", "W-10.1.1-09")
def test_announce_from_before_the_join_is_ignored_only_when_monotonic(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout, age_ns=1))
    assert world.mapping.state is MappingState.UNMAPPED
    world.mapping.on_announce(world.announce(layout, age_ns=1, domain=ClockDomain.REALTIME_SYNCED))
    assert world.mapping.state is MappingState.MAPPED


@pytest.mark.clause("W-10.1.1-05", "W-15.2-06")
def test_lower_epoch_unmaps_but_is_mapped_only_after_a_window_without_the_higher(world: World) -> None:
    low, high = world.epoch(5), world.epoch(6)
    world.mapping.on_announce(world.announce(high))
    world.mapping.on_announce(world.announce(low))
    assert world.mapping.state is MappingState.UNMAPPED
    world.clock.advance(3 * NANOS_PER_SECOND)
    world.mapping.on_announce(world.announce(low))
    assert world.mapping.state is MappingState.UNMAPPED
    world.clock.advance(1)
    world.mapping.on_announce(world.announce(low))
    assert world.mapping.epoch == 5


@pytest.mark.clause("D-4.9-10")
def test_after_the_producers_end_only_a_later_epoch_is_mapped(world: World) -> None:
    first = world.epoch(5)
    world.mapping.on_announce(world.announce(first))
    world.mapping.on_producer_revoked(world.clock.timestamp_ns())
    assert world.mapping.state is MappingState.UNMAPPED
    world.mapping.on_announce(world.announce(first))
    assert world.mapping.state is MappingState.UNMAPPED
    world.mapping.on_announce(world.announce(world.epoch(6)))
    assert world.mapping.epoch == 6


@pytest.mark.clause("W-15.22-16")
def test_bad_region_is_refused_with_a_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    layout = world.epoch(5)
    os.truncate(layout.pools[0].uri.path, 100)
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED
    assert "truncated" in world.mapping.last_refusal
    assert layout.pools[0].uri.path in caplog.text


@pytest.mark.clause("W-15.1-02")
def test_file_cut_after_mapping_is_noticed_at_the_next_announce(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    os.truncate(layout.pools[0].uri.path, 100)
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED


@pytest.mark.clause("W-7.1-05")
def test_regions_without_activity_are_let_go(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    world.clock.advance(3 * NANOS_PER_SECOND)
    world.mapping.check_activity()
    assert world.mapping.state is MappingState.MAPPED
    world.clock.advance(1)
    world.mapping.check_activity()
    assert world.mapping.state is MappingState.UNMAPPED


@pytest.mark.clause("W-15.14-02")
def test_another_writer_in_the_same_epoch_unmaps(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    with open(layout.header_uri.path, "r+b") as file:
        file.seek(40)
        file.write((os.getpid() + 1).to_bytes(8, "little"))
    world.mapping.check_activity()
    assert world.mapping.state is MappingState.UNMAPPED
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED, "only a new epoch will do"
    world.mapping.on_announce(world.announce(world.epoch(6)))
    assert world.mapping.epoch == 6


@pytest.mark.clause("W-15.21-05")
def test_repeated_announce_keeps_the_mapping(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    before = world.mapping.stream
    for _ in range(3):
        world.mapping.on_announce(world.announce(layout))
    assert world.mapping.stream is before


@pytest.mark.clause("W-15.1-05")
def test_region_whose_writer_is_long_silent_is_not_mapped(world: World) -> None:
    layout = world.epoch(5)
    world.clock.advance(10 * NANOS_PER_SECOND)
    world.mapping.on_announce(world.announce(layout, alive=False))
    assert world.mapping.state is MappingState.UNMAPPED
    assert "no activity" in world.mapping.last_refusal


@pytest.mark.clause("W-10.1.1-10")
def test_stale_announce_of_a_synchronised_clock_is_ignored(world: World) -> None:
    layout = world.epoch(5)
    stale = world.announce(layout, age_ns=3 * NANOS_PER_SECOND + 1, domain=ClockDomain.REALTIME_SYNCED)
    world.mapping.on_announce(stale)
    assert world.mapping.state is MappingState.UNMAPPED


@pytest.mark.clause("W-10.1.1-04", "W-15.14-07")
@pytest.mark.parametrize("change", [{"header_slot_bytes": 128}, {"layout_version": 2}])
def test_announce_of_another_layout_is_not_mapped(world: World, change: dict[str, int]) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    later = msgspec.structs.replace(world.announce(world.epoch(6)), **change)
    world.mapping.on_announce(later)
    assert world.mapping.state is MappingState.UNMAPPED
    assert next(iter(change)) in world.mapping.last_refusal


@pytest.mark.clause("W-15.1-03")
@pytest.mark.parametrize("offset", [0, 12], ids=["magic", "epoch"])
def test_superblock_that_changes_under_the_map_is_noticed_at_the_next_announce(world: World, offset: int) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    with open(layout.pools[0].uri.path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff")
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED


@pytest.mark.clause("W-7.1-09")
def test_epoch_that_wraps_around_is_no_way_on(world: World) -> None:
    last, wrapped = world.epoch(2**64 - 1), world.epoch(0)
    world.mapping.on_announce(world.announce(last))
    assert world.mapping.epoch == 2**64 - 1
    world.mapping.on_announce(world.announce(wrapped))
    assert world.mapping.state is MappingState.UNMAPPED


def test_layout_of_an_attach_response_is_mapped(world: World) -> None:
    world.mapping.on_layout(world.epoch(5))
    assert world.mapping.epoch == 5
    world.mapping.on_layout(world.epoch(6))
    assert world.mapping.epoch == 6
    world.mapping.unmap("end")
    assert world.mapping.statistics()["state"] == "unmapped"


@pytest.mark.clause("W-15.1-02")
def test_epoch_whose_files_were_replaced_is_not_mapped_again_before_the_driver_has_spoken(world: World) -> None:
    layout = world.epoch(5)
    world.mapping.on_announce(world.announce(layout))
    path = Path(layout.pools[0].uri.path)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    copy.rename(path)
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED
    assert world.mapping.doubt == "", "a late announce of an epoch that is over is no reason to ask"
    world.mapping.on_announce(world.announce(layout))
    assert world.mapping.state is MappingState.UNMAPPED
    assert "the file was removed" in world.mapping.doubt
    world.mapping.on_layout(layout)
    assert world.mapping.state is MappingState.MAPPED
    assert world.mapping.doubt == ""
