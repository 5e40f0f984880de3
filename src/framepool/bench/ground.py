"""The machine's own one-way latency, from one process to another without Python: `python -m framepool.bench.ground`."""

from __future__ import annotations

import multiprocessing
import sys

import numpy as np
import numpy.typing as npt

from framepool._native import limits
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings

COUNT, INTERVAL_NS, TIMEOUT_NS = 2_000, 50_000, 5_000_000_000
CHANNEL, STREAM = "aeron:ipc?term-length=1m", 10


def spin(directory: str) -> npt.NDArray[np.int64]:
    """A word in shared memory that one writes and the other spins on."""
    path = f"{directory}/word"
    np.zeros(1, np.int64).tofile(path)
    word = np.memmap(path, np.int64, "r+", shape=(1,))
    other = multiprocessing.get_context("spawn").Process(target=_spin_other, args=(path,))
    other.start()
    while word[0] != 1:  # it is there
        pass
    out = np.zeros(COUNT, np.int64)
    word[0] = 2
    seen = limits.spin_receive(word, out, TIMEOUT_NS)
    other.join()
    return out[:seen]


def _spin_other(path: str) -> None:
    word = np.memmap(path, np.int64, "r+", shape=(1,))
    word[0] = 1
    while word[0] != 2:
        pass
    limits.spin_send(word, COUNT, INTERVAL_NS)


def aeron(directory: str) -> npt.NDArray[np.int64]:
    """A message of 40 bytes over Aeron IPC."""
    settings = AeronSettings(directory=f"{directory}/aeron")
    with MediaDriver(settings), Client.connect(settings) as client:
        subscription = client.add_subscription(CHANNEL, STREAM)
        drain = subscription.drain(max_message=64)
        other = multiprocessing.get_context("spawn").Process(target=_aeron_other, args=(settings,))
        other.start()
        out = np.zeros(COUNT, np.int64)
        seen = limits.aeron_receive(drain, out, TIMEOUT_NS)
        other.join()
        return out[:seen]


def _aeron_other(settings: AeronSettings) -> None:
    with Client.connect(settings) as client:
        publication = client.add_publication(CHANNEL, STREAM)
        while not publication.is_connected:
            pass
        limits.aeron_send(publication, COUNT, INTERVAL_NS)


if __name__ == "__main__":
    ages = {"spin": spin, "aeron": aeron}[sys.argv[1]](sys.argv[2])
    print(np.median(ages[len(ages) // 10 :]) / 1e3)
