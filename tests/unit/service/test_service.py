"""A service: what it hears, what it accepts, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest

from framepool.agent import AgentTerminated, Invoker, State
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.config import Config
from framepool.errors import CommandRefused
from framepool.service import Event, Parameter, Ref, Service, ServiceState, command
from framepool.transport.aeron import Client
from tests.unit.service.conftest import Operator, wait_until

TAG = "service:kiln:1"


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

    def settle(self, operator: Operator, data: bytes) -> list[Event]:
        """Sends, turns until it is answered, and gives what was answered, echoes included."""
        before = len(operator.events())
        operator.send(data)
        self.turn_until(lambda: {"accepted", "refused", "failed"} & (self.service.counts - self.seen).keys())
        self.seen = self.service.counts.copy()
        return operator.events()[before:]

    @property
    def seen(self) -> Any:
        return self.__dict__.setdefault("_seen", type(self.service.counts)())

    @seen.setter
    def seen(self, value: Any) -> None:
        self.__dict__["_seen"] = value


@pytest.fixture
def kiln(client: Client, config: Config, operator: Operator) -> Iterator[Turned]:
    turned = Turned(Kiln(client, config))
    yield turned
    turned.invoker.close()


def event(key: str, value: Any = None, **fields: Any) -> bytes:
    return Event(**{"tag": TAG, "key": key, "value": value, "correlation_id": 42, "timestamp_ns": 7, **fields}).encode()


@pytest.mark.clause("S-4-02", "S-5-03", "S-6-01", "S-5.2-06")
def test_command_is_obeyed_and_echoed_as_it_came(kiln: Turned, operator: Operator) -> None:
    data = event("count", 4)
    kiln.settle(operator, data)
    assert kiln.service.done == [("count", 4)]
    assert data in operator.hear()


def test_result_stands_before_the_echo(kiln: Turned, operator: Operator) -> None:
    result, echo = kiln.settle(operator, event("count", 4))
    assert (result.key, result.value, result.correlation_id) == ("result", 8, 42)
    assert (echo.key, echo.value, echo.correlation_id) == ("count", 4, 42)


def test_state_is_told_periodically(client: Client, config: Config, operator: Operator) -> None:
    clock = ManualClock()
    kiln = Turned(Kiln(client, config, clock=clock))
    kiln.turn_until(lambda: operator.events("status"))
    for second in range(3):
        clock.advance(NANOS_PER_SECOND)
        kiln.turn_until(lambda wanted=second + 2: len(operator.events("status")) == wanted)
    status = json.loads(str(operator.events("status")[-1].value))
    assert (status["state"], status["uptime_s"]) == ("running", 3.0)
    kiln.invoker.close()
    assert kiln.invoker.state is State.CLOSED
    wait_until(lambda: len(operator.events("status")) == 5)
    assert json.loads(str(operator.events("status")[-1].value))["state"] == "gone"
