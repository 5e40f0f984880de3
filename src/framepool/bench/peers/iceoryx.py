"""iceoryx2 by its zero-copy interface: loaned slices of bytes, polled without an event."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from framepool.bench.peer import QUEUE_BYTES, Image, Peer, Place, Receiver, See, Sender


class Iceoryx(Peer):
    name = "iceoryx2"
    module = "iceoryx2"
    package = "iceoryx2"

    def _service(self, place: Place) -> tuple[Any, Any]:
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Error)
        node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        queue = max(8, min(2048, QUEUE_BYTES // place.nbytes))
        service = (
            node.service_builder(iox.ServiceName.new(place.name))
            .publish_subscribe(iox.Slice[ctypes.c_uint8])
            .subscriber_max_buffer_size(queue)
            .subscriber_max_borrowed_samples(8)
            .max_subscribers(max(8, place.receivers))
            .enable_safe_overflow(True)
            .open_or_create()
        )
        return node, service

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        node, service = self._service(place)
        publisher = service.publisher_builder().initial_max_slice_len(place.nbytes).max_loaned_samples(4).create()
        yield IceoryxSender(publisher, place.nbytes)
        del publisher, service, node

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        node, service = self._service(place)
        subscriber = service.subscriber_builder().create()
        yield IceoryxReceiver(subscriber, place.nbytes)
        del subscriber, service, node


class IceoryxSender(Sender):
    def __init__(self, publisher: Any, nbytes: int) -> None:
        self._loan = publisher.loan_slice_uninit
        self._nbytes = nbytes
        self._array = ctypes.c_uint8 * nbytes

    def publish(self, image: Image) -> None:
        sample = self._loan(self._nbytes)
        np.frombuffer(self._array.from_address(sample.payload_ptr), np.uint64)[:] = image
        sample.assume_init().send()

    def fill(self, stamp: int) -> None:
        sample = self._loan(self._nbytes)
        ctypes.c_uint64.from_address(sample.payload_ptr).value = stamp
        sample.assume_init().send()


class IceoryxReceiver(Receiver):
    def __init__(self, subscriber: Any, nbytes: int) -> None:
        self._receive = subscriber.receive
        self._array = ctypes.c_uint8 * nbytes

    def poll(self, see: See) -> None:
        self.poll_again(see, 1)

    def poll_again(self, see: See, times: int) -> None:
        receive, array = self._receive, self._array
        for _ in range(times):
            while (sample := receive()) is not None:
                see(np.frombuffer(array.from_address(sample.payload_ptr), np.uint64))
