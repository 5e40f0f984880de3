"""A service on a media driver of the test's own, turned by the test, and somebody who speaks and listens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from framepool.config import Channels, Config
from framepool.errors import DecodeError
from framepool.service.events import Event
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire.message import Message

SMALL = "aeron:ipc?term-length=64k"


@pytest.fixture
def config(media_driver: MediaDriver) -> Config:
    return Config(aeron=media_driver.settings, channels=Channels(service_control=SMALL, service_status=SMALL))


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings, name="test") as client:
        yield client


class Operator:
    """Puts anything on the control stream and keeps everything of both streams, as bytes."""

    def __init__(self, client: Client, config: Config) -> None:
        ids, channels = config.stream_ids, config.channels
        self.publication = client.add_publication(
            channel.control_publication(channels.service_control, config.aeron), ids.service_control
        )
        self.status_ear = client.add_subscription(channel.control(channels.service_status), ids.service_status)
        self.status: list[bytes] = []

    def send(self, message: Event | Message | bytes) -> bytes:
        data = message if isinstance(message, bytes) else message.encode()
        wait_until(lambda: self.publication.offer(data) > 0)
        return data

    def hear(self) -> list[bytes]:
        """All of the status stream so far."""
        while messages := self.status_ear.poll(256):
            self.status += messages
        return self.status

    def events(self, key: str | None = None) -> list[Event]:
        """What services said so far, but for their regular status."""
        found = []
        for data in self.hear():
            try:
                event = Event.decode(data)
            except DecodeError:
                continue
            if event.key == key or (key is None and event.key != "status"):
                found.append(event)
        return found


@pytest.fixture
def operator(client: Client, config: Config) -> Operator:
    return Operator(client, config)


def wait_until(condition: Callable[[], object], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.0005)
