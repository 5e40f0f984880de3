"""How a frame is cut into chunks, and why a chunk or a frame is dropped (Bridge 5, `decisions.md` #53, #55, #62).

Pure: sizes, causes, and the readable twin of what `_native.bridge` puts on the wire and takes off it.

Beside a chunk, in the 8 bytes that Aeron reserves for the application in the header of every data frame, go two things
for which Bridge 5.1 has no field:

- with chunk 0 the frame's trace id, which is in no slot but only in the FrameDescriptor, which must not cross
  (Bridge 7). Aeron sends 0 where nothing is set, and 0 is the wire's word for `not traced`.
- with the last chunk, where the `crc32c` policy is on (Bridge 5.4), the CRC32C of the header block and the payload, as
  `1 << 32 | crc`. Such a frame has at least two chunks, the last of which may be empty.

Bytes of the messages stay as the specification has them, and nothing has to be matched up that came another way.
"""

from __future__ import annotations

from collections.abc import Buffer, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from framepool._native.crc32c import crc32c as checksum
from framepool.errors import ConfigurationError, DecodeError
from framepool.wire._generated.bridge_902 import Bool, BridgeFrameChunk
from framepool.wire.constants import DATA_LENGTH_BYTES, HEADER_SLOT_BYTES, MESSAGE_HEADER_BYTES
from framepool.wire.cursor import byte_view
from framepool.wire.dispatch import peek_header

MAX_CHUNKS: Final = 65_535
AERON_HEADER_BYTES: Final = 32
CHUNK_OVERHEAD: Final = MESSAGE_HEADER_BYTES + BridgeFrameChunk.BLOCK_LENGTH + 2 * DATA_LENGTH_BYTES
"""What a message has beside its payload, and chunk 0 beside its header block too: 57 bytes."""
FIRST_OVERHEAD: Final = AERON_HEADER_BYTES + CHUNK_OVERHEAD + HEADER_SLOT_BYTES
"""What of the MTU chunk 0 has no payload in: 345 bytes (`decisions.md` #53)."""
CHECKSUM_THERE: Final = 1 << 32


