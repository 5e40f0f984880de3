"""A control plane that is turned all the time asks its members when there is reason to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool._native.frames import Changes
from framepool.agent import Runner
from framepool.client.plane import CALM_NS, REST_NS, ControlPlane, Place
from framepool.client.pool import tended
from framepool.clock import NANOS_PER_SECOND, ManualClock, MonotonicClock
from framepool.config import Config, DriverConfig
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import ShmDriverShutdown, ShutdownReason
from tests.support.onlooker import PATIENCE, wait_until


class Counting:
    """A member that counts its turns and has as much to do as it is told."""

    def __init__(self) -> None:
        self.turns = 0
        self.work = 0
        self.due = 0
        self.threads: set[int] = set()

    def start(self) -> None: ...
    def close(self) -> None: ...

    def do_work(self) -> int:
        self.turns += 1
        self.threads.add(threading.get_ident())
        return self.work

    def due_ns(self) -> int:
        return self.due


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


def test_who_knows_when_is_asked_then(plane: ControlPlane, clock: ManualClock, member: Counting) -> None:
    member.due = clock.monotonic_ns() + REST_NS + CALM_NS // 2
    clock.advance(REST_NS)
    plane.attend()
    assert member.turns == 2, "it could not say before"
    clock.advance(CALM_NS // 2 - 1)
    plane.attend()
    assert member.turns == 2
    clock.advance(1)
    plane.attend()
    assert member.turns == 3


def test_nobody_rests_for_longer_than_calm(plane: ControlPlane, clock: ManualClock, member: Counting) -> None:
    member.due = clock.monotonic_ns() + 3_600 * NANOS_PER_SECOND
    clock.advance(REST_NS)
    plane.attend()
    clock.advance(CALM_NS)
    plane.attend()
    assert member.turns == 3


def test_who_is_given_something_to_do_is_asked_soon(plane: ControlPlane, clock: ManualClock, member: Counting) -> None:
    member.due = clock.monotonic_ns() + 3_600 * NANOS_PER_SECOND
    clock.advance(REST_NS)
    plane.attend()
    plane.hurry()
    clock.advance(REST_NS)
    plane.attend()
    assert member.turns == 3


def test_whoever_gives_something_to_do_waits_for_nobody(plane: ControlPlane) -> None:
    told = threading.Event()

    def give() -> None:
        plane.hurry()
        told.set()

    giver = threading.Thread(target=give)
    with plane.lock():
        giver.start()
        assert told.wait(PATIENCE)
    giver.join()


@pytest.fixture
def tended_plane(media_driver: MediaDriver) -> Iterator[tuple[ControlPlane, Runner]]:
    """One with a thread of its own."""
    with Client.connect(media_driver.settings) as client:
        plane = ControlPlane(client, MonotonicClock())
        with tended(plane).start() as runner:
            yield plane, runner


def until(seen: threading.Event, between: Callable[[], object]) -> None:
    """What a thread does that has frames all the time."""
    deadline = time.monotonic() + PATIENCE
    while not seen.is_set():
        assert time.monotonic() < deadline
        between()


def serve_while(plane: ControlPlane, waiting: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while waiting():
        assert time.monotonic() < deadline
        plane.ears.serve()


def serve_until(plane: ControlPlane, seen: threading.Event) -> None:
    until(seen, plane.ears.serve)


class Noticing(Counting):
    """Says when it was turned by a thread."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self.seen = threading.Event()
        self._thread = thread

    def do_work(self) -> int:
        if threading.get_ident() == self._thread:
            self.seen.set()
        return super().do_work()


def test_a_thread_with_frames_takes_turns(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    member = plane.join(Noticing(threading.get_ident()))
    serve_until(plane, member.seen)


def test_messages_are_heard_in_such_a_turn(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    heard = threading.Event()
    here = threading.get_ident()

    def on_shutdown(_: ShmDriverShutdown) -> None:
        if threading.get_ident() == here:
            heard.set()

    plane.listen("control", ShmDriverShutdown, on_shutdown)
    notice = ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL)
    until(heard, lambda: (plane.send(notice), plane.ears.serve()))


def test_who_comes_by_all_the_time_does_the_looking_too(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    heard = threading.Event()
    plane.listen("control", ShmDriverShutdown, lambda _: heard.set())
    for _ in range(3):
        serve_while(plane, lambda: not plane.ears.attended)
        assert plane.send(ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL))
        serve_until(plane, heard)
        wait_until(lambda: not plane.ears.attended)  # nobody comes by any more, and somebody has to hear
        heard.clear()
        assert plane.send(ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.NORMAL))
        assert heard.wait(PATIENCE)
        heard.clear()


class Failing(Noticing):
    def do_work(self) -> int:
        super().do_work()
        raise ValueError("of a member")


