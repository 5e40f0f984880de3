"""The directory of services: a fold over what they say, bounded and by the listener's clock."""

from __future__ import annotations

import json
import platform

import msgspec
import pytest

from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.service import Directory, Event
from framepool.service import directory as module


def status(tag: str, state: str = "running", *, pid: int = 1, host: str = "here") -> Event:
    said = {"state": state, "uptime_s": 1.5, "version": "0.1", "host": host, "pid": pid, "more": [1]}
    return Event(tag=tag, key="status", value=json.dumps(said))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory(clock: ManualClock) -> Directory:
    return Directory(clock)


def test_last_word_and_its_age_are_kept(directory: Directory, clock: ManualClock) -> None:
    directory.on_event(status("service:b"))
    directory.on_event(status("service:a"))
    clock.advance(2 * NANOS_PER_SECOND)
    directory.on_event(status("service:a", "paused"))
    clock.advance(NANOS_PER_SECOND)
    said = [(each.tag, each.state, directory.age_s(each)) for each in directory.services()]
    assert said == [("service:a", "paused", 1.0), ("service:b", "running", 3.0)]
    assert directory.knows("service:a")
    assert not directory.knows("service:c")


def test_status_is_as_old_as_its_stamp_says_where_that_is_of_our_clock(
    directory: Directory, clock: ManualClock
) -> None:
    here = platform.node()
    clock.advance(200 * NANOS_PER_SECOND)
    said_ns = clock.timestamp_ns()
    clock.advance(10 * NANOS_PER_SECOND)
    stamps = {"a": (here, said_ns), "b": ("there", said_ns), "c": (here, said_ns + 10**15), "d": (here, 0)}
    for tag, (host, stamp) in stamps.items():
        directory.on_event(msgspec.structs.replace(status(tag, host=host), timestamp_ns=stamp))
    ages = {each.tag: directory.age_s(each) for each in directory.services()}
    assert ages == {"a": 10.0, "b": 0.0, "c": 0.0, "d": 0.0}


def test_two_processes_of_one_tag_are_both_seen(directory: Directory) -> None:
    directory.on_event(status("service:a", pid=1))
    directory.on_event(status("service:a", pid=2))
    directory.on_event(status("service:a", pid=2, host="there"))
    assert len(directory.services()) == 3


def test_service_that_says_goodbye_is_gone_at_once(directory: Directory) -> None:
    directory.on_event(status("service:a"))
    directory.on_event(status("service:a", "gone"))
    assert directory.services() == []


def test_service_that_is_silent_for_long_is_forgotten(directory: Directory, clock: ManualClock) -> None:
    directory.on_event(status("service:a"))
    clock.advance(60 * NANOS_PER_SECOND)
    assert len(directory.services()) == 1
    clock.advance(1)
    assert directory.services() == []


@pytest.mark.parametrize(
    "value",
    ["", "{", "[]", "{}", '{"state": "running", "host": "' + 5_000 * "x" + '"}', '{"state": 5}', None, 7, b"\xff"],
)
def test_status_that_cannot_be_read_is_counted(directory: Directory, value: str) -> None:
    directory.on_event(Event(tag="service:a", key="status", value=value))
    directory.on_event(Event(tag="service:a", key="other", value=value))
    assert (directory.services(), directory.counts["unreadable status"]) == ([], 1)


def test_flood_of_services_is_bounded(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    for number in range(10):
        directory.on_event(status(f"service:{number}"))
    assert [each.tag for each in directory.services()] == ["service:7", "service:8", "service:9"]


def test_services_that_have_to_make_room_are_counted(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 4)
    for number in range(10):
        directory.on_event(status(f"service:{number}"))
    assert len(directory.services()) == 4
    assert directory.counts["too many services"] == 6
