"""What goes along with the frames of a stream, and how it is changed on its way (Bridge 7.1, 7.2, 9).

Announces, metadata, QoS and progress cross as the messages they are, under the id of the source stream
(`decisions.md` #55); the receiving side gives them the ids of the destination. All of this is pure: messages in,
messages out. Metadata gets tags on its way, so that discovery can show where a stream comes from: the sender names
host and stream of the origin unless a bridge before it did, and each receiver names itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    FrameProgress,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
    QosConsumer,
    QosProducer,
)
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.attributes import Metadata, attribute_of

ORIGIN_HOST = "origin-host:"
ORIGIN_STREAM = "origin-stream:"
BRIDGED = "bridged:"

type Told = DataSourceAnnounce | DataSourceMeta | MetaBlobAnnounce | MetaBlobChunk | MetaBlobComplete
"""What sources say of themselves."""
TOLD: tuple[type[Told], ...] = (DataSourceAnnounce, DataSourceMeta, MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete)
type Report = QosProducer | QosConsumer
REPORTS: tuple[type[Report], ...] = (QosProducer, QosConsumer)


def departing(message: Told, host: str) -> Told:
    """Metadata as the sender forwards it."""
    if not isinstance(message, DataSourceMeta) or any(tag.startswith(ORIGIN_HOST) for tag in tags_of(message)):
        return message
    return with_tags(message, (f"{ORIGIN_HOST}{host}", f"{ORIGIN_STREAM}{message.stream_id}"))


def arriving(message: Told, stream_id: int, instance_id: str) -> Told:
    """Metadata as the receiver publishes it: about the destination, of the version it had (Bridge 7.1)."""
    if isinstance(message, DataSourceMeta):
        message = with_tags(message, (f"{BRIDGED}{instance_id}",))
    return msgspec.structs.replace(message, stream_id=stream_id)


def arriving_report(message: Report, stream_id: int) -> Report:
    """QoS as the receiver repeats it (`decisions.md` #60)."""
    return msgspec.structs.replace(message, stream_id=stream_id)


def arriving_progress(message: FrameProgress, stream_id: int) -> FrameProgress:
    """Progress as the receiver repeats it: epoch, seq, bytes and state are the source's (Bridge 9, #51)."""
    return msgspec.structs.replace(message, stream_id=stream_id)


def arriving_links(message: TraceLinkSet, stream_id: int, epoch: int) -> TraceLinkSet:
    """What a frame was made of, said of the frame as it is at the destination: in the local epoch, with its seq."""
    return msgspec.structs.replace(message, stream_id=stream_id, epoch=epoch)


def tags_of(meta: DataSourceMeta) -> tuple[str, ...]:
    """The tags of a source (`decisions.md` #46)."""
    return Metadata(meta.stream_id, meta.meta_version, meta.timestamp_ns, meta.attributes).tags


def with_tags(meta: DataSourceMeta, tags: Iterable[str]) -> DataSourceMeta:
    """The same with these tags beside its own; nothing else changes."""
    known = tags_of(meta)
    attribute = attribute_of("tags", list(dict.fromkeys((*known, *tags))))
    others = tuple(each for each in meta.attributes if each.key != "tags")
    return msgspec.structs.replace(meta, attributes=(*others, attribute))