def test_a_turn_that_fails_is_logged_and_no_concern_of_the_frames(
    tended_plane: tuple[ControlPlane, Runner], caplog: pytest.LogCaptureFixture
) -> None:
    plane, _ = tended_plane
    member = plane.join(Failing(threading.get_ident()))
    serve_until(plane, member.seen)
    assert "of a member" in caplog.text
    turns = member.turns
    wait_until(lambda: member.turns > turns)


def test_nobody_waits_for_who_has_the_plane(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    member = plane.join(Noticing(threading.get_ident()))
    locked, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with plane.lock():
            locked.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    serve_while(plane, lambda: not plane.ears.attended)
    holder.start()
    try:
        serve_until(plane, locked)
        turns = member.turns
        serve_while(plane, lambda: plane.ears.attended)  # until it was left to the plane's thread
        assert member.turns == turns
    finally:
        leave.set()
        holder.join()
    serve_until(plane, member.seen)


def test_what_takes_long_is_left_to_the_planes_own_thread(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    member = plane.join(Noticing(threading.get_ident()))
    plane.open("qos")
    plane._opening["qos"].cancel()  # it never comes

    class Never:
        def poll(self) -> None:
            return None

    plane._opening["qos"] = Never()  # type: ignore[assignment]
    turns = member.turns
    enough = threading.Event()
    until(enough, lambda: (plane.ears.serve(), member.turns > turns + 5 and enough.set()))
    assert not member.seen.is_set()
    del plane._opening["qos"]
    later = threading.Event()
    until(later, lambda: (plane.ears.serve(), member.turns > turns + 10 and later.set()))
    assert not member.seen.is_set(), "it was refused, and whoever says something there waits for another one"
    plane.max_message_length("qos")
    serve_until(plane, member.seen)


class Mapper(Place):
    """A place that has files to map once it is told so, and notes who does it."""

    stream_id = 10_000
    changes = Changes()
    stream = None

    def __init__(self) -> None:
        self.takes_long_ = False
        self.mapped_by: set[int] = set()

    @property
    def takes_long(self) -> bool:
        return self.takes_long_

    def on_announce(self, announce: ShmPoolAnnounce) -> None:
        self.takes_long_ = True

    def settle(self) -> int:
        if self.takes_long_:
            self.mapped_by.add(threading.get_ident())
            self.takes_long_ = False
        return 0

    def unmap(self, why: str) -> None: ...
    def close(self) -> None: ...

    def identity(self) -> None:
        return None

    def refusal(self) -> str:
        return ""

    def statistics(self) -> dict[str, object]:
        return {}


def test_files_are_mapped_by_the_planes_own_thread(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    place = plane.add(Mapper())
    with Client.connect(plane._client.settings) as other:
        announces = other.add_publication(*plane._where["announce"])
        announce = ShmPoolAnnounce(
            stream_id=10_000, producer_id=1, epoch=1, announce_timestamp_ns=1, announce_clock_domain=1,
            layout_version=1, header_nslots=8, header_slot_bytes=256, payload_pools=[], header_region_uri="",
        ).encode()  # fmt: skip
        for _ in range(20):
            place.mapped_by.clear()
            while announces.offer(announce) < 0:
                time.sleep(0.001)
            serve_while(plane, lambda: not place.mapped_by)
            assert threading.get_ident() not in place.mapped_by


def test_who_has_settled_is_not_asked_all_the_time(base_dir: Path) -> None:
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), lease_expiry_ms=60_000),
    )
    with fp.serve(config) as pool, pool.producer(10_000, name="camera"), pool.consumer(10_000):
        plane = pool._plane
        members = (*plane.places, *plane._members)
        assert len(members) > 3
        wait_until(lambda: all(member.due_ns() > plane.clock.monotonic_ns() for member in members))


def test_a_plane_that_nobody_serves_turns_by_itself(tended_plane: tuple[ControlPlane, Runner]) -> None:
    plane, _ = tended_plane
    member = plane.join(Counting())
    wait_until(lambda: member.turns > 10)
    assert threading.get_ident() not in member.threads


@pytest.mark.parametrize("how", ["publish", "claim", "poll"])
def test_whoever_moves_frames_turns_the_plane_between_them(base_dir: Path, how: str) -> None:
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), lease_expiry_ms=60_000),
    )
    image = np.zeros(64, np.uint8)
    with fp.serve(config) as pool, pool.producer(10_000) as camera, pool.consumer(10_000) as eye:

        def claim() -> None:
            with camera.claim((64,)) as slot:
                slot.array[0] = 1

        ways: dict[str, Callable[[], object]] = {
            "publish": lambda: camera.publish(image),
            "claim": claim,
            "poll": eye.poll,
        }
        member = pool._plane.join(Noticing(threading.get_ident()))
        until(member.seen, ways[how])
        pool._plane.leave(member)
