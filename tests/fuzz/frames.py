"""Descriptors and slots on the consumer's whole way in C: off Aeron, checked and taken, against the readable model.

A media driver runs in this process, so that the messages come as they always do.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator
from functools import cache

import numpy as np

from framepool._native.frames import FrameReader
from framepool._native.seqlock import RingReader
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.fuzz.draw import Draw, pieced
from tests.fuzz.places import scratch
from tests.support.frame_model import EPOCH, LAYOUTS, NSLOTS, STREAM, Line, Model, plain
from tests.support.slots import ModelSlots

MOST_STEPS = 48


@cache
def line() -> Line:
    opened = contextlib.ExitStack()
    atexit.register(opened.close)
    aeron = AeronSettings(directory=str(scratch() / "aeron"), ipc_term_length=64 * KIB)
    opened.enter_context(MediaDriver(aeron))
    return Line(opened.enter_context(Client.connect(aeron, name="fuzz")))


def one(data: bytes) -> None:
    draw, way = Draw(data), line()
    slots = ModelSlots(NSLOTS, (64, 128))
    ring = RingReader(slots.header, NSLOTS, slots.pools)
    max_gap = (None, 0, 1, 3)[draw.number() % 4]
    model = Model(slots, STREAM, EPOCH, max_gap)
    way.settle()
    way.drain.take(4096)
    reader = FrameReader(way.drain, ring, STREAM, EPOCH, max_gap=max_gap, ledger=True)
    seq = 0

    def say(message: bytes) -> None:
        way.send(message)
        model.queue.append(message)

    def take(limit: int) -> None:
        way.settle()
        assert [plain(taken) for taken in reader.take(limit)] == model.take(limit)

    for _ in range(MOST_STEPS):
        if not draw:
            break
        match draw.number() % 8:
            case 0:
                seq += draw.number() % 5
                slots.publish(seq, draw.chosen(LAYOUTS), timestamp_ns=seq + 7)
                say(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode())
                seq += 1
            case 1:  # other bytes somewhere in a slot
                index, at = draw.number() % NSLOTS, draw.number()
                change = draw.bytes(1 + draw.number() % 8)[: 256 - at]
                slots.slot(index)[at : at + len(change)] = np.frombuffer(change, np.uint8)
            case 2:
                say(draw.piece()[:512])
            case 3:
                say(
                    FrameDescriptor(
                        stream_id=STREAM + draw.number() // 200,
                        epoch=EPOCH + draw.number() // 200,
                        seq=draw.number(8),
                        timestamp_ns=draw.number(7),
                        meta_version=draw.number(3),
                        trace_id=draw.number(7) + 1,
                    ).encode()
                )
            case 4:
                take(1 + draw.number() % 16)
            case 5:
                way.settle()
                newest = reader.latest()
                assert ([] if newest is None else [plain(newest)]) == model.latest()
            case 6:
                mapped, epoch = bool(draw.number() & 1), EPOCH + draw.number() % 2
                reader.remap(ring if mapped else None, epoch)
                model.remap(mapped, epoch)
            case 7:
                seq += 1
                slots.claim(seq, 4)
                slots.abandon(seq)
                say(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode())
                seq += 1
    take(256)
    reader.remap(ring, EPOCH)
    model.remap(True, EPOCH)
    take(256)
    assert reader.invalid() == model.invalid
    counted = reader.statistics()
    assert counted == {name: model.counts[name] for name in counted if name != "invalid"} | {
        "invalid": model.invalid.total()
    }
    assert reader.drops() == model.drops


def seeds() -> Iterator[bytes]:
    told = FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=1).encode()
    for gap in range(4):
        yield bytes([gap, 0, 0, 0, 0, 0, 1, 0, 3, 2, 4, 2, 5, 7, 0, 0, 0, 6, 1, 1, 5])
        yield bytes([gap, 0, 0, 0, 1, 0, 16, 1, 9, 4, 9, 2]) + pieced(told) + bytes([4, 9])
        yield bytes([gap, 3, 0, 0]) + (2**63).to_bytes(8, "little") + bytes(17) + bytes([2]) + pieced(told[:30])
        yield bytes([gap, 0, 0, 0, 3, 0, 0]) + bytes(8 + 17) + bytes([6, 0, 0, 0, 0, 0, 4, 3])
