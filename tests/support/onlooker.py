"""A third party at the streams of a pool: hears what is said there, and says what it likes itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

import framepool as fp
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.transport import channel
from framepool.transport.aeron import Client, Publication, Subscription
from framepool.transport.settings import AeronSettings
from framepool.wire.dispatch import decode
from framepool.wire.message import Message

STREAM = 10_000
PATIENCE = 30.0


def small_config(base_dir: Path, *, nslots: int = 64, stride_bytes: int = 2**16, **driver: Any) -> Config:
    """Everything below `base_dir`, one pool, announces often enough that no test waits for them."""
    return Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(
            shm_base_dir=str(base_dir), **{"announce_period_ms": 100, "lease_expiry_ms": 60_000, **driver}
        ),
        profiles={"default": ProfileConfig(nslots=nslots, pools=(PoolConfig(pool_id=1, stride_bytes=stride_bytes),))},
    )


class Ear:
    """Everything on one stream from now on, as it was on the wire and decoded."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.raw: list[bytes] = []

    def hear(self) -> list[Message]:
        while messages := self._subscription.poll(256):
            self.raw += messages
        return [decode(message) for message in self.raw]

    def all[M: Message](self, kind: type[M]) -> list[M]:
        return [message for message in self.hear() if isinstance(message, kind)]

    def raw_of(self, kind: type[Message]) -> list[bytes]:
        return [raw for raw, message in zip(self.raw, self.hear(), strict=False) if isinstance(message, kind)]


class Onlooker:
    """An Aeron client of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._client = Client.connect(config.aeron, name="onlooker", timeout=PATIENCE)
        self._mouths: dict[int, Publication] = {}

    def listen(self, stream: int) -> Ear:
        """Connected before it returns if anybody publishes there."""
        return Ear(self._client.add_subscription(channel.control(), stream))

    def say(self, stream: int, message: Message) -> None:
        """Says it to whoever listens; somebody must."""
        mouth = self._mouths.get(stream)
        if mouth is None:
            descriptors = stream == self.config.stream_ids.descriptor
            make = channel.descriptor_publication if descriptors else channel.control_publication
            where = make(settings=self.config.aeron)
            mouth = self._mouths[stream] = self._client.add_publication(where, stream)
        wait_until(lambda: mouth.offer(message.encode()) > 0)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def first_frame(camera: fp.Producer, eye: fp.Consumer) -> fp.Frame:
    """Publishes until the consumer is on the producer's epoch and has a frame, and then no more of them."""
    deadline = time.monotonic() + PATIENCE
    frame = None
    while frame is None:
        assert time.monotonic() < deadline, eye.statistics()
        camera.publish(np.zeros(4, np.uint8))
        frame = eye.latest(0.05)
    while frame.seq < camera.current_seq:
        assert time.monotonic() < deadline, eye.statistics()
        frame = eye.latest(0.05) or frame
    return frame


def take(eye: fp.Consumer, count: int) -> list[fp.Frame]:
    """So many frames, in order."""
    frames: list[fp.Frame] = []
    deadline = time.monotonic() + PATIENCE
    while len(frames) < count:
        assert time.monotonic() < deadline, (len(frames), eye.statistics())
        eye.wait(0.05)
        frames += eye.poll()
    return frames
