"""The index against a naive one: no dictionaries to find by, no order, nothing kept, every question a search of all."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from framepool.config import DiscoveryLimits
from framepool.discovery.entry import Filters, Origin
from framepool.discovery.index import Index
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from framepool.wire._generated.discovery_910 import Result
from framepool.wire.cursor import Cursor
from tests.support.discovery_rig import announce, meta, source

SECOND = 10**9
MAX_STREAMS = 5


def origin(instance_id: str, channel: str, window_ns: int) -> Origin:
    return Origin(
        instance_id=instance_id, control_channel=channel, control_stream_id=1, host=instance_id, window_ns=window_ns
    )


ORIGINS = [
    origin("a", "aeron:ipc", 3 * SECOND),
    origin("a", "aeron:ipc?alias=moved", 3 * SECOND),
    origin("b", "aeron:ipc", 5 * SECOND),
    origin("c", "", 3 * SECOND),
]
"""One driver that moves, one that is slower, and one that nobody could attach to."""
STREAMS = st.integers(1, 4)
NAMES = st.sampled_from(["", "cam", "Cam", "x" * 257])
TAGS = st.lists(st.sampled_from(["t", "T", "u", "host:a"]), max_size=3, unique=True)
EPOCHS = st.integers(1, 4)
PRODUCERS = st.integers(0, 2)


class Naive:
    """What is known of one stream, as plain as it can be."""

    def __init__(self) -> None:
        self.announce: ShmPoolAnnounce | None = None
        self.origin = ORIGINS[0]
        self.announced = 0
        self.told: dict[str, Any] = {}
        self.told_at = 0
        self.told_window = 0


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index(DiscoveryLimits(max_streams=MAX_STREAMS))
        self.model: dict[tuple[str, int], Naive] = {}
        self.now = 0

    def known(self, key: tuple[str, int]) -> Naive:
        """The stream, without what time has taken."""
        stream = self.model.setdefault(key, Naive())
        if stream.announce is not None:
            if self.now - stream.announced > stream.origin.window_ns:
                self.model[key] = Naive()
        elif self.now - stream.told_at > stream.told_window:
            self.model[key] = Naive()
        return self.model[key]

    def announced(self) -> list[Naive]:
        streams = [self.known(key) for key in list(self.model)]
        return [stream for stream in streams if stream.announce is not None]

    @rule(origin=st.sampled_from(ORIGINS), stream_id=STREAMS, epoch=EPOCHS, producer_id=PRODUCERS, misfit=st.booleans())
    def announce(self, origin: Origin, stream_id: int, epoch: int, producer_id: int, misfit: bool) -> None:
        message = announce(stream_id, epoch, producer_id=producer_id, header_nslots=8 if misfit else 4)
        self.index.on_announce(origin, message, self.now)
        full = len(self.announced()) >= MAX_STREAMS
        stream = self.known((origin.instance_id, stream_id))
        if stream.announce is None:
            if full:
                return
        elif epoch < stream.announce.epoch and origin == stream.origin:
            return
        stream.announce, stream.origin, stream.announced = message, origin, self.now

    def told(self, origin: Origin, stream_id: int) -> dict[str, Any]:
        stream = self.known((origin.instance_id, stream_id))
        stream.told_at, stream.told_window = self.now, origin.window_ns
        return stream.told

    @rule(
        origin=st.sampled_from(ORIGINS),
        stream_id=STREAMS,
        epoch=EPOCHS,
        producer_id=PRODUCERS,
        name=NAMES,
        version=st.integers(1, 3),
    )
    def source(self, origin: Origin, stream_id: int, epoch: int, producer_id: int, name: str, version: int) -> None:
        message: DataSourceAnnounce = source(
            stream_id, name, epoch=epoch, producer_id=producer_id, meta_version=version
        )
        self.index.on_source(origin, message, self.now)
        told = self.told(origin, stream_id)
        if epoch < told.get("epoch", 0) and self.now - told["named"] <= origin.window_ns:
            return
        if told.get("producer", producer_id) != producer_id:
            told.clear()
        told.update(epoch=epoch, named=self.now, producer=producer_id, announced=version)
        told["name"] = name if len(name) <= 256 else ""

    @rule(
        origin=st.sampled_from(ORIGINS),
        stream_id=STREAMS,
        version=st.integers(1, 3),
        tags=TAGS,
        data_source_id=st.none() | st.integers(0, 2),
    )
    def meta(self, origin: Origin, stream_id: int, version: int, tags: list[str], data_source_id: int | None) -> None:
        self.stamp = getattr(self, "stamp", 0) + 1
        message: DataSourceMeta = meta(stream_id, version, self.stamp, tags=tags, data_source_id=data_source_id)
        self.index.on_meta(origin, message, self.now)
        told = self.told(origin, stream_id)
        if told.get("version") is not None and told["version"] == told.get("announced") != version:
            return
        told.update(version=version, id=data_source_id, tags=[tag for tag in tags if tag != "host:a"])

    @rule(nanoseconds=st.sampled_from([1, SECOND, 3 * SECOND, 3 * SECOND + 1, 5 * SECOND]))
    def pass_time(self, nanoseconds: int) -> None:
        self.now += nanoseconds

    @rule()
    def expire(self) -> None:
        self.index.expire(self.now)
        assert len(self.index) == len(self.announced())

    @rule(
        stream_id=st.none() | STREAMS,
        producer_id=st.none() | PRODUCERS,
        data_source_id=st.none() | st.integers(0, 2),
        name=NAMES,
        tags=st.frozensets(st.sampled_from(["t", "T", "u", "host:a", "host:b"]), max_size=2),
    )
    def find(
        self,
        stream_id: int | None,
        producer_id: int | None,
        data_source_id: int | None,
        name: str,
        tags: frozenset[str],
    ) -> None:
        filters = Filters(stream_id, producer_id, data_source_id, name, tags)
        self.compare(filters)

    @invariant()
    def shows_the_same(self) -> None:
        self.compare(Filters())

    def compare(self, filters: Filters) -> None:
        found = [Result.read(Cursor(entry.encode())) for entry in self.index.find(filters, self.now)]
        assert [self.seen(result) for result in found] == sorted(self.expected(filters))

    def expected(self, filters: Filters) -> list[tuple[Any, ...]]:
        matches = []
        for stream in self.announced():
            announce, told, origin = stream.announce, stream.told, stream.origin
            assert announce is not None
            if not origin.control_channel or announce.header_nslots != 4:
                continue
            tags = {*told.get("tags", ()), f"host:{origin.host}"}
            wanted = (
                filters.stream_id in {None, announce.stream_id},
                filters.producer_id in {None, announce.producer_id},
                filters.data_source_id is None or filters.data_source_id == told.get("id"),
                filters.name in {"", told.get("name", "")},
                filters.tags <= tags,
            )
            if all(wanted):
                who = (origin.instance_id, announce.stream_id, announce.epoch, announce.producer_id)
                what = (told.get("name", ""), repr(told.get("id")), sorted(tags), origin.control_channel)
                matches.append((*who, *what, announce.header_region_uri))
        return matches

    @staticmethod
    def seen(result: Result) -> tuple[Any, ...]:
        who = (result.driver_instance_id, result.stream_id, result.epoch, result.producer_id)
        tags = sorted(tag.tag for tag in result.tags)
        what = (result.data_source_name, repr(result.data_source_id), tags, result.driver_control_channel)
        return (*who, *what, result.header_region_uri)


IndexMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestIndex = IndexMachine.TestCase
