"""The driver's decisions under random attaches, keepalives, detaches, expiries and restarts, against a plain model.

What must hold whatever happens: at most one producer a stream, no lease id twice, epochs only rise, every
invalidation announced, and every producer's followed by an announce of a higher epoch.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.config import Config, PoolConfig, ProfileConfig
from framepool.driver.streams import Authority
from framepool.errors import AllocationError
from framepool.shm.layout import PoolLayout, StreamLayout
from framepool.shm.uri import RegionUri
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire.message import Message

PROFILE = ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=64),))
CONFIG = Config(profiles={"default": PROFILE})
STREAMS = st.sampled_from([10_000, 10_001, 20_000])
CLIENTS = st.integers(1, 6)
ROLES = st.sampled_from(Role)


class DiskInMemory:
    """Regions whose files exist only as numbers; what is on disk survives a restart of the driver."""

    hugepages = False

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.full = False
        self.retired: list[StreamLayout] = []

    def create(self, stream_id: int, profile: ProfileConfig, *, hugepages: bool) -> StreamLayout:
        if self.full:
            raise AllocationError("no space")
        epoch = self.epochs.get(stream_id, 100) + 1
        self.epochs[stream_id] = epoch
        uri = RegionUri(f"/shm/{stream_id}/{epoch}/x", False)
        pools = tuple(PoolLayout(pool.pool_id, profile.nslots, pool.stride_bytes, uri) for pool in profile.pools)
        return StreamLayout(stream_id, epoch, 1, profile.nslots, 256, uri, pools)

    def validate(self, layout: StreamLayout) -> None:
        pass

    def refresh(self, layout: StreamLayout, timestamp_ns: int) -> None:
        assert layout not in self.retired

    def retire(self, layout: StreamLayout) -> None:
        self.retired.append(layout)


class DriverUnderChaos(RuleBasedStateMachine):
    """Rules are what the world does to a driver; invariants are the promises."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock()
        self.disk = DiskInMemory()
        self.sent: list[Message] = []
        self.all_lease_ids: set[int] = set()
        self.announced: dict[int, int] = {}
        self.correlation = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        self.authority = Authority(CONFIG, self.disk, self.clock, self.sent.append)
        self.held: dict[int, tuple[int, int, Role, int]] = {}

    @rule(full=st.booleans())
    def disk_fills_or_empties(self, full: bool) -> None:
        self.disk.full = full

    @rule(stream=STREAMS, client=CLIENTS, role=ROLES, mode=st.sampled_from([None, *PublishMode]))
    def attach(self, stream: int, client: int, role: Role, mode: PublishMode | None) -> None:
        self.correlation += 1
        before = self.disk.epochs.get(stream, 0)
        self.authority.attach(
            ShmAttachRequest(
                correlation_id=self.correlation,
                stream_id=stream,
                client_id=client,
                role=role,
                expected_layout_version=0,
                max_dims=0,
                publish_mode=mode,
            )
        )
        (answer,) = [message for message in self.take() if isinstance(message, ShmAttachResponse)]
        assert answer.correlation_id == self.correlation
        taken = any(held[1] == client for held in self.held.values())
        produced = any(held[0] == stream and held[2] is Role.PRODUCER for held in self.held.values())
        if taken or (produced and role is Role.PRODUCER):
            assert answer.code is ResponseCode.REJECTED
        if answer.code is not ResponseCode.OK:
            assert answer.lease_id is None
            assert answer.error_message
            return
        assert answer.lease_id is not None
        assert answer.lease_id not in self.all_lease_ids
        assert answer.epoch is not None
        if role is Role.PRODUCER:
            assert answer.epoch > before
        self.all_lease_ids.add(answer.lease_id)
        self.held[answer.lease_id] = (stream, client, role, self.clock.monotonic_ns())

    @rule(data=st.data(), wrong=st.booleans())
    def keepalive(self, data: st.DataObject, wrong: bool) -> None:
        if not self.held:
            return
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        stream, client, role, _ = self.held[lease_id]
        self.authority.keepalive(
            ShmLeaseKeepalive(
                lease_id=lease_id,
                stream_id=stream,
                client_id=client + 100 if wrong else client,
                role=role,
                client_timestamp_ns=0,
            )
        )
        if not wrong:
            self.held[lease_id] = (stream, client, role, self.clock.monotonic_ns())
        assert self.take() == []

    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        if not self.held:
            return
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        stream, client, role, _ = self.held.pop(lease_id)
        request = ShmDetachRequest(correlation_id=1, lease_id=lease_id, stream_id=stream, client_id=client, role=role)
        self.authority.detach(request)
        self.expect_ends({lease_id: (stream, role)}, LeaseRevokeReason.DETACHED)
        self.authority.detach(request)
        (second,) = self.take()
        assert isinstance(second, ShmDetachResponse)
        assert second.code is ResponseCode.REJECTED

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        if not self.held:
            return
        lease_id = data.draw(st.sampled_from(sorted(self.held)))
        stream, _, role, _ = self.held.pop(lease_id)
        assert self.authority.revoke(lease_id, "by hand")
        self.expect_ends({lease_id: (stream, role)}, LeaseRevokeReason.REVOKED)

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * NANOS_PER_SECOND)
        now = self.clock.monotonic_ns()
        due = {id: held for id, held in self.held.items() if now - held[3] >= 3 * NANOS_PER_SECOND}
        assert self.authority.expire() == len(due)
        for lease_id in due:
            del self.held[lease_id]
        self.expect_ends({id: (held[0], held[2]) for id, held in due.items()}, LeaseRevokeReason.EXPIRED)

    @rule()
    def announce(self) -> None:
        self.authority.provision()
        self.authority.announce_all()
        self.take()

    def take(self) -> list[Message]:
        """What was sent since the last look; announced epochs only ever rise."""
        messages, self.sent[:] = list(self.sent), []
        for message in messages:
            if isinstance(message, ShmPoolAnnounce):
                assert message.epoch >= self.announced.get(message.stream_id, 0)
                self.announced[message.stream_id] = message.epoch
        return messages

    def expect_ends(self, ends: dict[int, tuple[int, Role]], reason: LeaseRevokeReason) -> None:
        """Each end has one notice; a producer's is followed by an announce of a new epoch if there is room."""
        before = dict(self.announced)
        messages = self.take()
        notices = [message for message in messages if isinstance(message, ShmLeaseRevoked)]
        assert sorted(notice.lease_id for notice in notices) == sorted(ends)
        assert all(notice.reason is reason for notice in notices)
        for stream, role in ends.values():
            announces = [m for m in messages if isinstance(m, ShmPoolAnnounce) and m.stream_id == stream]
            if role is Role.PRODUCER and not self.disk.full:
                (announce,) = announces
                assert announce.epoch > before.get(stream, 0)
                assert announce.producer_id == 0
                notice = next(n for n in notices if n.stream_id == stream and n.role is Role.PRODUCER)
                assert messages.index(notice) < messages.index(announce)
            else:
                assert role is Role.CONSUMER or announces == []

    @invariant()
    def at_most_one_producer_a_stream(self) -> None:
        if not hasattr(self, "authority"):
            return
        producers = [lease.stream_id for lease in self.authority.leases if lease.role is Role.PRODUCER]
        assert len(producers) == len(set(producers))

    @invariant()
    def the_table_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "authority"):
            return
        assert {lease.lease_id for lease in self.authority.leases} == set(self.held)


TestDriverUnderChaos = DriverUnderChaos.TestCase
TestDriverUnderChaos.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
