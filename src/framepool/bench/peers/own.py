"""framepool itself, through its public interface alone, beside a driver of its own as `framepool driver` starts it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import numpy as np

import framepool
from framepool.bench.peer import Image, Peer, Place, Receiver, See, Sender
from framepool.client.consumer import Consumer
from framepool.client.producer import Producer
from framepool.config import Config, PoolConfig, ProfileConfig, StreamConfig, load
from framepool.driver.driver import ShmDriver
from framepool.errors import FrameOverwritten

STREAM = 10_000


def configuration(place: Place) -> Config:
    """A driver of its own in the directory of the measurement, with one stream of the right size."""
    stride = 64
    while stride < place.nbytes:
        stride *= 2
    profile = ProfileConfig(nslots=place.slots, pools=(PoolConfig(pool_id=1, stride_bytes=stride),))
    base = load(environ={})
    return msgspec.structs.replace(
        base,
        aeron=msgspec.structs.replace(base.aeron, directory=f"{place.directory}/aeron"),
        driver=msgspec.structs.replace(base.driver, shm_base_dir=place.directory, prefault=True),
        profiles={"bench": profile},
        streams=(StreamConfig(stream_id=STREAM, profile="bench"),),
    )


class Framepool(Peer):
    name = "framepool"
    module = "framepool"
    package = "framepool"

    def site(self, place: Place) -> contextlib.AbstractContextManager[object]:
        return ShmDriver(configuration(place)).start()  # what `framepool driver` does

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        with framepool.connect(configuration(place)) as pool, pool.producer(STREAM) as producer:
            yield OwnSender(producer, place.nbytes)

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        with framepool.connect(configuration(place)) as pool, pool.consumer(STREAM) as consumer:
            yield OwnReceiver(consumer)


class OwnSender(Sender):
    def __init__(self, producer: Producer, nbytes: int) -> None:
        self._producer = producer
        self._shape = (nbytes // 8,)
        self.publish = producer.publish  # type: ignore[method-assign,assignment]

    def publish(self, image: Image) -> None:
        raise NotImplementedError  # the producer's own stands in its place

    def fill(self, stamp: int) -> None:
        with self._producer.claim(self._shape, np.uint64) as slot:
            slot.array[0] = stamp


class OwnReceiver(Receiver):
    def __init__(self, consumer: Consumer) -> None:
        self._poll = consumer.poll

    def poll(self, see: See) -> None:
        self.poll_again(see, 1)

    def poll_again(self, see: See, times: int) -> None:
        poll = self._poll
        for _ in range(times):
            for frame in poll():
                try:
                    with frame as image:
                        see(image)
                except FrameOverwritten:
                    self.torn += 1
