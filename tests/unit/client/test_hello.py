"""A consumer that introduces itself, with a producer and a supervisor played by the test."""

from __future__ import annotations

import msgspec
import pytest

from framepool.client.hello import (
    SHARED,
    ConsumerWishes,
    Endpoint,
    Fallback,
    Introduction,
    new_consumer_id,
)
from framepool.client.rate import RateGate
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.errors import ConfigurationError
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode
from framepool.wire.message import Message

STREAM = 10_000
ME = 77
OWN = Endpoint("aeron:ipc", 31_005)
OWN_CONTROL = Endpoint("aeron:ipc", 32_005)


class World:
    """A consumer, its clock, and what it said."""

    def __init__(self, wishes: ConsumerWishes | None = None) -> None:
        self.clock = ManualClock()
        self.said: list[ConsumerHello] = []
        self.open = True
        self.consumer = Introduction(STREAM, send=self.send, clock=self.clock, wishes=wishes, consumer_id=ME)

    def send(self, message: Message) -> bool:
        assert isinstance(message, ConsumerHello)
        if self.open:
            self.said.append(ConsumerHello.decode(message.encode()))
        return self.open


def config(
    *,
    consumer_id: int = ME,
    stream_id: int = STREAM,
    use_shm: bool = True,
    mode: Mode = Mode.STREAM,
    descriptor: tuple[str, int] = ("", 0),
    control: tuple[str, int] = ("", 0),
    fallback: str = "",
) -> ConsumerConfig:
    return ConsumerConfig(
        stream_id=stream_id,
        consumer_id=consumer_id,
        use_shm=Bool(use_shm),
        mode=mode,
        descriptor_stream_id=descriptor[1],
        control_stream_id=control[1],
        payload_fallback_uri=fallback,
        descriptor_channel=descriptor[0],
        control_channel=control[0],
    )


@pytest.mark.clause("W-10.1.2-01", "W-10.1.2-02")
def test_hello_is_said_at_the_start_and_each_interval() -> None:
    world = World()
    assert world.consumer.do_work() == 0, "not before the start"
    world.consumer.start()
    for _ in range(30):
        world.consumer.do_work()
        world.clock.advance(100 * NANOS_PER_MILLI)
    assert [(hello.stream_id, hello.consumer_id) for hello in world.said] == [(STREAM, ME)] * 3
    world.consumer.stop()
    world.clock.advance(10 * NANOS_PER_SECOND)
    assert world.consumer.do_work() == 0


def test_hello_that_aeron_does_not_take_is_said_again_at_once() -> None:
    world = World()
    world.open = False
    world.consumer.start()
    assert world.consumer.do_work() == 0
    world.open = True
    assert world.consumer.do_work() == 1


@pytest.mark.clause("W-10.1.2-03", "W-11-02")
def test_hello_says_what_the_consumer_can_and_wants() -> None:
    world = World(
        ConsumerWishes(
            mode=Mode.RATE_LIMITED,
            max_rate_hz=25,
            supports_shm=False,
            supports_progress=True,
            progress_interval_us=500,
            progress_bytes_delta=1_000,
            progress_major_delta_units=8,
            descriptor=OWN,
            control=OWN_CONTROL,
        )
    )
    world.consumer.start()
    world.consumer.do_work()
    assert world.said == [
        ConsumerHello(
            stream_id=STREAM,
            consumer_id=ME,
            supports_shm=Bool.FALSE,
            supports_progress=Bool.TRUE,
            mode=Mode.RATE_LIMITED,
            max_rate_hz=25,
            expected_layout_version=1,
            progress_interval_us=500,
            progress_bytes_delta=1_000,
            progress_major_delta_units=8,
            descriptor_stream_id=31_005,
            control_stream_id=32_005,
            descriptor_channel="aeron:ipc",
            control_channel="aeron:ipc",
        )
    ]


def test_plain_consumer_asks_for_nothing() -> None:
    hello = World().consumer.hello()
    assert (hello.mode, hello.max_rate_hz, hello.supports_shm, hello.supports_progress) == (Mode.STREAM, 0, 1, 0)
    assert (hello.descriptor_channel, hello.descriptor_stream_id) == ("", 0)
    assert (hello.control_channel, hello.control_stream_id) == ("", 0)
    assert hello.progress_interval_us is None


