"""The driver's decisions on real files, with a clock that the test moves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig, StreamConfig
from framepool.driver.regions import DriverRegions
from framepool.driver.streams import Authority
from framepool.shm.allocator import Allocator
from framepool.wire._generated.control_900 import ShmPoolAnnounce, ShmRegionSuperblock
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire.constants import SUPERBLOCK_SIZE
from framepool.wire.message import Message

STREAM = 10_000
PROFILE = ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=64),))


class World:
    """A driver without its transport: requests as calls, messages in a list."""

    def __init__(self, base: Path, config: Config | None = None) -> None:
        self.clock = ManualClock(1_000 * NANOS_PER_SECOND)
        self.allocator = Allocator(base, "test", sync=False)
        self.regions = DriverRegions(self.allocator, self.clock)
        self.sent: list[Message] = []
        self.config = config or Config(
            profiles={"default": PROFILE},
            driver=DriverConfig(shm_base_dir=str(base)),
            streams=(StreamConfig(stream_id=STREAM),),
        )
        self.authority = Authority(self.config, self.regions, self.clock, self.sent.append)
        self.authority.provision()

    def attach(self, role: Role = Role.CONSUMER, client_id: int = 7, **changes: Any) -> ShmAttachResponse:
        fields: dict[str, Any] = {
            "correlation_id": 1,
            "stream_id": STREAM,
            "client_id": client_id,
            "role": role,
            "expected_layout_version": 0,
            "max_dims": 0,
            "publish_mode": PublishMode.EXISTING_OR_CREATE,
        }
        self.authority.attach(ShmAttachRequest(**{**fields, **changes}))
        return self.of(ShmAttachResponse)[-1]

    def keepalive(self, lease_id: int | None, role: Role, client_id: int = 7) -> None:
        assert lease_id is not None
        self.authority.keepalive(
            ShmLeaseKeepalive(
                lease_id=lease_id, stream_id=STREAM, client_id=client_id, role=role, client_timestamp_ns=0
            )
        )

    def of[M: Message](self, kind: type[M]) -> list[M]:
        return [message for message in self.sent if isinstance(message, kind)]

    def block(self) -> ShmRegionSuperblock:
        """The superblock of the ring that the last announce named."""
        self.authority.announce_all()
        path = self.of(ShmPoolAnnounce)[-1].header_region_uri.removeprefix("shm:file?path=")
        with open(path, "rb") as file:
            return ShmRegionSuperblock.decode_body(file.read(SUPERBLOCK_SIZE))

    def close(self) -> None:
        self.regions.remove_all()


@pytest.fixture
def make_world(base_dir: Path) -> Iterator[Callable[..., World]]:
    with contextlib.ExitStack() as opened:

        def make(config: Config | None = None) -> World:
            world = World(base_dir, config)
            opened.callback(world.close)
            return world

        yield make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


# Who vouches for activity


@pytest.mark.clause("D-3-08", "W-7.1-04", "W-7.1-03")
@pytest.mark.parametrize("role", [None, Role.PRODUCER])
def test_activity_is_refreshed_without_a_producer_and_while_its_keepalives_come(
    world: World, role: Role | None
) -> None:
    granted = None if role is None else world.attach(role)
    first = world.block()
    for _ in range(10):
        world.clock.advance(NANOS_PER_SECOND)
        if granted is not None:
            world.keepalive(granted.lease_id, Role.PRODUCER)
        block = world.block()
        assert block.activity_timestamp_ns == world.clock.timestamp_ns()
        assert block.encode_body()[:56] == first.encode_body()[:56], "nothing else changes within an epoch"
    assert block.pid == os.getpid()


@pytest.mark.clause("D-3-09", "W-7.1-04")
def test_activity_is_not_refreshed_after_the_first_missed_keepalive(world: World) -> None:
    granted = world.attach(Role.PRODUCER)
    world.clock.advance(NANOS_PER_SECOND)
    world.keepalive(granted.lease_id, Role.PRODUCER)
    last = world.clock.timestamp_ns()
    world.clock.advance(1_500 * NANOS_PER_MILLI)
    vouched = world.block().activity_timestamp_ns
    assert vouched == last + 1_500 * NANOS_PER_MILLI, "a keepalive may be half an interval late"
    world.clock.advance(1)
    assert world.block().activity_timestamp_ns == vouched
    world.clock.advance(1_499 * NANOS_PER_MILLI)
    world.authority.expire()
    block = world.block()
    assert (block.epoch, block.activity_timestamp_ns) == (granted.epoch, vouched)
    world.clock.advance(NANOS_PER_MILLI)
    assert world.authority.expire() == 1
    block = world.block()
    assert block.epoch > (granted.epoch or 0)
    assert block.activity_timestamp_ns == world.clock.timestamp_ns(), "the new epoch is discoverable"


# Expiry


@pytest.mark.clause("D-4.4-09", "D-4.4-07", "D-4.4-01", "D-4.4-03")
@pytest.mark.parametrize("role", Role)
def test_default_grace_is_three_seconds_from_the_last_keepalive(world: World, role: Role) -> None:
    granted = world.attach(role)
    for _ in range(10):
        world.clock.advance(NANOS_PER_SECOND)
        assert world.authority.expire() == 0
        world.keepalive(granted.lease_id, role)
    world.clock.advance(3 * NANOS_PER_SECOND - 1)
    assert world.authority.expire() == 0
    world.clock.advance(1)
    assert world.authority.expire() == 1
    (notice,) = world.of(ShmLeaseRevoked)
    assert (notice.lease_id, notice.reason) == (granted.lease_id, LeaseRevokeReason.EXPIRED)


@pytest.mark.clause("D-4.10-01", "D-4.7-07")
@pytest.mark.parametrize("end", ["expire", "revoke", "detach"])
def test_notice_comes_before_the_announce_of_the_new_epoch(world: World, end: str) -> None:
    granted = world.attach(Role.PRODUCER)
    assert granted.lease_id is not None
    world.sent.clear()
    if end == "expire":
        world.clock.advance(3 * NANOS_PER_SECOND)
        world.authority.expire()
    elif end == "revoke":
        assert world.authority.revoke(granted.lease_id, "by hand")
    else:
        world.authority.detach(
            ShmDetachRequest(
                correlation_id=1, lease_id=granted.lease_id, stream_id=STREAM, client_id=7, role=Role.PRODUCER
            )
        )
    notice, announce = world.sent[-2:]
    assert isinstance(notice, ShmLeaseRevoked)
    assert isinstance(announce, ShmPoolAnnounce)
    assert notice.reason.name.lower().startswith(end)
    assert (announce.producer_id, announce.epoch > (granted.epoch or 0)) == (0, True)


@pytest.mark.clause("D-4.8-02", "D-4.8-01")
def test_ten_thousand_leases_have_ten_thousand_ids(world: World) -> None:
    seen = set()
    for turn in range(10_000):
        granted = world.attach(client_id=1 + turn)
        seen.add(granted.lease_id)
        if turn % 2:
            world.clock.advance(3 * NANOS_PER_SECOND)
            world.authority.expire()
        world.sent.clear()
    assert len(seen) == 10_000


# Leases that are not known


def test_consumer_is_told_that_its_lease_is_unknown(world: World) -> None:
    world.keepalive(99, Role.CONSUMER)
    (notice,) = world.of(ShmLeaseRevoked)
    assert (notice.lease_id, notice.client_id, notice.role) == (99, 7, Role.CONSUMER)
    assert notice.reason is LeaseRevokeReason.REVOKED


def test_nobody_is_told_of_a_producers_unknown_lease_or_of_a_lease_that_another_holds(world: World) -> None:
    """A notice of a producer's end would make every consumer of the stream wait for an epoch that does not come."""
    granted = world.attach()
    world.keepalive(99, Role.PRODUCER)
    world.keepalive(granted.lease_id, Role.CONSUMER, client_id=8)
    assert world.of(ShmLeaseRevoked) == []
    assert world.authority.counts["keepalive REJECTED"] == 2


