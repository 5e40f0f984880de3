"""One stream of this host on its way to others: frames out of shared memory, as chunks (Bridge 2.1, 5)."""

from __future__ import annotations

from framepool._native.frames import FrameReader
from framepool._native.seqlock import CheckedSlot, RingReader
from framepool.bridge.chunks import ChunkSizing
from framepool.transport.aeron import AnyPublication


class ChunkSender:
    """Sends the frames of one mapping, one after the other. It never waits: what the publication does not take now goes
    on with the next call, and a frame that its producer lapped meanwhile is given up, its last chunk withheld, so that
    it never completes on the other side.

    Several senders may share one publication, better an exclusive one. One thread at a time.
    """

    def __init__(
        self, publication: AnyPublication, stream_id: int, sizing: ChunkSizing, *, crc32c: bool = False
    ) -> None:
        """`stream_id` is the source stream's, which is what chunks bear (`decisions.md` #55).

        Raises ConfigurationError if a chunk would not fit into one datagram of the publication.
        """
        raise NotImplementedError

    @property
    def sending(self) -> bool:
        """Whether a frame is on its way."""
        raise NotImplementedError

    def start(self, ring: RingReader, checked: CheckedSlot, epoch: int, trace_id: int | None = None) -> bool:
        """Begins a frame; False if it is refused and counted: too large, or of more than MAX_CHUNKS chunks.

        `epoch` is the source's. Raises ValueError while another frame is on its way.
        """
        raise NotImplementedError

    def step(self, limit: int = 64) -> int:
        """Sends up to `limit` chunks of the frame on its way; says how many. 0: Aeron took none, or there is none.

        Raises TransportClosed, ForkedError; a lost media driver is MediaDriverLost, and the frame stays on its way
        until `abandon`.
        """
        raise NotImplementedError

    def forward(self, reader: FrameReader, limit: int = 64) -> int:
        """`step`, and where that finished its frame the next one of `reader`, until `limit` chunks were sent, Aeron
        takes no more or there is no frame; says how many. The duty of a mapping in one call. Raises like `step` and
        `FrameReader.take`; after a remap of the reader the frame on its way is lapped by its closed ring."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Gives up the frame on its way, as at a change of epoch (Bridge 8) or when a mapping is paused."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """`sent` frames, with `chunks`, `payload_bytes`; frames not sent by cause: `lapped`, `too_large`,
        `too_many_chunks`, `abandoned`, `unmapped`; `back_pressured`, `not_connected`: calls that Aeron refused."""
        raise NotImplementedError
