"""Who cleans up looks where something happened, where something is held, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig, StreamConfig
from framepool.driver.janitor import SWEEP_PERIOD_NS, Janitor
from framepool.driver.regions import DriverRegions
from framepool.driver.streams import Authority
from framepool.shm.allocator import Allocator
from framepool.wire._generated.driver_901 import Role

STREAMS = (1, 2, 3)


class Household:
    """A driver's streams and their janitor, turned by the test."""

    def __init__(self, base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.allocator = Allocator(base_dir, "test", sync=False)
        self.regions = DriverRegions(self.allocator, self.clock)
        config = Config(
            driver=DriverConfig(shm_base_dir=str(base_dir), lease_expiry_ms=0),
            profiles={"default": ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=64),))},
            streams=tuple(StreamConfig(stream_id=stream_id) for stream_id in STREAMS),
        )
        self.authority = Authority(config, self.regions, self.clock, lambda message: None)
        self.authority.provision()
        self.looked_at: list[int] = []
        epochs = self.allocator.epochs

        def look(stream_id: int) -> list[int]:
            self.looked_at.append(stream_id)
            return epochs(stream_id)

        self.janitor = Janitor(self.authority, [self.allocator], self.regions.retired, self.clock)
        self.janitor.on_start()
        monkeypatch.setattr(self.allocator, "epochs", look)

    def turn(self, seconds: float = 0) -> set[int]:
        """Lets time pass and the janitor work; the streams that it looked at."""
        self.looked_at.clear()
        self.clock.advance(round(seconds * NANOS_PER_SECOND))
        for _ in range(10):
            self.janitor.do_work()
        return set(self.looked_at)

    def new_epoch(self, stream_id: int) -> int:
        stream = self.authority.streams[stream_id]
        self.authority._try_new_epoch(stream)
        assert stream.layout is not None
        return stream.layout.epoch


@pytest.fixture
def household(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Household:
    return Household(base_dir, monkeypatch)


PERIOD = SWEEP_PERIOD_NS / NANOS_PER_SECOND


def test_streams_that_nothing_happens_to_are_looked_at_once(household: Household) -> None:
    assert household.turn() == set(STREAMS), "an earlier driver may have left something"
    assert household.turn(PERIOD) == set()
    assert household.turn(100 * PERIOD) == set()


def test_a_stream_with_a_new_epoch_is_looked_at(household: Household) -> None:
    household.turn()
    epochs = [household.new_epoch(2) for _ in range(4)]
    assert household.turn() == {2}
    assert household.allocator.epochs(2) == epochs[-2:]
    assert household.turn(PERIOD) == set()


def test_a_stream_whose_epoch_a_lease_holds_is_looked_at_again_until_it_is_let_go(household: Household) -> None:
    household.turn()
    held = household.new_epoch(2)
    lease = household.authority.leases.grant(2, 77, Role.CONSUMER, 0, held)
    for _ in range(3):
        household.new_epoch(2)
    household.turn()
    assert held in household.allocator.epochs(2)
    assert household.turn(PERIOD) == {2}
    household.authority.leases.detach(lease.lease_id, 2, 77, Role.CONSUMER)
    assert household.turn(PERIOD) == {2}
    assert held not in household.allocator.epochs(2)
    assert household.turn(PERIOD) == set()


def test_what_an_earlier_driver_left_of_a_stream_made_later_goes(household: Household, base_dir: Path) -> None:
    household.turn()
    older = Allocator(base_dir, "test", sync=False)
    for epoch in (5, 6, 7):
        older.create(9, epoch, nslots=4, strides={1: 64}, timestamp_ns=0)
    profile = household.authority.streams[1].profile
    layout = household.regions.create(9, profile, hugepages=False)
    stream = type(household.authority.streams[1])(9, profile)
    stream.layout = layout
    household.authority.streams[9] = stream
    assert household.turn() == {9}
    assert household.allocator.epochs(9) == [7, layout.epoch]