class ChunkSizing(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that an end of a link keeps to; `chunk_bytes` is `BridgeConfig.chunk_size(mtu)`.

    >>> sizing = ChunkSizing(mtu_bytes=1408, chunk_bytes=1280)
    >>> sizing.first_bytes, list(sizing.slices(3000))
    (1063, [(0, 1063), (1063, 1280), (2343, 657)])
    """

    mtu_bytes: int
    """Of the channel: a chunk with everything around it fits into one datagram."""
    chunk_bytes: int
    """Payload bytes of a chunk at the most: sent, and accepted."""
    max_payload_bytes: int = 2**30
    """No frame is larger, sent or received."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_bytes <= min(self.mtu_bytes - AERON_HEADER_BYTES - CHUNK_OVERHEAD, 0xFFFF):
            raise ConfigurationError(f"chunks of {self.chunk_bytes} bytes do not fit into an MTU of {self.mtu_bytes}")
        if self.first_bytes < 1:
            raise ConfigurationError(f"an MTU of {self.mtu_bytes} leaves the first chunk no payload")

    @property
    def first_bytes(self) -> int:
        """Payload bytes of chunk 0 at the most: it carries the header block too (`decisions.md` #53)."""
        return min(self.chunk_bytes, self.mtu_bytes - FIRST_OVERHEAD)

    def count(self, payload_length: int, *, crc32c: bool = False) -> int:
        """How many chunks a payload takes; more than MAX_CHUNKS cannot be sent."""
        rest = max(0, payload_length - self.first_bytes)
        return max(1 + -(-rest // self.chunk_bytes), 2 if crc32c else 1)

    def slices(self, payload_length: int, *, crc32c: bool = False) -> Iterator[tuple[int, int]]:
        """Offset and length of each chunk in turn."""
        offset, size = 0, self.first_bytes
        for _ in range(self.count(payload_length, crc32c=crc32c)):
            length = min(size, payload_length - offset)
            yield offset, length
            offset, size = offset + length, self.chunk_bytes


class ChunkDrop(IntEnum):
    """The first rule, in the order of this list, that a chunk breaks; 0 is never a cause.

    Up to `GIVEN_UP` it costs the chunk alone and chunks are counted; from `HEADER_PLACE` on it costs the frame, which
    is counted once, and its further chunks are `GIVEN_UP`. The numbers are those of the compiled core; a test keeps
    the two lists equal.
    """

    SCHEMA = 1
    """Of another schema."""
    VERSION = 2
    """Of another version of the schema."""
    TEMPLATE = 3
    """Another message of the schema."""
    DIALECT = 4
    """Of another block length (`decisions.md` section 0)."""
    MALFORMED = 5
    """Cut short, too long, or with a value that its field cannot have (Bridge 11)."""
    OTHER_STREAM = 6
    """Of a stream that nobody here wants."""
    NOT_ANNOUNCED = 7
    """No announce of the source was forwarded yet (Bridge 6 step 2)."""
    OLD_EPOCH = 8
    """Of an epoch that is over (Bridge 8)."""
    NEW_EPOCH = 9
    """Of an epoch whose announce was not forwarded yet (Bridge 6 step 3)."""
    NO_TARGET = 10
    """There is no local stream to write to at this time."""
    CHUNK_COUNT = 11
    """chunkCount is 0 (Bridge 5.2)."""
    CHUNK_INDEX = 12
    """chunkIndex is not below chunkCount."""
    HEADER_BYTES = 13
    """headerBytes is not as long as headerIncluded says: 256 bytes or none."""
    PAYLOAD_BYTES = 14
    """payloadBytes is not of chunkLength."""
    CHUNK_BYTES = 15
    """chunkLength is more than this end is configured for: do both ends have the same MTU and chunk_bytes?"""
    SEQUENCE = 16
    """A sequence that no seq_commit can hold."""
    BEHIND = 17
    """Of a frame that was published, or is older than one that was (`decisions.md` #52)."""
    GIVEN_UP = 18
    """Of a frame that was dropped."""

    HEADER_PLACE = 19
    """The header is not with chunk 0, or with another one."""
    FIRST_OFFSET = 20
    """Chunk 0 does not begin at 0."""
    SLICE = 21
    """The slice reaches beyond payloadLength."""
    PAYLOAD_LENGTH = 22
    """payloadLength is more than max_payload_bytes."""
    SOURCE_STRIDE = 23
    """payloadLength is more than the largest stride of the source."""
    NO_POOL_FITS = 24
    """payloadLength is more than the largest local stride (Bridge 6 step 7)."""
    CROWDED = 25
    """The room, of frames on their way or in the ring, went to a newer frame."""
    INCONSISTENT = 26
    """chunkCount or payloadLength is not that of the chunks before."""
    CONFLICT = 27
    """A chunk came twice, with another slice or other bytes."""
    SEQ_COMMIT = 28
    """seq_commit >> 1 of the header is not seq."""
    VALUES_LEN = 29
    """values_len_bytes of the header is not payloadLength (Bridge 6 step 4)."""
    HEADER = 30
    """The header breaks a rule of Wire 8; `Assembler.invalid()` says which."""
    OVERLAP = 31
    """Slices overlap."""
    COVERAGE = 32
    """All chunks are there and leave part of the payload out."""
    CHECKSUM = 33
    """The CRC32C is missing or wrong, where the policy asks for it (Bridge 5.4)."""

    TIMEOUT = 34
    """Not whole in time (Bridge 5.3a)."""
    OVERTAKEN = 35
    """A newer frame was whole first (`decisions.md` #52)."""
    EPOCH_CHANGE = 36
    """On its way when its epoch ended (Bridge 8)."""
    TARGET_CHANGE = 37
    """On its way when the local stream changed."""
    TORN = 38
    """Its bytes were overwritten in Aeron's log while they were copied."""
    REFUSED = 39
    """Whole, and the local stream did not take it: the lease ran out."""


class Chunk(NamedTuple):
    """A message and what goes beside it."""

    message: bytes
    reserved: int = 0


def chunks_of(
    header: bytes,
    payload: Buffer,
    *,
    stream_id: int,
    epoch: int,
    seq: int,
    sizing: ChunkSizing,
    trace_id: int | None = None,
    crc32c: bool = False,
) -> Iterator[Chunk]:
    """The chunks of a frame in order; `header` is its 256-byte slot."""
    data = byte_view(payload)
    count = sizing.count(len(data), crc32c=crc32c)
    total = CHECKSUM_THERE | checksum(data, checksum(header)) if crc32c else 0
    for index, (offset, length) in enumerate(sizing.slices(len(data), crc32c=crc32c)):
        first, last = index == 0, index == count - 1
        message = BridgeFrameChunk(
            stream_id=stream_id,
            epoch=epoch,
            seq=seq,
            chunk_index=index,
            chunk_count=count,
            chunk_offset=offset,
            chunk_length=length,
            payload_length=len(data),
            header_included=Bool.TRUE if first else Bool.FALSE,
            header_bytes=header if first else b"",
            payload_bytes=bytes(data[offset : offset + length]),
        )
        yield Chunk(message.encode(), (trace_id or 0) if first else total if last else 0)


def decode_chunk(message: Buffer) -> BridgeFrameChunk | ChunkDrop:
    """The chunk in a buffer, as far as its own bytes can be judged."""
    try:
        header, ours = peek_header(message), BridgeFrameChunk.HEADER
        if header.schema_id != ours.schema_id:
            return ChunkDrop.SCHEMA
        if header.version != ours.version:
            return ChunkDrop.VERSION
        if header.template_id != ours.template_id:
            return ChunkDrop.TEMPLATE
        if header.block_length != ours.block_length:
            return ChunkDrop.DIALECT
        return BridgeFrameChunk.decode(message)
    except DecodeError:
        return ChunkDrop.MALFORMED
