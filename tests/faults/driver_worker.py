"""A producer or a consumer of one stream in a process of its own, which keeps a journal and carries on by itself.

Lines: `attached LEASE EPOCH`; `lost` when the end of the lease was noticed; `refused CODE: REASON` when an attach
was; `flowing N` after every 20 frames; `stopping` right before it stops itself; `end JSON` with its statistics.
Standard input: `end` detaches and exits, `half` kills it in the middle of a frame, `stop` stops it there.

Usage: driver_worker.py CONFIG STREAM JOURNAL NAME produce|consume
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framepool.client.attach import AttachSettings, Grant
from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.plane import ControlPlane
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.clock import MonotonicClock
from framepool.config import Config, load
from framepool.errors import FrameOverwritten, NotAttached
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import MappedStream
from framepool.testing.journal import Journal, Seal
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter, Publication
from framepool.wire._generated.control_900 import FrameDescriptor
from framepool.wire._generated.driver_901 import Role

WORDS = 500
REPORT_EVERY = 20
PERIOD = 0.002
MISSES = ("gap", "late", "invalid")


class Worker:
    """What both roles share: the seat, its journal, and orders from the test."""

    def __init__(self, config: Config, stream_id: int, journal: Journal, role: Role) -> None:
        self.journal = journal
        self.stream_id = stream_id
        self.client = Client.connect(config.aeron, name=role.name)
        self.plane = ControlPlane(self.client, MonotonicClock(), config.stream_ids, config.channels)
        self.seat = self.plane.add(
            Seat(
                self.plane,
                stream_id,
                role,
                allowed=AllowedDirectories([config.driver.shm_base_dir]),
                create=role is Role.PRODUCER,
                settings=AttachSettings.configured(config.driver),
            )
        )
        self.orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.frames = 0
        self._grant: Grant | None = None
        self._refusal = ""
        self._mapped: MappedStream | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.orders.put(line.strip())

    def turn(self) -> None:
        """One duty cycle of the control plane, and what it changed into the journal."""
        self.plane.do_work()
        grant, stream = self.seat.attachment.grant, self.seat.mapping.stream
        if grant is not self._grant:
            if self._grant is not None:
                self.journal.lost(self._grant.lease_id, self.stream_id)
                print("lost", flush=True)
            if grant is not None:
                epoch = grant.layout.epoch
                client_id, role = self.seat.attachment.client_id, self.seat.role
                self.journal.attached(grant.lease_id, client_id, role, self.stream_id, epoch)
                print(f"attached {grant.lease_id} {epoch}", flush=True)
            self._grant = grant
        if (refusal := self.seat.attachment.last_refusal) != self._refusal:
            self._refusal = refusal
            if refusal:
                print(f"refused {refusal}", flush=True)
        if stream is not self._mapped:
            self._mapped = stream
            if stream is not None:
                self.journal.mapped(self.stream_id, stream.layout.epoch)

    def order(self) -> str:
        try:
            return self.orders.get_nowait()
        except queue.Empty:
            return ""

    def count(self) -> None:
        self.frames += 1
        if self.frames % REPORT_EVERY == 0:
            print(f"flowing {self.frames}", flush=True)

    def finish(self, statistics: dict[str, int]) -> None:
        said = {**self.seat.statistics(), "plane": self.plane.statistics(), "frames": statistics}
        self.plane.on_close()
        if self._grant is not None:
            self.journal.lost(self._grant.lease_id, self.stream_id)
        self.client.close()
        print("end", json.dumps(said), flush=True)


def frame(epoch: int, seq: int) -> npt.NDArray[np.uint64]:
    """A payload that says which frame it is and seals itself with a crc."""
    words = np.full(WORDS, (epoch << 32) ^ seq, dtype=np.uint64)
    words[0], words[1] = epoch, seq
    words[-1] = crc_of(words)
    return words


def crc_of(words: npt.NDArray[np.generic]) -> int:
    return zlib.crc32(words[:-1].tobytes())


def produce(config: Config, stream_id: int, journal: Journal) -> None:
    worker = Worker(config, stream_id, journal, Role.PRODUCER)
    there = channel.descriptor_publication(settings=config.aeron)
    descriptors = worker.client.add_publication(there, config.stream_ids.descriptor)
    producer = Producer(worker.seat, descriptors, worker.plane.clock)
    epoch = seq = 0
    order = ""
    while order != "end":
        worker.turn()
        order = order or worker.order()
        stream = worker.seat.stream
        if stream is not None:
            if stream.layout.epoch != epoch:
                epoch, seq = stream.layout.epoch, 0
            words = frame(epoch, seq)
            journal.published(stream_id, epoch, seq, int(words[-1]))
            if order == "half":
                die_in_the_middle(producer, descriptors, words)
            done = stop_in_the_middle(producer, words) if order == "stop" else producer.publish(words)
            if done is None:
                journal.withdrawn(stream_id, epoch, seq)
            else:
                worker.count()
            seq += 1
            order = "" if order == "stop" else order
        time.sleep(PERIOD)
    producer.close()
    worker.finish(producer.statistics())


def die_in_the_middle(producer: Producer, descriptors: Publication, words: npt.NDArray[np.uint64]) -> None:
    """Claims a slot, fills half of it, tells of it all the same, and is killed."""
    slot = producer.claim(WORDS, np.uint64)
    slot.array[: WORDS // 2] = words[: WORDS // 2]
    descriptors.offer(FrameDescriptor(stream_id=producer.stream_id, epoch=slot.epoch, seq=slot.seq).encode())
    print(f"dying {slot.seq}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def stop_in_the_middle(producer: Producer, words: npt.NDArray[np.uint64]) -> int | None:
    """Claims a slot, fills it, and is stopped; woken, it commits what it has if it may."""
    slot = producer.claim(WORDS, np.uint64)
    slot.array[...] = words
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        slot.commit()
    except NotAttached:
        print("woke without a lease", flush=True)
        return None
    print("woke and committed", flush=True)
    return slot.seq


def consume(config: Config, stream_id: int, journal: Journal) -> None:
    worker = Worker(config, stream_id, journal, Role.CONSUMER)
    only = Filter(
        schema_id=FrameDescriptor.SCHEMA_ID,
        template_id=FrameDescriptor.TEMPLATE_ID,
        offset=8,
        pattern=stream_id.to_bytes(4, "little"),
    )
    subscription = worker.client.add_subscription(
        channel.descriptor_subscription(), config.stream_ids.descriptor, only=only
    )
    consumer = Consumer(worker.seat, subscription.drain(capacity=4096, max_message=64))
    while worker.order() != "end":
        worker.turn()
        if not consumer.wait(0.005):
            continue
        before = misses(consumer)
        frames = [(frame, words) for frame in consumer.poll(1) if (words := whole(frame)) is not None]
        if (missed := misses(consumer) - before) and (stream := worker.seat.stream) is not None:
            journal.missed(stream_id, stream.layout.epoch, missed)
        for frame, words in frames:
            note(journal, stream_id, frame, words)
            worker.count()
    consumer.close()
    worker.finish(consumer.statistics())


def misses(consumer: Consumer) -> int:
    return sum(count for name, count in consumer.counts.items() if name.startswith(MISSES))


def whole(frame: Frame) -> npt.NDArray[Any] | None:
    try:
        return frame.copy()
    except FrameOverwritten:
        return None


def note(journal: Journal, stream_id: int, received: Frame, words: npt.NDArray[Any]) -> None:
    sealed = Seal(int(words[0]), int(words[1]), int(words[-1]))
    journal.received(stream_id, received.epoch, received.seq, crc_of(words), sealed)


def main(config: str, stream: str, journal: str, name: str, role: str) -> None:
    run = produce if role == "produce" else consume
    with Journal(Path(journal), name) as opened:
        run(load(config), int(stream), opened)


if __name__ == "__main__":
    main(*sys.argv[1:])
