"""The registry: one index over many drivers, asked over the network (Discovery 2.2, 8).

It hears the announces and the metadata that each driver repeats for it, and answers like any provider. Who a message is
from follows from the subscription it came on: each driver of the configuration has a channel, a stream id or a session
of its own. A registry keeps nothing and decides nothing, so that two of them side by side give the same answers, and
attaching is between client and driver alone.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Self

import msgspec

from framepool.agent import Runner, State
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config, DiscoveryLimits, SourceConfig
from framepool.discovery.ear import REQUESTS, Ear, listen
from framepool.discovery.entry import FRESH_PERIODS, Origin
from framepool.discovery.index import Feed, Index
from framepool.discovery.provider import Provider
from framepool.discovery.responses import Responses
from framepool.errors import ConfigurationError, MediaDriverLost
from framepool.service import Parameter, Service, ServiceState
from framepool.transport.aeron import Client
from framepool.transport.attentive import Attentive
from framepool.transport.media_driver import MediaDriver

LONGEST_WAIT = 0.032
"""Seconds: naps end together, so whatever a registry does by the clock may be late by twice as much."""
REQUESTS_PER_CYCLE = 16
MESSAGES_PER_CYCLE = 16
"""Of each stream of each driver; few, because whoever asks waits meanwhile."""


def origin_of(source: SourceConfig) -> Origin:
    """A driver as the configuration names it."""
    return Origin(
        instance_id=source.driver_instance_id,
        control_channel=source.control_channel,
        control_stream_id=source.control_stream_id,
        host=source.host,
        window_ns=FRESH_PERIODS * source.announce_period_ms * NANOS_PER_MILLI,
    )


class Source:
    """A driver and the streams on which it is heard."""

    def __init__(self, config: Config, source: SourceConfig, client: Client, index: Index, clock: Clock) -> None:
        self.feed = Feed(index, origin_of(source), config.discovery.limits)
        self._clock = clock
        ids = config.stream_ids
        stream_ids = (source.announce_stream_id or ids.announce, source.metadata_stream_id or ids.metadata)
        self._ears: list[Ear] = [listen(client, source.channel, stream_id) for stream_id in stream_ids]

    def do_work(self) -> int:
        """Takes in what came; how many messages that was."""
        heard = 0
        for ear in self._ears:
            messages = ear.poll(MESSAGES_PER_CYCLE)
            now = self._clock.monotonic_ns()
            for message in messages:
                self.feed(message, now)
            heard += len(messages)
        return heard

    def close(self) -> None:
        for ear in self._ears:
            ear.close()


class Registry(Service):
    """The registry as a service, `service:registry[:<instance>]`.

    Paused, it stays up to date and answers nobody; stopped, it hears nobody either and forgets what it knew.
    """

    requests_per_second = Parameter(
        Annotated[int, msgspec.Meta(ge=0)], DiscoveryLimits().requests_per_second, "Of each client id; 0 is no limit."
    )

    def __init__(self, config: Config, client: Client, clock: Clock | None = None) -> None:
        super().__init__(
            client, config, name="registry", instance=config.registry.instance, clock=clock, reconnect=True
        )
        self.requests_per_second = config.discovery.limits.requests_per_second
        self.sources: list[Source] = []
        self._requests: Ear | None = None
        self._new_index()

    # The agent

    def on_start(self) -> None:
        super().on_start()
        self._begin()

    def do_work(self) -> int:
        done = super().do_work()
        try:
            return done + sum(source.do_work() for source in self.sources)
        except MediaDriverLost:  # the service waits for it
            return done

    def work(self) -> int:
        """Answers, before more is taken in: whoever asks waits."""
        if self._requests is None:
            return 0
        try:
            requests = self._requests.poll(REQUESTS_PER_CYCLE)
            for request in requests:
                self.provider.receive(request)
            return len(requests) + self.provider.do_work()
        except MediaDriverLost:
            self._responses.clear()
            return 0

    def on_state(self, state: ServiceState) -> None:
        self._responses.clear()
        if state is ServiceState.STOPPED:
            self._end()
            self._new_index()
        elif self.state is ServiceState.STOPPED:
            self._begin()

    def on_set(self, name: str, value: Any) -> None:
        self.provider.set_rate(value)

    def on_close(self) -> None:
        self._end()
        super().on_close()

    # What it says of itself

    def report(self) -> dict[str, Any]:
        """What is known of each driver, and counts."""
        streams = self.index.drivers()
        drivers = {
            source.feed.origin.instance_id: {
                "host": source.feed.origin.host,
                "streams": streams[source.feed.origin.instance_id],
                "messages": source.feed.statistics(),
            }
            for source in self.sources
        }
        return {"drivers": drivers, "discovery": self.provider.statistics()}

    def statistics(self) -> dict[str, Any]:
        return {**super().statistics(), **self.report()}

    # Steps

    def _new_index(self) -> None:
        config = self._config.discovery
        self.index = Index(config.limits)
        self._responses = Responses(self._client, config.responses, self.clock)
        self.provider = Provider(self.index, self._responses, config, self._config.aeron, self.clock)
        self.provider.set_rate(self.requests_per_second)

    def _begin(self) -> None:
        config = self._config
        self.sources = [Source(config, each, self._client, self.index, self.clock) for each in config.registry.sources]
        where = (config.discovery.channel, config.discovery_stream_id)
        self._requests = listen(self._client, *where, only=REQUESTS)

    def _end(self) -> None:
        self._responses.clear()
        for source in self.sources:
            source.close()
        if self._requests is not None:
            self._requests.close()
        self.sources, self._requests = [], None


class RegistryServer:
    """A whole registry in one object: media driver, Aeron client and service, from `start` to `close`."""

    def __init__(self, config: Config) -> None:
        if not config.registry.sources:
            raise ConfigurationError("registry.sources is empty: name the drivers that this registry listens to")
        self.config = config
        self._opened = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            if config.registry.media_driver == "embedded":
                undo.enter_context(MediaDriver(config.aeron))
            client = undo.enter_context(Client.connect(config.aeron, name="framepool registry"))
            self.registry = Registry(config, client)
            idle = Attentive(client, longest=LONGEST_WAIT)
            self._runner = Runner(self.registry, idle=idle, stands_back=True, wake=idle.wake)
            self._opened = undo.pop_all()

    def start(self) -> Self:
        """Serves on a thread of its own from when this returns; where that cannot begin, all is closed again."""
        self._runner.start()
        try:
            self._runner.wait_started()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def running(self) -> bool:
        return self._runner.state is not State.CLOSED

    def statistics(self) -> dict[str, Any]:
        return self.registry.statistics()

    def close(self) -> None:
        """Says goodbye and lets go of everything."""
        try:
            self._runner.close()
        finally:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
