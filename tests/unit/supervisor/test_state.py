"""What the supervisor makes of what it hears: a state folded from messages, readings and time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.clock import NANOS_PER_SECOND
from framepool.config import Config, SupervisorConfig, SupervisorLimits
from framepool.supervisor.notices import Kind, Level
from framepool.supervisor.state import State, Thresholds
from framepool.supervisor.streams import GRACE_NS, Activity, Cause, Health
from framepool.wire._generated.control_900 import Attribute, Bool, Mode
from framepool.wire._generated.driver_901 import LeaseRevokeReason, ResponseCode, Role
from framepool.wire.dispatch import Drop
from tests.unit.supervisor import messages as say
from tests.unit.supervisor.messages import CONSUMER, EPOCH, PRODUCER, STREAM

SECOND = NANOS_PER_SECOND


class World:
    """A state, and time that the test moves."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.state = State(thresholds)
        self.now = 100 * SECOND

    def hear(self, *messages: Any) -> None:
        for message in messages:
            assert self.state.receive(message.encode(), self.now) is None

    def read(self, age_s: float, epoch: int = EPOCH) -> None:
        reading = Activity(stream_id=STREAM, epoch=epoch, timestamp_ns=1, age_ns=round(age_s * SECOND))
        self.state.on_activity(reading, self.now)

    def wait(self, seconds: float, every: Callable[[], None] | None = None) -> None:
        """Lets time pass, a quarter of a second at a time, with something said once a second."""
        for step in range(round(seconds * 4)):
            if every is not None and step % 4 == 0:
                every()
            self.now += SECOND // 4
            self.state.tick(self.now)

    @property
    def stream(self) -> Any:
        return self.state.streams[STREAM]

    @property
    def consumer(self) -> Any:
        return self.stream.consumers[CONSUMER]

    def kinds(self) -> list[Kind]:
        return [notice.kind for notice in self.state.journal.after(0)]


@pytest.fixture
def world() -> World:
    return World()


# The view


@pytest.mark.clause("W-10.5-01")
def test_a_stream_is_known_with_its_metadata_and_its_reports(world: World) -> None:
    world.hear(say.announce(), say.source(), say.meta(), say.hello(), say.qos_producer(100), say.qos(90, 3, 2))
    world.now += 2 * SECOND
    world.hear(say.qos_producer(150), say.qos(140, 4, 2))
    (stream,) = world.state.describe()["streams"]
    assert (stream["stream_id"], stream["epoch"], stream["producer_id"]) == (STREAM, EPOCH, PRODUCER)
    assert (stream["name"], stream["summary"], stream["metadata"]) == ("camera", "uint16 2048x2048", {"gain": 3})
    assert (stream["current_seq"], stream["rate_hz"], stream["health"]) == (150, 25.0, "live")
    (consumer,) = stream["consumers"]
    assert (consumer["consumer_id"], consumer["mode"]) == (CONSUMER, "STREAM")
    assert (consumer["last_seq_seen"], consumer["drops_gap"], consumer["drops_late"]) == (140, 4, 2)
    assert consumer["drop_rate"] == round(1 / 50, 6)
    assert consumer["rate_hz"] == 25.0


def test_what_is_said_of_a_stream_that_nobody_announces_is_not_kept(world: World) -> None:
    world.hear(say.source(), say.meta(), say.hello(), say.qos(), say.qos_producer())
    assert world.state.describe()["streams"] == []
    assert world.state.counts["of streams not announced"] == 5


def test_metadata_of_another_kind_shows_as_what_it_is(world: World) -> None:
    blob = Attribute(key="table", format="application/octet-stream", value=bytes(300))
    world.hear(say.announce(), say.meta(attributes=(blob,)))
    assert world.state.describe()["streams"][0]["metadata"] == {"table": "300 bytes"}


def test_metadata_that_is_too_large_is_known_by_its_version_only(world: World) -> None:
    blob = Attribute(key="table", format="application/octet-stream", value=bytes(20_000))
    world.hear(say.announce(), say.source(meta_version=8), say.meta(meta_version=8, attributes=(blob,)))
    assert world.stream.metadata is None
    assert world.stream.meta_version == 8
    assert world.state.counts["metadata too large"] == 1


def test_leases_come_with_their_answer_and_go_with_their_end(world: World) -> None:
    world.hear(say.announce(), say.attach_request(), say.attach_response())
    (lease,) = world.state.describe()["leases"]
    assert (lease["lease_id"], lease["client_id"], lease["role"], lease["epoch"]) == (1, PRODUCER, "PRODUCER", EPOCH)
    world.hear(say.revoked())
    assert world.state.describe()["leases"] == []


