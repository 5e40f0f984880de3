"""A producer's consumers: what they are granted, at which rate, and when they count as gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from framepool.client.hello import SHARED, ConsumerWishes, Endpoint, Introduction
from framepool.client.progress import ProgressPolicy
from framepool.client.registry import ConsumerRegistry, RegistrySettings
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode, QosConsumer
from framepool.wire.message import Message

STREAM = 10_000
IPC = "aeron:ipc"
UDP = "aeron:udp?endpoint=127.0.0.1:4000"


class World:
    """A registry, its clock, the answers it gave and the publications it had opened."""

    def __init__(self, settings: RegistrySettings | None = None) -> None:
        self.clock = ManualClock()
        self.answers: list[ConsumerConfig] = []
        self.published: list[Endpoint] = []
        self.willing = True
        self.taken: set[int] = set()
        self.registry = self.another(STREAM, settings)

    def another(self, stream_id: int, settings: RegistrySettings | None = None) -> ConsumerRegistry:
        return ConsumerRegistry(
            stream_id, send=self.send, publications=self, clock=self.clock, settings=settings, taken=self.taken
        )

    def send(self, message: Message) -> bool:
        assert isinstance(message, ConsumerConfig)
        self.answers.append(ConsumerConfig.decode(message.encode()))
        return True

    def open(self, endpoint: Endpoint) -> bool:
        if self.willing:
            self.published.append(endpoint)
        return self.willing

    def close(self, endpoint: Endpoint) -> None:
        self.published.remove(endpoint)

    def hear(self, consumer_id: int = 1, **changes: Any) -> bool:
        return self.registry.on_hello(hello(consumer_id, **changes))

    def report(self, consumer_id: int = 1, stream_id: int = STREAM) -> None:
        self.registry.on_qos(
            QosConsumer(
                stream_id=stream_id,
                consumer_id=consumer_id,
                epoch=1,
                last_seq_seen=0,
                drops_gap=0,
                drops_late=0,
                mode=Mode.STREAM,
            )
        )

    def answer(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """What the last answer assigned: descriptors, control."""
        last = self.answers[-1]
        return (last.descriptor_channel, last.descriptor_stream_id), (last.control_channel, last.control_stream_id)


def hello(consumer_id: int = 1, **changes: Any) -> ConsumerHello:
    plain = Introduction(STREAM, send=lambda message: True, clock=ManualClock(), consumer_id=consumer_id).hello()
    return msgspec.structs.replace(plain, **changes)


def asking(descriptor: tuple[str, int] = ("", 0), control: tuple[str, int] = ("", 0)) -> dict[str, Any]:
    """The fields of a hello that asks for streams of its own."""
    return {
        "descriptor_channel": descriptor[0],
        "descriptor_stream_id": descriptor[1],
        "control_channel": control[0],
        "control_stream_id": control[1],
    }


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.clause("W-5-03", "W-5-04", "W-5-11")
def test_granted_streams_are_opened_and_named_in_the_answer(world: World) -> None:
    world.hear(**asking((IPC, 31_005), (IPC, 32_005)))
    assert world.published == [Endpoint(IPC, 31_005), Endpoint(IPC, 32_005)]
    assert world.answer() == ((IPC, 31_005), (IPC, 32_005))
    assert (world.answers[-1].stream_id, world.answers[-1].consumer_id) == (STREAM, 1)
    assert world.answers[-1].use_shm is Bool.TRUE
    assert world.registry.descriptor_targets() == [Endpoint(IPC, 31_005)]


def test_repeated_request_is_answered_again_and_opens_nothing_new(world: World) -> None:
    assert world.hear(**asking((IPC, 31_005)))
    assert not world.hear(**asking((IPC, 31_005)))
    assert world.published == [Endpoint(IPC, 31_005)]
    assert len(world.answers) == 2


def test_consumer_that_asks_for_nothing_gets_no_answer(world: World) -> None:
    assert world.hear()
    assert world.answers == []
    assert world.registry.descriptor_targets() == []


@pytest.mark.clause("W-10.1.2-07", "W-10.1.2-08", "W-10.1.2-11")
@pytest.mark.parametrize("half", [(IPC, 0), ("", 7)])
@pytest.mark.parametrize("which", ["descriptor", "control"])
def test_half_a_request_is_declined(world: World, which: str, half: tuple[str, int]) -> None:
    world.hear(**asking(**{which: half}))
    assert world.published == []
    assert world.answer() == (("", 0), ("", 0))
    assert world.registry.statistics()["declined"] == 1


@pytest.mark.clause("W-5-15", "W-10.1.3-06")
@pytest.mark.parametrize(
    ("channel", "offset"),
    [
        ("tcp:x", 5),
        ("aeron:tcp", 5),
        ("aeron:ipc?broken", 5),
        (UDP, 5),
        ("aeron:ipc?term-length=1g", 5),
        ("aeron:ipc?alias=" + "x" * 300, 5),
        (IPC, -1),
        (IPC, 1_000),
        (IPC, 2**31),
    ],
)
def test_request_that_is_not_allowed_is_declined(world: World, channel: str, offset: int) -> None:
    world.hear(**asking((channel, 31_000 + offset), (channel, 32_000 + offset)))
    assert world.published == []
    assert world.answer() == (("", 0), ("", 0))
    assert world.registry.statistics()["declined"] == 2


def test_udp_is_granted_where_it_is_allowed() -> None:
    world = World(RegistrySettings(allow_udp=True))
    world.hear(**asking((UDP, 31_005)))
    assert world.answer()[0] == (UDP, 31_005)
    world.hear(2, **asking(("aeron:udp", 31_006)))
    assert world.answer()[0] == ("", 0), "without an endpoint there is nowhere to send"


def test_declined_control_stream_leaves_the_granted_descriptor_stream(world: World) -> None:
    world.hear(**asking((IPC, 31_005), (IPC, 5)))
    assert world.answer() == ((IPC, 31_005), ("", 0))


def test_owner_that_cannot_publish_declines(world: World) -> None:
    world.willing = False
    world.hear(**asking((IPC, 31_005)))
    assert world.answer()[0] == ("", 0)
    world.willing = True
    world.hear(**asking((IPC, 31_005)))
    assert world.answer()[0] == (IPC, 31_005)


def test_stream_id_is_given_once_in_a_process_until_it_is_free(world: World) -> None:
    world.hear(1, **asking((IPC, 31_005)))
    world.hear(2, **asking((IPC, 31_005)))
    assert world.answer()[0] == ("", 0)
    other = world.another(STREAM + 1)
    other.on_hello(hello(3, stream_id=STREAM + 1, **asking((IPC, 31_005))))
    assert world.answer()[0] == ("", 0)
    world.registry.disconnect(1)
    world.hear(2, **asking((IPC, 31_005)))
    assert world.answer()[0] == (IPC, 31_005)


def test_changed_request_closes_the_old_stream(world: World) -> None:
    world.hear(**asking((IPC, 31_005)))
    assert world.hear(**asking((IPC, 31_006)))
    assert world.published == [Endpoint(IPC, 31_006)]
    assert world.hear()
    assert world.published == []
    assert world.taken == set()


@pytest.mark.clause("W-5-06")
@pytest.mark.parametrize("sign", ["hello", "report"])
def test_either_sign_of_life_keeps_a_consumer(world: World, sign: str) -> None:
    world.hear(**asking((IPC, 31_005)))
    for _ in range(20):
        world.clock.advance(2_900 * NANOS_PER_MILLI)
        world.registry.do_work()
        assert world.published
        world.hear(**asking((IPC, 31_005))) if sign == "hello" else world.report()


@pytest.mark.clause("W-5-06", "W-10.1.3-08")
@pytest.mark.parametrize("stale_after", [3.0, 4.0, 5.0])
def test_silent_consumer_is_kept_for_three_intervals_and_gone_after_five(stale_after: float) -> None:
    world = World(RegistrySettings(stale_after=stale_after))
    world.hear(**asking((IPC, 31_005), (IPC, 32_005)))
    world.clock.advance(3 * NANOS_PER_SECOND)
    world.report(2)
    world.report(stream_id=STREAM + 1)
    assert world.registry.do_work() == 0
    assert len(world.published) == 2
    world.clock.advance(2 * NANOS_PER_SECOND + 1)
    assert world.registry.do_work() == 1
    assert world.published == []
    assert world.registry.descriptor_targets() == []
    assert world.registry.hellos() == []


@pytest.mark.parametrize(
    "wrong", [{"stale_after": 2.9}, {"stale_after": 5.1}, {"interval_ns": 0}, {"max_consumers": 0}]
)
def test_settings_outside_the_specification_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RegistrySettings(**wrong)


def test_close_closes_every_publication(world: World) -> None:
    world.hear(1, **asking((IPC, 31_005)))
    world.hear(2, **asking((IPC, 31_006), (IPC, 32_006)))
    world.registry.close()
    assert world.published == []
    world.registry.disconnect(1)


def test_only_so_many_consumers_are_known() -> None:
    world = World(RegistrySettings(max_consumers=2))
    for consumer_id in (1, 2, 3):
        world.hear(consumer_id, **asking((IPC, 31_000 + consumer_id)))
    assert world.answer()[0] == ("", 0)
    assert len(world.registry.hellos()) == 2
    assert world.registry.statistics() == {
        "consumers": 2,
        "with_own_streams": 2,
        "joined": 2,
        "granted": 2,
        "too many": 1,
    }


def test_consumer_of_another_stream_is_not_ours(world: World) -> None:
    assert not world.hear(stream_id=STREAM + 1)
    assert world.registry.hellos() == []


def published_in_a_second(world: World, hz: int = 100) -> int:
    """How many descriptors a consumer's own stream gets out of so many."""
    count = 0
    for _ in range(hz):
        count += len(world.registry.descriptor_targets())
        world.clock.advance(NANOS_PER_SECOND // hz)
    return count


@pytest.mark.clause("W-5-07", "W-10.1.2-04")
def test_rate_limited_consumer_gets_its_rate_on_its_own_stream(world: World) -> None:
    world.hear(mode=Mode.RATE_LIMITED, max_rate_hz=10, **asking((IPC, 31_005)))
    assert 9 <= published_in_a_second(world) <= 11
    world.hear(mode=Mode.RATE_LIMITED, max_rate_hz=20, **asking((IPC, 31_005)))
    assert 19 <= published_in_a_second(world) <= 21


@pytest.mark.clause("W-5-08")
@pytest.mark.parametrize("mode", Mode)
def test_rate_of_zero_is_no_limit(mode: Mode) -> None:
    world = World(RegistrySettings(cap_stream_mode=True))
    world.hear(mode=mode, max_rate_hz=0, **asking((IPC, 31_005)))
    assert published_in_a_second(world) == 100


def test_stream_consumer_is_capped_only_where_that_is_configured() -> None:
    for cap, count in ((False, 100), (True, 10)):
        world = World(RegistrySettings(cap_stream_mode=cap))
        world.hear(mode=Mode.STREAM, max_rate_hz=10, **asking((IPC, 31_005)))
        assert abs(published_in_a_second(world) - count) <= 1


def test_rate_of_one_consumer_is_not_anothers(world: World) -> None:
    world.hear(1, mode=Mode.RATE_LIMITED, max_rate_hz=1, **asking((IPC, 31_001)))
    world.hear(2, **asking((IPC, 31_002)))
    assert 101 <= published_in_a_second(world) <= 102


@pytest.mark.clause("W-5-10")
def test_progress_goes_to_own_streams_and_to_the_shared_one_if_needed(world: World) -> None:
    assert world.registry.progress_targets() == []
    world.hear(1, supports_progress=Bool.TRUE, **asking(control=(IPC, 32_001)))
    world.hear(2, supports_progress=Bool.FALSE, **asking(control=(IPC, 32_002)))
    world.hear(3)
    assert world.registry.progress_targets() == [Endpoint(IPC, 32_001)]
    world.hear(4, supports_progress=Bool.TRUE)
    world.hear(5, supports_progress=Bool.TRUE)
    assert world.registry.progress_targets() == [Endpoint(IPC, 32_001), SHARED]


@pytest.mark.clause("W-10.2.2-19")
def test_progress_ends_with_the_last_living_consumer_that_wants_it(world: World) -> None:
    world.hear(1, supports_progress=Bool.TRUE)
    assert ProgressPolicy().agreed(world.registry.hellos()) is not None
    world.clock.advance(6 * NANOS_PER_SECOND)
    world.registry.do_work()
    assert ProgressPolicy().agreed(world.registry.hellos()) is None


def test_consumer_without_shared_memory_is_sent_elsewhere() -> None:
    world = World(RegistrySettings(payload_fallback_uri="bridge://lab"))
    world.hear(supports_shm=Bool.FALSE)
    assert world.answers[-1].use_shm is Bool.FALSE
    assert world.answers[-1].payload_fallback_uri == "bridge://lab"
    world.hear(2, **asking((IPC, 31_005)))
    assert world.answers[-1].payload_fallback_uri == ""


def test_answer_that_was_lost_is_given_again_with_the_next_hello(world: World) -> None:
    registry = ConsumerRegistry(STREAM, send=lambda message: False, publications=world, clock=world.clock)
    for _ in range(2):
        registry.on_hello(hello(**asking((IPC, 31_005))))
    assert registry.statistics()["answers lost"] == 2
    assert world.published == [Endpoint(IPC, 31_005)]


@pytest.mark.clause("W-11-03")
@pytest.mark.parametrize("granted", [True, False])
def test_both_sides_agree_on_what_was_granted(world: World, granted: bool) -> None:
    wish = Endpoint(IPC, 31_005 if granted else 5)
    consumer = Introduction(
        STREAM,
        send=lambda message: world.registry.on_hello(message) or True,  # type: ignore[arg-type]
        clock=world.clock,
        wishes=ConsumerWishes(mode=Mode.RATE_LIMITED, max_rate_hz=10, descriptor=wish),
    )
    consumer.start()
    consumer.do_work()
    consumer.on_config(world.answers[-1])
    assert consumer.assignment.descriptor == (wish if granted else SHARED)
    assert consumer.assignment.mode is Mode.RATE_LIMITED
    assert world.registry.descriptor_targets() == ([wish] if granted else [])


class Comings(RuleBasedStateMachine):
    """Consumers that come, change their minds and fall silent: what is open is what was granted to those that live."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(RegistrySettings(max_consumers=3))
        self.heard_ns: dict[int, int] = {}

    @rule(
        consumer_id=st.integers(1, 5),
        descriptor=st.sampled_from([("", 0), (IPC, 31_000), (IPC, 31_001), (IPC, 0), (UDP, 31_002)]),
        control=st.sampled_from([("", 0), (IPC, 32_000), ("", 32_001)]),
    )
    def hear(self, consumer_id: int, descriptor: tuple[str, int], control: tuple[str, int]) -> None:
        self.world.hear(consumer_id, **asking(descriptor, control))
        if consumer_id in self.world.registry.consumers:
            self.heard_ns[consumer_id] = self.world.clock.monotonic_ns()

    @rule(consumer_id=st.integers(1, 5))
    def report(self, consumer_id: int) -> None:
        self.world.report(consumer_id)
        if consumer_id in self.world.registry.consumers:
            self.heard_ns[consumer_id] = self.world.clock.monotonic_ns()

    @rule(ms=st.sampled_from([500, 1_000, 3_000, 6_000]))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms * NANOS_PER_MILLI)
        self.world.registry.do_work()

    @rule(consumer_id=st.integers(1, 5))
    def disconnect(self, consumer_id: int) -> None:
        self.world.registry.disconnect(consumer_id)
        self.heard_ns.pop(consumer_id, None)

    @invariant()
    def what_is_open_was_granted(self) -> None:
        consumers = self.world.registry.consumers
        granted = [end for consumer in consumers.values() for end in (consumer.descriptor, consumer.control) if end]
        assert sorted(self.world.published, key=lambda end: end.stream_id) == sorted(
            granted, key=lambda end: end.stream_id
        )
        assert len({end.stream_id for end in granted}) == len(granted)
        assert self.world.taken == {end.stream_id for end in granted}
        assert all(end.channel == IPC for end in granted)

    @invariant()
    def who_is_known_lives(self) -> None:
        now = self.world.clock.monotonic_ns()
        consumers = self.world.registry.consumers
        assert len(consumers) <= 3
        for consumer_id, heard_ns in self.heard_ns.items():
            if now - heard_ns <= 3 * NANOS_PER_SECOND:
                assert consumer_id in consumers
            if now - heard_ns > 5 * NANOS_PER_SECOND:
                assert consumer_id not in consumers


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
