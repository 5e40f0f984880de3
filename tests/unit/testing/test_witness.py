"""What a witness tells of what it hears."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from framepool.clock import ManualClock
from framepool.testing.witness import Witness
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from tests.support.discovery_rig import announce

STREAM = 10_000


class Plane:
    """Hands over what a test says, to whoever listens."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.left_behind = 0
        self.handlers: dict[type, Callable[[Any], None]] = {}

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def listen(self, topic: str, kind: type, handler: Callable[[Any], None]) -> None:
        self.handlers[kind] = handler

    def join(self, member: object) -> None:
        pass

    def statistics(self) -> dict[str, int]:
        return {"reconnects": 0, "left_behind": self.left_behind}

    def say(self, epoch: int, timestamp_ns: int) -> None:
        self.handlers[ShmPoolAnnounce](announce(STREAM, epoch=epoch, announce_timestamp_ns=timestamp_ns))


class Journal:
    def __init__(self) -> None:
        self.told: list[int | str] = []

    def announced(self, stream_id: int, epoch: int) -> None:
        assert stream_id == STREAM
        self.told.append(epoch)

    def deaf(self) -> None:
        self.told.append("deaf")


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def told(plane: Plane) -> list[int | str]:
    journal = Journal()
    Witness(plane, journal)  # type: ignore[arg-type]
    return journal.told


def test_epochs_are_told_as_they_change(plane: Plane, told: list[int | str]) -> None:
    for timestamp, epoch in enumerate((5, 5, 6, 6, 8)):
        plane.say(epoch, timestamp)
    assert told == [5, 6, 8]


def test_what_a_dead_driver_said_is_no_fall_if_it_is_heard_after_the_next_one(
    plane: Plane, told: list[int | str]
) -> None:
    plane.say(5, 100)
    plane.say(8, 300)
    plane.say(5, 200)
    plane.say(9, 400)
    assert told == [5, 8, 9]


def test_lower_epoch_that_is_announced_later_is_told(plane: Plane, told: list[int | str]) -> None:
    plane.say(8, 300)
    plane.say(5, 400)
    assert told == [8, 5]


def test_deafness_is_told_before_what_was_heard_behind_it(plane: Plane, told: list[int | str]) -> None:
    plane.say(5, 100)
    plane.left_behind = 1
    plane.say(6, 200)
    assert told == [5, "deaf", 6]
