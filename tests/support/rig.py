"""Producers and consumers of a test, turned by the test itself: the real client half without a thread of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from framepool.client.attach import AttachSettings
from framepool.client.consumer import Consumer
from framepool.client.plane import ControlPlane
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.clock import NANOS_PER_SECOND, MonotonicClock
from framepool.config import Config
from framepool.errors import FrameOverwritten
from framepool.shm.paths import AllowedDirectories
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter
from framepool.wire._generated.driver_901 import Role
from framepool.wire.message import MESSAGE_HEADER

PATIENCE = 30.0
LONG_SUFFERING = AttachSettings(driver_timeout_ns=20 * NANOS_PER_SECOND, retry_max_ns=NANOS_PER_SECOND // 10)
"""For a test whose driver may be slow or stopped and is not meant to be noticed."""


class Received(NamedTuple):
    """A frame that was read whole."""

    epoch: int
    seq: int
    timestamp_ns: int
    array: npt.NDArray[Any]


class Camera:
    """A producer with its seat."""

    def __init__(self, rig: Rig, seat: Seat) -> None:
        self.seat = seat
        name = channel.descriptor_publication(rig.config.channels.descriptor, rig.config.aeron)
        publication = rig.client.add_publication(name, rig.config.stream_ids.descriptor)
        self.producer = Producer(seat, publication, rig.plane.clock)

    def publish(self, value: int = 0) -> int | None:
        """A frame of 64 bytes, all of one value."""
        return self.producer.publish(picture(value))


class Eye:
    """A consumer with its seat."""

    def __init__(self, rig: Rig, seat: Seat) -> None:
        self.seat = seat
        name = channel.descriptor_subscription(rig.config.channels.descriptor)
        only = Filter(offset=MESSAGE_HEADER.size, pattern=seat.mapping.stream_id.to_bytes(4, "little"))
        subscription = rig.client.add_subscription(name, rig.config.stream_ids.descriptor, only=only)
        self.drain = subscription.drain(max_message=64)
        self.consumer = Consumer(seat, self.drain)

    def look(self) -> list[Received]:
        """What came since the last look and could be copied whole."""
        seen = []
        for frame in self.consumer.poll():
            with contextlib.suppress(FrameOverwritten):
                seen.append(Received(frame.epoch, frame.seq, frame.timestamp_ns, frame.copy()))
        return seen


class Rig:
    """One process' control plane with cameras and eyes on it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.client = Client.connect(config.aeron, name="test rig", timeout=PATIENCE)
        self.plane = ControlPlane(self.client, MonotonicClock(), config.stream_ids, config.channels)
        self._users: list[Producer | Consumer] = []

    def seat(self, stream_id: int, role: Role, **options: Any) -> Seat:
        driver = self.config.driver
        allowed = AllowedDirectories([driver.shm_base_dir])
        settings = options.pop("settings", LONG_SUFFERING)
        return self.plane.add(Seat(self.plane, stream_id, role, allowed=allowed, settings=settings, **options))

    def camera(self, stream_id: int, **options: Any) -> Camera:
        camera = Camera(self, self.seat(stream_id, Role.PRODUCER, **options))
        self._users.append(camera.producer)
        return camera

    def eye(self, stream_id: int, **options: Any) -> Eye:
        eye = Eye(self, self.seat(stream_id, Role.CONSUMER, **options))
        self._users.append(eye.consumer)
        return eye

    def turn_until(self, fulfilled: Callable[[], object], timeout: float = PATIENCE) -> None:
        """Does the control plane's work until something holds, or fails."""
        deadline = time.monotonic() + timeout
        while not fulfilled():
            assert time.monotonic() < deadline, [seat.statistics() for seat in self.plane.places]
            self.plane.do_work()
            time.sleep(0.001)

    def attached(self, *users: Camera | Eye) -> None:
        """Turns until all of them may use their regions."""
        self.turn_until(lambda: all(user.seat.stream is not None for user in users))

    def close(self) -> None:
        for user in self._users:
            user.close()
        self.plane.on_close()
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def picture(value: int) -> npt.NDArray[np.uint8]:
    return np.full((8, 8), value, np.uint8)
