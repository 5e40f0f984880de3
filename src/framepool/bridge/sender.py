"""One stream of this host on its way to others: frames out of shared memory, as chunks (Bridge 2.1, 5).

The work is done by `_native.bridge.ChunkWriter`; here stands what it promises. Where frames come from, in which order,
and what is told beside them, is the business of the mapping.
"""

from __future__ import annotations

from framepool._native.bridge import ChunkWriter
from framepool._native.seqlock import CheckedSlot, RingReader
from framepool.bridge.chunks import ChunkSizing
from framepool.transport.aeron import AnyPublication


class ChunkSender:
    """Sends the frames of one mapping, one after the other. It never waits: what the publication does not take now goes
    on with the next call, and a frame that its producer lapped meanwhile is given up, its last chunk withheld, so that
    it never completes on the other side. While nobody listens, frames are given up at once.

    Several senders may share one publication, better an exclusive one. One thread at a time.
    """

    def __init__(
        self, publication: AnyPublication, stream_id: int, sizing: ChunkSizing, *, crc32c: bool = False
    ) -> None:
        """`stream_id` is the source stream's, which is what chunks bear (`decisions.md` #55)."""
        self._writer = ChunkWriter(publication, stream_id, sizing, crc32c=crc32c)

    @property
    def sending(self) -> bool:
        """Whether a frame is on its way."""
        return self._writer.sending

    def start(self, ring: RingReader, checked: CheckedSlot, epoch: int, trace_id: int | None = None) -> bool:
        """Begins a frame; False if it is refused and counted: too large, or of more than MAX_CHUNKS chunks.

        `epoch` is the source's. Raises ValueError while another frame is on its way, and ConfigurationError if a chunk
        does not fit into one datagram of the publication.
        """
        return self._writer.start(ring, checked, epoch, trace_id or 0)

    def step(self, limit: int = 64) -> int:
        """Sends up to `limit` chunks of the frame on its way; says how many. 0: Aeron took none, or there is none.

        Raises TransportClosed, ForkedError, and MediaDriverLost; after that the frame is still on its way.
        """
        return self._writer.step(limit)

    def abandon(self) -> None:
        """Gives up the frame on its way, as at a change of epoch (Bridge 8) or when a mapping is paused."""
        self._writer.abandon()

    def statistics(self) -> dict[str, int]:
        """`sent` frames, with `chunks` and `payload_bytes`; frames given up by cause: `lapped` by their producer,
        `unmapped` with their ring, `unheard` for want of a receiver, `too_large`, `too_many_chunks`, `abandoned`.
        `back_pressured` counts the calls that Aeron had no room for."""
        return self._writer.statistics()
