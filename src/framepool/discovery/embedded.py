"""The part of a driver that discovery is: it answers for the driver's own streams, and tells registries of them.

Requests come on the driver's control endpoint (Discovery 4.2, 13) and on the discovery endpoint of the configuration.
The driver's announces go straight into the index, as they are said; names and tags are heard from the metadata stream,
where producers tell them (`decisions.md` #49).
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config
from framepool.discovery.announcer import Announcer
from framepool.discovery.ear import REQUESTS, Ear, listen
from framepool.discovery.entry import FRESH_PERIODS, Origin
from framepool.discovery.host import this_host
from framepool.discovery.index import Index
from framepool.discovery.provider import Provider
from framepool.discovery.responses import Responses
from framepool.errors import MediaDriverLost
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from framepool.wire.dispatch import Dispatcher

REQUESTS_PER_CYCLE = 8
METADATA_PER_CYCLE = 64
"""Few, because leases and announces wait meanwhile."""


def own_origin(config: Config) -> Origin:
    """The driver of this configuration, as results name it."""
    discovery = config.discovery
    name = f"{socket.gethostname()}/{config.driver.namespace}".encode("ascii", "replace").decode()
    return Origin(
        instance_id=discovery.driver_instance_id or name,
        control_channel=config.channels.control,
        control_stream_id=config.stream_ids.control,
        host=this_host(discovery.host),
        window_ns=FRESH_PERIODS * config.driver.announce_period_ms * NANOS_PER_MILLI,
    )


class EmbeddedDiscovery:
    """An agent beside the driver's conductor. It uses the same Aeron client, which the conductor brings back after the
    loss of the media driver; so it has its turn after the conductor, to forget the endpoints of strangers before."""

    role = "discovery"

    def __init__(self, config: Config, client: Client, clock: Clock) -> None:
        self.origin = own_origin(config)
        self._config = config
        self._client = client
        self._clock = clock
        self._index = Index(config.discovery.limits)
        self._responses = Responses(client, config.discovery.responses, clock)
        self._provider = Provider(self._index, self._responses, config.discovery, config.aeron, clock)
        self._announcer = Announcer(config, client, clock)
        self._requests: list[Ear] = []
        self._metadata: list[Ear] = []
        self._heard = b""
        self._dispatch = Dispatcher()
        self._dispatch.on(DataSourceAnnounce, lambda source: self._on_metadata(source, self._index.on_source))
        self._dispatch.on(DataSourceMeta, lambda meta: self._on_metadata(meta, self._index.on_meta))

    def on_start(self) -> None:
        discovery, ids, channels = self._config.discovery, self._config.stream_ids, self._config.channels
        self._announcer.on_start()
        if discovery.embedded or discovery.announce_channels:
            self._metadata = [listen(self._client, channels.metadata, ids.metadata)]
        if discovery.embedded:
            here = (channels.control, ids.control), (discovery.channel, self._config.discovery_stream_id)
            self._requests = [listen(self._client, *endpoint, only=REQUESTS) for endpoint in dict.fromkeys(here)]

    def do_work(self) -> int:
        try:
            metadata = [message for ear in self._metadata for message in ear.poll(METADATA_PER_CYCLE)]
            for self._heard in metadata:  # first: who asks for a name may just have given it
                self._dispatch(self._heard)
            requests = [request for ear in self._requests for request in ear.poll(REQUESTS_PER_CYCLE)]
            for request in requests:
                self._provider.receive(request)
            work = len(requests) + len(metadata)
            return work + self._provider.do_work() + self._announcer.do_work()
        except MediaDriverLost:  # the conductor waits for it
            self._responses.clear()
            self._announcer.clear()
            return 0

    def on_close(self) -> None:
        self._responses.clear()

    def announced(self, announce: ShmPoolAnnounce, encoded: bytes) -> None:
        """The driver announces a stream."""
        self._index.on_same_announce(self.origin, announce, self._clock.monotonic_ns())
        self._announcer.put(announce, encoded)

    def statistics(self) -> dict[str, int]:
        """What was asked and answered, how much is known, and what registries were told."""
        return {**self._provider.statistics(), **self._announcer.statistics()}

    def _on_metadata[M: DataSourceAnnounce | DataSourceMeta](
        self, message: M, fold: Callable[[Origin, M, int], None]
    ) -> None:
        fold(self.origin, message, self._clock.monotonic_ns())
        if (self.origin.instance_id, message.stream_id) in self._index:
            self._announcer.put(message, self._heard)