def test_a_lease_that_was_granted_before_is_known_by_its_keepalives(world: World) -> None:
    world.hear(say.keepalive())
    assert world.state.leases.leases[1].role is Role.PRODUCER
    world.wait(61)
    assert not world.state.leases.leases


def test_a_refused_attach_is_counted_and_no_lease(world: World) -> None:
    world.hear(say.attach_request(), say.attach_response(code=ResponseCode.REJECTED, lease_id=None))
    assert world.state.leases.refused == 1
    assert not world.state.leases.leases


def test_services_are_known_by_their_status(world: World) -> None:
    world.hear(say.status().message())
    assert [each["tag"] for each in world.state.describe()["services"]] == ["service:limiter"]
    world.hear(say.status(state="gone").message())
    assert world.state.describe()["services"] == []


# Producers that die


@pytest.mark.clause("W-15.14-05")
def test_a_producer_whose_activity_is_stale_is_dead(world: World) -> None:
    world.hear(say.announce())
    world.read(0.5)
    assert world.stream.health is Health.LIVE
    world.hear(say.announce())  # whoever announces still: the stamp decides
    world.read(4.1)
    assert (world.stream.health, world.stream.dead) == (Health.DEAD, Cause.ACTIVITY)
    (notice,) = [each for each in world.state.journal.after(0) if each.level is Level.ALERT]
    assert (notice.kind, notice.stream_id, notice.client_id) == (Kind.PRODUCER_DEAD, STREAM, PRODUCER)


@pytest.mark.clause("W-15.14-06")
@pytest.mark.parametrize("periods", [3.0, 4.0, 5.0])
def test_a_producer_dies_between_three_and_five_periods_of_frozen_activity(periods: float) -> None:
    world = World(Thresholds.of(Config(supervisor=SupervisorConfig(liveness_periods=periods))))
    world.hear(say.announce())
    died = None
    for step in range(24):
        age = step / 4
        world.now += SECOND // 4
        world.hear(say.announce())
        world.read(age)
        if died is None and world.stream.health is Health.DEAD:
            died = age
    assert died is not None
    assert 3 < died <= 5.25
    assert died == periods + 0.25


@pytest.mark.clause("W-15.14-06")
@pytest.mark.parametrize("periods", [2.9, 5.1])
def test_a_liveness_timeout_outside_of_three_to_five_periods_is_refused(periods: float) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"supervisor": {"liveness_periods": periods}}, Config)


def test_the_dead_stay_dead_until_a_new_epoch_or_a_sign_of_life(world: World) -> None:
    world.hear(say.announce())
    world.read(10)
    world.hear(say.announce())
    assert world.stream.health is Health.DEAD
    world.hear(say.announce(epoch=EPOCH + 1))
    assert world.stream.health is Health.LIVE
    world.read(10, epoch=EPOCH + 1)
    assert world.stream.health is Health.DEAD
    world.read(0.1, epoch=EPOCH + 1)
    assert world.stream.health is Health.LIVE
    assert world.kinds()[-2:] == [Kind.PRODUCER_DEAD, Kind.PRODUCER_BACK]


def test_a_reading_of_another_epoch_says_nothing(world: World) -> None:
    world.hear(say.announce())
    world.read(100, epoch=EPOCH - 1)
    assert world.stream.health is Health.LIVE


@pytest.mark.parametrize(
    ("reason", "cause"), [(LeaseRevokeReason.EXPIRED, Cause.EXPIRED), (LeaseRevokeReason.REVOKED, Cause.REVOKED)]
)
@pytest.mark.parametrize("announce_first", [False, True])
def test_a_producer_whose_lease_was_ended_is_dead(
    world: World, reason: LeaseRevokeReason, cause: Cause, announce_first: bool
) -> None:
    world.hear(say.announce())
    told = [say.revoked(reason=reason), say.announce(epoch=EPOCH + 1, producer_id=0)]
    world.hear(*reversed(told) if announce_first else told)
    world.wait(2, lambda: world.hear(say.announce(epoch=EPOCH + 1, producer_id=0)))
    assert (world.stream.health, world.stream.dead) == (Health.DEAD, cause)
    assert world.kinds().count(Kind.PRODUCER_DEAD) == 1


