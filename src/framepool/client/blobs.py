"""Metadata that is too large for one message: flat fields, masks, calibration, in chunks (Wire 10.3.3, 15.9).

A blob is announced with its length, follows in chunks without gap or overlap, and is completed. Nothing is repaired
or asked for again: a reader that missed a chunk discards the blob and waits for the next. Chunks name their stream
and metadata version but not the type of their blob, so the blobs of one version follow one another; those of other
streams and versions may come in between.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Buffer, Callable, Collection, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from framepool._native.crc32c import crc32c
from framepool.client.qos import Publish
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.errors import EncodeError
from framepool.wire._generated.control_900 import MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete
from framepool.wire.constants import MESSAGE_HEADER_BYTES
from framepool.wire.cursor import byte_view
from framepool.wire.message import Message

CHUNK_MAX: Final = 64 * 1024
"""Bytes of a blob in one chunk, at the most (Wire 15.9)."""

CHUNK_OVERHEAD: Final = MESSAGE_HEADER_BYTES + MetaBlobChunk.MINIMUM_LENGTH

NO_CHECKSUM: Final = 0
"""The field is not optional on the wire; 0 says that there is none (Wire 15.9)."""

MAX_KEPT: Final = 1_024
"""Blobs kept at the most, however small they are."""

BlobKey = tuple[int, int, int]
"""Stream id, metadata version, type of the blob."""


class Blob(msgspec.Struct, frozen=True):
    """A blob that arrived whole."""

    stream_id: int
    meta_version: int
    blob_type: int
    data: bytes

    @property
    def key(self) -> BlobKey:
        return self.stream_id, self.meta_version, self.blob_type


def blob_messages(
    stream_id: int,
    meta_version: int,
    blob_type: int,
    data: Buffer,
    *,
    max_message_length: int,
    chunk_max: int = CHUNK_MAX,
    checksum: bool = True,
) -> Iterator[Message]:
    """The messages of a blob, in the order in which all of them have to be sent; checked and summed up at once."""
    size = chunk_size(max_message_length, chunk_max)
    view = byte_view(data)
    crc = crc32c(view) if checksum else NO_CHECKSUM
    announce = MetaBlobAnnounce(
        stream_id=stream_id, meta_version=meta_version, blob_type=blob_type, total_len=len(view), checksum=crc
    )
    announce.encode()  # EncodeError here, not in the middle of the stream
    return _in_chunks(announce, view, size)


def chunk_size(max_message_length: int, chunk_max: int = CHUNK_MAX) -> int:
    """Bytes of a blob in each chunk but the last."""
    size = min(chunk_max, max_message_length - CHUNK_OVERHEAD)
    if size <= 0:
        raise EncodeError(
            f"no byte of a blob fits: chunks of up to {chunk_max} bytes in messages of up to {max_message_length}, "
            f"of which {CHUNK_OVERHEAD} go to their head"
        )
    return size


def _in_chunks(announce: MetaBlobAnnounce, view: memoryview, size: int) -> Iterator[Message]:
    stream_id, meta_version = announce.stream_id, announce.meta_version
    yield announce
    for offset in range(0, len(view), size):
        piece = bytes(view[offset : offset + size])
        yield MetaBlobChunk(stream_id=stream_id, meta_version=meta_version, chunk_offset=offset, bytes_=piece)
    yield MetaBlobComplete(stream_id=stream_id, meta_version=meta_version, checksum=announce.checksum)


class BlobSender:
    """Sends blobs one after another, as fast as the stream takes them: a chunk that is refused is tried again.

    `send` may be called from another thread than `do_work`.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        max_message_length: int,
        chunk_max: int = CHUNK_MAX,
        max_pending_bytes: int = 256 * 2**20,
        hurry: Callable[[], object] = lambda: None,
    ) -> None:
        """`hurry` is called when there is something to send."""
        self.counts: Counter[str] = Counter()
        self._publish = publish
        self._max_message_length = max_message_length
        self._chunk_max = chunk_size(max_message_length, chunk_max)
        self._max_pending_bytes = max_pending_bytes
        self._hurry = hurry
        self._inbox: deque[tuple[int, Iterator[Message]]] = deque()
        self._queue: deque[tuple[int, Iterator[Message]]] = deque()
        self._message: Message | None = None

    def send(self, stream_id: int, meta_version: int, blob_type: int, data: Buffer, *, checksum: bool = True) -> None:
        """Queues a private copy of a blob. Readers that come later do not get it, unless it is sent again."""
        private = bytes(byte_view(data))
        messages = blob_messages(
            stream_id,
            meta_version,
            blob_type,
            private,
            max_message_length=self._max_message_length,
            chunk_max=self._chunk_max,
            checksum=checksum,
        )
        self._inbox.append((len(private), messages))
        self._hurry()

    @property
    def pending(self) -> int:
        """Blobs that are not sent to their end."""
        return len(self._inbox) + len(self._queue)

    def do_work(self, limit: int = 4) -> int:
        """Sends up to `limit` messages and says how many were taken."""
        self._take_inbox()
        taken = 0
        while taken < limit and (message := self._next()) is not None:
            if self._publish(message) is False:
                self.counts["refused"] += 1
                break
            taken += 1
            self.counts["messages"] += 1
            self._message = None
            if isinstance(message, MetaBlobComplete):
                self.counts["blobs"] += 1
                self._queue.popleft()
        return taken

    def statistics(self) -> dict[str, int]:
        return {"pending": self.pending, **self.counts}

    def _take_inbox(self) -> None:
        """While nobody takes them, the oldest blobs that were not begun make room for new ones."""
        while self._inbox:
            self._queue.append(self._inbox.popleft())
            while len(self._queue) > 2 and sum(size for size, _ in self._queue) > self._max_pending_bytes:
                del self._queue[1]
                self.counts["given up"] += 1

    def _next(self) -> Message | None:
        if self._message is None and self._queue:
            self._message = next(self._queue[0][1])
        return self._message


