"""Messages one after the other into everything that is folded from them: supervisor, discovery, driver, metadata.

Whatever comes is taken in or dropped and counted; nothing is raised, and what is remembered stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from framepool.client.metadata_cache import MetadataCache
from framepool.clock import ManualClock
from framepool.config import Config, DiscoveryLimits, PoolConfig, ProfileConfig, SupervisorLimits
from framepool.console.view import Scene
from framepool.discovery.entry import Filters
from framepool.discovery.index import Feed, Index
from framepool.driver.streams import Authority
from framepool.shm.layout import PoolLayout, StreamLayout
from framepool.shm.uri import RegionUri
from framepool.supervisor.state import State, Thresholds
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta
from framepool.wire._generated.discovery_910 import DiscoveryRequest
from framepool.wire._generated.driver_901 import ShmAttachRequest, ShmDetachRequest, ShmLeaseKeepalive
from framepool.wire.constants import HEADER_SLOT_BYTES, LAYOUT_VERSION
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import Message
from tests.fuzz.draw import Draw, pieced
from tests.golden.vectors import ALL
from tests.support.discovery_rig import announce, meta, origin, source

MOST_MESSAGES = 48
LIMITS = SupervisorLimits(max_streams=4, max_consumers=4, max_leases=4, max_metadata_bytes=256, max_notices=8)
PROFILE = ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=64),))
CONFIG = Config(profiles={"default": PROFILE})
ORIGIN = origin("driver-a")


class NoFiles:
    """Regions that are numbers only."""

    hugepages = False

    def __init__(self) -> None:
        self._epoch = 0

    def create(self, stream_id: int, profile: ProfileConfig, *, hugepages: bool) -> StreamLayout:
        self._epoch += 1
        uri = RegionUri(f"/shm/{stream_id}/{self._epoch}/x")
        pools = tuple(PoolLayout(pool.pool_id, profile.nslots, pool.stride_bytes, uri) for pool in profile.pools)
        return StreamLayout(stream_id, self._epoch, LAYOUT_VERSION, profile.nslots, HEADER_SLOT_BYTES, uri, pools)

    def validate(self, layout: StreamLayout) -> None:
        pass

    def refresh(self, layout: StreamLayout, timestamp_ns: int) -> None:
        pass

    def retire(self, layout: StreamLayout) -> None:
        pass


class Site:
    """Everybody who listens."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.state = State(Thresholds(limits=LIMITS))
        self.index = Index(DiscoveryLimits(max_streams=4, max_tags=4, max_name_bytes=16))
        self.feed = Feed(self.index, ORIGIN)
        self.cache = MetadataCache(self.clock, follow=None, versions=2, max_streams=4, max_attributes=8, max_bytes=512)
        self.authority = Authority(CONFIG, NoFiles(), self.clock, lambda message: self.said.append(message.encode()))
        self.scene = Scene(bridged=lambda _: False)
        self.said: list[bytes] = []
        self.found: list[bytes] = []
        self._dispatch = Dispatcher()
        self._dispatch.on(DataSourceAnnounce, self.cache.on_announce)
        self._dispatch.on(DataSourceMeta, self.cache.on_meta)
        self._dispatch.on(ShmAttachRequest, self.authority.attach)
        self._dispatch.on(ShmDetachRequest, self.authority.detach)
        self._dispatch.on(ShmLeaseKeepalive, self.authority.keepalive)
        self._dispatch.on(DiscoveryRequest, self._find)

    def hear(self, message: bytes) -> None:
        now_ns = self.clock.monotonic_ns()
        self.state.receive(message, now_ns)
        self.feed(message, now_ns)
        self._dispatch(message)

    def wait(self, tenths: int) -> None:
        self.clock.advance(tenths * 10**8)
        now_ns = self.clock.monotonic_ns()
        self.state.tick(now_ns)
        self.index.expire(now_ns)
        self.authority.expire()

    def look(self) -> None:
        """What a console and an operator would see, and that it is not more than was allowed."""
        msgspec.json.encode(self.scene.look(self.state, ()))
        msgspec.json.encode([stream.describe(self.state.now_ns) for stream in self.state.streams.values()])
        self.cache.sources()
        assert len(self.state.streams) <= LIMITS.max_streams
        assert sum(1 for _ in self.state.consumers()) <= LIMITS.max_consumers
        assert len(self.state.leases.leases) <= LIMITS.max_leases
        assert len(self.index) <= 4
        known = self.cache.statistics()
        assert known["streams"] <= 4
        assert known["bytes"] <= 512

    def _find(self, request: DiscoveryRequest) -> None:
        self.found = [entry.encode() for entry in self.index.find(Filters.of(request), self.clock.monotonic_ns())]


def one(data: bytes) -> None:
    draw, site = Draw(data), Site()
    for _ in range(MOST_MESSAGES):
        if not draw:
            break
        match draw.number() % 8:
            case 0:
                site.wait(draw.number())
            case 1:
                site.look()
            case 2:  # what the driver said is heard by the others
                for message in site.said[-4:]:
                    site.hear(message)
            case 3:
                site.hear(KNOWN[draw.number() % len(KNOWN)].encode())
            case _:
                site.hear(draw.piece())
    site.look()


KNOWN: list[Message] = [
    announce(10_000, 4),
    announce(10_001, 9),
    announce(10_000, 5, producer_id=8),
    source(10_000, "camera"),
    source(10_001, "other"),
    meta(10_000, tags=["lab:3", "raw"], data_source_id=12),
    meta(10_001, tags=["x"] * 9),
]


def seeds() -> Iterator[bytes]:
    everything = [bytes([4]) + pieced(vector.encoded) for vector in ALL if vector.with_header]
    yield from everything
    for start in range(0, len(everything), 12):
        yield b"".join(part + bytes([0, 9]) for part in everything[start : start + 12]) + bytes([2, 1, 0, 200, 1])
    for number in range(len(KNOWN)):
        yield bytes([3, number, 1, 0, 50, 3, (number + 1) % len(KNOWN), 1])