@pytest.mark.parametrize("announce_first", [False, True])
def test_a_producer_that_gives_its_lease_back_is_not_dead(world: World, announce_first: bool) -> None:
    world.hear(say.announce())
    told = [say.revoked(reason=LeaseRevokeReason.DETACHED), say.announce(epoch=EPOCH + 1, producer_id=0)]
    world.hear(*reversed(told) if announce_first else told)
    world.wait(2, lambda: world.hear(say.announce(epoch=EPOCH + 1, producer_id=0)))
    assert world.stream.health is Health.VACANT
    assert Kind.PRODUCER_LEFT in world.kinds()
    assert Kind.PRODUCER_DEAD not in world.kinds()


def test_a_stream_that_is_announced_without_its_producer_has_lost_it(world: World) -> None:
    world.hear(say.announce())
    world.hear(say.announce(epoch=EPOCH + 1, producer_id=0))
    assert Kind.PRODUCER_DEAD not in world.kinds(), "the end of its lease may be told yet"
    world.now += GRACE_NS + 1
    world.state.tick(world.now)
    assert (world.stream.health, world.stream.dead) == (Health.DEAD, Cause.NO_PRODUCER)


def test_a_stream_that_never_had_a_producer_is_vacant(world: World) -> None:
    world.hear(say.announce(producer_id=0))
    world.wait(1)
    assert world.stream.health is Health.VACANT
    assert world.kinds() == [Kind.STREAM_NEW]


def test_an_announce_that_still_names_a_producer_whose_lease_ended_does_not_bring_it_back(world: World) -> None:
    world.hear(say.announce(), say.revoked(), say.announce())
    assert world.stream.health is Health.DEAD
    world.hear(say.announce(epoch=EPOCH + 1))  # the same client, attached anew
    assert world.stream.health is Health.LIVE


def test_a_death_is_told_once_however_it_is_seen(world: World) -> None:
    world.hear(say.announce())
    world.read(10)
    world.hear(say.revoked(), say.announce(epoch=EPOCH + 1, producer_id=0))
    world.wait(2)
    assert world.kinds().count(Kind.PRODUCER_DEAD) == 1
    assert world.stream.dead is Cause.ACTIVITY


def test_a_producer_that_another_one_replaced_is_missed_all_the_same(world: World) -> None:
    world.hear(say.announce(), say.announce(epoch=EPOCH + 1, producer_id=8), say.revoked())
    assert world.stream.health is Health.LIVE
    assert world.kinds() == [Kind.STREAM_NEW, Kind.PRODUCER_NEW, Kind.EPOCH, Kind.PRODUCER_NEW, Kind.PRODUCER_DEAD]


def test_a_driver_that_shuts_down_ends_leases_and_kills_nobody(world: World) -> None:
    world.hear(say.announce(), say.attach_request(), say.attach_response(), say.shutdown())
    assert not world.state.leases.leases
    assert world.stream.health is Health.VACANT
    assert world.kinds()[-1] is Kind.DRIVER_SHUTDOWN
    assert Kind.PRODUCER_DEAD not in world.kinds()


def test_a_stream_that_is_not_announced_any_more_is_silent_and_later_forgotten(world: World) -> None:
    world.hear(say.announce(producer_id=0), say.hello())
    world.wait(3.5)
    assert world.stream.health is Health.VACANT
    world.wait(1.5)
    assert world.stream.health is Health.SILENT
    world.hear(say.announce(producer_id=0))
    assert world.stream.health is Health.VACANT
    world.wait(61)
    assert world.state.streams == {}
    assert world.state.statistics()["consumers"] == 0
    silence = [Kind.STREAM_SILENT, Kind.STREAM_BACK, Kind.STREAM_SILENT, Kind.STREAM_FORGOTTEN]
    assert [kind for kind in world.kinds() if kind in silence] == silence


def test_a_lower_epoch_counts_only_when_the_higher_one_fell_silent(world: World) -> None:
    world.hear(say.announce(epoch=9), say.announce(epoch=8))
    assert world.stream.epoch == 9
    assert world.state.counts["lower epochs"] == 1
    world.wait(5)
    world.hear(say.announce(epoch=8))
    assert world.stream.epoch == 8


# Consumers


def test_a_consumer_that_neither_says_hello_nor_reports_is_stale(world: World) -> None:
    def alive() -> None:
        world.hear(say.announce())

    world.hear(say.announce(), say.hello())
    world.wait(3.5, alive)
    assert not world.consumer.stale
    world.hear(say.qos())  # either will do
    world.wait(3.5, alive)
    assert not world.consumer.stale
    world.wait(1.5, alive)
    assert world.consumer.stale
    world.hear(say.hello())
    assert not world.consumer.stale
    assert [k for k in world.kinds() if "consumer" in k] == [
        Kind.CONSUMER_NEW,
        Kind.CONSUMER_STALE,
        Kind.CONSUMER_BACK,
    ]


