"""A service: what it hears, what it accepts, and what it says of it."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest

from framepool.agent import AgentTerminated, Invoker, State
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.config import Config
from framepool.errors import CommandRefused, MediaDriverLost
from framepool.service import Event, Parameter, Ref, Service, ServiceState, command
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import ClockDomain, ShmPoolAnnounce
from tests.unit.service.conftest import Operator, wait_until
from tests.unit.service.test_events import extended

TAG = "service:kiln:1"
LAST = itertools.count(1_000)
"""Correlation ids of what is sent to know that everything before it was heard."""


class Kiln(Service):
    """A service with a command of each type."""

    target = Parameter(Annotated[float, msgspec.Meta(ge=0, le=80)], 20.0, "Degrees.")
    mode = Parameter(Literal["day", "night"], "day")

    def __init__(self, client: Client, config: Config, **rest: Any) -> None:
        super().__init__(client, config, **{"name": "kiln", "instance": "1", **rest})
        self.done: list[tuple[str, object]] = []
        self.turns = 0
        self.states: list[ServiceState] = []

    def work(self) -> int:
        self.turns += 1
        return 0

    def on_state(self, state: ServiceState) -> None:
        self.states.append(state)

    def on_set(self, name: str, value: Any) -> None:
        if value == 13:
            raise CommandRefused("thirteen is unlucky")

    @command
    def nothing(self) -> None:
        """Takes no value."""
        self.done.append(("nothing", None))

    @command
    def flag(self, value: bool) -> None:
        self.done.append(("flag", value))

    @command
    def count(self, value: Annotated[int, msgspec.Meta(ge=1, le=9)]) -> int:
        self.done.append(("count", value))
        return 2 * value

    @command
    def ratio(self, value: float) -> None:
        self.done.append(("ratio", value))

    @command
    def text(self, value: str) -> None:
        self.done.append(("text", value))

    @command
    def blob(self, value: bytes) -> None:
        self.done.append(("blob", value))

    @command
    def bits(self, value: tuple[bool, ...]) -> None:
        self.done.append(("bits", value))

    @command
    def frame(self, value: Ref) -> None:
        self.done.append(("frame", value))

    @command
    def maybe(self, value: str = "default") -> None:
        self.done.append(("maybe", value))

    @command
    def fail(self) -> None:
        raise ZeroDivisionError("halfway")

    @command
    def huge(self) -> str:
        return "x" * 100_000

    @command(secret=True)
    def unlock(self, password: str) -> None:
        self.done.append(("unlock", password))

    @command
    def quit(self) -> None:
        raise AgentTerminated


class Turned:
    """A service that the test turns."""

    def __init__(self, service: Kiln) -> None:
        self.service = service
        self.errors: list[BaseException] = []
        self.invoker = Invoker(service, on_error=lambda _, error: self.errors.append(error))
        self.invoker.start()

    def turn_until(self, condition: Callable[[], object]) -> None:
        def turned() -> object:
            self.invoker.invoke()
            return condition()

        wait_until(turned)
        assert self.errors == []

    def answers(self, operator: Operator, data: bytes) -> list[Event]:
        """Sends, turns until it is answered, and gives the answers, the echo included."""
        before = len(operator.events())
        operator.send(data)
        return self.answered(operator, before)

    def answered(self, operator: Operator, before: int) -> list[Event]:
        """Turns until what was sent before is answered: until the service did what comes after it, nothing."""
        last = next(LAST)
        operator.send(event("nothing", correlation_id=last))
        self.turn_until(lambda: any(each.correlation_id == last for each in operator.events()[before:]))
        self.service.done.remove(("nothing", None))
        return [each for each in operator.events()[before:] if each.correlation_id != last]


@pytest.fixture
def kiln(client: Client, config: Config, operator: Operator) -> Iterator[Turned]:
    turned = Turned(Kiln(client, config))
    turned.turn_until(lambda: operator.status_ear.is_connected)
    yield turned
    turned.invoker.close()


def event(key: str, value: Any = None, **fields: Any) -> bytes:
    return Event(
        **{"tag": TAG, "key": key, "value": value, "correlation_id": 42, "timestamp_ns": 10**18, **fields}
    ).encode()


@pytest.mark.clause("S-4-02", "S-6-01", "S-5.2-06")
def test_command_is_obeyed_and_echoed_as_it_came(kiln: Turned, operator: Operator) -> None:
    data = event("ratio", 4.5)
    (echo,) = kiln.answers(operator, data)
    assert kiln.service.done == [("ratio", 4.5)]
    assert (echo.tag, echo.key, echo.value, echo.correlation_id) == (TAG, "ratio", 4.5, 42)
    assert data in operator.hear()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nothing", None),
        ("flag", True),
        ("count", 9),
        ("ratio", 2.5),
        ("text", "words"),
        ("blob", b"\0\1"),
        ("bits", (True,) * 8),
        ("frame", Ref(10_000, 7, 8)),
        ("maybe", "value"),
    ],
)
def test_values_of_all_types_arrive(kiln: Turned, operator: Operator, key: str, value: object) -> None:
    kiln.answers(operator, event(key, value))
    assert kiln.service.done == [(key, value)]


def test_whole_number_is_good_for_a_float_and_no_value_for_a_default(kiln: Turned, operator: Operator) -> None:
    kiln.answers(operator, event("ratio", 3))
    kiln.answers(operator, event("maybe"))
    assert kiln.service.done == [("ratio", 3.0), ("maybe", "default")]


@pytest.mark.clause("S-6-02")
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("nonsense", None, "no command 'nonsense'; there are start, stop"),
        ("nothing", 1, "takes no value"),
        ("flag", 1, "Expected `bool`"),
        ("count", 0, ">= 1"),
        ("count", 10, "<= 9"),
        ("count", 2.0, "Expected `int`"),
        ("count", True, "Expected `int`"),
        ("count", None, "Expected `int`"),
        ("text", b"bytes", "Expected `str`"),
        ("blob", "TQ==", "Expected `bytes`"),
        ("frame", "1/2/3", "Expected `object`"),
        ("set:target", 81.0, "<= 80"),
        ("set:target", 13.0, "unlucky"),
        ("set:mode", "dawn", "Invalid enum"),
        ("set:colour", 1, "no command 'set:colour'"),
        ("error", "x", "no command"),
        ("", None, "no command"),
    ],
)
def test_refused_command_has_no_effect_and_no_echo(
    kiln: Turned, operator: Operator, key: str, value: object, why: str
) -> None:
    (error,) = kiln.answers(operator, event(key, value))
    assert (error.tag, error.key, error.correlation_id) == (TAG, "error", 42)
    assert why in str(error.value)
    assert kiln.service.done == []
    assert (kiln.service.target, kiln.service.mode, kiln.service.state) == (20.0, "day", ServiceState.RUNNING)
    assert kiln.service.counts["refused"] == 1


@pytest.mark.clause("S-6-02")
def test_status_stream_has_exactly_the_accepted_commands_in_order(kiln: Turned, operator: Operator) -> None:
    accepted = [event("count", 1), event("pause"), event("state"), event("set:target", 30.0), event("resume")]
    refused = [event("count", 0), event("nonsense"), event("fail"), event("set:mode", "dawn")]
    for data in (accepted[0], refused[0], *accepted[1:3], refused[1], refused[2], accepted[3], refused[3], accepted[4]):
        kiln.answers(operator, data)
    keys = {"count", "pause", "state", "resume", "set:target", "set:mode", "fail", "nonsense"}
    replayed = [data for data in operator.hear() if Event.decode(data).key in keys]
    assert replayed == accepted


def test_command_that_fails_halfway_is_an_error_and_the_service_lives(kiln: Turned, operator: Operator) -> None:
    (error,) = kiln.answers(operator, event("fail"))
    assert (error.key, error.value) == ("error", "ZeroDivisionError: halfway")
    assert kiln.service.counts["failed"] == 1


def test_result_stands_before_the_echo(kiln: Turned, operator: Operator) -> None:
    result, echo = kiln.answers(operator, event("count", 4))
    assert (result.key, result.value, result.correlation_id) == ("result", 8, 42)
    assert (echo.key, echo.value, echo.correlation_id) == ("count", 4, 42)


def test_result_or_echo_that_no_message_holds_is_an_error(client: Client, config: Config) -> None:
    channels = msgspec.structs.replace(config.channels, service_control="aeron:ipc?term-length=1m")
    config = msgspec.structs.replace(config, channels=channels)
    operator = Operator(client, config)
    kiln = Turned(Kiln(client, config))
    (error,) = kiln.answers(operator, event("huge"))
    assert "result would have" in str(error.value)
    (error,) = kiln.answers(operator, event("text", "x" * 10_000))
    assert "its echo would have" in str(error.value)
    assert kiln.service.done == []
    kiln.invoker.close()


def test_error_is_cut_to_what_a_message_holds(kiln: Turned, operator: Operator) -> None:
    (error,) = kiln.answers(operator, event("x" * 5_000))
    assert len(str(error.value)) == 1_000


@pytest.mark.clause("S-5-03")
@pytest.mark.parametrize(
    "tag", ["service:kiln", "service:kiln:11", "service:kiln:", "Service:kiln:1", "service:kiln:2", "", "kiln"]
)
def test_command_for_another_tag_is_not_heard(kiln: Turned, operator: Operator, tag: str) -> None:
    assert kiln.answers(operator, event("count", 4, tag=tag)) == []
    assert kiln.service.done == []
    assert kiln.service.statistics()["filtered"] == 1


@pytest.mark.clause("S-5-02")
def test_messages_of_other_schemas_are_not_taken_for_events(kiln: Turned, operator: Operator) -> None:
    data = event("count", 4)
    for schema, template, version in ((900, 1, 1), (901, 1, 1), (910, 1, 1), (904, 1, 1), (905, 2, 1), (905, 1, 0)):
        operator.send(struct.pack("<4H", 40, template, schema, version) + data[8:])
    operator.send(ShmPoolAnnounce(stream_id=1, producer_id=2, epoch=3, **ANNOUNCE))
    operator.send(data[:30])
    operator.send(b"")
    assert kiln.answered(operator, 0) == []
    assert kiln.service.done == []
    assert (kiln.service.statistics()["filtered"], kiln.service.counts["undecodable"]) == (8, 1)


ANNOUNCE: dict[str, Any] = {
    "announce_timestamp_ns": 0,
    "announce_clock_domain": ClockDomain.MONOTONIC,
    "layout_version": 1,
    "header_nslots": 4,
    "header_slot_bytes": 256,
}


@pytest.mark.clause("S-5.1-01", "S-5.2-05", "S-5.2-06")
def test_event_of_a_newer_schema_is_obeyed_and_echoed_with_what_we_do_not_know(
    kiln: Turned, operator: Operator
) -> None:
    known = Event(tag=TAG, key="count", value=4, correlation_id=42)
    with_trace_id = extended(known, struct.pack("<Q", 0x1234_5678_9ABC))
    kiln.answers(operator, with_trace_id)
    assert kiln.service.done == [("count", 4)]
    assert with_trace_id in operator.hear()


def test_event_that_cannot_be_read_is_counted(kiln: Turned, operator: Operator) -> None:
    data = event("count", 4)
    broken = data[:24] + b"\x63" + data[25:]  # no such format
    operator.send(broken)
    operator.send(data[:-3])
    assert kiln.answered(operator, 0) == []
    assert kiln.service.counts["undecodable"] == 2


@pytest.mark.clause("S-5-04")
def test_event_for_somebody_else_never_becomes_a_python_object(kiln: Turned, operator: Operator) -> None:
    for _ in range(100):
        operator.send(event("count", 4, tag="service:other"))
    kiln.turn_until(lambda: kiln.service.statistics()["filtered"] == 100)
    assert kiln.service._subscription.statistics()["delivered"] == 0


@pytest.mark.clause("S-4-03")
def test_state_is_told_periodically(client: Client, config: Config, operator: Operator) -> None:
    clock = ManualClock()
    kiln = Turned(Kiln(client, config, clock=clock))
    kiln.turn_until(lambda: operator.events("status"))
    for second in range(3):
        clock.advance(NANOS_PER_SECOND)
        kiln.turn_until(lambda wanted=second + 2: len(operator.events("status")) == wanted)
    last = operator.events("status")[-1]
    assert last.tag == TAG
    status = json.loads(str(last.value))
    assert (status["state"], status["uptime_s"], status["pid"]) == ("running", 3.0, os.getpid())
    kiln.invoker.close()
    wait_until(lambda: len(operator.events("status")) == 5)
    assert json.loads(str(operator.events("status")[-1].value))["state"] == "gone"


def test_status_of_its_own_is_said_but_never_as_an_echo(kiln: Turned, operator: Operator) -> None:
    kiln.service.tell("temperature", 21.5)
    kiln.service.tell("zones", [1, 2])
    kiln.turn_until(lambda: len(operator.events()) == 2)
    assert [(each.key, each.value) for each in operator.events()] == [("temperature", 21.5), ("zones", "[1,2]")]
    with pytest.raises(ValueError, match="echo"):
        kiln.service.tell("count", 4)


def test_pause_stop_and_start_govern_the_work(kiln: Turned, operator: Operator) -> None:
    service = kiln.service

    def works() -> bool:
        before = service.turns
        kiln.invoker.invoke()
        return service.turns > before

    assert works()
    for key, state, working in (
        ("pause", ServiceState.PAUSED, False),
        ("pause", ServiceState.PAUSED, False),
        ("resume", ServiceState.RUNNING, True),
        ("stop", ServiceState.STOPPED, False),
        ("start", ServiceState.RUNNING, True),
    ):
        (echo,) = kiln.answers(operator, event(key))
        assert (echo.key, service.state, works()) == (key, state, working)
    assert service.states == [
        ServiceState.PAUSED,
        ServiceState.RUNNING,
        ServiceState.STOPPED,
        ServiceState.RUNNING,
    ]
    said = [json.loads(str(each.value))["state"] for each in operator.events("status")]
    assert said[-1] == "running"
    assert {"paused", "stopped"} <= set(said), "changes are told at once"


@pytest.mark.parametrize("key", ["pause", "resume"])
def test_stopped_service_has_to_be_started(kiln: Turned, operator: Operator, key: str) -> None:
    kiln.answers(operator, event("stop"))
    (error,) = kiln.answers(operator, event(key))
    assert "stopped" in str(error.value)
    assert kiln.service.state is ServiceState.STOPPED


def test_parameter_is_set_and_reported(kiln: Turned, operator: Operator) -> None:
    kiln.answers(operator, event("set:target", 30))
    kiln.answers(operator, event("set:mode", "night"))
    assert (kiln.service.target, kiln.service.mode) == (30.0, "night")
    result, _ = kiln.answers(operator, event("state"))
    state = json.loads(str(result.value))
    assert state["parameters"] == {"target": 30.0, "mode": "night"}
    assert (state["state"], state["counts"]["accepted"]) == ("running", 4)
    with pytest.raises(CommandRefused, match="<= 80"):
        kiln.service.target = 81.0


def test_service_describes_its_commands(kiln: Turned, operator: Operator) -> None:
    result, _ = kiln.answers(operator, event("commands"))
    said = {each["key"]: each for each in json.loads(str(result.value))}
    assert said["nothing"] == {"key": "nothing", "help": "Takes no value.", "value": None, "optional": False}
    assert said["count"]["value"] == {"type": "integer", "minimum": 1, "maximum": 9}
    assert said["set:target"]["value"] == {"type": "number", "minimum": 0, "maximum": 80}
    assert said["set:target"]["help"] == "Degrees."
    assert said["set:mode"]["value"] == {"enum": ["day", "night"]}
    assert said["maybe"]["optional"]
    assert {"start", "stop", "pause", "resume", "state", "commands"} <= said.keys()


def test_secret_is_not_told_to_everybody(kiln: Turned, operator: Operator) -> None:
    (echo,) = kiln.answers(operator, event("unlock", "sesame"))
    assert kiln.service.done == [("unlock", "sesame")]
    assert (echo.key, echo.value, echo.correlation_id) == ("unlock", "******", 42)


def test_command_may_end_its_service_after_its_echo(kiln: Turned, operator: Operator) -> None:
    operator.send(event("quit"))
    kiln.turn_until(lambda: kiln.invoker.state is State.CLOSED)
    wait_until(lambda: any(each.key == "quit" for each in operator.events()))
    assert json.loads(str(operator.events("status")[-1].value))["state"] == "gone"


def test_flood_of_commands_is_taken_a_few_at_a_time(kiln: Turned, operator: Operator) -> None:
    for number in range(40):
        operator.send(event("nothing", correlation_id=number))
    most = 0
    while len(kiln.service.done) < 40:
        before = len(kiln.service.done)
        kiln.invoker.invoke()
        most = max(most, len(kiln.service.done) - before)
    assert most <= 16
    kiln.turn_until(lambda: len(operator.events()) >= 40)  # some may have waited for Aeron
    assert [each.correlation_id for each in operator.events()] == list(range(40)), "and in order"


def test_command_to_a_predecessor_is_not_obeyed(client: Client, config: Config, operator: Operator) -> None:
    """A reader that does not read, as a dead one, makes a new service begin in the past."""
    slow = client.add_subscription(config.channels.service_control, config.stream_ids.service_control)
    clock = ManualClock(700 * NANOS_PER_SECOND)
    first = Turned(Kiln(client, config, clock=clock))
    data = event("count", 4, timestamp_ns=clock.timestamp_ns())
    first.answers(operator, data)
    assert first.service.done == [("count", 4)]
    first.invoker.close()
    clock.advance(NANOS_PER_SECOND)
    second = Turned(Kiln(client, config, clock=clock))
    second.answers(operator, event("count", 5, timestamp_ns=clock.timestamp_ns()))
    assert sorted(second.service.done) == [("count", 5), ("nothing", None)], "what has no stamp of ours is obeyed"
    assert second.service.counts["said before our time"] == 1
    other_clocks = [event("count", 6, timestamp_ns=stamp) for stamp in (0, 10**18, NANOS_PER_SECOND)]
    for message in other_clocks:
        second.answers(operator, message)
    assert second.service.done.count(("count", 6)) == 3
    second.invoker.close()
    slow.close()


@pytest.mark.parametrize("key", ["status", "error", "result"])
def test_what_services_say_cannot_be_a_command(client: Client, config: Config, key: str) -> None:
    class Odd(Kiln):
        @command(key=key)
        def odd(self) -> None: ...

    with pytest.raises(TypeError, match=key):
        Odd(client, config)


def test_command_with_two_values_cannot_be_declared(client: Client, config: Config) -> None:
    class Odd(Kiln):
        @command
        def odd(self, one: int, two: int) -> None: ...

    with pytest.raises(TypeError, match="one value"):
        Odd(client, config)


def test_subclass_leaves_out_and_replaces_commands(client: Client, config: Config, operator: Operator) -> None:
    class Bare(Kiln):
        without = frozenset({"pause", "resume"})

        @command(key="stop")
        def end(self, token: str) -> None:
            self.done.append(("stop", token))

    kiln = Turned(Bare(client, config))
    (error,) = kiln.answers(operator, event("pause"))
    assert "no command 'pause'" in str(error.value)
    kiln.answers(operator, event("stop", "token"))
    assert kiln.service.done == [("stop", "token")]
    kiln.invoker.close()


def test_service_that_could_not_speak_speaks_again_when_somebody_else_reconnected(
    kiln: Turned, operator: Operator
) -> None:
    """Another thread may bring the client back between the loss of a message and the next look at the streams."""
    kiln.service._outbox.lost = MediaDriverLost("for a moment")
    (echo,) = kiln.answers(operator, event("ratio", 1.5))
    assert echo.key == "ratio"
    assert kiln.service.counts["reconnects"] == 1


def test_closed_service_gives_its_streams_back(client: Client, config: Config) -> None:
    before = client.statistics()["children"]
    invoker = Invoker(Kiln(client, config))
    invoker.start()
    assert client.statistics()["children"] == before + 2
    invoker.close()
    assert client.statistics()["children"] == before
