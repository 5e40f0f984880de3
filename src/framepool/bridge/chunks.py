"""How a frame is cut into chunks and what is told of it beside them (Bridge 5, `decisions.md` #53, #62).

Pure: sizes, and the readable twin of what `_native.bridge.ChunkWriter` puts on the wire.

Beside a chunk, in the 8 bytes that Aeron reserves for the application in the header of every data frame, go two things
for which Bridge 5.1 has no field:

- with chunk 0 the frame's trace id, which is in no slot but only in the FrameDescriptor, which must not cross
  (Bridge 7). Aeron sends 0 where nothing is set, and 0 is the wire's word for `not traced`.
- with the last chunk, where the `crc32c` policy is on (Bridge 5.4), the CRC32C of the header block and the payload, as
  `1 << 32 | crc`. Such a frame has at least two chunks, the last of which may be empty.

Bytes of the messages stay as the specification has them, and nothing has to be matched up that came another way.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class ChunkSizing(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that both ends of a link keep to; made of the configuration of a link."""

    mtu_bytes: int
    """Of the channel: a chunk with everything around it fits into one datagram."""
    chunk_bytes: int
    """Payload bytes of a chunk at the most, which is `BridgeConfig.chunk_size(mtu)`."""
    max_payload_bytes: int = 2**30
    """No frame is larger, sent or received."""

    @property
    def first_bytes(self) -> int:
        """Payload bytes of chunk 0 at the most: it carries the header too (`decisions.md` #53)."""
        raise NotImplementedError

    def count(self, payload_length: int, *, crc32c: bool = False) -> int:
        """How many chunks a payload takes; more than MAX_CHUNKS cannot be sent."""
        raise NotImplementedError

    def slices(self, payload_length: int, *, crc32c: bool = False) -> Iterator[tuple[int, int]]:
        """Offset and length of each chunk in turn."""
        raise NotImplementedError
