"""The lease table by itself."""

from __future__ import annotations

import pytest

from framepool.driver.leases import LeaseRefused, LeaseState, LeaseTable
from framepool.wire._generated.driver_901 import LeaseRevokeReason, Role

SECOND = 1_000_000_000


@pytest.fixture
def table() -> LeaseTable:
    return LeaseTable(3 * SECOND)


def test_keepalive_moves_the_deadline_and_silence_ends_the_lease(table: LeaseTable) -> None:
    lease = table.grant(10_000, 7, Role.PRODUCER, 0)
    assert lease.state is LeaseState.ATTACHED
    for second in range(1, 10):
        assert table.expired(second * SECOND) == []
        assert table.keepalive(lease.lease_id, 10_000, 7, Role.PRODUCER, second * SECOND)
    assert lease.state is LeaseState.ACTIVE
    assert table.expired(12 * SECOND - 1) == []
    assert table.expired(12 * SECOND) == [lease]
    assert lease.state is LeaseState.EXPIRED
    assert len(table) == 0
    assert not table.keepalive(lease.lease_id, 10_000, 7, Role.PRODUCER, 12 * SECOND)


@pytest.mark.parametrize(
    ("stream_id", "client_id", "role"),
    [(10_001, 7, Role.PRODUCER), (10_000, 8, Role.PRODUCER), (10_000, 7, Role.CONSUMER)],
)
def test_request_that_does_not_fit_the_lease_changes_nothing(
    table: LeaseTable, stream_id: int, client_id: int, role: Role
) -> None:
    lease = table.grant(10_000, 7, Role.PRODUCER, 0)
    assert not table.keepalive(lease.lease_id, stream_id, client_id, role, 2 * SECOND)
    assert table.detach(lease.lease_id, stream_id, client_id, role) is None
    assert table.producer_of(10_000) is lease
    assert table.expired(3 * SECOND) == [lease]


def test_second_producer_and_second_lease_of_a_client_are_refused(table: LeaseTable) -> None:
    first = table.grant(10_000, 7, Role.PRODUCER, 0)
    with pytest.raises(LeaseRefused, match="producer already"):
        table.grant(10_000, 8, Role.PRODUCER, 0)
    with pytest.raises(LeaseRefused, match="client 7"):
        table.grant(10_001, 7, Role.CONSUMER, 0)
    assert list(table) == [first]
    table.detach(first.lease_id, 10_000, 7, Role.PRODUCER)
    assert first.state is LeaseState.DETACHED
    table.grant(10_000, 7, Role.PRODUCER, 0)


def test_many_consumers_share_a_stream(table: LeaseTable) -> None:
    leases = [table.grant(10_000, client, Role.CONSUMER, 0) for client in range(1, 33)]
    assert len({lease.lease_id for lease in leases}) == 32


def test_leases_without_lifetime_never_expire() -> None:
    table = LeaseTable(None)
    lease = table.grant(10_000, 7, Role.CONSUMER, 0)
    assert lease.expiry_ns is None
    assert table.expired(10**18) == []


def test_revoked_lease_is_gone(table: LeaseTable) -> None:
    lease = table.grant(10_000, 7, Role.PRODUCER, 0)
    table.end(lease, LeaseRevokeReason.REVOKED)
    assert lease.state is LeaseState.REVOKED
    assert table.get(lease.lease_id) is None
    assert table.producer_of(10_000) is None


def test_ids_of_two_instances_do_not_meet() -> None:
    ids = [LeaseTable(None).grant(1, 1, Role.CONSUMER, 0).lease_id for _ in range(50)]
    assert len(set(ids)) == 50


def test_leases_that_are_given_back_leave_nothing_behind(table: LeaseTable) -> None:
    kept = table.grant(10_000, 1, Role.PRODUCER, 0)
    for client_id in range(2, 10_000):
        lease = table.grant(10_000, client_id, Role.CONSUMER, 0)
        table.detach(lease.lease_id, 10_000, client_id, Role.CONSUMER)
    assert len(table._deadlines) < 200
    assert table.expired(3 * SECOND) == [kept]
