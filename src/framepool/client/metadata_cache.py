"""What readers know of sources: who is announced, and what their frames refer to (Wire 10.3).

Metadata is kept by version, so that a frame that waited finds its own and not the newest. Names come from announces,
data source ids and tags from attributes (`decisions.md` #46). All of it comes from outside and is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta
from framepool.wire.attributes import Metadata, size_of

ANNOUNCE_TEXT_LIMIT: Final = 4_096
"""Characters of name and summary that are taken from others."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A data source that is announced."""

    stream_id: int
    producer_id: int
    epoch: int
    meta_version: int
    name: str
    summary: str
    data_source_id: int | None = None
    tags: tuple[str, ...] = ()


class _Stream:
    """What is known of a stream; its versions in the order in which they were last heard."""

    def __init__(self, now_ns: int) -> None:
        self.announce: DataSourceAnnounce | None = None
        self.announced_ns = now_ns
        self.heard_ns = now_ns
        self.versions: dict[int, Metadata] = {}
        self.bytes = 0


class MetadataCache:
    """What readers know of sources: who is announced, and the last versions of the streams they follow.

    Its memory is bounded whatever is sent: streams, versions of each, attributes of a version and bytes of all.
    One thread feeds it; others may ask.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        follow: Iterable[int] | None = (),
        versions: int = 16,
        window_ns: int = 3 * NANOS_PER_SECOND,
        max_streams: int = 4_096,
        max_attributes: int = 1_024,
        max_bytes: int = 64 * 2**20,
    ) -> None:
        """Follows the given streams, all of them if None. A source is announced while its last word is not older
        than `window_ns`."""
        if versions < 1:
            raise ValueError("at least one version is kept")
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._followed = None if follow is None else set(follow)
        self._versions = versions
        self._window_ns = window_ns
        self._max_streams = max_streams
        self._max_attributes = max_attributes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._streams: dict[int, _Stream] = {}

    # What readers ask

    def follow(self, stream_id: int) -> None:
        """Keeps the metadata of this stream from now on."""
        if self._followed is not None:
            self._followed.add(stream_id)

    def unfollow(self, stream_id: int) -> None:
        """Forgets the metadata of this stream, but not that it is announced."""
        if self._followed is not None:
            self._followed.discard(stream_id)
            if stream_id in self._streams:
                self._forget_versions(self._streams[stream_id])

    def get(self, stream_id: int, version: int) -> Metadata | None:
        """The metadata that a frame of this version refers to; None when it did not come, or came too long ago."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.versions.get(version)

    def latest(self, stream_id: int) -> Metadata | None:
        """The announced version, or else the one heard last."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        announced = stream.versions.get(stream.announce.meta_version) if stream.announce else None
        return announced or next(reversed(list(stream.versions.values())), None)

    def source(self, stream_id: int) -> Source | None:
        """The source of a stream, while it is announced."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.announce is None or self._is_past(stream.announced_ns):
            return None
        announce, metadata = stream.announce, self.latest(stream_id)
        return Source(
            stream_id=stream_id,
            producer_id=announce.producer_id,
            epoch=announce.epoch,
            meta_version=announce.meta_version,
            name=announce.name,
            summary=announce.summary,
            data_source_id=metadata.data_source_id if metadata else None,
            tags=metadata.tags if metadata else (),
        )

    def sources(self) -> list[Source]:
        """All sources that are announced, by stream id."""
        found = [self.source(stream_id) for stream_id in sorted(self._streams)]
        return [source for source in found if source is not None]

    def find(self, name: str) -> list[Source]:
        """The sources of this name; nothing keeps two streams from having one name."""
        return [source for source in self.sources() if source.name == name] if name else []

    # What comes

    def on_announce(self, announce: DataSourceAnnounce) -> None:
        """A source shows itself; one of a lower epoch counts only when the higher one fell silent."""
        if len(announce.name) + len(announce.summary) > ANNOUNCE_TEXT_LIMIT:
            self.counts["oversized"] += 1
            return
        stream = self._stream(announce.stream_id)
        if stream is None:
            return
        known = stream.announce
        if known is not None and announce.epoch < known.epoch and not self._is_past(stream.announced_ns):
            self.counts["older epochs"] += 1
            return
        if known is not None and announce.producer_id != known.producer_id:
            self._forget_versions(stream)  # versions are counted by each producer for itself
        stream.announce = announce
        stream.announced_ns = self._clock.monotonic_ns()

    def on_meta(self, meta: DataSourceMeta) -> None:
        """A version of the metadata of a stream; ignored unless the stream is followed."""
        if not self._follows(meta.stream_id):
            return
        if len(meta.attributes) > self._max_attributes or size_of(meta.attributes) > self._max_bytes:
            self.counts["oversized"] += 1
            return
        stream = self._stream(meta.stream_id)
        if stream is None:
            return
        known = stream.versions.get(meta.meta_version)
        if known is not None and meta.timestamp_ns < known.timestamp_ns:
            self.counts["older versions"] += 1
            return
        if known is None or known.attributes != meta.attributes:
            known = Metadata(meta.stream_id, meta.meta_version, meta.timestamp_ns, meta.attributes)
            self.counts["malformed values"] += sum(attribute.key not in known for attribute in meta.attributes)
        self._keep(stream, known)

    def statistics(self) -> dict[str, int]:
        streams = list(self._streams.values())
        return {
            "streams": len(streams),
            "versions": sum(len(stream.versions) for stream in streams),
            "bytes": self._bytes,
            **self.counts,
        }

    def _follows(self, stream_id: int) -> bool:
        return self._followed is None or stream_id in self._followed

    def _stream(self, stream_id: int) -> _Stream | None:
        """The entry of a stream that was just heard; None when there is no room for one that nobody asked for."""
        now = self._clock.monotonic_ns()
        stream = self._streams.get(stream_id)
        if stream is None:
            wanted = self._followed is not None and stream_id in self._followed
            if not wanted and len(self._streams) >= self._max_streams and not self._make_room():
                self.counts["too many streams"] += 1
                return None
            stream = self._streams[stream_id] = _Stream(now)
        stream.heard_ns = now
        return stream

    def _make_room(self) -> bool:
        """Lets go of streams that fell silent, except those that somebody asked for."""
        for stream_id, stream in list(self._streams.items()):
            wanted = self._followed is not None and stream_id in self._followed
            if not wanted and self._is_past(stream.heard_ns):
                self._forget_versions(stream)
                del self._streams[stream_id]
        return len(self._streams) < self._max_streams

    def _keep(self, stream: _Stream, metadata: Metadata) -> None:
        self._drop(stream, metadata.version)
        stream.versions[metadata.version] = metadata
        self._count(stream, size_of(metadata.attributes))
        if len(stream.versions) > self._versions:
            self._drop(stream, next(iter(stream.versions)))
        while self._bytes > self._max_bytes:  # whoever takes most gives first
            largest = max(self._streams.values(), key=lambda stream: stream.bytes)
            self._drop(largest, next(iter(largest.versions)))
            self.counts["evicted"] += 1

    def _drop(self, stream: _Stream, version: int) -> None:
        metadata = stream.versions.pop(version, None)
        if metadata is not None:
            self._count(stream, -size_of(metadata.attributes))

    def _count(self, stream: _Stream, size: int) -> None:
        stream.bytes += size
        self._bytes += size

    def _forget_versions(self, stream: _Stream) -> None:
        for version in list(stream.versions):
            self._drop(stream, version)

    def _is_past(self, heard_ns: int) -> bool:
        return self._clock.monotonic_ns() - heard_ns > self._window_ns
