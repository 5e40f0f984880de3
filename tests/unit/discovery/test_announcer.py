"""What a driver repeats for registries: the newest of each stream, at a pace, and never in anybody's way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import Config, DiscoveryConfig
from framepool.discovery.announcer import LONGEST_STEP_NS, SLOWEST, Announcer, Lane, Pace
from framepool.transport.aeron import Client, Outcome
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from tests.support.discovery_rig import PATIENCE, announce, meta, source
from tests.support.ports import free_port

PERIOD = NANOS_PER_SECOND


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings) as client:
        yield client


@pytest.mark.parametrize("backlog", [1, 100, 3_000, 30_000])
def test_backlog_leaves_within_a_period_and_never_in_a_burst(backlog: int) -> None:
    pace, now, left, largest = Pace(PERIOD, 0), 0, backlog, 0
    while left:
        now += NANOS_PER_MILLI
        step = pace.step(left, now)
        largest = max(largest, step)
        left -= step
        assert now < PERIOD
    assert largest <= 1 + max(SLOWEST // 1000, 8 * backlog // 1000)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 3 * PERIOD)), max_size=100))
def test_a_step_is_never_more_than_what_is_due_after_the_longest_pause(steps: list[tuple[int, int]]) -> None:
    pace, now = Pace(PERIOD, 0), 0
    for backlog, elapsed in steps:
        now += elapsed
        rate = max(SLOWEST / NANOS_PER_SECOND, 8 * backlog / PERIOD)
        assert 0 <= pace.step(backlog, now) <= min(backlog, 1 + rate * LONGEST_STEP_NS)


class Refusing:
    """A publication whose answers a test chooses."""

    max_message_length = 8192

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.outcome = 1

    def offer(self, message: bytes) -> int:
        if self.outcome >= 0:
            self.sent.append(message)
        return self.outcome


def lane(publication: Any) -> tuple[Lane, Counter[str]]:
    counts: Counter[str] = Counter()
    return Lane(publication, Pace(PERIOD, 0), counts), counts


def test_newest_message_of_a_stream_takes_the_place_of_the_one_before() -> None:
    publication = Refusing()
    publication.outcome = Outcome.BACK_PRESSURED
    waiting, counts = lane(publication)
    for epoch in range(100):
        for stream_id in (1, 2, 3):
            waiting.put(stream_id, 1, b"%d of epoch %d" % (stream_id, epoch))
        waiting.flush(epoch * NANOS_PER_MILLI)
    assert len(waiting) == 3
    assert counts["registry back pressure"] > 0
    publication.outcome = 1
    for now in range(100, 200):
        waiting.flush(now * NANOS_PER_MILLI)
    assert publication.sent == [b"1 of epoch 99", b"2 of epoch 99", b"3 of epoch 99"]


def test_what_nobody_hears_does_not_wait() -> None:
    publication = Refusing()
    publication.outcome = Outcome.NOT_CONNECTED
    waiting, counts = lane(publication)
    waiting.put(1, 1, b"x")
    waiting.flush(NANOS_PER_SECOND)
    assert len(waiting) == 0
    assert counts["registry messages nobody heard"] == 1


def test_message_that_the_channel_does_not_take_is_counted_and_in_nobodys_way() -> None:
    publication = Refusing()
    waiting, counts = lane(publication)
    waiting.put(1, 8, bytes(8193))
    waiting.put(2, 8, bytes(8192))
    waiting.flush(NANOS_PER_SECOND)
    assert publication.sent == [bytes(8192)]
    assert counts["registry messages too long"] == 1


def config(media_driver: MediaDriver, *channels: str) -> Config:
    return Config(aeron=media_driver.settings, discovery=DiscoveryConfig(announce_channels=channels))


def test_every_channel_gets_announces_and_metadata(client: Client, media_driver: MediaDriver) -> None:
    port = free_port()
    control = f"127.0.0.1:{port}"
    publications = (
        f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=64k",
        f"aeron:udp?control={control}|control-mode=dynamic|term-length=64k",
        f"aeron:udp?endpoint=239.255.77.1:{free_port()}|interface=127.0.0.1|term-length=64k",
    )
    dynamic = f"aeron:udp?endpoint=127.0.0.1:{free_port()}|control={control}"
    subscriptions = (publications[0], dynamic, publications[2])
    clock = ManualClock()
    announcer = Announcer(config(media_driver, *publications), client, clock)
    announcer.on_start()
    said = [announce(1), source(1, "camera"), meta(1, tags=["a"])]
    ears = [client.add_subscription(each, stream_id) for each in subscriptions for stream_id in (1001, 1300)]
    heard: list[set[bytes]] = [set() for _ in ears]
    deadline = time.monotonic() + PATIENCE
    while not all(heard[::2]) or any(len(known) < 2 for known in heard[1::2]):
        assert time.monotonic() < deadline, (heard, announcer.statistics())
        for message in said:
            announcer.put(message, message.encode())
        clock.advance(NANOS_PER_MILLI)
        announcer.do_work()
        for ear, known in zip(ears, heard, strict=True):
            known.update(ear.poll())
        time.sleep(0.001)
    assert heard[0] == heard[2] == heard[4] == {said[0].encode()}
    assert heard[1] | heard[3] | heard[5] == {message.encode() for message in said[1:]}


def test_a_thousand_announces_arrive_over_udp_each_period(client: Client, media_driver: MediaDriver) -> None:
    where = f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
    subscription = client.add_subscription(where, 1001)
    clock = ManualClock()
    announcer = Announcer(config(media_driver, where), client, clock)
    announcer.on_start()
    messages = [announce(stream_id) for stream_id in range(1_000)]
    deadline = time.monotonic() + PATIENCE
    (lane,) = announcer._announces  # what nobody hears it drops, and it hears of a listener after that one does
    while not (subscription.is_connected and lane._publication.is_connected):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    heard: Counter[int] = Counter()
    for _ in range(3):
        for message in messages:
            announcer.put(message, message.encode())
        for _ in range(1_000):
            clock.advance(NANOS_PER_MILLI)
            announcer.do_work()
            heard.update(ShmPoolAnnounce.decode(each).stream_id for each in subscription.poll(256))
        while announcer.statistics()["registry messages waiting"]:
            assert time.monotonic() < deadline, announcer.statistics()
            clock.advance(NANOS_PER_MILLI)
            announcer.do_work()
            heard.update(ShmPoolAnnounce.decode(each).stream_id for each in subscription.poll(256))
    while sum(heard.values()) < 3_000:
        assert time.monotonic() < deadline, (sum(heard.values()), announcer.statistics())
        heard.update(ShmPoolAnnounce.decode(each).stream_id for each in subscription.poll(256))
        time.sleep(0.001)
    assert set(heard.values()) == {3}
