"""Which messages go into a recording beside the frames: metadata, blobs, trace links, QoS, announces and events.

What sources repeat once a second is kept when it changes, and put at the start of every segment again, so that each can
be understood without those before it, and retention takes nothing that is still needed. Events are heard on the status
stream, where accepted commands are echoed without their secrets; the control streams, which have the secrets, are not
recorded (`decisions.md` #15). Pure but for `Ears`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Final, Literal

from framepool.config import Config
from framepool.errors import DecodeError, MediaDriverLost
from framepool.recorder.segments import CapturedMessage
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.message import Message

Topic = Literal["announce", "qos", "metadata", "service_status"]
TOPICS: Final[tuple[Topic, ...]] = ("announce", "qos", "metadata", "service_status")

VERSIONS: Final = 4
"""Of the metadata of a stream at the start of a segment: frames may still refer to the last ones."""
MESSAGES_PER_POLL: Final = 256

MOST_COMING: Final = 16
"""Blobs that are on their way at a time; the oldest one makes room."""


class _Coming:
    """A blob on its way."""

    def __init__(self, announce: MetaBlobAnnounce) -> None:
        self.announce = announce
        self.messages: list[CapturedMessage] = []
        self.bytes = 0

    def add(self, message: CapturedMessage) -> None:
        self.messages.append(message)
        self.bytes += len(message.data)


class Capture:
    """Chooses what is recorded of what is heard."""

    def __init__(self, streams: Collection[int], *, carried_bytes: int) -> None:
        """Of the messages about these streams, and all events. Blobs are carried from segment to segment as far as
        they have no more than `carried_bytes` together."""
        self.counts: Counter[str] = Counter()
        self.streams = streams
        self._carried_bytes = carried_bytes
        self._sources: dict[tuple[type[Message], int], tuple[object, CapturedMessage]] = {}
        self._metadata: dict[int, OrderedDict[int, CapturedMessage]] = {}
        self._coming: OrderedDict[tuple[int, int], _Coming] = OrderedDict()
        self._blobs: OrderedDict[tuple[int, int], list[CapturedMessage]] = OrderedDict()

    def hear(self, aeron_stream_id: int, data: bytes) -> CapturedMessage | None:
        """A message of one of the streams that are listened to: what to record of it, if anything."""
        try:
            message = dispatch.decode(data)
        except DecodeError:
            self.counts["undecodable"] += 1
            return None
        stream_id = 0 if isinstance(message, EventMessage) else getattr(message, "stream_id", None)
        if stream_id is None or (stream_id and stream_id not in self.streams):
            return None
        captured = CapturedMessage(aeron_stream_id, stream_id, message.SCHEMA_ID, message.TEMPLATE_ID, data)
        if not self._is_wanted(message, captured):
            return None
        self.counts[type(message).__name__] += 1
        return captured

    def carried(self) -> Iterator[CapturedMessage]:
        """What the next segment begins with."""
        for _, message in self._sources.values():
            yield message
        for versions in self._metadata.values():
            yield from versions.values()
        for blob in self._blobs.values():
            yield from blob

    def _is_wanted(self, message: Message, captured: CapturedMessage) -> bool:
        match message:
            case DataSourceAnnounce():
                return self._has_changed(message, captured, captured.data)
            case ShmPoolAnnounce():
                timeless = (message.epoch, message.producer_id, message.header_region_uri, message.payload_pools)
                return self._has_changed(message, captured, timeless)
            case DataSourceMeta():
                return self._is_new_version(message, captured)
            case MetaBlobAnnounce() | MetaBlobChunk() | MetaBlobComplete():
                self._gather(message, captured)
                return True
            case QosProducer() | QosConsumer() | TraceLinkSet() | EventMessage():
                return True
        return False

    def _has_changed(self, message: Message, captured: CapturedMessage, content: object) -> bool:
        key = (type(message), captured.stream_id)
        known = self._sources.get(key)
        self._sources[key] = (content, captured)
        return known is None or known[0] != content

    def _is_new_version(self, message: DataSourceMeta, captured: CapturedMessage) -> bool:
        versions = self._metadata.setdefault(message.stream_id, OrderedDict())
        known = versions.get(message.meta_version)
        versions[message.meta_version] = captured
        if len(versions) > VERSIONS:
            versions.popitem(last=False)
        return known is None or known.data != captured.data

    def _gather(self, message: MetaBlobAnnounce | MetaBlobChunk | MetaBlobComplete, captured: CapturedMessage) -> None:
        """Keeps the last whole blob of each type; chunks do not name theirs, so one follows the other."""
        key = (message.stream_id, message.meta_version)
        if isinstance(message, MetaBlobAnnounce):
            self._coming.pop(key, None)
            self._coming[key] = _Coming(message)
            if len(self._coming) > MOST_COMING:
                self.counts["blobs given up"] += 1
                self._coming.popitem(last=False)
        coming = self._coming.get(key)
        if coming is None:
            return
        coming.add(captured)
        announce = coming.announce
        if coming.bytes > self._carried_bytes:
            self.counts["blobs too large to carry"] += 1
            del self._coming[key]
        elif isinstance(message, MetaBlobComplete):
            del self._coming[key]
            self._blobs.pop((announce.stream_id, announce.blob_type), None)
            self._blobs[announce.stream_id, announce.blob_type] = coming.messages
            while sum(len(each.data) for blob in self._blobs.values() for each in blob) > self._carried_bytes:
                self._blobs.popitem(last=False)


class Ears:
    """The shared streams of a host, as far as a recorder listens to them."""

    def __init__(self, client: Client, config: Config) -> None:
        self._listeners: list[tuple[int, Listener]] = []
        for topic in TOPICS:
            stream_id = getattr(config.stream_ids, topic)
            where = channel.control_subscription(getattr(config.channels, topic))
            self._listeners.append((stream_id, Listener(client.add_subscription(where, stream_id))))

    def hear(self) -> Iterator[tuple[int, bytes]]:
        """What came since the last call, with the Aeron stream that it came on; nothing without a media driver."""
        for stream_id, listener in self._listeners:
            try:
                messages = listener.poll(MESSAGES_PER_POLL)
            except MediaDriverLost:  # whoever owns the client waits for it
                return
            for message in messages:
                yield stream_id, message

    def close(self) -> None:
        for _, listener in self._listeners:
            listener.close()

    def statistics(self) -> dict[str, int]:
        return {"left_behind": sum(listener.left_behind for _, listener in self._listeners)}
