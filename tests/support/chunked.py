"""Frames and their chunks for tests, and one face for the two assemblers: the readable one and the compiled one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from framepool._native.bridge import CAUSES, Assembler
from framepool._native.seqlock import Layout, RingWriter
from framepool.bridge.assembler import PlainAssembler, Room, Whole
from framepool.bridge.chunks import Chunk, ChunkDrop, ChunkSizing, chunks_of
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, ExclusivePublication, Subscription
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire._generated.control_900 import SlotHeader
from framepool.wire.constants import MESSAGE_HEADER_BYTES
from tests.support.ports import free_port

STREAM, EPOCH = 10_000, 7
SIZING = ChunkSizing(mtu_bytes=512, chunk_bytes=64)
STRIDES: Mapping[int, int] = {1: 256, 2: 1024}
"""Pools of the source."""


@dataclass(frozen=True)
class SentFrame:
    """A frame as the source has it."""

    seq: int
    payload: bytes
    epoch: int = EPOCH
    stream_id: int = STREAM
    trace_id: int = 0
    timestamp_ns: int = 0
    meta_version: int = 0
    payload_slot: int = 0
    pool_id: int = 0
    """0: the smallest pool that holds it."""
    layout: TensorLayout | None = None

    @property
    def header(self) -> bytes:
        fitting = [pool_id for pool_id, stride in STRIDES.items() if stride >= len(self.payload)]
        layout = self.layout or TensorLayout.build(np.uint8, (len(self.payload),))
        return SlotHeader(
            seq_commit=self.seq << 1 | 1,
            values_len_bytes=len(self.payload),
            payload_slot=self.payload_slot,
            pool_id=self.pool_id or (fitting or [2])[0],
            payload_offset=0,
            timestamp_ns=self.timestamp_ns,
            meta_version=self.meta_version,
            header_bytes=layout.header,
        ).encode_body()

    def chunks(self, sizing: ChunkSizing = SIZING, *, crc32c: bool = False) -> list[Chunk]:
        return list(
            chunks_of(
                self.header,
                self.payload,
                stream_id=self.stream_id,
                epoch=self.epoch,
                seq=self.seq,
                sizing=sizing,
                trace_id=self.trace_id,
                crc32c=crc32c,
            )
        )


def noise(seq: int, length: int) -> bytes:
    """A payload that no other frame has."""
    return np.random.default_rng([seq % 2**32, length]).integers(0, 256, length, np.uint8).tobytes()


def put(message: bytes, name: str, value: int) -> bytes:
    """The message with another value in a field of its block."""
    found = next(each for each in BridgeFrameChunk.FIELDS if each.name == name)
    changed = bytearray(message)
    struct.pack_into(f"<{found.code}", changed, MESSAGE_HEADER_BYTES + found.offset, value)
    return bytes(changed)


class Link(NamedTuple):
    """Both ends of a payload channel."""

    publication: ExclusivePublication
    subscription: Subscription

    @classmethod
    def open(cls, client: Client, mtu: int = 1408, term: str = "64k") -> Link:
        """On loopback UDP, at a port that nobody uses."""
        port = free_port()
        channel = f"aeron:udp?endpoint=127.0.0.1:{port}|mtu={mtu}|term-length={term}"
        return cls(client.add_exclusive_publication(channel, 3000), client.add_subscription(channel, 3000))


class Arrived(NamedTuple):
    """A frame as it was handed on."""

    seq: int
    payload: bytes
    timestamp_ns: int
    meta_version: int
    trace_id: int
    tensor_header: bytes


class Slots:
    """The target of the compiled assembler: a ring in private memory, and what was published to it."""

    def __init__(self, nslots: int, strides: Mapping[int, int]) -> None:
        self.header = np.zeros(64 + 256 * nslots, np.uint8)
        self.pools = {
            pool_id: Pool(pool_id, stride, nslots, np.zeros(64 + stride * nslots, np.uint8))
            for pool_id, stride in strides.items()
        }
        self.nslots = nslots
        self.ring = RingWriter(self.header, nslots, list(self.pools.values()))
        self.open = True
        self.taking = True
        self.arrived: list[Arrived] = []

    def slot(self, seq: int) -> bytes:
        at = 64 + 256 * (seq % self.nslots)
        return self.header[at : at + 256].tobytes()

    def publish(self, seq: int, layout: Layout, timestamp_ns: int, meta_version: int, trace_id: int) -> bool:
        if not self.taking:
            return False
        self.ring.commit(seq, layout, timestamp_ns, meta_version)
        slot = self.slot(seq)
        words = SlotHeader.BLOCK.unpack_from(slot)
        assert words[0] == seq << 1 | 1
        payload = bytes(self.pools[words[3]].payload(words[2], words[1]))
        self.arrived.append(Arrived(seq, payload, words[5], words[6], trace_id, slot[64:]))
        return True


@dataclass
class Twins:
    """Both assemblers with equal rooms, fed the same; every step says that they agree."""

    sizing: ChunkSizing = SIZING
    nslots: int = 64
    local: Mapping[int, int] = field(default_factory=lambda: {5: 1024})
    timeout_ns: int = 1000
    freshness_ns: int = 3000
    max_frames: int = 16
    crc32c: bool = False

    def __post_init__(self) -> None:
        options = {
            "timeout_ns": self.timeout_ns,
            "freshness_ns": self.freshness_ns,
            "max_frames": self.max_frames,
            "crc32c": self.crc32c,
        }
        self.plain = PlainAssembler(STREAM, self.sizing, self._deliver, **options)
        self.core = Assembler(STREAM, self.sizing, **options)
        self.arrived: list[Arrived] = []
        self.earlier: list[Arrived] = []
        self.slots: Slots | None = None
        self.taking = True

    def _deliver(self, whole: Whole) -> bool:
        if self.taking:
            header = whole.header
            self.arrived.append(
                Arrived(
                    header.seq,
                    whole.payload,
                    header.timestamp_ns,
                    header.meta_version,
                    whole.trace_id,
                    whole.header_bytes[64:],
                )
            )
        return self.taking

    def ready(self, epoch: int = EPOCH, strides: Mapping[int, int] = STRIDES) -> Twins:
        """Announced and with a target."""
        self.announce(epoch, strides)
        self.retarget()
        return self

    def announce(self, epoch: int = EPOCH, strides: Mapping[int, int] = STRIDES, now_ns: int = 0) -> bool:
        began = self.plain.announce(epoch, strides, now_ns)
        assert self.core.announce(epoch, strides, now_ns) == began
        if began:
            self._put_by()
        self.agree()
        return began

    def retarget(self) -> None:
        """A new, empty local stream."""
        self._put_by()
        self.slots = Slots(self.nslots, self.local)
        self.slots.taking = self.taking
        self.plain.set_room(Room(self.nslots, max(self.local.values())))
        self.core.target = self.slots
        self.agree()

    def _put_by(self) -> None:
        if self.slots is not None:
            self.earlier += self.slots.arrived
        self.slots = None

    def take(self, taking: bool) -> None:
        self.taking = taking
        if self.slots is not None:
            self.slots.taking = taking

    def expire(self, now_ns: int) -> None:
        self.plain.expire(now_ns)
        self.core.expire(now_ns)
        self.agree()

    def feed(self, message: bytes, reserved: int = 0, now_ns: int = 0) -> ChunkDrop | None:
        cause = self.plain.feed(message, reserved, now_ns)
        core = self.core.feed(message, reserved, now_ns)
        assert (ChunkDrop(core) if core else None) == cause
        self.agree()
        return cause

    def send(self, *chunks: Chunk, now_ns: int = 0) -> list[ChunkDrop | None]:
        return [self.feed(*chunk, now_ns=now_ns) for chunk in chunks]

    def agree(self) -> None:
        statistics = self.core.statistics()
        assert statistics["in_flight"] == self.plain.in_flight
        assert statistics["published"] == self.plain.published
        assert statistics["duplicates"] == self.plain.duplicates
        counted = {cause: count for cause in ChunkDrop if (count := statistics[cause.name.lower()])}
        assert counted == dict(self.plain.counts)
        assert self.core.invalid() == dict(self.plain.reasons)
        assert self.core.epoch == self.plain.epoch
        assert self.earlier + (self.slots.arrived if self.slots else []) == self.arrived

    @property
    def seqs(self) -> list[int]:
        """Of the frames that arrived, in their order."""
        return [frame.seq for frame in self.arrived]

    def count(self, cause: ChunkDrop) -> int:
        return self.plain.counts[cause]


def numbers() -> dict[str, int]:
    """The causes as the compiled core was compiled with them."""
    return {name: number for number, name in enumerate(CAUSES) if name}
