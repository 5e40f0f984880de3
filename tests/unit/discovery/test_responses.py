"""Response publications over real Aeron: opened without waiting, kept, bounded, and let go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import ResponseConfig
from framepool.discovery import responses as responses_module
from framepool.discovery.policy import Endpoint
from framepool.discovery.responses import IDLE_NS, Responses
from framepool.errors import MediaDriverLost
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from tests.support.discovery_rig import PATIENCE
from tests.support.ports import free_port

CHANNEL = "aeron:ipc?term-length=64k"
LIMITS = ResponseConfig(max_endpoints=3, endpoints_per_second=1000, timeout_ms=1_000)


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def responses(client: Client, clock: ManualClock) -> Responses:
    return Responses(client, LIMITS, clock)


def endpoint(stream_id: int, channel: str = CHANNEL) -> Endpoint:
    return Endpoint(channel, stream_id, 8192)


def until(responses: Responses, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, responses.statistics()
        responses.do_work()
        time.sleep(0.001)


@pytest.mark.parametrize("channel", [CHANNEL, "aeron:udp?term-length=64k|endpoint=127.0.0.1:{port}"])
def test_answers_arrive_in_order_and_the_publication_is_kept(
    responses: Responses, client: Client, channel: str
) -> None:
    where = endpoint(1, channel.format(port=free_port()))
    subscription = client.add_subscription(where.channel, where.stream_id)
    heard: list[bytes] = []
    for number in range(20):
        responses.send(where, b"%d" % number)
    until(responses, lambda: heard.extend(subscription.poll()) or len(heard) == 20)
    assert heard == [b"%d" % number for number in range(20)]
    responses.send(where, b"again")
    until(responses, lambda: heard.extend(subscription.poll()) or len(heard) == 21)
    assert responses.counts["endpoints opened"] == 1
    assert responses.statistics()["answers waiting"] == 0


def test_sending_never_waits_for_the_media_driver(
    responses: Responses, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in it sleeps or waits: the whole of an opening is spread over duty cycles."""
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("slept"))
    monkeypatch.setattr("framepool.transport.aeron.Pending.wait", lambda *_: pytest.fail("waited"))
    responses.send(endpoint(1), b"x")
    responses.do_work()
    assert responses.statistics()["answers waiting"] == 1


def test_answer_that_nobody_takes_is_given_up(responses: Responses, client: Client, clock: ManualClock) -> None:
    responses.send(endpoint(1), b"old")
    clock.advance(LIMITS.timeout_ms * NANOS_PER_MILLI + 1)
    responses.do_work()
    assert responses.counts["answers nobody took"] == 1
    subscription = client.add_subscription(CHANNEL, 1)
    responses.send(endpoint(1), b"new")
    heard: list[bytes] = []
    until(responses, lambda: heard.extend(subscription.poll()) or heard)
    assert heard == [b"new"]


def test_endpoints_are_bounded_and_the_idle_one_goes_first(responses: Responses, client: Client) -> None:
    subscription = client.add_subscription(CHANNEL, 2)
    responses.send(endpoint(1), b"waits for ever")
    responses.send(endpoint(2), b"taken")
    until(responses, subscription.poll)
    responses.send(endpoint(3), b"waits for ever")
    responses.send(endpoint(4), b"new")
    assert set(responses._lines) == {endpoint(1), endpoint(3), endpoint(4)}
    for number in range(5, 50):
        responses.send(endpoint(number), b"flood")
    assert len(responses._lines) == LIMITS.max_endpoints
    children = len(client.children())
    assert children <= 1 + LIMITS.max_endpoints


def test_new_endpoints_are_opened_at_a_bounded_pace(client: Client, clock: ManualClock) -> None:
    responses = Responses(client, ResponseConfig(endpoints_per_second=5), clock)
    for number in range(20):
        responses.send(endpoint(number), b"x")
    assert responses.counts["endpoints opened"] == 5
    assert responses.counts["endpoints over the limit"] == 15
    clock.advance(NANOS_PER_SECOND)
    responses.send(endpoint(19), b"x")
    assert responses.counts["endpoints opened"] == 6


def test_what_waits_is_bounded_in_bytes(responses: Responses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_module, "MOST_WAITING_BYTES", 100)
    responses.send(endpoint(1), bytes(60))
    responses.send(endpoint(2), bytes(60))
    responses.send(endpoint(2), bytes(40))
    assert responses.counts["answers without room"] == 1
    assert responses.statistics()["answers waiting"] == 2


def test_endpoint_that_nobody_asks_from_any_more_is_closed(
    responses: Responses, client: Client, clock: ManualClock
) -> None:
    responses.send(endpoint(1), b"x")
    clock.advance(IDLE_NS)
    responses.do_work()
    assert responses.statistics()["endpoints"] == 1
    clock.advance(1)
    responses.do_work()
    assert responses.statistics()["endpoints"] == 0
    assert client.children() == []


def test_channel_that_the_media_driver_refuses_costs_the_answer_only(responses: Responses, client: Client) -> None:
    responses.send(endpoint(1, "aeron:udp?endpoint=127.0.0.1:99999|term-length=64k"), b"x")
    until(responses, lambda: responses.counts["endpoints refused"])
    assert responses.statistics()["endpoints"] == 0
    assert client.children() == []


def test_endpoints_are_forgotten_with_the_media_driver(responses: Responses, media_driver: MediaDriver) -> None:
    responses.send(endpoint(1), b"x")
    client = responses._client
    media_driver.close()
    with pytest.raises(MediaDriverLost):
        until(responses, lambda: responses.send(endpoint(2), b"x"))
    responses.clear()
    assert client.children() == []
