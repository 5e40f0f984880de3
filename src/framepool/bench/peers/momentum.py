"""momentumx: a ring of buffers in shared memory, without the synchronous mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from framepool.bench.peer import QUEUE_BYTES, Image, Peer, Place, Receiver, See, Sender


class Momentum(Peer):
    name = "momentumx"
    module = "momentumx"
    package = "momentumx"

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        import momentumx

        count = max(8, min(64, QUEUE_BYTES // place.nbytes))
        producer = momentumx.Producer(place.name, buffer_size=place.nbytes, buffer_count=count, sync=False)
        try:
            yield MomentumSender(producer)
        finally:
            producer.end()

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        import momentumx

        yield MomentumReceiver(momentumx.Consumer(place.name))


class MomentumSender(Sender):
    def __init__(self, producer: Any) -> None:
        self._next = producer.next_to_send

    def publish(self, image: Image) -> None:
        buffer = self._next()
        memoryview(buffer).cast("B")[: image.nbytes] = image.data.cast("B")
        buffer.send(image.nbytes)

    def fill(self, stamp: int) -> None:
        buffer = self._next()
        memoryview(buffer).cast("B").cast("Q")[0] = stamp
        buffer.send(buffer.buffer_size)


class MomentumReceiver(Receiver):
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self, see: See) -> None:
        while self._consumer.has_next:
            buffer = self._consumer.receive(blocking=False)
            if buffer is None:
                return
            see(np.frombuffer(buffer, np.uint64))
            buffer.release()