@pytest.mark.clause("W-10.1.2-09", "W-10.1.2-10")
@pytest.mark.parametrize(("channel", "stream_id"), [("aeron:ipc", 0), ("", 7)])
def test_half_a_request_cannot_be_made(channel: str, stream_id: int) -> None:
    """Descriptor and control requests are both `Endpoint`s, and there is no half one."""
    with pytest.raises(ConfigurationError, match="needs both"):
        Endpoint(channel, stream_id)


def test_wish_for_a_stream_lies_in_its_range() -> None:
    wishes = {Endpoint.within((31_000, 31_003)).stream_id for _ in range(200)}
    assert wishes == {31_000, 31_001, 31_002, 31_003}


@pytest.mark.clause("W-10.1.2-13")
def test_ids_that_consumers_choose_are_random() -> None:
    ids = {new_consumer_id() for _ in range(1_000)}
    assert len(ids) > 990
    assert all(0 < consumer_id < 2**32 - 1 for consumer_id in ids)
    clock = ManualClock()
    one, two = (Introduction(STREAM, send=lambda message: True, clock=clock) for _ in range(2))
    assert one.consumer_id != two.consumer_id


def test_another_id_is_introduced_at_once_and_has_nothing_assigned() -> None:
    world = World(ConsumerWishes(descriptor=OWN))
    world.consumer.start()
    world.consumer.do_work()
    world.consumer.on_config(config(descriptor=("aeron:ipc", 31_005)))
    assert world.consumer.renew() != ME
    assert world.consumer.assignment.descriptor == SHARED
    assert world.consumer.do_work() == 1
    assert world.said[-1].consumer_id == world.consumer.consumer_id
    assert not world.consumer.on_config(config(descriptor=("aeron:ipc", 31_005))), "that was for the old id"


def test_assigned_streams_are_taken_over_and_given_up() -> None:
    world = World(ConsumerWishes(descriptor=OWN, control=OWN_CONTROL))
    granted = config(descriptor=("aeron:ipc", 31_006), control=("aeron:ipc", 32_006))
    assert world.consumer.on_config(granted)
    assert world.consumer.assignment.descriptor == Endpoint("aeron:ipc", 31_006)
    assert world.consumer.assignment.control == Endpoint("aeron:ipc", 32_006)
    assert not world.consumer.on_config(granted), "the same again changes nothing"
    assert world.consumer.on_config(config())
    assert world.consumer.assignment.descriptor == world.consumer.assignment.control == SHARED


@pytest.mark.parametrize("pair", [("aeron:ipc", 0), ("", 31_006), ("tcp:x", 31_006)])
def test_assignment_that_is_none_leaves_the_consumer_on_the_shared_stream(pair: tuple[str, int]) -> None:
    world = World(ConsumerWishes(descriptor=OWN, control=OWN_CONTROL))
    world.consumer.on_config(config(descriptor=pair, control=pair))
    assert world.consumer.assignment.descriptor == world.consumer.assignment.control == SHARED
    assert world.consumer.counts["malformed assignment"] == 2


@pytest.mark.clause("W-10.1.3-01")
def test_configuration_of_another_consumer_or_stream_is_ignored() -> None:
    world = World()
    assert not world.consumer.on_config(config(consumer_id=ME + 1, mode=Mode.RATE_LIMITED))
    assert not world.consumer.on_config(config(stream_id=STREAM + 1, mode=Mode.RATE_LIMITED))
    assert world.consumer.assignment.mode is Mode.STREAM
    assert world.consumer.on_config(config(mode=Mode.RATE_LIMITED))


@pytest.mark.clause("W-10.1.3-02")
def test_consumer_forced_to_a_rate_keeps_it_and_says_so() -> None:
    world = World(ConsumerWishes(forced_rate_hz=20))
    assert world.consumer.assignment.local_rate_hz == 0
    world.consumer.on_config(config(mode=Mode.RATE_LIMITED))
    assert world.consumer.assignment.mode is Mode.RATE_LIMITED
    assert world.consumer.assignment.local_rate_hz == 20
    assert (world.consumer.hello().mode, world.consumer.hello().max_rate_hz) == (Mode.RATE_LIMITED, 20)
    world.consumer.on_config(config(mode=Mode.STREAM))
    assert (world.consumer.hello().mode, world.consumer.hello().max_rate_hz) == (Mode.STREAM, 0)


