"""What people write themselves: `multiprocessing.shared_memory` for the bytes and a pipe that says which slot."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from framepool.bench.peer import Image, Peer, Place, Receiver, See, Sender

SLOTS = 16
TOKEN = struct.Struct("<q")
UNTRACKED: Any = {"track": False} if sys.version_info >= (3, 13) else {}
"""Without the process that would remove the memory of others."""


class SharedMemoryAndPipe(Peer):
    name = "shared_memory + pipe"
    module = "multiprocessing.shared_memory"
    package = "Python"

    @contextlib.contextmanager
    def sender(self, place: Place) -> Iterator[Sender]:
        memory = shared_memory.SharedMemory(place.name, create=True, size=SLOTS * place.nbytes, **UNTRACKED)
        for index in range(place.receivers):
            os.mkfifo(_fifo(place, index))
        pipes = [os.open(_fifo(place, index), os.O_RDWR | os.O_NONBLOCK) for index in range(place.receivers)]
        try:
            yield PipeSender(memory, pipes, place.nbytes)
        finally:
            for pipe in pipes:
                os.close(pipe)
            memory.unlink()
            with contextlib.suppress(BufferError):  # arrays lie in it; it goes with the process
                memory.close()

    @contextlib.contextmanager
    def receiver(self, place: Place, index: int) -> Iterator[Receiver]:
        memory = shared_memory.SharedMemory(place.name, **UNTRACKED)
        pipe = os.open(_fifo(place, index), os.O_RDONLY | os.O_NONBLOCK)
        receiver = PipeReceiver(memory, pipe, place.nbytes)
        try:
            yield receiver
        finally:
            os.close(pipe)
            with contextlib.suppress(BufferError):
                memory.close()


def _fifo(place: Place, index: int) -> str:
    return f"{place.directory}/pipe-{index}"


def _slots(memory: shared_memory.SharedMemory, nbytes: int) -> list[Image]:
    assert memory.buf is not None
    return [np.frombuffer(memory.buf, np.uint64, nbytes // 8, slot * nbytes) for slot in range(SLOTS)]


class PipeSender(Sender):
    def __init__(self, memory: shared_memory.SharedMemory, pipes: list[int], nbytes: int) -> None:
        self._slots = _slots(memory, nbytes)
        self._pipes = pipes
        self._next = 0

    def publish(self, image: Image) -> None:
        self._slots[self._next % SLOTS][:] = image
        self._tell()

    def fill(self, stamp: int) -> None:
        self._slots[self._next % SLOTS][0] = stamp
        self._tell()

    def _tell(self) -> None:
        token = TOKEN.pack(self._next)
        self._next += 1
        for pipe in self._pipes:
            with contextlib.suppress(BlockingIOError):
                os.write(pipe, token)


class PipeReceiver(Receiver):
    def __init__(self, memory: shared_memory.SharedMemory, pipe: int, nbytes: int) -> None:
        self.slots = _slots(memory, nbytes)
        self._pipe = pipe
        self._ready = select.poll()
        self._ready.register(pipe, select.POLLIN)

    def poll(self, see: See) -> None:
        while self._ready.poll(0):
            try:
                tokens = os.read(self._pipe, TOKEN.size * SLOTS)
            except BlockingIOError:
                return
            if not tokens:
                return
            for (number,) in TOKEN.iter_unpack(tokens):
                see(self.slots[number % SLOTS])