class Discard(StrEnum):
    """Why a blob, or a message of one, was discarded."""

    GAP = "gap"
    """A chunk is missing, in the middle or at the end."""
    OVERLAP = "overlap"
    """A chunk repeats bytes that came before, or has none."""
    OVERRUN = "overrun"
    """A chunk goes beyond the announced length."""
    CHECKSUM = "checksum"
    """The bytes are not those that were sent, or announce and completion disagree."""
    TOO_LARGE = "too large"
    """Longer than this reader wants blobs to be."""
    TOO_MANY = "too many"
    """More blobs at once than this reader bears."""
    INTERRUPTED = "interrupted"
    """Another blob of the same version was announced before this one was complete."""
    ABANDONED = "abandoned"
    """Its sender fell silent."""
    UNANNOUNCED = "unannounced"
    """A chunk or completion of a blob that was not announced to us, or that we discarded."""


class _Assembly:
    """A blob on its way; nothing is reserved for what did not arrive."""

    def __init__(self, announce: MetaBlobAnnounce, now_ns: int) -> None:
        self.announce = announce
        self.data = bytearray()
        self.crc = 0
        self.heard_ns = now_ns

    def add(self, chunk: MetaBlobChunk) -> Discard | None:
        expected = len(self.data)
        if chunk.chunk_offset > expected:
            return Discard.GAP
        if chunk.chunk_offset < expected or not chunk.bytes_:
            return Discard.OVERLAP
        if expected + len(chunk.bytes_) > self.announce.total_len:
            return Discard.OVERRUN
        self.data += chunk.bytes_
        if self.announce.checksum != NO_CHECKSUM:
            self.crc = crc32c(chunk.bytes_, self.crc)
        return None

    def finish(self, complete: MetaBlobComplete) -> Discard | Blob:
        if len(self.data) < self.announce.total_len:
            return Discard.GAP
        stated = {self.announce.checksum, complete.checksum} - {NO_CHECKSUM}
        if stated and self.announce.checksum == NO_CHECKSUM:  # its sender knew it at the end only
            self.crc = crc32c(self.data)
        if stated and stated != {self.crc}:
            return Discard.CHECKSUM
        about = self.announce
        return Blob(about.stream_id, about.meta_version, about.blob_type, bytes(self.data))