@pytest.mark.parametrize(
    ("wishes", "rate"),
    [
        (ConsumerWishes(mode=Mode.RATE_LIMITED), 0),
        (ConsumerWishes(mode=Mode.RATE_LIMITED, max_rate_hz=5), 5),
        (ConsumerWishes(max_rate_hz=5), 5),
    ],
)
def test_own_rate_goes_before_the_one_for_the_forced(wishes: ConsumerWishes, rate: int) -> None:
    world = World(wishes)
    world.consumer.on_config(config(mode=Mode.RATE_LIMITED))
    assert world.consumer.assignment.max_rate_hz == rate


@pytest.mark.clause("W-11-04")
def test_declined_consumer_drops_locally_and_one_with_its_own_stream_does_not() -> None:
    world = World(ConsumerWishes(mode=Mode.RATE_LIMITED, max_rate_hz=10, descriptor=OWN))
    world.consumer.on_config(config(mode=Mode.RATE_LIMITED))
    gate = RateGate(world.consumer.assignment.local_rate_hz, world.clock)
    passed = sum(gate.admits(descriptor_ns=(1_000 + i) * 10 * NANOS_PER_MILLI) for i in range(100))
    assert 9 <= passed <= 11
    world.consumer.on_config(config(mode=Mode.RATE_LIMITED, descriptor=("aeron:ipc", 31_005)))
    assert world.consumer.assignment.local_rate_hz == 0


@pytest.mark.clause("W-10.1.3-03")
@pytest.mark.parametrize("uri", ["aeron:udp?endpoint=10.0.0.1:4000", "aeron:ipc", "bridge://lab"])
def test_consumer_without_shared_memory_is_sent_to_the_fallback(uri: str) -> None:
    world = World(ConsumerWishes(descriptor=OWN))
    assert world.consumer.assignment.fallback is None
    assert world.consumer.on_config(config(use_shm=False, fallback=uri))
    assert world.consumer.assignment.fallback == Fallback(uri)
    assert world.consumer.assignment.fallback.supported
    assert world.consumer.hello().descriptor_channel == "", "a stream of its own would be of no use"
    assert world.consumer.hello().supports_shm is Bool.TRUE, "it still could"
    assert world.consumer.on_config(config())
    assert world.consumer.assignment.fallback is None


@pytest.mark.clause("W-10.1.3-05")
@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("foo://x", "scheme 'foo' is not defined"),
        ("x", "not defined"),
        ("", "no payload_fallback_uri"),
        ("bridge:", "no bridge"),
        ("bridge://", "no bridge"),
        ("aeron:tcp", "media"),
    ],
)
def test_fallback_of_no_known_scheme_is_unsupported_and_reported(
    uri: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    for _ in range(3):
        world.consumer.on_config(config(use_shm=False, fallback=uri))
    fallback = world.consumer.assignment.fallback
    assert fallback is not None
    assert not fallback.supported
    assert why in fallback.unsupported
    assert len(caplog.records) == 1
    assert world.consumer.statistics()["fallback unsupported"] == 1


def test_statistics_say_what_is_in_force() -> None:
    world = World()
    world.consumer.on_config(config(mode=Mode.RATE_LIMITED, descriptor=("aeron:ipc", 31_005)))
    assert world.consumer.statistics() == {
        "consumer_id": ME,
        "mode": "RATE_LIMITED",
        "max_rate_hz": 30,
        "descriptor_stream": 31_005,
        "control_stream": 0,
        "fallback": None,
        "configured": 1,
    }


def test_assignment_is_a_value() -> None:
    world = World()
    with pytest.raises(AttributeError):
        world.consumer.assignment.mode = Mode.STREAM  # type: ignore[misc]
    assert msgspec.structs.replace(world.consumer.assignment) == world.consumer.assignment
