"""ZeroMQ over a local socket: one PUB, and SUBs that keep a bounded queue; received without a copy of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from framepool.bench.peer import Image, Peer, Place, Receiver, See, Sender

QUEUE = 1000


class ZeroMq(Peer):
    name = "ZeroMQ ipc"
    module = "zmq"
    package = "pyzmq"
    bytes_per_us = 1_000

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        import zmq

        with zmq.Context() as context, context.socket(zmq.PUB) as socket:
            socket.setsockopt(zmq.SNDHWM, QUEUE)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(f"ipc://{place.directory}/zmq")
            yield ZeroMqSender(socket)

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        import zmq

        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, QUEUE)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(f"ipc://{place.directory}/zmq")
            yield ZeroMqReceiver(socket)


class ZeroMqSender(Sender):
    def __init__(self, socket: Any) -> None:
        self._send = socket.send

    def publish(self, image: Image) -> None:
        self._send(image, copy=True)


class ZeroMqReceiver(Receiver):
    def __init__(self, socket: Any) -> None:
        import zmq

        self._wait = socket.poll
        self._receive = socket.recv
        self._nothing = zmq.Again
        self._flags = zmq.NOBLOCK

    def poll(self, see: See) -> None:
        if not self._wait(1):
            return
        while True:
            try:
                message = self._receive(self._flags, copy=False)
            except self._nothing:
                return
            see(np.frombuffer(message.buffer, np.uint64))
