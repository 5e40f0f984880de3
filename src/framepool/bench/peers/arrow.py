"""Arrow IPC over a local socket: record batches of one binary cell, one connection for each receiver."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from framepool.bench.peer import Image, Peer, Place, Receiver, See, Sender


class Arrow(Peer):
    name = "Arrow IPC"
    module = "pyarrow"
    package = "pyarrow"
    bytes_per_us = 1_000

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{place.directory}/arrow")
            server.listen()
            sender = ArrowSender(place.nbytes)
            threading.Thread(target=sender.accept, args=(server, place.receivers), daemon=True).start()
            yield sender

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{place.directory}/arrow")
            yield ArrowReceiver(connection)


class ArrowSender(Sender):
    def __init__(self, nbytes: int) -> None:
        import pyarrow

        self._pyarrow = pyarrow
        self._schema = pyarrow.schema([("frame", pyarrow.binary(nbytes))])
        self._kind = pyarrow.binary(nbytes)
        self._writers: list[Any] = []

    def accept(self, server: socket.socket, receivers: int) -> None:
        for _ in range(receivers):
            connection, _ = server.accept()
            self._writers.append(self._pyarrow.ipc.new_stream(connection.makefile("wb", buffering=0), self._schema))

    def publish(self, image: Image) -> None:
        pyarrow = self._pyarrow
        cell = pyarrow.Array.from_buffers(self._kind, 1, [None, pyarrow.py_buffer(image)])
        batch = pyarrow.record_batch([cell], schema=self._schema)
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.write_batch(batch)


class ArrowReceiver(Receiver):
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._reader: Any = None

    def poll(self, see: See) -> None:
        import pyarrow

        while self._selector.select(0.001):
            if self._reader is None:
                self._reader = pyarrow.ipc.open_stream(self._connection.makefile("rb"))
            try:
                batch = self._reader.read_next_batch()
            except (StopIteration, OSError):
                return
            see(np.frombuffer(batch.column(0).buffers()[1], np.uint64))
