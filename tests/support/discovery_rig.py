"""A registry that a test turns by hand, over real Aeron, and a bare client that asks it whatever it likes.

The registry's clock stands still until the test moves it. The test itself is the drivers: what it says on their
channels is what the registry gets to hear.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Literal, Self

from framepool.agent import Invoker
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import Config, DiscoveryConfig, RegistryConfig, SourceConfig
from framepool.discovery.entry import Origin
from framepool.discovery.registry import Registry
from framepool.transport.aeron import AnyPublication, Client, Subscription
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import (
    Attribute,
    ClockDomain,
    DataSourceAnnounce,
    DataSourceMeta,
    PayloadPool,
    ShmPoolAnnounce,
)
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, Tag
from framepool.wire.attributes import attribute_of
from framepool.wire.message import Message
from tests.support.ports import free_port

Media = Literal["ipc", "udp"]
MEDIA: tuple[Media, ...] = ("ipc", "udp")
PATIENCE = 30.0
WINDOW = 3 * NANOS_PER_SECOND
TERM = "term-length=64k"
_request_ids = itertools.count(1_000_000)  # no number of a `DriverClient`: both are heard on one control stream
_stream_ids = itertools.count(40_000)


def new_channel(media: Media, term: str = TERM) -> str:
    """A channel of that media; of UDP, with a port of its own."""
    return f"aeron:ipc?{term}" if media == "ipc" else f"aeron:udp?endpoint=127.0.0.1:{free_port()}|{term}"


def new_stream_id() -> int:
    """An Aeron stream of its own, since all IPC channels are one."""
    return next(_stream_ids)


# What drivers and producers say


def origin(instance_id: str = "driver-a", **changes: Any) -> Origin:
    """A driver as a configuration names it."""
    fields: dict[str, Any] = {
        "control_channel": "aeron:ipc",
        "control_stream_id": 1000,
        "host": "host-a",
        "window_ns": WINDOW,
    }
    return Origin(**{**fields, "instance_id": instance_id, **changes})


def announce(stream_id: int, epoch: int = 1, **changes: Any) -> ShmPoolAnnounce:
    """An announce in order, with fields changed at will; `nslots` stands for those of ring and pools."""
    nslots = changes.pop("nslots", 4)
    strides = changes.pop("strides", (64,))
    directory = f"/dev/shm/tensorpool-u/ns/{stream_id}/{epoch}"
    pools = tuple(
        PayloadPool(
            pool_id=i, pool_nslots=nslots, stride_bytes=stride, region_uri=f"shm:file?path={directory}/{i}.pool"
        )
        for i, stride in enumerate(strides, start=1)
    )
    fields: dict[str, Any] = {
        "stream_id": stream_id,
        "producer_id": 7,
        "epoch": epoch,
        "announce_timestamp_ns": 1,
        "announce_clock_domain": ClockDomain.MONOTONIC,
        "layout_version": 1,
        "header_nslots": nslots,
        "header_slot_bytes": 256,
        "payload_pools": pools,
        "header_region_uri": f"shm:file?path={directory}/header.ring",
    }
    return ShmPoolAnnounce(**{**fields, **changes})


def source(stream_id: int, name: str, **changes: Any) -> DataSourceAnnounce:
    """What a producer calls its stream."""
    fields: dict[str, Any] = {"producer_id": 7, "epoch": 1, "meta_version": 1, "summary": ""}
    return DataSourceAnnounce(**{**fields, "stream_id": stream_id, "name": name, **changes})


def meta(stream_id: int, version: int = 1, timestamp_ns: int = 1, **attributes: Any) -> DataSourceMeta:
    """Attributes of a stream."""
    encoded: tuple[Attribute, ...] = tuple(attribute_of(key, value) for key, value in attributes.items())
    return DataSourceMeta(stream_id=stream_id, meta_version=version, timestamp_ns=timestamp_ns, attributes=encoded)


def tags_of(*tags: str) -> tuple[Tag, ...]:
    return tuple(Tag(tag=tag) for tag in tags)


def send(publication: AnyPublication, message: Message | bytes) -> None:
    """Until Aeron takes it."""
    data = message if isinstance(message, bytes) else message.encode()
    deadline = time.monotonic() + PATIENCE
    while (outcome := publication.offer(data)) < 0:
        assert time.monotonic() < deadline, f"{publication.describe()} takes nothing: {outcome}"
        time.sleep(0.001)


class Asker:
    """One client of discovery: its requests, and everything that comes to its response endpoint."""

    def __init__(
        self,
        settings: AeronSettings,
        request_channel: str,
        request_stream_id: int,
        *,
        response_channel: str = f"aeron:ipc?{TERM}",
        turn: Callable[[], object] = lambda: time.sleep(0.001),
    ) -> None:
        self.client = Client.connect(settings, name="asker", timeout=PATIENCE)
        self.response_channel = response_channel
        self.response_stream_id = new_stream_id()
        self.responses = self.client.add_subscription(response_channel, self.response_stream_id)
        self.requests = self.client.add_publication(request_channel, request_stream_id)
        self.turn = turn
        self.heard: list[DiscoveryResponse] = []

    def request(self, **changes: Any) -> DiscoveryRequest:
        """A request in order, with fields changed at will; `tags` are plain text."""
        if "tags" in changes:
            changes["tags"] = tags_of(*changes["tags"])
        fields: dict[str, Any] = {
            "request_id": next(_request_ids),
            "client_id": 77,
            "response_stream_id": self.response_stream_id,
            "response_channel": self.response_channel,
        }
        return DiscoveryRequest(**{**fields, **changes})

    def send(self, message: Message | bytes) -> None:
        """Puts a message or mere bytes where requests go."""
        data = message if isinstance(message, bytes) else message.encode()
        self.until(lambda: self.requests.offer(data) >= 0)

    def hear(self) -> list[DiscoveryResponse]:
        """All answers so far."""
        self.heard += [DiscoveryResponse.decode(message) for message in self.responses.poll()]
        return self.heard

    def answer(self, request_id: int) -> DiscoveryResponse:
        """The answer to a request; waits for it."""
        self.until(lambda: any(each.request_id == request_id for each in self.hear()))
        (found, *_) = [each for each in self.heard if each.request_id == request_id]
        return found

    def ask(self, **changes: Any) -> DiscoveryResponse:
        """Sends a request and waits for its answer, whatever it is."""
        request = self.request(**changes)
        self.send(request)
        return self.answer(request.request_id)

    def found(self, **changes: Any) -> list[int]:
        """The ids of the streams that match."""
        return [result.stream_id for result in self.ask(**changes).results]

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            said = [(each.status.name, len(each.results), each.error_message) for each in self.heard[-5:]]
            assert time.monotonic() < deadline, f"not within {PATIENCE} s; the last answers were {said}"
            self.turn()

    def listen(self, channel: str, stream_id: int) -> Subscription:
        """One more ear."""
        return self.client.add_subscription(channel, stream_id)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpokenDriver:
    """A driver as far as a registry can tell: two publications that the test speaks on."""

    def __init__(self, client: Client, config: SourceConfig) -> None:
        self.config = config
        self._announces = client.add_exclusive_publication(config.channel, config.announce_stream_id)
        self._metadata = client.add_exclusive_publication(config.channel, config.metadata_stream_id)

    def say(self, *messages: Message | bytes) -> None:
        for message in messages:
            send(
                self._metadata if isinstance(message, DataSourceAnnounce | DataSourceMeta) else self._announces, message
            )


class DiscoveryRig:
    """A registry, the drivers it hears, and a client, on one media driver and all over one medium."""

    def __init__(
        self, settings: AeronSettings, media: Media, *, drivers: int = 2, period_ms: int = 1_000, **discovery: Any
    ) -> None:
        self.media = media
        self.settings = settings
        self.clock = ManualClock()
        sources = tuple(
            SourceConfig(
                driver_instance_id=f"driver-{number}",
                host=f"host-{number}",
                channel=new_channel(media),
                announce_stream_id=new_stream_id(),
                metadata_stream_id=new_stream_id(),
                control_channel=f"aeron:ipc?alias=driver-{number}",
                control_stream_id=1000 + number,
                announce_period_ms=period_ms,
            )
            for number in range(drivers)
        )
        self.config = Config(
            aeron=settings,
            discovery=DiscoveryConfig(channel=new_channel(media), stream_id=new_stream_id(), **discovery),
            registry=RegistryConfig(media_driver="external", sources=sources),
        )
        self._client = Client.connect(settings, name="registry", timeout=PATIENCE)
        self.registry = Registry(self.config, self._client, self.clock)
        self.invoker = Invoker(self.registry, on_error=self._on_error)
        self.errors: list[BaseException] = []
        self.invoker.start()
        self._speaker = Client.connect(settings, name="drivers", timeout=PATIENCE)
        self.drivers = [SpokenDriver(self._speaker, each) for each in sources]
        self._askers: list[Asker] = []
        self.asker = self.new_asker()

    def new_asker(self, term: str = TERM) -> Asker:
        """Another client, with a response endpoint of its own."""
        discovery = self.config.discovery
        response = new_channel(self.media, term)
        asker = Asker(self.settings, discovery.channel, discovery.stream_id, response_channel=response, turn=self.turn)
        self._askers.append(asker)
        return asker

    def turn(self) -> None:
        self.invoker.invoke()
        time.sleep(0.0005)

    def say(self, *messages: Message | bytes, driver: int = 0) -> None:
        """Lets a driver or its producers say something, and the registry hear all of it."""
        before = self._heard(driver)
        self.drivers[driver].say(*messages)
        self.asker.until(lambda: self._heard(driver) >= before + len(messages))

    def pass_time(self, milliseconds: float) -> None:
        self.clock.advance(round(milliseconds * NANOS_PER_MILLI))

    def _heard(self, driver: int) -> int:
        """How many messages of a driver have come, whatever became of them."""
        messages: dict[str, int] = self.registry.report()["drivers"][f"driver-{driver}"]["messages"]
        return sum(messages.values())

    def count(self, name: str) -> int:
        found: int = self.registry.report()["discovery"].get(name, 0)
        return found

    def _on_error(self, role: str, error: BaseException) -> None:
        self.errors.append(error)

    def reconnect(self) -> None:
        """After the media driver was gone: whatever belongs to the test comes back too."""
        deadline = time.monotonic() + PATIENCE
        for client in (self._speaker, *(asker.client for asker in self._askers)):
            while client.connected:  # it looks at the old one's heartbeat at its own pace
                assert time.monotonic() < deadline, "a client has not noticed that its media driver is gone"
                time.sleep(0.01)
            client.reconnect(PATIENCE)

    def close(self) -> None:
        for asker in self._askers:
            asker.close()
        self.invoker.close()
        self._speaker.close()
        self._client.close()
        assert not self.errors, self.errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
