"""A control plane that is turned all the time asks its members when there is reason to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framepool.client.plane import REST_NS, ControlPlane
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.driver_901 import ShmDriverShutdown, ShutdownReason
from tests.support.onlooker import wait_until


class Counting:
    """A member that counts its turns and has as much to do as it is told."""

    def __init__(self) -> None:
        self.turns = 0
        self.work = 0

    def start(self) -> None: ...
    def close(self) -> None: ...

    def do_work(self) -> int:
        self.turns += 1
        return self.work


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ns=1_000 * NANOS_PER_SECOND)


@pytest.fixture
def plane(media_driver: MediaDriver, clock: ManualClock) -> Iterator[ControlPlane]:
    with Client.connect(media_driver.settings) as client:
        yield ControlPlane(client, clock)


@pytest.fixture
def member(plane: ControlPlane) -> Counting:
    """One that had its first turn, and nothing to do."""
    member = plane.join(Counting())
    plane.attend()
    assert member.turns == 1, "who comes is asked at once"
    return member


def test_nobody_is_asked_until_it_is_time(plane: ControlPlane, clock: ManualClock, member: Counting) -> None:
    clock.advance(REST_NS - 1)
    assert plane.attend() == 0
    assert member.turns == 1
    clock.advance(1)
    plane.attend()
    assert member.turns == 2


def test_who_had_something_to_do_is_asked_again_at_once(
    plane: ControlPlane, clock: ManualClock, member: Counting
) -> None:
    member.work = 3
    clock.advance(REST_NS)
    assert plane.attend() == plane.attend() == 3
    member.work = 0
    plane.attend()
    plane.attend()
    assert member.turns == 4, "twice with work, once without, and then it rests"


def test_everybody_is_asked_when_somebody_comes(plane: ControlPlane, member: Counting) -> None:
    other = plane.join(Counting())
    plane.attend()
    assert (member.turns, other.turns) == (2, 1)


def test_everybody_is_asked_when_something_was_heard(plane: ControlPlane, member: Counting) -> None:
    heard: list[ShmDriverShutdown] = []
    plane.listen("control", ShmDriverShutdown, heard.append)
    wait_until(lambda: plane.send(ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL)))
    wait_until(lambda: plane.attend() > 0)
    assert heard
    assert member.turns == 2


def test_a_whole_turn_asks_everybody(plane: ControlPlane, member: Counting) -> None:
    plane.do_work()
    plane.do_work()
    assert member.turns == 3
