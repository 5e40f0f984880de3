"""What a consumer's reader in C does, in plain steps, and an Aeron line to hold the two against each other on."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from framepool._native.frames import Taken
from framepool.errors import DecodeError
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, Drain, Publication
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.support.slots import ModelSlots

CHANNEL = "aeron:ipc?term-length=64k"
STREAM, EPOCH = 10_000, 5
NSLOTS = 8
LAYOUTS = [TensorLayout.build(np.uint8, (4,)), TensorLayout.build(np.float32, (5, 5)), TensorLayout.build("i2", (0,))]


class Model:
    """What FrameReader does, one plain step after the other."""

    def __init__(self, slots: ModelSlots, stream_id: int, epoch: int, max_gap: int | None) -> None:
        self.slots = slots
        self.stream_id = stream_id
        self.epoch = epoch
        self.mapped = True
        self.max_gap = max_gap
        self.last_seq: int | None = None
        self.regressed: int | None = None
        self.queue: list[bytes] = []
        self.counts: Counter[str] = Counter()
        self.invalid: Counter[DropReason] = Counter()
        self.drops: list[tuple[int, int, DropReason | None]] = []

    def remap(self, mapped: bool, epoch: int) -> None:
        self.mapped = mapped
        self.epoch = epoch
        self.last_seq = self.regressed = None

    def take(self, limit: int) -> list[tuple[Any, ...]]:
        frames: list[tuple[Any, ...]] = []
        while len(frames) < limit and (step := self.advance()) is not None:
            descriptor, missing = step
            if self.max_gap is not None and missing > self.max_gap:
                self.counts["resyncs"] += 1
                descriptor = self.newest(descriptor)
            frames += self.accept(descriptor)
        return frames

    def latest(self) -> list[tuple[Any, ...]]:
        step = self.advance()
        return [] if step is None else self.accept(self.newest(step[0]))

    def newest(self, descriptor: FrameDescriptor) -> FrameDescriptor:
        while (step := self.advance()) is not None:
            self.counts["skipped"] += 1
            descriptor = step[0]
        return descriptor

    def advance(self) -> tuple[FrameDescriptor, int] | None:
        while self.queue and self.regressed is None:
            descriptor = self.ours(self.queue.pop(0))
            if descriptor is None:
                continue
            missing = 0
            if self.last_seq is not None:
                if descriptor.seq <= self.last_seq:
                    self.counts["regressions"] += 1
                    self.regressed = descriptor.seq
                    return None
                missing = descriptor.seq - self.last_seq - 1
                self.counts["gap"] += missing
            self.last_seq = descriptor.seq
            return descriptor, missing
        return None

    def ours(self, message: bytes) -> FrameDescriptor | None:
        try:
            descriptor = FrameDescriptor.decode(message)
        except DecodeError:
            self.counts["unsupported"] += 1
            return None
        if descriptor.stream_id != self.stream_id:
            self.counts["other_stream"] += 1
        elif not self.mapped:
            self.counts["unmapped"] += 1
            self.note(descriptor, None)
        elif descriptor.epoch != self.epoch:
            self.counts["other_epoch"] += 1
            self.note(descriptor, None)
        elif descriptor.seq >= 2**63:
            self.counts["unsupported"] += 1
        else:
            return descriptor
        return None

    def accept(self, descriptor: FrameDescriptor) -> list[tuple[Any, ...]]:
        checked = self.slots.check(descriptor.seq)
        if isinstance(checked, DropReason):
            self.note(descriptor, checked)
            if checked.late:
                self.counts["late"] += 1
            else:
                self.invalid[checked] += 1
            return []
        self.counts["received"] += 1
        said = (descriptor.timestamp_ns, descriptor.meta_version, descriptor.trace_id)
        return [(descriptor.seq, said, checked.timestamp_ns, checked.pool_id, checked.layout.shape)]

    def note(self, descriptor: FrameDescriptor, rule: DropReason | None) -> None:
        if descriptor.seq < 2**63:
            self.drops.append((descriptor.epoch, descriptor.seq, rule))


def plain(taken: Taken) -> tuple[Any, ...]:
    assert taken.seq == taken.checked.seq
    said = (taken.publish_timestamp_ns, taken.told_meta_version, taken.trace_id)
    return (taken.seq, said, taken.checked.timestamp_ns, taken.checked.pool_id, taken.checked.layout.shape)


class Line:
    """An Aeron publication with a drain at its other end, for as many examples as come."""

    def __init__(self, client: Client) -> None:
        self.subscription = client.add_subscription(CHANNEL, 20)
        self.publication: Publication = client.add_publication(CHANNEL, 20)
        while not self.publication.is_connected:
            time.sleep(0.001)
        self.sent = 0
        self.drain: Drain = self.subscription.drain(capacity=4096, max_message=128, idle_ns=1000)

    def send(self, message: bytes) -> None:
        while self.publication.offer(message) < 0:
            time.sleep(0.0001)
        self.sent += 1

    def settle(self) -> None:
        deadline = time.monotonic() + 10
        while self.drain.statistics()["received"] < self.sent:
            assert time.monotonic() < deadline
