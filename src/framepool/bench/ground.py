"""The machine's own limits, without Python: `python -m framepool.bench.ground`.

`spin DIR` is a word that one process writes and another sees, `aeron DIR NBYTES` a message over Aeron IPC, written and
read in place; `memcpy DIR NBYTES PLACES INTERVAL_NS` is a copy into one place of shared memory after the other, at that
pace, while another process looks for what comes, in Python, as a reader would: on many machines that makes the copy
slower.
"""

from __future__ import annotations

import multiprocessing
import sys

import numpy as np
import numpy.typing as npt

from framepool._native import limits
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings

COUNT, INTERVAL_NS, TIMEOUT_NS = 10_000, 50_000, 20_000_000_000
CHANNEL, STREAM = "aeron:ipc?term-length=1m|mtu=16k", 10


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


def aeron(directory: str, nbytes: int) -> npt.NDArray[np.int64]:
    """A message over Aeron IPC, in one piece."""
    settings = AeronSettings(directory=f"{directory}/aeron")
    with MediaDriver(settings), Client.connect(settings) as client:
        subscription = client.add_subscription(CHANNEL, STREAM)
        drain = subscription.drain(max_message=nbytes)
        other = multiprocessing.get_context("spawn").Process(target=_aeron_other, args=(settings, nbytes))
        other.start()
        out = np.zeros(COUNT, np.int64)
        seen = limits.aeron_receive(drain, out, TIMEOUT_NS)
        other.join()
        return out[:seen]


def _aeron_other(settings: AeronSettings, nbytes: int) -> None:
    with Client.connect(settings) as client:
        publication = client.add_exclusive_publication(CHANNEL, STREAM)
        while not publication.is_connected:
            pass
        limits.aeron_send(publication, nbytes, COUNT, INTERVAL_NS)


def memcpy(directory: str, nbytes: int, places: int, interval_ns: int) -> npt.NDArray[np.int64]:
    """Copies in another process, while this one looks."""
    path = f"{directory}/word"
    np.zeros(1, np.int64).tofile(path)
    word = np.memmap(path, np.int64, "r", shape=(1,))
    out = np.lib.format.open_memmap(f"{directory}/out", "w+", np.int64, (_count(nbytes, places, interval_ns),))
    other = multiprocessing.get_context("spawn").Process(
        target=_memcpy_other, args=(directory, nbytes, places, interval_ns)
    )
    other.start()
    while not word.item(0) and other.exitcode is None:
        for _ in range(1_000):
            word.item(0)
    other.join()
    return np.array(out)


def _memcpy_other(directory: str, nbytes: int, places: int, interval_ns: int) -> None:
    target = np.memmap(f"{directory}/places", np.uint8, "w+", shape=(places * nbytes,))
    out = np.load(f"{directory}/out", mmap_mode="r+")
    target[:] = 1  # so that every page is there
    limits.copies(target, np.ones(nbytes, np.uint8), out, interval_ns)
    np.memmap(f"{directory}/word", np.int64, "r+", shape=(1,))[0] = 1


def _count(nbytes: int, places: int, interval_ns: int) -> int:
    """Half a second of them, or a GiB; not more than of anything else."""
    wanted = 500_000_000 // interval_ns if interval_ns else 2**30 // nbytes
    return max(places, min(COUNT, wanted))


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    ages = {"spin": spin, "aeron": aeron, "memcpy": memcpy}[what](where, *map(int, numbers))  # type: ignore[operator]
    print(np.median(ages[len(ages) // 10 :]) / 1e3)
