"""A stream as discovery knows it: what its driver announced, what its producer tells, and who to ask for it.

Values and small state without I/O; `index` keeps them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple, Self

import msgspec

from framepool.discovery.host import host_tag
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.discovery_910 import DiscoveryRequest, PayloadPool, Result, Tag
from framepool.wire.constants import HEADER_SLOT_BYTES, MAX_DIMS

Key = tuple[str, int]
"""Driver instance and stream (Discovery 6.1)."""

FRESH_PERIODS: Final = 3
"""Announces of so many periods ago do not hold any more (Discovery 6.2)."""

Term = tuple[str, Hashable]
"""Something that a stream can be found by: its kind and its value."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that messages come from, by configuration and never by what they say (Discovery 6.4)."""

    instance_id: str
    control_channel: str
    control_stream_id: int
    host: str
    window_ns: int
    """How long an announce of it holds: three of its periods (Discovery 6.2)."""

    @property
    def attachable(self) -> bool:
        """Whether a result could say where to attach (Discovery 5.2)."""
        return bool(self.control_channel) and self.control_stream_id != 0


class Filters(NamedTuple):
    """What is asked for; all that is given must hold (Discovery 5.1)."""

    stream_id: int | None = None
    producer_id: int | None = None
    data_source_id: int | None = None
    name: str = ""
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: DiscoveryRequest) -> Self:
        """Text of length 0 is not provided, and a tag that comes twice is one tag (Discovery 5.0, 5.1)."""
        return cls(
            request.stream_id,
            request.producer_id,
            request.data_source_id,
            request.data_source_name,
            frozenset(tag.tag for tag in request.tags if tag.tag),
        )

    def terms(self) -> list[Term]:
        """What streams can be found by, as far as it is given."""
        terms: list[Term] = [("tag", tag) for tag in self.tags]
        if self.stream_id is not None:
            terms.append(("stream", self.stream_id))
        if self.producer_id is not None:
            terms.append(("producer", self.producer_id))
        if self.data_source_id is not None:
            terms.append(("source", self.data_source_id))
        if self.name:
            terms.append(("name", self.name))
        return terms


class Told:
    """What the producer of a stream tells of it."""

    __slots__ = (
        "data_source_id",
        "epoch",
        "meta_stamp",
        "name",
        "named_ns",
        "producer_id",
        "tags",
        "until_ns",
        "version",
    )

    def __init__(self, now_ns: int) -> None:
        self.until_ns = now_ns
        """How long it is kept while the stream is not announced."""
        self.named_ns = now_ns
        """When the announce of its source came that counts."""
        self.producer_id: int | None = None
        self.epoch = 0
        self.version: int | None = None
        """The version of the attributes that is announced."""
        self.name = ""
        self.forget()

    def forget(self) -> None:
        """Versions are counted by each producer for itself: those of another one mean nothing."""
        self.meta_stamp: tuple[int, int] | None = None
        """Version and time of the attributes that were read."""
        self.data_source_id: int | None = None
        self.tags: tuple[str, ...] = ()


class Entry:
    """A stream that is announced."""

    __slots__ = ("_encoded", "announce", "announced_ns", "origin", "tags", "told")

    def __init__(self, origin: Origin, announce: ShmPoolAnnounce, told: Told, now_ns: int) -> None:
        self.origin = origin
        self.announce = announce
        self.announced_ns = now_ns
        self.told = told
        self.refresh()

    def refresh(self) -> None:
        """After something was changed that results say."""
        self.tags = frozenset((*self.told.tags, host_tag(self.origin.host)))
        self._encoded: bytes | None = None

    @property
    def key(self) -> Key:
        return self.origin.instance_id, self.announce.stream_id

    @property
    def fit(self) -> bool:
        """Whether it may be shown: with an endpoint to attach to, and with a layout of version 1 (Discovery 5.2)."""
        announce = self.announce
        return (
            self.origin.attachable
            and announce.header_slot_bytes == HEADER_SLOT_BYTES
            and all(pool.pool_nslots == announce.header_nslots for pool in announce.payload_pools)
        )

    def is_past(self, now_ns: int) -> bool:
        """Whether its last announce is too long ago (Discovery 6.2)."""
        return now_ns - self.announced_ns > self.origin.window_ns

    def matches(self, filters: Filters) -> bool:
        """Whether all that is asked for holds; names and tags byte for byte."""
        announce, told = self.announce, self.told
        return (
            (filters.stream_id is None or filters.stream_id == announce.stream_id)
            and (filters.producer_id is None or filters.producer_id == announce.producer_id)
            and (filters.data_source_id is None or filters.data_source_id == told.data_source_id)
            and (not filters.name or filters.name == told.name)
            and filters.tags <= self.tags
        )

    def result(self) -> Result:
        """What is answered: the last announce, all that is told of it, and whom to ask (Discovery 5.2)."""
        announce, told, origin = self.announce, self.told, self.origin
        return Result(
            stream_id=announce.stream_id,
            producer_id=announce.producer_id,
            epoch=announce.epoch,
            layout_version=announce.layout_version,
            header_nslots=announce.header_nslots,
            header_slot_bytes=announce.header_slot_bytes,
            max_dims=MAX_DIMS,
            data_source_id=told.data_source_id,
            driver_control_stream_id=origin.control_stream_id,
            payload_pools=tuple(
                PayloadPool(
                    pool_id=pool.pool_id,
                    pool_nslots=pool.pool_nslots,
                    stride_bytes=pool.stride_bytes,
                    region_uri=pool.region_uri,
                )
                for pool in announce.payload_pools
            ),
            tags=tuple(Tag(tag=tag) for tag in (*told.tags, host_tag(origin.host))),
            header_region_uri=announce.header_region_uri,
            data_source_name=told.name,
            driver_instance_id=origin.instance_id,
            driver_control_channel=origin.control_channel,
        )

    def encode(self) -> bytes:
        """The result as it stands in a response; kept until it changes."""
        if self._encoded is None:
            self._encoded = self.result().encode_body()
        return self._encoded

    def terms(self) -> Iterable[Term]:
        """Everything that it can be found by."""
        announce, told = self.announce, self.told
        yield "stream", announce.stream_id
        yield "producer", announce.producer_id
        if told.data_source_id is not None:
            yield "source", told.data_source_id
        if told.name:
            yield "name", told.name
        for tag in self.tags:
            yield "tag", tag


def say_the_same(one: ShmPoolAnnounce, other: ShmPoolAnnounce) -> bool:
    """Whether two announces differ in their time only."""
    return (
        one.epoch == other.epoch
        and one.producer_id == other.producer_id
        and one.header_region_uri == other.header_region_uri
        and one.payload_pools == other.payload_pools
        and one.header_nslots == other.header_nslots
        and one.header_slot_bytes == other.header_slot_bytes
        and one.layout_version == other.layout_version
    )
