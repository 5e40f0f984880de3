"""Waiting for subscriptions without the interpreter, and without taking what they heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.errors import TransportError
from framepool.transport.aeron import AnyPublication, Client, Ears
from tests.unit.transport.conftest import CHANNEL, Ends

LONG = 60 * NANOS_PER_SECOND


@pytest.fixture
def ears(ends: Ends) -> Ears:
    ears = Ears()
    ears.add(ends.subscription)
    return ears


def test_what_is_heard_ends_the_wait_and_is_still_there(ends: Ends, ears: Ears) -> None:
    messages = [bytes([number]) * 50 for number in range(5)]
    for message in messages:
        assert ends.publication.offer(message) >= 0
        assert ears.wait(LONG)
    assert ears.wait(LONG), "looking takes nothing"
    assert ends.subscription.poll() == messages
    assert not ears.wait(5 * NANOS_PER_MILLI)


def test_a_wait_ends_when_somebody_speaks(ends: Ends, ears: Ears) -> None:
    timer = threading.Timer(0.05, lambda: ends.publication.offer(b"now"))
    timer.start()
    assert ears.wait(LONG)
    timer.join()
    assert ends.subscription.poll() == [b"now"]


def test_a_nudge_ends_one_wait(ears: Ears) -> None:
    ears.nudge()
    ears.nudge()
    assert ears.wait(LONG)
    assert not ears.wait(5 * NANOS_PER_MILLI)
    timer = threading.Timer(0.05, ears.nudge)
    timer.start()
    assert ears.wait(LONG)
    timer.join()


def test_nobody_to_hear_is_a_wait_like_any_other() -> None:
    ears = Ears(least_ns=NANOS_PER_MILLI, most_ns=NANOS_PER_MILLI)
    started = time.monotonic()
    assert not ears.wait(20 * NANOS_PER_MILLI)
    assert time.monotonic() - started >= 0.02
    with pytest.raises(ValueError, match="least_ns"):
        Ears(least_ns=2, most_ns=1)


def test_what_is_not_there_is_to_be_asked_after_a_nap(ends: Ends, ears: Ears) -> None:
    ends.subscription.close()
    started = time.monotonic()
    assert ears.wait(LONG), "whoever polls it finds out why"
    assert time.monotonic() - started >= 0.001


def test_the_ears_of_a_client_hear_whatever_is_polled_there(client: Client, ends: Ends) -> None:
    ears = Ears(client)
    assert not ears.wait(5 * NANOS_PER_MILLI)
    assert ends.publication.offer(b"first") >= 0
    assert ears.wait(LONG)
    assert ends.subscription.poll() == [b"first"]
    with ends.subscription.drain() as drain:
        assert ends.publication.offer(b"second") >= 0
        assert not ears.wait(5 * NANOS_PER_MILLI), "what is drained is not for ears"
        assert drain.take() == [b"second"]
    assert ends.publication.offer(b"third") >= 0
    assert ears.wait(LONG), "polled again"
    ends.subscription.close()
    assert not ears.wait(5 * NANOS_PER_MILLI), "what is closed is not the client's any more"
    later = client.add_subscription(CHANNEL, 11)
    publication = client.add_publication(CHANNEL, 11)
    while publication.offer(b"fourth") < 0:
        time.sleep(0.001)
    assert ears.wait(LONG)
    assert later.poll() == [b"fourth"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_wait_that_is_hurried_ends_early(ears: Ears, when: str) -> None:
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(ears.wait(LONG)))
    if when == "before":
        ears.hurry(NANOS_PER_MILLI)
        waiter.start()
    else:
        waiter.start()
        time.sleep(0.05)
        ears.hurry(NANOS_PER_MILLI)
    waiter.join(30)
    assert waited == [False], "as if the time were over"
    started = time.monotonic()
    assert not ears.wait(20 * NANOS_PER_MILLI)
    assert time.monotonic() - started >= 0.02, "and only that one"


def test_other_threads_poll_renew_and_close_meanwhile(ends: Ends, send: Callable[[AnyPublication, bytes], int]) -> None:
    ended = threading.Event()
    waits = 0

    def wait() -> None:
        nonlocal waits
        quick = Ears(least_ns=1_000, most_ns=1_000)
        quick.add(ends.subscription)
        while not ended.is_set():
            quick.wait(NANOS_PER_MILLI)
            waits += 1

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    heard: list[bytes] = []
    try:
        for number in range(2_000):
            send(ends.publication, number.to_bytes(4, "little"))
            heard += ends.subscription.poll()
        for _ in range(20):
            ends.subscription.renew()
            while not ends.subscription.poll_add():
                time.sleep(0.001)
        ends.subscription.close()
        with pytest.raises(TransportError):
            ends.subscription.poll()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [int.from_bytes(each, "little") for each in heard] == list(range(2_000)), "each once and in order"
    assert waits > 0