class BlobReceiver:
    """Puts blobs together and keeps the latest of them within bounds that no sender can move."""

    def __init__(
        self,
        clock: Clock,
        *,
        streams: Collection[int] | None = None,
        max_blob_bytes: int = 64 * 2**20,
        max_open: int = 4,
        max_kept_bytes: int = 256 * 2**20,
        silence_ns: int = 10 * NANOS_PER_SECOND,
    ) -> None:
        """Takes the blobs of `streams` only, of all if None; asks for a live collection each time."""
        self.discards: Counter[Discard] = Counter()
        self.received = 0
        self._clock = clock
        self._streams = streams
        self._max_blob_bytes = max_blob_bytes
        self._max_open = max_open
        self._max_kept_bytes = max_kept_bytes
        self._silence_ns = silence_ns
        self._open: dict[tuple[int, int], _Assembly] = {}
        self._kept: OrderedDict[BlobKey, Blob] = OrderedDict()
        self._kept_bytes = 0

    def get(self, stream_id: int, meta_version: int, blob_type: int) -> Blob | None:
        """The blob of a metadata version, if it arrived and is still kept."""
        return self._kept.get((stream_id, meta_version, blob_type))

    def on_announce(self, announce: MetaBlobAnnounce) -> None:
        """A blob begins."""
        if not self._follows(announce.stream_id):
            return
        key = (announce.stream_id, announce.meta_version)
        if self._open.pop(key, None) is not None:
            self.discards[Discard.INTERRUPTED] += 1
        if announce.total_len > self._max_blob_bytes:
            self.discards[Discard.TOO_LARGE] += 1
            return
        now = self._clock.monotonic_ns()
        self._drop_silent(now)
        if len(self._open) >= self._max_open:
            self.discards[Discard.TOO_MANY] += 1
            return
        self._open[key] = _Assembly(announce, now)

    def on_chunk(self, chunk: MetaBlobChunk) -> None:
        """A blob goes on, or is discarded: gap, overlap, overrun."""
        if not self._follows(chunk.stream_id):
            return
        key = (chunk.stream_id, chunk.meta_version)
        assembly = self._open.get(key)
        if assembly is None:
            self.discards[Discard.UNANNOUNCED] += 1
            return
        assembly.heard_ns = self._clock.monotonic_ns()
        refusal = assembly.add(chunk)
        if refusal is not None:
            self.discards[refusal] += 1
            del self._open[key]

    def on_complete(self, complete: MetaBlobComplete) -> Blob | None:
        """A blob ends: here it is, if it is whole."""
        if not self._follows(complete.stream_id):
            return None
        assembly = self._open.pop((complete.stream_id, complete.meta_version), None)
        if assembly is None:
            self.discards[Discard.UNANNOUNCED] += 1
            return None
        found = assembly.finish(complete)
        if isinstance(found, Discard):
            self.discards[found] += 1
            return None
        self.received += 1
        self._keep(found)
        return found

    def statistics(self) -> dict[str, int]:
        """What arrived, what is on its way and kept, and what was discarded by cause."""
        return {
            "received": self.received,
            "open": len(self._open),
            "kept": len(self._kept),
            "kept_bytes": self._kept_bytes,
            **{cause.value: count for cause, count in self.discards.items()},
        }

    def _follows(self, stream_id: int) -> bool:
        return self._streams is None or stream_id in self._streams

    def _drop_silent(self, now_ns: int) -> None:
        silent = [key for key, assembly in self._open.items() if now_ns - assembly.heard_ns > self._silence_ns]
        for key in silent:
            del self._open[key]
        self.discards[Discard.ABANDONED] += len(silent)

    def _keep(self, blob: Blob) -> None:
        before = self._kept.pop(blob.key, None)
        self._kept_bytes += len(blob.data) - (len(before.data) if before else 0)
        self._kept[blob.key] = blob
        while self._kept_bytes > self._max_kept_bytes or len(self._kept) > MAX_KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.data)
