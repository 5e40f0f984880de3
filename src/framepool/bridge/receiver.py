"""Streams of other hosts arriving here: chunks off a subscription, frames into shared or private memory (Bridge 6).

`ChunkReceiver` empties the payload subscription of a link and hands each chunk to the `Assembler` of its source
stream; both are compiled (`_native.bridge`). An assembler writes into a target: a local stream that this process
produces (`StreamTarget`), or private memory (`PrivateTarget`) for a consumer without a driver on its host.

The wiring of a mapping::

    receiver = ChunkReceiver(subscription)
    assembler = Assembler(mapping.source_stream_id, sizing, timeout_ns=250_000_000)
    receiver.add(assembler)
    ...                                          # on each forwarded ShmPoolAnnounce of the source stream
    strides = {pool.pool_id: pool.stride_bytes for pool in message.payload_pools}
    if assembler.announce(message.epoch, strides, clock.monotonic_ns()):
        ...                                      # a new source epoch: attach anew for a new local epoch (#50), then
        assembler.target = StreamTarget(frame_writer)
    receiver.poll(clock.monotonic_ns())          # in each duty cycle
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Mapping

from framepool._native.bridge import Assembler, ChunkReceiver
from framepool._native.frames import ABANDONED, FrameWriter
from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.errors import AllocationError
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool
from framepool.wire.constants import HEADER_SLOT_BYTES, SUPERBLOCK_SIZE

__all__ = ["Assembler", "ChunkReceiver", "PrivateTarget", "StreamTarget"]


class StreamTarget:
    """A local stream: frames are committed by the standard protocol and told of by a FrameDescriptor with the local
    epoch and the source's sequence, metadata version and trace id (Bridge 6 steps 9 to 11, 7).

    A descriptor that Aeron does not take is lost, the frame is not: that is how every producer here has it.
    """

    def __init__(self, frames: FrameWriter, *, publish_timestamps: bool = False) -> None:
        self.frames = frames
        self.ring: RingWriter = frames.ring
        self._publish_timestamps = publish_timestamps

    @property
    def open(self) -> bool:
        """Whether the lease allows to claim slots."""
        return not self.frames.lapsed

    def publish(self, seq: int, layout: Layout, timestamp_ns: int, meta_version: int, trace_id: int) -> bool:
        """Commits and tells; False if the lease ran out while the frame came in."""
        outcome = self.frames.commit(seq, layout, timestamp_ns, meta_version, trace_id, self._publish_timestamps)
        return outcome != ABANDONED


class PrivateTarget:
    """Private memory in the shape of a stream's: the newest `nslots` frames, read as those of shared memory.

    `reader` and a CheckedSlot of `take` make a `client.frame.Frame` like any other; it stays until its slot is needed.
    """

    open = True

    def __init__(self, strides: Mapping[int, int], *, nslots: int = 8, max_bytes: int = 4 * 2**30) -> None:
        """`strides` are those of the source announce by pool id. Memory is taken when it is first written; there are
        fewer slots, down to two, where more would be over `max_bytes`, and AllocationError where that is not enough.
        RegionError for strides that no pool can have.
        """
        while nslots > 2 and nslots * sum(strides.values()) > max_bytes:
            nslots //= 2
        if nslots * sum(strides.values()) > max_bytes:
            raise AllocationError(f"{nslots} slots of {sum(strides.values())} bytes are more than {max_bytes}")
        header = _private(SUPERBLOCK_SIZE + nslots * HEADER_SLOT_BYTES)
        pools = [
            Pool(pool_id, stride, nslots, _private(SUPERBLOCK_SIZE + nslots * stride))
            for pool_id, stride in strides.items()
        ]
        self.ring = RingWriter(header, nslots, pools)
        self.reader = RingReader(header, nslots, pools)
        self.overwritten = 0
        self._waiting: deque[tuple[int, int]] = deque(maxlen=nslots)

    def publish(self, seq: int, layout: Layout, timestamp_ns: int, meta_version: int, trace_id: int) -> bool:
        """Commits, and keeps the frame for `take`."""
        self.ring.commit(seq, layout, timestamp_ns, meta_version)
        self.overwritten += len(self._waiting) == self._waiting.maxlen
        self._waiting.append((seq, trace_id))
        return True

    @property
    def waiting(self) -> int:
        """How many frames can be taken."""
        return len(self._waiting)

    def take(self, limit: int = 256) -> list[tuple[CheckedSlot, int | None]]:
        """Up to `limit` frames with their trace ids, oldest first. Those whose slots were needed before they were taken
        are left out and counted as `overwritten`."""
        taken: list[tuple[CheckedSlot, int | None]] = []
        while self._waiting and len(taken) < limit:
            seq, trace_id = self._waiting.popleft()
            checked = self.reader.check(seq)
            if isinstance(checked, DropReason):
                self.overwritten += 1
            else:
                taken.append((checked, trace_id or None))
        return taken

    def close(self) -> None:
        """Gives the memory back once no view of it is left."""
        self.ring.close()
        self.reader.close()

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "overwritten": self.overwritten}


def _private(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
