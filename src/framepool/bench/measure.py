"""One measurement: its processes, started, joined and never left behind.

The parts talk through a page of words in shared memory, so that saying when costs nothing while time is measured.
A measurement begins once every receiver has got a frame, and ends with a frame that says so.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framepool.bench.peer import QUEUE_BYTES, Image, Place, Receiver, Sender, peer
from framepool.transport.settings import MIB

Kind = Literal["latency", "rate"]
Way = Literal["copy", "in place"]
Touch = Literal["none", "page", "sum"]

HELLO, GOODBYE, FIRST_STAMP = 1, 2, 1_000_000
"""What frames say in their first eight bytes when they are not measured, and the least that a stamp can be."""
READY, SEEN, COUNTED, GONE = 16, 64, 112, 160
"""Where the words of the parts begin."""
WORDS = 256
PATIENCE = 30.0
SELDOM = 0.2
"""Seconds between two looks of who only waits while others are measured: he takes a core from them each time."""
PAGE = 4096
SMALL = 16 * 1024
LOOKS = 100
"""For frames, until a receiver looks whether it is to stop: that look is slow."""


class Word(enum.IntEnum):
    """Words of the shared page."""

    STOP = 0
    PHASE = 1
    SENT = 2
    ELAPSED_NS = 3


class Phase(enum.IntEnum):
    """Where a measurement stands."""

    WARMING = 0
    MEASURING = 1
    OVER = 2


class Cell(msgspec.Struct, frozen=True):
    """What is measured."""

    kind: Kind
    nbytes: int
    receivers: int = 1
    way: Way = "copy"
    touch: Touch = "none"
    count: int = 2_000
    """Frames of a latency."""
    interval_us: int = 200
    """Between them."""
    seconds: float = 1.0
    """Of a rate."""

    @property
    def slots(self) -> int:
        """Of a ring that stays in the cache: a few for who waits for each frame, more for who must not be lapped, by
        millions of small ones a second above all; and of one for several readers, who wait for a processor meanwhile,
        as long as the queues of others."""
        if self.kind == "latency":
            ring, least, most = MIB // 2, 2, 64
        elif self.receivers == 1:
            ring, least, most = 4 * MIB if self.nbytes > SMALL else 64 * MIB, 4, 16_384
        else:
            ring, least, most = QUEUE_BYTES, 4, 16_384
        return min(most, max(least, ring // self.nbytes))

    @property
    def title(self) -> str:
        size = f"{self.nbytes // 2**20} MiB" if self.nbytes >= 2**20 else f"{self.nbytes // 2**10} KiB"
        readers = "" if self.receivers == 1 else f", {self.receivers} consumers"
        touch = "" if self.touch == "none" else f", {'every byte' if self.touch == 'sum' else 'each page'} read"
        return f"{self.kind}, {size}, {self.way}{readers}{touch}"


class Task(msgspec.Struct, frozen=True):
    """What one process is told."""

    peer: str
    part: Literal["site", "sender", "receiver"]
    index: int
    place: Place
    cell: Cell


class Failed(Exception):
    """A peer could not be measured; says why."""


def measure(name: str, cell: Cell) -> dict[str, Any]:
    """Latencies in ns of each receiver, or frames published and delivered a second."""
    with tempfile.TemporaryDirectory(prefix="fpb-", dir=_shared()) as directory:
        place = Place(directory, f"framepool_bench_{Path(directory).name}", cell.nbytes, cell.receivers, cell.slots)
        words = _words(place)
        parts = [("site", 0), ("sender", 0), *(("receiver", index) for index in range(cell.receivers))]
        with contextlib.ExitStack() as running:
            processes: list[subprocess.Popen[bytes]] = []
            try:
                for number, (part, index) in enumerate(parts):
                    task = Task(name, part, index, place, cell)  # type: ignore[arg-type]
                    processes.append(running.enter_context(_process(task)))
                    if part == "site":
                        running.callback(words.__setitem__, Word.STOP, 1)  # once the others are gone
                    _wait_for(
                        lambda number=number: words[READY + number] == 1, processes, f"{part} {index} to be ready"
                    )
                _wait_for(
                    lambda: words[Word.PHASE] == Phase.OVER,
                    processes,
                    "the measurement to end",
                    cell.seconds + 60,
                    pause=SELDOM,
                )
                _wait_for(lambda: all(words[GONE : GONE + cell.receivers]), processes, "the receivers to end")
                return _result(place, cell, words)
            except BaseException:
                words[Word.STOP] = 1
                raise


def main(task: Task) -> None:
    """One process of a measurement."""
    words = _words(task.place)
    which = peer(task.peer)
    number = {"site": 0, "sender": 1, "receiver": 2}[task.part] + task.index
    if task.part == "site":
        with which.site(task.place):
            words[READY + number] = 1
            while not words[Word.STOP]:
                time.sleep(SELDOM)
    elif task.part == "sender":
        with which.sender(task.place) as sender:
            words[READY + number] = 1
            _send(sender, task.cell, words)
    else:
        with which.receiver(task.place, task.index) as receiver:
            words[READY + number] = 1
            _receive(receiver, task, words)


def _send(sender: Sender, cell: Cell, words: npt.NDArray[np.int64]) -> None:
    image = np.ones(cell.nbytes // 8, np.uint64)  # zeros would be one page of the kernel's, in the nearest cache
    _until_everybody(sender, image, HELLO, words, SEEN, cell)
    time.sleep(0.1)
    words[Word.PHASE] = Phase.MEASURING
    (_send_paced if cell.kind == "latency" else _send_at_full_speed)(sender, image, cell, words)
    words[Word.PHASE] = Phase.OVER
    time.sleep(0.05)
    _until_everybody(sender, image, GOODBYE, words, GONE, cell)


def _until_everybody(
    sender: Sender, image: Image, stamp: int, words: npt.NDArray[np.int64], flags: int, cell: Cell
) -> None:
    """Says the same until all receivers have heard it."""
    until = time.monotonic() + PATIENCE
    while not all(words[flags : flags + cell.receivers]) and not words[Word.STOP] and time.monotonic() < until:
        image[0] = stamp
        sender.publish(image)
        time.sleep(0.002)


def _send_paced(sender: Sender, image: Image, cell: Cell, words: npt.NDArray[np.int64]) -> None:
    now, interval = time.perf_counter_ns, cell.interval_us * 1_000
    publish, numbers = sender.publish, memoryview(image)  # an item of which costs less than one of an array
    due = now() + interval
    for _ in range(cell.count):
        while (moment := now()) < due:
            pass
        due = moment + interval  # who was held up sends no burst: how quickly that is read is another question
        if cell.way == "copy":
            numbers[0] = now()
            publish(image)
        else:
            sender.fill(now())
    words[Word.SENT] = cell.count


def _send_at_full_speed(sender: Sender, image: Image, cell: Cell, words: npt.NDArray[np.int64]) -> None:
    now = time.perf_counter_ns
    image[0] = FIRST_STAMP
    publish, fill = sender.publish, sender.fill
    start = now()
    until = start + int(cell.seconds * 1e9)
    sent = 0
    while now() < until:
        for _ in range(16):
            if cell.way == "copy":
                publish(image)
            else:
                fill(FIRST_STAMP)
        sent += 16
    words[Word.SENT] = sent
    words[Word.ELAPSED_NS] = now() - start


def _receive(receiver: Receiver, task: Task, words: npt.NDArray[np.int64]) -> None:
    cell, index = task.cell, task.index
    ages = np.lib.format.open_memmap(_ages(task.place, index), mode="w+", dtype=np.int64, shape=(max(1, cell.count),))
    ages.fill(0)  # its pages are there before they are written to
    noted = memoryview(ages)
    now, measured = time.perf_counter_ns, cell.kind == "latency"
    touch = _touch(cell)
    first = np.ndarray.item
    seen = 0

    def see(image: Image) -> None:
        nonlocal seen
        came = now()
        stamp = first(image, 0)
        if stamp >= FIRST_STAMP:
            if not measured:
                touch(image)
            elif seen < cell.count:
                noted[seen] = came - stamp
            seen += 1
        elif stamp == HELLO:
            words[SEEN + index] = 1
        elif not words[GONE + index]:
            words[COUNTED + index] = seen - receiver.torn
            words[GONE + index] = 1

    while not words[Word.STOP] and not words[GONE + index]:
        receiver.poll_again(see, LOOKS)


def _touch(cell: Cell) -> Any:
    if cell.touch == "sum":
        return np.ndarray.sum
    if cell.touch == "page" and cell.nbytes > PAGE:
        return lambda image: image[:: PAGE // 8].sum()
    return lambda image: image.item(0)


def _result(place: Place, cell: Cell, words: npt.NDArray[np.int64]) -> dict[str, Any]:
    delivered = [int(count) for count in words[COUNTED : COUNTED + cell.receivers]]
    sent = int(words[Word.SENT])
    if cell.kind == "latency":
        ages = [np.load(_ages(place, index))[: min(count, cell.count)] for index, count in enumerate(delivered)]
        return {"ages": ages, "sent": sent, "delivered": delivered}
    seconds = words[Word.ELAPSED_NS] / 1e9
    if not seconds:
        raise Failed("it never began")
    return {"published": sent / seconds, "delivered": [count / seconds for count in delivered]}


@contextlib.contextmanager
def _process(task: Task) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "framepool.bench", json.dumps(msgspec.to_builtins(task))]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        process.said = said  # type: ignore[attr-defined]
        try:
            yield process
        finally:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(
    done: Any,
    processes: list[subprocess.Popen[bytes]],
    what: str,
    patience: float = PATIENCE,
    *,
    pause: float = 0.002,
) -> None:
    until = time.monotonic() + patience
    while not done():
        for process in processes:
            if process.poll():
                said = process.said  # type: ignore[attr-defined]
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                raise Failed(lines[-1] if lines else f"exit code {process.returncode}")
        if time.monotonic() > until:
            raise Failed(f"waited {patience:.0f} s for {what}")
        time.sleep(pause)


def _words(place: Place) -> npt.NDArray[np.int64]:
    path = f"{place.directory}/words"
    if not os.path.exists(path):
        np.zeros(WORDS, np.int64).tofile(path)
    return np.memmap(path, np.int64, "r+", shape=(WORDS,))


def _ages(place: Place, index: int) -> str:
    return f"{place.directory}/ages-{index}.npy"


def _shared() -> str:
    """Shared memory if there is enough of it, else wherever temporary files go."""
    enough = 2**30
    return "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > enough else ""
