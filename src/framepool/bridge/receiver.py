"""Streams of other hosts arriving here: chunks off a subscription, frames into shared or private memory (Bridge 6).

`ChunkReceiver` empties the payload subscription of a link and hands each chunk to the `Assembler` of its source
stream. An assembler writes into a `Target`: a local stream that this process produces (`StreamTarget`), or private
memory (`PrivateTarget`) for a consumer without a driver on its host.

The wiring of a mapping::

    receiver = ChunkReceiver(subscription)
    assembler = Assembler(mapping.source_stream_id, sizing, timeout_ns=250_000_000)
    receiver.add(assembler)
    ...                                          # on each forwarded ShmPoolAnnounce of the source stream
    if assembler.announce(message.epoch, {pool.pool_id: pool.stride_bytes for pool in message.payload_pools}):
        ...                                      # a new source epoch: attach anew for a new local epoch (#50), then
        assembler.target = StreamTarget(frame_writer)
    receiver.poll(clock.monotonic_ns())          # in each duty cycle
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from framepool._native.frames import FrameWriter
from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.bridge.chunks import ChunkSizing
from framepool.transport.aeron import Subscription


class Target(Protocol):
    """Where whole frames go."""

    @property
    def ring(self) -> RingWriter:
        """The slots that frames are assembled in, in place."""

    @property
    def open(self) -> bool:
        """Whether slots may be claimed at this time, as far as the lease goes."""

    def publish(self, seq: int, layout: Layout, timestamp_ns: int, meta_version: int, trace_id: int) -> bool:
        """Commits the claimed slot of a frame that is whole, and tells of it; False if the lease ran out."""


class StreamTarget:
    """A local stream: commits by the standard protocol, then the FrameDescriptor with the source's trace id (Bridge
    6, 7)."""

    def __init__(self, frames: FrameWriter, *, publish_timestamps: bool = False) -> None:
        raise NotImplementedError


class PrivateTarget:
    """Private memory in the shape of a stream's: the newest `nslots` frames, to be read as those of shared memory.

    `reader` and a `CheckedSlot` make a `client.frame.Frame` like any other.
    """

    reader: RingReader

    def __init__(self, strides: Mapping[int, int], *, nslots: int = 8) -> None:
        """`strides` are the pools of the source announce; memory is taken when it is written."""
        raise NotImplementedError

    def take(self, limit: int = 256) -> list[tuple[CheckedSlot, int | None]]:
        """Up to `limit` frames with their trace ids, oldest first; those overwritten before they were taken are
        counted."""
        raise NotImplementedError


class Assembler:
    """The frames of one source stream out of their chunks. One thread at a time."""

    def __init__(
        self,
        stream_id: int,
        sizing: ChunkSizing,
        *,
        timeout_ns: int = 250_000_000,
        max_frames: int = 16,
        crc32c: bool = False,
    ) -> None:
        raise NotImplementedError

    target: Target | None
    """Where frames go; None drops all chunks. Setting it gives up the frames on their way."""

    @property
    def epoch(self) -> int | None:
        """The source epoch that frames are accepted of."""
        raise NotImplementedError

    def announce(self, epoch: int, strides: Mapping[int, int]) -> bool:
        """What the latest forwarded ShmPoolAnnounce says; True if that begins a new source epoch.

        Then the frames on their way are given up, sequences may begin anew, and `target` is None until it is set. An
        announce of an older epoch than was ever heard of, in a chunk or an announce, is ignored and counted (Bridge 8).
        """
        raise NotImplementedError

    def forget(self) -> None:
        """As if nothing was ever announced: for a mapping that is paused, or whose source was silent so long that a
        lower epoch is believable (`decisions.md` #20)."""
        raise NotImplementedError

    def dropped(self, seq: int) -> bool:
        """Whether progress of this frame is of no use any more: it was dropped, or published already (#54)."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        raise NotImplementedError


class ChunkReceiver:
    """Empties the payload subscription of a link. One thread at a time."""

    def __init__(self, subscription: Subscription, *, max_message_bytes: int = 65_535 + 313) -> None:
        """From here on the subscription can only be polled through this object, until `close`."""
        raise NotImplementedError

    def add(self, assembler: Assembler) -> None:
        """Chunks of its stream go to this assembler. ValueError if the stream has one."""
        raise NotImplementedError

    def remove(self, stream_id: int) -> None:
        """Chunks of the stream are counted and dropped from here on."""
        raise NotImplementedError

    def poll(self, now_ns: int, limit: int = 256) -> int:
        """Takes up to `limit` chunks, publishes the frames that they complete and gives up those that are overdue;
        says how many chunks. Never waits. Raises like `Subscription.poll`."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the subscription back, unpolled."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """Chunks by what became of them, before they were any assembler's."""
        raise NotImplementedError