# What goes wrong


@pytest.mark.clause("D-4.6-05")
def test_attach_to_a_new_stream_is_answered_when_there_is_too_little_memory_for_any(
    base_dir: Path, make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(Config(driver=DriverConfig(shm_base_dir=str(base_dir))))
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
        answer = world.attach(Role.PRODUCER, stream_id=20_000)
    assert answer.code is ResponseCode.INTERNAL_ERROR
    assert "too little" in answer.error_message
    assert world.authority.streams == {}


@pytest.mark.clause("D-3-03", "D-6-03")
def test_damaged_regions_are_replaced_and_the_attach_is_refused_once(world: World) -> None:
    before = world.attach(client_id=1)
    os.truncate(before.payload_pools[0].region_uri.removeprefix("shm:file?path="), 100)
    assert world.attach(client_id=2).code is ResponseCode.INTERNAL_ERROR
    after = world.attach(client_id=2)
    assert after.code is ResponseCode.OK
    assert (after.epoch or 0) > (before.epoch or 0)


def test_stream_without_room_for_its_next_epoch_is_not_announced_until_there_is_some(world: World) -> None:
    granted = world.attach(Role.PRODUCER)
    stream_directory = Path(world.allocator.directory) / str(STREAM)
    stream_directory.rename(stream_directory.with_name("aside"))
    stream_directory.write_text("no directory")
    world.sent.clear()
    world.clock.advance(3 * NANOS_PER_SECOND)
    world.authority.expire()
    world.authority.announce_all()
    assert world.of(ShmPoolAnnounce) == [], "consumers fail closed"
    stream_directory.unlink()
    stream_directory.with_name("aside").rename(stream_directory)
    world.authority.provision()
    world.authority.announce_all()
    assert world.of(ShmPoolAnnounce)[-1].epoch > (granted.epoch or 0)
