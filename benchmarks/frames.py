"""What a frame costs on either side: a small one against an empty Python call, a large one against a memcpy of it.

All of it in one run and one thread, in rounds in which everything is measured in turn. The same work in separate
steps from Python stands beside it, to show what the one call in C is worth.
"""

from __future__ import annotations

import mmap
import statistics
import tempfile
import time
from itertools import repeat

import numpy as np

from benchmarks.aeron import BASELINE, Empty, call, clocked
from benchmarks.row import Row
from framepool._native.frames import FrameReader, FrameWriter
from framepool._native.seqlock import Layout, RingReader, RingWriter
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, Drain, Publication
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import MIB, AeronSettings
from framepool.wire._generated.control_900 import FrameDescriptor

CHANNEL = "aeron:ipc?term-length=16m"
STREAM, EPOCH = 10_000, 1
SMALL, LARGE = 64, 2 * MIB
BATCH = 1024
LARGE_BATCH = 16
ROUNDS = 200
MEMCPY = "memcpy of 2 MiB"


class Bench:
    """A ring of frames of one size, a writer and a reader, joined by Aeron."""

    def __init__(self, publication: Publication, drain: Drain, nbytes: int, nslots: int) -> None:
        pool = Pool(1, nbytes, nslots, mmap.mmap(-1, 64 + nbytes * nslots))
        header = mmap.mmap(-1, 64 + 256 * nslots)
        self.drain = drain
        self.publication = publication
        self.ring = RingReader(header, nslots, [pool])
        self.slots = RingWriter(header, nslots, [pool])
        self.reader = FrameReader(drain, self.ring, STREAM, EPOCH)
        self.writer = FrameWriter(publication, self.slots, STREAM, EPOCH)
        self.image = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
        self.layout = Layout(TensorLayout.of(self.image).header)
        self.seq = 0

    def publish(self, count: int) -> None:
        publish, image, layout, seq = self.writer.publish, self.image, self.layout, self.seq
        for _ in repeat(None, count):
            publish(seq, image, layout, 1)
            seq += 1
        self.seq = seq

    def publish_in_steps(self, count: int) -> None:
        slots, image, layout, offer = self.slots, self.image, self.layout, self.publication.offer
        for seq in range(self.seq, self.seq + count):
            slots.claim(seq, layout.extent)
            slots.array(seq, layout)[...] = image
            slots.commit(seq, layout, 1)
            offer(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode())
        self.seq += count

    def take(self, count: int) -> None:
        assert len(self.reader.take(count)) == count

    def take_and_view(self, count: int) -> None:
        array = self.ring.array
        for taken in self.reader.take(count):
            array(taken.checked)

    def take_in_steps(self, count: int) -> None:
        check = self.ring.check
        for message in self.drain.take(count):
            check(FrameDescriptor.decode(message).seq)

    def settle(self, count: int) -> None:
        """Until the drain's thread has all of them: what is measured here is not its pace."""
        while self.drain.waiting < count:
            time.sleep(0.0002)


class Copy:
    """A memcpy of the same bytes into memory of the same kind, slot after slot like a ring."""

    def __init__(self, source: np.ndarray, nslots: int) -> None:
        self.source = memoryview(source)
        self.size = len(self.source)
        self.target = memoryview(mmap.mmap(-1, self.size * nslots))
        self.nslots = nslots

    def copy(self, count: int) -> None:
        for index in range(count):
            start = index % self.nslots * self.size
            self.target[start : start + self.size] = self.source


def measure(client: Client) -> dict[str, float]:
    """Nanoseconds per frame, medians over the rounds."""
    subscription = client.add_subscription(CHANNEL, 1100)
    publication = client.add_publication(CHANNEL, 1100)
    while not publication.is_connected:
        time.sleep(0.001)
    drain = subscription.drain(capacity=2 * BATCH, max_message=64)
    empty = Empty()
    small = Bench(publication, drain, SMALL, 2 * BATCH)
    large = Bench(publication, drain, LARGE, LARGE_BATCH)
    plain = Copy(large.image, LARGE_BATCH)
    times: dict[str, list[float]] = {}

    def note(name: str, nanoseconds: int, count: int) -> None:
        times.setdefault(name, []).append(nanoseconds / count)

    for _ in range(ROUNDS):
        note(BASELINE, clocked(call, empty.method), BATCH)
        note("publish 64 bytes", clocked(small.publish, BATCH), BATCH)
        small.settle(BATCH)
        note("take and check", clocked(small.take, BATCH), BATCH)
        note("publish 64 bytes, in steps from Python", clocked(small.publish_in_steps, BATCH), BATCH)
        small.settle(BATCH)
        note("take and check, in steps from Python", clocked(small.take_in_steps, BATCH), BATCH)
        small.reader.remap(small.ring, EPOCH)
        small.publish(BATCH)
        small.settle(BATCH)
        note("take, check and view in place", clocked(small.take_and_view, BATCH), BATCH)
        note(MEMCPY, clocked(plain.copy, LARGE_BATCH), LARGE_BATCH)
        note("publish 2 MiB with a copy", clocked(large.publish, LARGE_BATCH), LARGE_BATCH)
        large.settle(LARGE_BATCH)
        note("read 2 MiB in place", clocked(large.take_and_view, LARGE_BATCH), LARGE_BATCH)
    return {name: statistics.median(values) for name, values in times.items()}


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as root:
        settings = AeronSettings(directory=f"{root}/aeron", ipc_term_length=16 * MIB)
        with MediaDriver(settings), Client.connect(settings, name="bench") as client:
            times = measure(client)
    baselines = {name: times.pop(name) for name in (BASELINE, MEMCPY)}
    rows = []
    for name, value in times.items():
        against = MEMCPY if "2 MiB" in name else BASELINE
        rows.append(Row(f"frames: {name}", value, against, baselines[against]))
    return rows