def test_a_consumer_that_gave_its_lease_back_left_and_is_not_stale(world: World) -> None:
    world.hear(say.announce(), say.hello(), say.hello(consumer_id=91))
    world.wait(1, lambda: world.hear(say.announce(), say.hello(), say.hello(consumer_id=91)))
    world.hear(say.revoked(role=Role.CONSUMER, client_id=55, reason=LeaseRevokeReason.DETACHED))
    world.wait(6, lambda: world.hear(say.announce()))
    about = {(each.kind, each.client_id) for each in world.state.journal.after(0) if "consumer" in each.kind}
    assert {kind for kind, _ in about} == {Kind.CONSUMER_NEW, Kind.CONSUMER_LEFT, Kind.CONSUMER_STALE}
    assert len(world.stream.consumers) == 1, "one lease was given back, one consumer left; the other is stale"


def test_two_consumers_of_one_id_are_told_apart_by_counters_that_go_back_and_forth(world: World) -> None:
    world.hear(say.announce())
    for step in range(3):
        world.wait(0.5, lambda: world.hear(say.announce()))
        world.hear(say.qos(1_000 + step))
        world.wait(0.5)
        world.hear(say.qos(step))
    assert world.consumer.duplicate
    assert world.kinds().count(Kind.CONSUMER_DUPLICATE) == 1


def test_a_consumer_that_starts_again_under_its_id_is_none_of_two(world: World) -> None:
    world.hear(say.announce())
    for seq in (1_000, 1_010, 0, 10, 20, 30):
        world.hear(say.qos(seq))
        world.wait(1, lambda: world.hear(say.announce()))
    assert not world.consumer.duplicate
    assert Kind.CONSUMER_DUPLICATE not in world.kinds()


def test_a_new_epoch_starts_the_count_of_frames_anew_for_one_and_the_same_consumer(world: World) -> None:
    world.hear(say.announce())
    for epoch in (5, 6, 7, 8):
        world.hear(say.announce(epoch=epoch), say.qos(100, epoch=epoch), say.qos(200, epoch=epoch))
        world.wait(0.5)
    assert not world.consumer.duplicate


def test_a_share_of_losses_over_the_limit_is_told_and_so_is_its_end(world: World) -> None:
    world.hear(say.announce())
    seq = drops = 0
    for losing in (0, 0, 10, 10, 10, 10, 10, 0, 0, 0, 0, 0, 0):
        seq, drops = seq + 100, drops + losing
        world.hear(say.qos(seq, drops))
        world.wait(1, lambda: world.hear(say.announce()))
    told = [each for each in world.state.journal.after(0) if each.kind in {Kind.DROPS_HIGH, Kind.DROPS_LOW}]
    assert [each.kind for each in told] == [Kind.DROPS_HIGH, Kind.DROPS_LOW]
    assert "loses" in told[0].text


def test_losses_within_the_limit_are_not_told(world: World) -> None:
    world.hear(say.announce())
    for step in range(10):
        world.hear(say.qos(100 * step, 2 * step, 2 * step))
        world.wait(1, lambda: world.hear(say.announce()))
    assert world.consumer.drop_rate == 0.04
    assert Kind.DROPS_HIGH not in world.kinds()


def test_what_a_consumer_was_told_is_known(world: World) -> None:
    uri = "bridge://far"
    world.hear(say.announce(), say.hello(supports_shm=Bool.FALSE, mode=Mode.RATE_LIMITED, max_rate_hz=5))
    world.hear(say.consumer_config(use_shm=Bool.FALSE, payload_fallback_uri=uri))
    consumer = world.state.describe()["streams"][0]["consumers"][0]
    assert (consumer["mode"], consumer["max_rate_hz"], consumer["fallback"]) == ("RATE_LIMITED", 5, uri)


# A fold, bounded


