"""A client's lease, with a driver played by the test and a clock that it moves."""

from __future__ import annotations

import itertools

import pytest

from framepool.client.attach import MOST_ASKED, Attachment, AttachState
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.wire._generated import control_900 as control
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    PayloadPool,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from framepool.wire.message import Message

STREAM = 10_000


class Wire:
    """What the client sent, and whether Aeron takes more."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.open = True

    def send(self, message: Message) -> bool:
        if self.open:
            self.sent.append(message)
        return self.open

    def take[M: Message](self, kind: type[M]) -> list[M]:
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = [message for message in self.sent if not isinstance(message, kind)]
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def client(clock: ManualClock, wire: Wire) -> Attachment:
    return Attachment(STREAM, Role.PRODUCER, send=wire.send, clock=clock, client_id=77, create=True)


def ok(correlation_id: int, clock: ManualClock, lease_id: int = 5, **changes: object) -> ShmAttachResponse:
    fields: dict[str, object] = {
        "correlation_id": correlation_id,
        "code": ResponseCode.OK,
        "lease_id": lease_id,
        "lease_expiry_timestamp_ns": clock.monotonic_ns() + 3 * NANOS_PER_SECOND,
        "stream_id": STREAM,
        "epoch": 9,
        "layout_version": 1,
        "header_nslots": 4,
        "header_slot_bytes": 256,
        "max_dims": 8,
        "payload_pools": (
            PayloadPool(pool_id=1, pool_nslots=4, stride_bytes=64, region_uri="shm:file?path=/dev/shm/x/1.pool"),
        ),
        "header_region_uri": "shm:file?path=/dev/shm/x/header.ring",
    }
    return ShmAttachResponse(**{**fields, **changes})  # type: ignore[arg-type]


def attach(client: Attachment, wire: Wire, clock: ManualClock, lease_id: int = 5) -> ShmAttachRequest:
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.on_attach_response(ok(request.correlation_id, clock, lease_id))
    assert client.valid()
    return request


def announce(clock: ManualClock, stream_id: int = STREAM) -> control.ShmPoolAnnounce:
    return control.ShmPoolAnnounce(
        stream_id=stream_id,
        producer_id=77,
        epoch=9,
        announce_timestamp_ns=clock.timestamp_ns(),
        announce_clock_domain=clock.domain,
        layout_version=1,
        header_nslots=4,
        header_slot_bytes=256,
        payload_pools=(),
        header_region_uri="",
    )


def revoked(lease_id: int, client_id: int = 77) -> ShmLeaseRevoked:
    return ShmLeaseRevoked(
        timestamp_ns=0,
        lease_id=lease_id,
        stream_id=STREAM,
        client_id=client_id,
        role=Role.PRODUCER,
        reason=LeaseRevokeReason.REVOKED,
        error_message="",
    )


@pytest.mark.clause("D-4.2-01")
def test_only_the_answer_to_the_own_request_attaches(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.on_attach_response(ok(request.correlation_id + 1, clock))
    assert client.state is AttachState.ATTACHING
    client.on_attach_response(ok(request.correlation_id, clock))
    assert client.state is AttachState.ATTACHED
    assert client.grant is not None
    assert client.grant.layout.epoch == 9


@pytest.mark.clause("D-4.2-01")
def test_grant_of_a_request_that_was_given_up_is_taken(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    """A driver that starts late reads both; it grants the first and rejects the second for it."""
    client.start()
    client.do_work()
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    first, second = wire.take(ShmAttachRequest)
    assert client.counts["unanswered"] == 1
    client.on_attach_response(ok(first.correlation_id, clock, lease_id=9))
    assert client.valid()
    rejected = ShmAttachResponse(
        correlation_id=second.correlation_id, code=ResponseCode.REJECTED, error_message="holds a lease already"
    )
    client.on_attach_response(rejected)
    assert client.grant is not None
    assert client.grant.lease_id == 9
    client.on_lease_revoked(revoked(9))
    client.on_attach_response(ok(first.correlation_id, clock, lease_id=9))
    assert client.grant is None, "an answer counts once"


@pytest.mark.clause("D-4.2-15", "D-4.2-16")
@pytest.mark.parametrize(
    "changes",
    [
        {"lease_id": None},
        {"stream_id": None},
        {"epoch": None},
        {"layout_version": None},
        {"header_nslots": None},
        {"header_slot_bytes": None},
        {"max_dims": None},
        {"header_region_uri": ""},
        {"payload_pools": ()},
        {"stream_id": STREAM + 1},
        {"header_nslots": 6},
    ],
    ids=lambda changes: f"{next(iter(changes))}",
)
def test_incomplete_ok_is_a_protocol_error_and_asked_again(
    client: Attachment, wire: Wire, clock: ManualClock, changes: dict[str, object]
) -> None:
    client.start()
    client.do_work()
    (first,) = wire.take(ShmAttachRequest)
    client.on_attach_response(ok(first.correlation_id, clock, **changes))
    assert client.state is AttachState.ATTACHING
    assert client.grant is None
    assert client.counts["protocol errors"] == 1
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    (second,) = wire.take(ShmAttachRequest)
    assert second.correlation_id != first.correlation_id


@pytest.mark.clause("D-4.4-02", "D-4.4-08", "D-4.1-03")
@pytest.mark.parametrize("lease_id", [0, 1, 2**63])
def test_keepalives_leave_each_second_with_the_lease_as_given(
    client: Attachment, wire: Wire, clock: ManualClock, lease_id: int
) -> None:
    attach(client, wire, clock, lease_id)
    sent_at = []
    for _ in range(300):
        clock.advance(NANOS_PER_SECOND // 10)
        client.on_announce(announce(clock))
        client.do_work()
        for keepalive in wire.take(ShmLeaseKeepalive):
            assert (keepalive.lease_id, keepalive.stream_id, keepalive.client_id) == (lease_id, STREAM, 77)
            sent_at.append(clock.monotonic_ns())
    assert client.valid()
    assert len(sent_at) == 30
    assert {b - a for a, b in itertools.pairwise(sent_at)} == {NANOS_PER_SECOND}


def test_short_lifetime_makes_keepalives_more_frequent(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    expiry = clock.monotonic_ns() + 300_000_000
    client.on_attach_response(ok(request.correlation_id, clock, lease_expiry_timestamp_ns=expiry))
    clock.advance(100_000_000)
    client.do_work()
    assert len(wire.take(ShmLeaseKeepalive)) == 1


@pytest.mark.clause("D-4.4-12")
def test_keepalive_that_cannot_be_sent_ends_the_lease(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    attach(client, wire, clock)
    wire.open = False
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    assert client.valid(), "a full log may drain again"
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    assert not client.valid()
    wire.open = True
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    assert len(wire.take(ShmAttachRequest)) == 1


@pytest.mark.clause("D-4.9-07", "D-4.9-09", "D-4.7-04", "D-4.8-03", "D-15-01")
def test_revoked_lease_is_left_at_once_and_a_new_one_asked_for(
    client: Attachment, wire: Wire, clock: ManualClock
) -> None:
    first = attach(client, wire, clock, lease_id=5)
    client.on_lease_revoked(revoked(6))
    client.on_lease_revoked(revoked(5, client_id=78))
    assert client.valid(), "somebody else's lease"
    client.on_lease_revoked(revoked(5))
    assert not client.valid()
    assert client.grant is None
    second = attach(client, wire, clock, lease_id=99)
    assert second.client_id == first.client_id == 77
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    assert [keepalive.lease_id for keepalive in wire.take(ShmLeaseKeepalive)] == [99]


@pytest.mark.clause("D-4.12-05", "D-4.12-06", "D-10-03")
def test_shutdown_ends_the_lease_and_requests_go_on_until_the_driver_is_back(
    client: Attachment, wire: Wire, clock: ManualClock
) -> None:
    attach(client, wire, clock)
    client.on_driver_shutdown(ShmDriverShutdown(timestamp_ns=0, reason=ShutdownReason.NORMAL, error_message=""))
    assert not client.valid()
    for _ in range(100):
        clock.advance(NANOS_PER_SECOND // 10)
        client.do_work()
    requests = wire.take(ShmAttachRequest)
    assert 8 <= len(requests) <= 11, "asks about once a second"
    client.on_attach_response(ok(requests[-1].correlation_id, clock))
    assert client.valid()


@pytest.mark.clause("D-4.12-07", "D-4.12-08", "D-10-02")
def test_silent_driver_is_noticed_within_the_expiry_time(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    attach(client, wire, clock)
    for _ in range(29):
        clock.advance(NANOS_PER_SECOND // 10)
        client.on_announce(announce(clock, stream_id=STREAM + 1))
        client.do_work()
        assert client.valid()
    clock.advance(NANOS_PER_SECOND // 10)
    client.do_work()
    assert not client.valid()
    assert client.state is AttachState.ATTACHING
    assert client.counts["lost"] == 1


def test_client_that_was_stopped_past_its_lease_knows_it_before_it_writes(
    client: Attachment, wire: Wire, clock: ManualClock
) -> None:
    attach(client, wire, clock)
    clock.advance(5 * NANOS_PER_SECOND)
    assert not client.valid()


class FakeBeat:
    """Keepalives that leave, or do not, as the test says."""

    def __init__(self, message: ShmLeaseKeepalive, period_ns: int, give_up_ns: int) -> None:
        self.message, self.period_ns, self.give_up_ns = message, period_ns, give_up_ns
        self.last_sent_ns = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def beats() -> list[FakeBeat]:
    return []


@pytest.fixture
def beating(clock: ManualClock, wire: Wire, beats: list[FakeBeat]) -> Attachment:
    def start(message: ShmLeaseKeepalive, period_ns: int, give_up_ns: int) -> FakeBeat:
        beats.append(FakeBeat(message, period_ns, give_up_ns))
        return beats[-1]

    return Attachment(STREAM, Role.PRODUCER, send=wire.send, clock=clock, client_id=77, create=True, start_beat=start)


def test_beat_keeps_the_lease_of_a_program_that_does_nothing_else(
    beating: Attachment, wire: Wire, clock: ManualClock, beats: list[FakeBeat]
) -> None:
    attach(beating, wire, clock, lease_id=5)
    (beat,) = beats
    assert (beat.message.lease_id, beat.period_ns, beat.give_up_ns) == (5, NANOS_PER_SECOND, 3 * NANOS_PER_SECOND)
    for _ in range(20):
        clock.advance(NANOS_PER_SECOND)
        beat.last_sent_ns = clock.monotonic_ns()
        assert beating.valid(), "without a duty cycle in between"
    beating.on_announce(announce(clock))
    beating.do_work()
    assert beating.valid()
    assert wire.take(ShmLeaseKeepalive) == []


def test_beat_that_stopped_ends_the_lease_before_the_next_write(
    beating: Attachment, wire: Wire, clock: ManualClock, beats: list[FakeBeat]
) -> None:
    attach(beating, wire, clock)
    clock.advance(3 * NANOS_PER_SECOND)
    assert not beating.valid()


def test_beat_that_is_late_is_a_failed_keepalive(
    beating: Attachment, wire: Wire, clock: ManualClock, beats: list[FakeBeat]
) -> None:
    attach(beating, wire, clock)
    clock.advance(2 * NANOS_PER_SECOND - 1)
    beating.do_work()
    assert beating.valid(), "a busy machine is no reason to give up"
    clock.advance(1)
    beating.do_work()
    assert beating.state is AttachState.ATTACHING
    assert beats[0].closed
    attach(beating, wire, clock, lease_id=6)
    assert beats[1].message.lease_id == 6


def test_beat_ends_with_the_lease(beating: Attachment, wire: Wire, clock: ManualClock, beats: list[FakeBeat]) -> None:
    attach(beating, wire, clock)
    beating.detach()
    assert beats[0].closed


@pytest.mark.clause("W-15.17-06")
@pytest.mark.parametrize("code", [ResponseCode.REJECTED, ResponseCode.INTERNAL_ERROR])
def test_refused_attach_is_tried_again_with_growing_pauses(
    client: Attachment, wire: Wire, clock: ManualClock, code: ResponseCode
) -> None:
    client.start()
    at = []
    for _ in range(1_000):
        client.do_work()
        for request in wire.take(ShmAttachRequest):
            at.append(clock.monotonic_ns())
            client.on_attach_response(
                ShmAttachResponse(correlation_id=request.correlation_id, code=code, error_message="has a producer")
            )
        clock.advance(10_000_000)
    pauses = [b - a for a, b in itertools.pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 100_000_000
    assert max(pauses) <= 2 * NANOS_PER_SECOND
    assert client.last_refusal == f"{code.name}: has a producer"


def test_detach_gives_the_lease_back_and_its_own_notice_is_ignored(
    client: Attachment, wire: Wire, clock: ManualClock
) -> None:
    attach(client, wire, clock)
    client.detach()
    (request,) = wire.take(ShmDetachRequest)
    assert (request.lease_id, request.stream_id, request.client_id, request.role) == (5, STREAM, 77, Role.PRODUCER)
    client.on_lease_revoked(revoked(5))
    clock.advance(10 * NANOS_PER_SECOND)
    client.do_work()
    assert client.state is AttachState.DETACHED
    assert wire.sent == []


def test_lease_that_is_granted_after_all_is_given_back(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    """Nobody would use it, and as long as it lives the driver keeps everybody else from the stream."""
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.detach()
    assert client.awaits_answer
    client.on_attach_response(ok(request.correlation_id, clock))
    assert client.grant is None
    assert client.state is AttachState.DETACHED
    (given_back,) = wire.take(ShmDetachRequest)
    assert (given_back.lease_id, given_back.client_id) == (5, 77)
    assert not client.awaits_answer


def test_refusal_after_detach_is_the_end_of_it(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.detach()
    client.on_attach_response(ShmAttachResponse(correlation_id=request.correlation_id, code=ResponseCode.REJECTED))
    assert wire.sent == []
    assert not client.awaits_answer


def test_grant_of_before_counts_for_whoever_changed_its_mind(
    client: Attachment, wire: Wire, clock: ManualClock
) -> None:
    """It is this client's lease: as long as it lives, its next request would be rejected."""
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.detach()
    client.start()
    client.on_attach_response(ok(request.correlation_id, clock))
    assert client.grant is not None


