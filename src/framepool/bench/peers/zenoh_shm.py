"""zenoh with its shared-memory provider, peer to peer over a local socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from framepool.bench.peer import Image, Peer, Place, Receiver, See, Sender


class Zenoh(Peer):
    name = "zenoh SHM"
    module = "zenoh"
    package = "eclipse-zenoh"
    bytes_per_us = 1_000

    def _session(self, place: Place, *, listen: bool) -> Any:
        import zenoh

        config = zenoh.Config()
        endpoint = json.dumps([f"unixsock-stream/{place.directory}/zenoh"])
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5("listen/endpoints" if listen else "connect/endpoints", endpoint)
        if not listen:
            config.insert_json5("listen/endpoints", "[]")
        config.insert_json5("transport/shared_memory/enabled", "true")
        return zenoh.open(config)

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        import zenoh

        with self._session(place, listen=True) as session:
            size = max(64 * 2**20, 16 * place.nbytes)
            provider = zenoh.shm.ShmProvider.default_backend(size)
            publisher = session.declare_publisher(
                place.name, congestion_control=zenoh.CongestionControl.DROP, express=True
            )
            yield ZenohSender(publisher, provider, place.nbytes)

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        import zenoh

        with self._session(place, listen=False) as session:
            subscriber = session.declare_subscriber(place.name, zenoh.handlers.RingChannel(4096))
            yield ZenohReceiver(subscriber)
            subscriber.undeclare()


class ZenohSender(Sender):
    def __init__(self, publisher: Any, provider: Any, nbytes: int) -> None:
        import zenoh

        self._put = publisher.put
        self._alloc = provider.alloc
        self._policy = zenoh.shm.BlockOn(zenoh.shm.GarbageCollect())
        self._nbytes = nbytes

    def publish(self, image: Image) -> None:
        buffer = self._alloc(self._nbytes, policy=self._policy)
        buffer[:] = image.tobytes()  # it takes nothing but bytes
        self._put(buffer)

    def fill(self, stamp: int) -> None:
        buffer = self._alloc(self._nbytes, policy=self._policy)
        buffer[0:8] = stamp.to_bytes(8, "little")
        self._put(buffer)


class ZenohReceiver(Receiver):
    def __init__(self, subscriber: Any) -> None:
        self._receive = subscriber.recv

    def poll(self, see: See) -> None:
        see(np.frombuffer(self._receive().payload.to_bytes(), np.uint64))
