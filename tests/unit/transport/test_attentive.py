"""How long an agent that mostly listens waits, and what ends its wait."""

from __future__ import annotations

import threading

import pytest

from framepool.agent import Runner
from framepool.clock import NANOS_PER_MILLI
from framepool.transport.aeron import Client
from framepool.transport.attentive import Attentive
from tests.unit.transport.conftest import Ends


class Waits:
    """Ears that hear what a test says and wait for no time."""

    def __init__(self, *hears: bool) -> None:
        self.waited: list[int] = []
        self.roused = 0
        self._hears = list(hears)

    def wait(self, timeout_ns: int) -> bool:
        self.waited.append(timeout_ns // NANOS_PER_MILLI)
        return self._hears.pop(0) if self._hears else False

    def rouse(self) -> None:
        self.roused += 1


def attentive(client: Client, waits: Waits) -> Attentive:
    idle = Attentive(client, longest=0.01)
    idle._ears = waits  # type: ignore[assignment]
    return idle


def test_a_wait_is_longer_than_the_one_before_until_something_was_done(client: Client) -> None:
    waits = Waits()
    idle = attentive(client, waits)
    for work in (0, 0, 0, 0, 0, 0, 3, 0, 0):
        idle.idle(work)
    assert waits.waited == [1, 4, 10, 10, 10, 10, 1, 4]
    assert waits.roused == 1


def test_whatever_was_heard_makes_the_next_wait_short(client: Client) -> None:
    waits = Waits(False, False, True)
    idle = attentive(client, waits)
    for _ in range(5):
        idle.idle(0)
    assert waits.waited == [1, 4, 10, 1, 4]


def test_what_is_left_unread_makes_one_wait_short_and_no_more(client: Client) -> None:
    waits = Waits(False, *[True] * 6)
    idle = attentive(client, waits)
    for work in (0, 0, 0, 0, 0, 0, 0, 1, 0):
        idle.idle(work)
    assert waits.waited == [1, 4, 1, 4, 10, 10, 10, 1]


class Hearer:
    """An agent that polls and says when it has turned."""

    role = "hearer"

    def __init__(self, ends: Ends) -> None:
        self.turned = threading.Event()
        self.heard: list[bytes] = []
        self.complete = threading.Event()
        self._ends = ends

    def on_start(self) -> None: ...

    def do_work(self) -> int:
        messages = self._ends.subscription.poll()
        self.heard += messages
        if self.heard:
            self.complete.set()
        self.turned.set()
        return len(messages)

    def on_close(self) -> None: ...


@pytest.mark.parametrize("spoken_to", [True, False], ids=["a message", "the end"])
def test_a_wait_of_minutes_ends_at_once(client: Client, ends: Ends, spoken_to: bool) -> None:
    agent = Hearer(ends)
    idle = Attentive(client, longest=3_600)
    idle._wait_ns = 3_600 * 1_000 * NANOS_PER_MILLI
    with Runner(agent, idle=idle, wake=idle.wake).start():
        assert agent.turned.wait(30)
        if spoken_to:
            assert ends.publication.offer(b"hello") >= 0
            assert agent.complete.wait(30)
            assert agent.heard == [b"hello"]
