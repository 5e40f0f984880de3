"""A client of the test's own media driver, and the pair of ends that most tests need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from framepool.transport.aeron import AnyPublication, Client, Publication, Subscription
from framepool.transport.media_driver import MediaDriver

CHANNEL = "aeron:ipc?term-length=64k"

Until = Callable[[Callable[[], object]], None]


class Ends(NamedTuple):
    publication: Publication
    subscription: Subscription


def tasks() -> set[str]:
    """The threads of this process, by number: one that has ended may be counted for a moment more."""
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings, name="test") as client:
        yield client


@pytest.fixture
def until() -> Until:
    """Waits for a condition of the media driver's making."""

    def wait(condition: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.001)

    return wait


def open_for_messages(publication: AnyPublication) -> bool:
    """Whether somebody listens and Aeron's first window is there, which comes a moment later."""
    return publication.is_connected and publication.position_limit > 0


@pytest.fixture
def ends(client: Client, until: Until) -> Ends:
    """A publication and a subscription that see each other."""
    ends = Ends(client.add_publication(CHANNEL, 10), client.add_subscription(CHANNEL, 10))
    until(lambda: open_for_messages(ends.publication) and ends.subscription.is_connected)
    return ends


@pytest.fixture
def send() -> Callable[[AnyPublication, bytes], int]:
    """Offers until there is room; the media driver makes some every millisecond."""

    def send(publication: AnyPublication, message: bytes) -> int:
        deadline = time.monotonic() + 30
        while (position := publication.offer(message)) < 0:
            assert time.monotonic() < deadline, "no room"
            time.sleep(0.0002)
        return position

    return send
