"""Frames out of chunks: the readable twin of `_native.bridge.Assembler` (Bridge 5.2, 5.3a, 6, 8).

Both keep the same rules in the same order. This one knows of its target only how many slots it has and what fits, and
gathers payloads in private memory; the compiled one gathers them in the slots themselves. What is whole is handed to
`deliver`; descriptors, leases and Aeron are not for here.

A frame is on its way from its first chunk until it is whole, or is given up. Frames are delivered in rising sequence:
one that is whole overtakes all older ones (`decisions.md` #52). Everything is bounded: the frames on their way by
`max_frames`, the memory for each by what fits the target, and what is remembered of those given up by `GIVEN_UP_KEPT`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Buffer, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from framepool._native.crc32c import crc32c as checksum
from framepool.bridge.chunks import CHECKSUM_THERE, ChunkDrop, ChunkSizing, decode_chunk
from framepool.shm.drop import DropReason
from framepool.shm.ring import MAX_SEQUENCE, sequence
from framepool.shm.slot import CheckedSlot, check_header
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire._generated.control_900 import SlotHeader
from framepool.wire.constants import HEADER_SLOT_BYTES

GIVEN_UP_KEPT: Final = 256
"""How many frames are remembered that were given up, so that what comes late of them does not begin them anew."""
PAYLOAD_SLOT_AT: Final = next(field.offset for field in SlotHeader.FIELDS if field.name == "payloadSlot")


class SourcePool(NamedTuple):
    """What the check of a header needs to know of a pool of the source."""

    stride_bytes: int


class Room(NamedTuple):
    """What the assembler needs to know of the ring that frames go to."""

    nslots: int
    largest_stride: int


class Whole(NamedTuple):
    """A frame that arrived in full."""

    header: CheckedSlot
    """Of the source, but for `payload_slot`, which is of no use here."""
    header_bytes: bytes
    payload: bytes
    trace_id: int


@dataclass(slots=True)
class Assembly:
    """A frame on its way."""

    seq: int
    chunk_count: int
    payload: bytearray
    since_ns: int
    slices: dict[int, tuple[int, int]] = field(default_factory=dict)
    header_bytes: bytes = b""
    header: CheckedSlot | None = None
    trace_id: int = 0
    checksum: int = 0

    @property
    def arrived(self) -> int:
        """Payload bytes, whether or not they overlap."""
        return sum(length for _, length in self.slices.values())

    def tiled(self) -> bool:
        """Whether the slices follow each other without gap or overlap."""
        end = 0
        for offset, length in sorted(self.slices.values()):
            if offset != end:
                return False
            end += length
        return end == len(self.payload)


class PlainAssembler:
    """The frames of one source stream. `counts` has what became of chunks and frames, by `ChunkDrop`."""

    def __init__(
        self,
        stream_id: int,
        sizing: ChunkSizing,
        deliver: Callable[[Whole], bool],
        *,
        timeout_ns: int = 250_000_000,
        freshness_ns: int = 3_000_000_000,
        max_frames: int = 16,
        crc32c: bool = False,
    ) -> None:
        self.stream_id = stream_id
        self.counts: Counter[ChunkDrop] = Counter()
        self.reasons: Counter[DropReason] = Counter()
        self.published = 0
        self.duplicates = 0
        self.epoch: int | None = None
        self._sizing = sizing
        self._deliver = deliver
        self._timeout_ns = timeout_ns
        self._freshness_ns = freshness_ns
        self._heard_ns = 0
        self._max_frames = max_frames
        self._crc32c = crc32c
        self._highest: int | None = None
        self._pools: dict[int, SourcePool] = {}
        self._room: Room | None = None
        self._floor = 0
        self._flight: dict[int, Assembly] = {}
        self._given_up: deque[int] = deque(maxlen=GIVEN_UP_KEPT)
        self._claimed: dict[int, int] = {}

    @property
    def in_flight(self) -> int:
        return len(self._flight)

    def set_room(self, room: Room | None) -> None:
        """Another local stream, or none; the frames on their way are given up."""
        self._give_up_all(ChunkDrop.TARGET_CHANGE)
        self._room = room
        self._claimed = {}

    def announce(self, epoch: int, strides: Mapping[int, int], now_ns: int = 0) -> bool:
        """What the latest forwarded announce says; True if that begins a new source epoch, which needs a new room.

        A lower epoch than the highest is believed once that was silent for the freshness window (`decisions.md` #20).
        """
        fresh = now_ns - self._heard_ns <= self._freshness_ns
        if self._highest is not None and epoch < self._highest and fresh:
            return False
        self._heard_ns = now_ns
        self._pools = {pool_id: SourcePool(stride) for pool_id, stride in strides.items()}
        if epoch == self.epoch == self._highest:
            return False
        self._give_up_all(ChunkDrop.EPOCH_CHANGE)
        self.epoch = self._highest = epoch
        self._floor = 0
        self._given_up.clear()
        self._room = None
        return True

    def dropped(self, seq: int) -> bool:
        """Whether nothing more comes of this frame: it was dropped, or published already."""
        return seq < self._floor or seq in self._given_up

    def expire(self, now_ns: int) -> None:
        """Gives up what took longer than the timeout (Bridge 5.3a)."""
        for assembly in list(self._flight.values()):
            if now_ns - assembly.since_ns > self._timeout_ns:
                self._give_up(assembly.seq, ChunkDrop.TIMEOUT)

    def feed(self, message: Buffer, reserved: int = 0, now_ns: int = 0) -> ChunkDrop | None:
        """Takes one message; the cause if it was of no use. An identical duplicate is none."""
        chunk = decode_chunk(message)
        if isinstance(chunk, ChunkDrop):
            return self._count(chunk)
        if chunk.stream_id == self.stream_id and chunk.epoch >= (self._highest or 0):
            self._heard_ns = now_ns
        cause = self._judge(chunk)
        if cause is not None:
            return self._count(cause)
        if chunk.seq in self._given_up:
            return self._count(ChunkDrop.GIVEN_UP)
        cause = self._place(chunk, reserved, now_ns)
        return None if cause is None else self._give_up(chunk.seq, cause)

    def _count(self, cause: ChunkDrop) -> ChunkDrop:
        self.counts[cause] += 1
        return cause

    def _judge(self, chunk: BridgeFrameChunk) -> ChunkDrop | None:
        """The rules whose breach costs the chunk alone."""
        if chunk.stream_id != self.stream_id:
            return ChunkDrop.OTHER_STREAM
        if self.epoch is None or self._highest is None:
            return ChunkDrop.NOT_ANNOUNCED
        if chunk.epoch < self._highest:
            return ChunkDrop.OLD_EPOCH
        if chunk.epoch > self.epoch:
            if chunk.epoch > self._highest:
                self._highest = chunk.epoch
                self._give_up_all(ChunkDrop.EPOCH_CHANGE)
            return ChunkDrop.NEW_EPOCH
        if self._room is None:
            return ChunkDrop.NO_TARGET
        if chunk.chunk_count == 0:
            return ChunkDrop.CHUNK_COUNT
        if chunk.chunk_index >= chunk.chunk_count:
            return ChunkDrop.CHUNK_INDEX
        if len(chunk.header_bytes) != (HEADER_SLOT_BYTES if chunk.header_included else 0):
            return ChunkDrop.HEADER_BYTES
        if len(chunk.payload_bytes) != chunk.chunk_length:
            return ChunkDrop.PAYLOAD_BYTES
        if chunk.chunk_length > self._sizing.chunk_bytes:
            return ChunkDrop.CHUNK_BYTES
        if chunk.seq > MAX_SEQUENCE:
            return ChunkDrop.SEQUENCE
        if chunk.seq < self._floor:
            return ChunkDrop.BEHIND
        return None

    def _place(self, chunk: BridgeFrameChunk, reserved: int, now_ns: int) -> ChunkDrop | None:
        """The rules whose breach costs the frame, and the chunk's place in it."""
        if bool(chunk.header_included) != (chunk.chunk_index == 0):
            return ChunkDrop.HEADER_PLACE
        if chunk.chunk_index == 0 and chunk.chunk_offset != 0:
            return ChunkDrop.FIRST_OFFSET
        if chunk.chunk_offset + chunk.chunk_length > chunk.payload_length:
            return ChunkDrop.SLICE
        assembly = self._flight.get(chunk.seq)
        if assembly is None:
            cause = self._claim(chunk, now_ns)
            if cause is not None:
                return cause
            assembly = self._flight[chunk.seq]
        if (chunk.chunk_count, chunk.payload_length) != (assembly.chunk_count, len(assembly.payload)):
            return ChunkDrop.INCONSISTENT
        if chunk.chunk_index in assembly.slices:
            return self._compare(assembly, chunk)
        if chunk.chunk_index == 0:
            cause = self._take_header(assembly, chunk)
            if cause is not None:
                return cause
            assembly.trace_id = reserved
        elif chunk.chunk_index == chunk.chunk_count - 1:
            assembly.checksum = reserved
        end = chunk.chunk_offset + chunk.chunk_length
        assembly.payload[chunk.chunk_offset : end] = chunk.payload_bytes
        assembly.slices[chunk.chunk_index] = (chunk.chunk_offset, chunk.chunk_length)
        if assembly.arrived > len(assembly.payload):
            return ChunkDrop.OVERLAP
        return self._finish(assembly) if len(assembly.slices) == assembly.chunk_count else None

    def _claim(self, chunk: BridgeFrameChunk, now_ns: int) -> ChunkDrop | None:
        """Room for a frame that begins: a place among those on their way, and a slot of the ring."""
        assert self._room is not None
        if chunk.payload_length > self._sizing.max_payload_bytes:
            return ChunkDrop.PAYLOAD_LENGTH
        if chunk.payload_length > max((pool.stride_bytes for pool in self._pools.values()), default=0):
            return ChunkDrop.SOURCE_STRIDE
        if chunk.payload_length > self._room.largest_stride:
            return ChunkDrop.NO_POOL_FITS
        index = chunk.seq & (self._room.nslots - 1)
        if self._claimed.get(index, -1) > chunk.seq:
            return ChunkDrop.CROWDED
        rival = self._claimed.get(index, -1)
        if rival not in self._flight and len(self._flight) >= self._max_frames:
            rival = min(self._flight)
            if rival > chunk.seq:
                return ChunkDrop.CROWDED
        if rival in self._flight:
            self._give_up(rival, ChunkDrop.CROWDED)
        self._claimed[index] = chunk.seq
        self._flight[chunk.seq] = Assembly(chunk.seq, chunk.chunk_count, bytearray(chunk.payload_length), now_ns)
        return None

    def _compare(self, assembly: Assembly, chunk: BridgeFrameChunk) -> ChunkDrop | None:
        """A chunk that came before: the same again is ignored, anything else costs the frame (Bridge 5.2)."""
        there = assembly.payload[chunk.chunk_offset : chunk.chunk_offset + chunk.chunk_length]
        if (
            assembly.slices[chunk.chunk_index] != (chunk.chunk_offset, chunk.chunk_length)
            or there != chunk.payload_bytes
            or (chunk.chunk_index == 0 and chunk.header_bytes != assembly.header_bytes)
        ):
            return ChunkDrop.CONFLICT
        self.duplicates += 1
        return None

    def _take_header(self, assembly: Assembly, chunk: BridgeFrameChunk) -> ChunkDrop | None:
        """Bridge 6, steps 4 to 6; the source's `payload_slot` is nobody's business here (step 9)."""
        words = SlotHeader.BLOCK.unpack_from(chunk.header_bytes)
        if sequence(words[0]) != chunk.seq:
            return ChunkDrop.SEQ_COMMIT
        if words[1] != chunk.payload_length:
            return ChunkDrop.VALUES_LEN
        checked: CheckedSlot | DropReason = DropReason.UNKNOWN_POOL  # also where there is no payload to look up in it
        if words[3] in self._pools:
            private = bytearray(chunk.header_bytes)
            private[PAYLOAD_SLOT_AT : PAYLOAD_SLOT_AT + 4] = bytes(4)
            checked = check_header(bytes(private), chunk.seq, 1, self._pools)
        if isinstance(checked, DropReason):
            self.reasons[checked] += 1
            return ChunkDrop.HEADER
        assembly.header = checked
        assembly.header_bytes = chunk.header_bytes
        return None

    def _finish(self, assembly: Assembly) -> ChunkDrop | None:
        """All chunks are there: the last rules, then the frame itself, and the end of all older ones."""
        if assembly.arrived < len(assembly.payload):
            return ChunkDrop.COVERAGE
        if not assembly.tiled():
            return ChunkDrop.OVERLAP
        payload = bytes(assembly.payload)
        if self._crc32c:
            total = checksum(payload, checksum(assembly.header_bytes))
            if assembly.checksum != CHECKSUM_THERE | total:
                return ChunkDrop.CHECKSUM
        assert assembly.header is not None
        if not self._deliver(Whole(assembly.header, assembly.header_bytes, payload, assembly.trace_id)):
            return ChunkDrop.REFUSED
        self.published += 1
        del self._flight[assembly.seq]
        self._floor = assembly.seq + 1
        for seq in [seq for seq in self._flight if seq < self._floor]:
            self._give_up(seq, ChunkDrop.OVERTAKEN)
        return None

    def _give_up(self, seq: int, cause: ChunkDrop) -> ChunkDrop:
        """Drops a frame, which may have only just begun."""
        self._flight.pop(seq, None)
        self._given_up.append(seq)
        return self._count(cause)

    def _give_up_all(self, cause: ChunkDrop) -> None:
        for seq in list(self._flight):
            self._give_up(seq, cause)