class Choices:
    """Random messages about few streams, producers and consumers, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self) -> Any:
        pick = self.random.choice
        stream_id, epoch = pick([1, 2, 3]), pick([4, 5, 6])
        client_id = pick([0, 7, 8])
        about = {"stream_id": stream_id}
        return pick(
            [
                lambda: say.announce(**about, epoch=epoch, producer_id=client_id),
                lambda: say.source(**about, epoch=epoch),
                lambda: say.meta(**about, meta_version=pick([1, 2])),
                lambda: say.hello(**about, consumer_id=client_id),
                lambda: say.consumer_config(**about, consumer_id=client_id),
                lambda: say.qos(pick([0, 50, 99]), pick([0, 9]), **about, consumer_id=client_id, epoch=epoch),
                lambda: say.qos_producer(pick([0, 50]), **about, epoch=epoch),
                lambda: say.attach_request(**about, client_id=client_id, correlation_id=pick([1, 2])),
                lambda: say.attach_response(**about, correlation_id=pick([1, 2]), lease_id=pick([1, 2, 3])),
                lambda: say.keepalive(**about, client_id=client_id, lease_id=pick([1, 2, 3])),
                lambda: say.revoked(
                    **about, client_id=client_id, role=pick(list(Role)), reason=pick(list(LeaseRevokeReason))
                ),
                say.shutdown,
                lambda: say.status(pick(["service:a", "service:b"]), pick(["running", "gone"])).message(),
            ]
        )()


def history(seed: int, length: int) -> list[tuple[int, Any]]:
    """Times with a message, a reading or nothing."""
    choices, now, found = Choices(seed), 0, []
    for _ in range(length):
        now += choices.random.choice([0, 1, SECOND // 3, SECOND, 5 * SECOND])
        what: Any = choices.message().encode()
        if choices.random.random() < 0.2:
            what = Activity(
                stream_id=choices.random.choice([1, 2, 3]),
                epoch=choices.random.choice([4, 5, 6]),
                timestamp_ns=0,
                age_ns=choices.random.choice([0, 10 * SECOND]),
            )
        found.append((now, None if choices.random.random() < 0.1 else what))
    return found


def fold(state: State, events: list[tuple[int, Any]]) -> None:
    for now, what in events:
        if isinstance(what, bytes):
            state.receive(what, now)
        elif what is not None:
            state.on_activity(what, now)
        state.tick(now)


def whole(state: State) -> dict[str, Any]:
    return {**state.describe(), "notices": [each.plain() for each in state.journal.after(0)]}


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_a_state_is_the_same_whenever_the_same_is_folded(seed: int, length: int) -> None:
    events = history(seed, length)
    one, two = State(), State()
    fold(one, events)
    fold(two, events)
    assert whole(one) == whole(two)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 100))
def test_whatever_is_said_the_state_is_consistent(seed: int, length: int) -> None:
    state = State()
    events = history(seed, length)
    for now, what in events:
        before = {stream_id: stream.health for stream_id, stream in state.streams.items()}
        last = state.journal.last
        fold(state, [(now, what)])
        assert state.statistics()["consumers"] == sum(1 for _ in state.consumers())
        for stream in state.streams.values():
            assert (stream.health is Health.DEAD) == (stream.dead is not None)
            if stream.occupant is not None:
                assert stream.occupant.producer_id == stream.producer_id != 0
            if stream.health is Health.DEAD and before.get(stream.stream_id) is not Health.DEAD:
                died = [each for each in state.journal.after(last) if each.kind is Kind.PRODUCER_DEAD]
                assert stream.stream_id in {each.stream_id for each in died}
        numbers = [each.number for each in state.journal.after(0)]
        assert numbers == list(range(1, state.journal.last + 1))


def test_streams_consumers_and_notices_are_bounded() -> None:
    limits = SupervisorLimits(max_streams=3, max_consumers=5, max_leases=4, max_notices=10)
    world = World(Thresholds(limits=limits))
    for number in range(20):
        world.hear(say.announce(stream_id=1 + number), say.hello(stream_id=1, consumer_id=number))
        world.hear(say.keepalive(lease_id=number), say.announce(stream_id=1, producer_id=number, epoch=number))
    state = world.state
    assert (len(state.streams), sum(1 for _ in state.consumers())) == (3, 5)
    assert len(state.leases.leases) == 4
    assert len(state.journal.after(0)) == 10
    assert len(world.state.streams[1].missing) <= 16
    assert state.counts["too many streams"] > 0
    assert state.counts["too many consumers"] > 0


def test_the_journal_gives_what_came_after_a_number(world: World) -> None:
    world.hear(say.announce(), say.hello())
    kinds = world.kinds()
    assert [each.kind for each in world.state.journal.after(1)] == kinds[1:]
    assert world.state.journal.after(world.state.journal.last) == []
    assert world.state.journal.after(10_000) == []


@given(st.binary(max_size=200))
def test_bytes_of_no_message_change_nothing(data: bytes) -> None:
    state = State()
    assert isinstance(state.receive(data, 1), Drop | None)
    assert state.describe()["streams"] == []