def test_random_client_ids_differ_and_are_never_reserved() -> None:
    ids = {Attachment(STREAM, Role.CONSUMER, send=lambda _: True, clock=ManualClock()).client_id for _ in range(200)}
    assert len(ids) == 200
    assert 0 not in ids


def test_lease_given_up_by_our_own_judgement_is_given_back(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    """A driver that was only slow would hold it against us, for ever if leases do not expire."""
    attach(client, wire, clock)
    clock.advance(4 * NANOS_PER_SECOND)
    client.do_work()
    assert client.grant is None
    (given_back,) = wire.take(ShmDetachRequest)
    assert (given_back.lease_id, given_back.client_id) == (5, 77)
    client.do_work()
    assert len(wire.take(ShmAttachRequest)) == 1, "and asked for again"
    assert wire.take(ShmDetachRequest) == []


def test_lease_that_the_driver_ended_is_not_given_back(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    attach(client, wire, clock)
    client.on_lease_revoked(revoked(5))
    assert client.grant is None
    assert wire.take(ShmDetachRequest) == []


@pytest.mark.parametrize("age_ns", [0, 1, 5 * NANOS_PER_SECOND])
def test_lease_that_ran_out_before_its_grant_was_read_is_given_back_and_asked_for_again(
    client: Attachment, wire: Wire, clock: ManualClock, age_ns: int
) -> None:
    """As on a machine so busy that the answer waits for longer than the lease lives."""
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    expiry = clock.monotonic_ns() + NANOS_PER_SECOND
    clock.advance(NANOS_PER_SECOND + age_ns)
    client.on_attach_response(ok(request.correlation_id, clock, lease_expiry_timestamp_ns=expiry))
    assert (client.state, client.grant, client.valid()) == (AttachState.ATTACHING, None, False)
    assert [message.lease_id for message in wire.take(ShmDetachRequest)] == [5]
    clock.advance(NANOS_PER_SECOND)
    client.do_work()
    (again,) = wire.take(ShmAttachRequest)
    client.on_attach_response(ok(again.correlation_id, clock, lease_id=6))
    assert client.valid()


def test_keepalives_of_the_shortest_lease_have_a_period(clock: ManualClock, wire: Wire) -> None:
    periods: list[int] = []

    class Beat:
        last_sent_ns = 0

        def close(self) -> None: ...

    def start_beat(message: ShmLeaseKeepalive, period_ns: int, give_up_ns: int) -> Beat:
        periods.append(period_ns)
        return Beat()

    client = Attachment(STREAM, Role.CONSUMER, send=wire.send, clock=clock, client_id=77, start_beat=start_beat)
    client.start()
    client.do_work()
    (request,) = wire.take(ShmAttachRequest)
    client.on_attach_response(ok(request.correlation_id, clock, lease_expiry_timestamp_ns=clock.monotonic_ns() + 2))
    assert periods == [1]


def test_requests_that_nobody_answers_do_not_pile_up(client: Attachment, wire: Wire, clock: ManualClock) -> None:
    client.start()
    for _ in range(1_000):
        client.do_work()
        clock.advance(NANOS_PER_SECOND)
    asked = [request.correlation_id for request in wire.take(ShmAttachRequest)]
    assert len(asked) > 2 * MOST_ASKED
    assert list(client._asked) == asked[-MOST_ASKED:]
    client.on_attach_response(ok(asked[-2], clock))
    assert client.state is AttachState.ATTACHED
