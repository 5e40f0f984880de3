"""Which stream a name means: discovery asked for it, and the one chosen that this host can attach to (Discovery 7, 9).

A name may stand for a stream of this host, for one of another host, and for the copy that a bridge makes of that one
here, under the same name. Only what is here can be attached to: the same path on another host is other memory. What is
chosen is a hint where to ask; the driver that it names decides (Discovery 3).
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence

from framepool.client.plane import ControlPlane
from framepool.clock import NANOS_PER_MILLI
from framepool.config import Config
from framepool.discovery.address import addresses
from framepool.discovery.client import DiscoveryClient
from framepool.discovery.host import this_host
from framepool.discovery.query import Query
from framepool.discovery.stream import Stream
from framepool.errors import AmbiguousStream, DiscoveryError, StreamNotFound
from framepool.transport import channel
from framepool.transport.aeron import Client

PAUSE = 0.1
"""Seconds between questions for a stream that nobody knows yet."""
ANSWER = 2.0
"""Seconds that one of these questions waits for an answer."""
COPY_GRACE = 3.0
"""Seconds for a bridge to make a copy known of a stream that is elsewhere: three announces."""
SHOWN = 8
"""Names that an error lists."""


class Lookup:
    """The questions of one pool. `find` and `choose` wait, so they are for the program's own thread."""

    def __init__(self, plane: ControlPlane, client: Client, config: Config) -> None:
        self._plane = plane
        self._authority = (channel.place(config.channels.control), config.stream_ids.control)
        self._freshness_ns = 3 * config.driver.announce_period_ms * NANOS_PER_MILLI
        self._discovery = DiscoveryClient(
            client,
            plane.clock,
            addresses(config),
            here=this_host(config.discovery.host),
            is_stale=self._is_stale,
            hurry=plane.hurry,
        )
        plane.join(self._discovery)

    def find(self, query: Query, timeout: float) -> list[Stream]:
        """All streams that match, here and elsewhere. `DiscoveryError` if nobody answers in time."""
        return self._discovery.find(query, timeout)

    def choose(self, name: str, timeout: float) -> Stream:
        """The stream of this host with that name, waiting for it; else the one that is elsewhere.

        Raises `AmbiguousStream` if there are several, and `StreamNotFound`, with what there is, if there is none within
        `timeout` seconds.
        """
        query = Query(name=name)
        end = time.monotonic() + timeout
        elsewhere_since: float | None = None
        while True:
            left = end - time.monotonic()
            try:
                found = self.find(query, max(min(left, ANSWER), PAUSE))
            except DiscoveryError:
                if time.monotonic() >= end:
                    raise
                time.sleep(PAUSE)
                continue
            here = [stream for stream in found if stream.local]
            if here:
                return _only(name, here)
            now = time.monotonic()
            elsewhere_since = (elsewhere_since or now) if found else None
            if elsewhere_since is not None and now >= min(end, elsewhere_since + COPY_GRACE):
                return _only(name, found)
            if now >= end:
                raise StreamNotFound(self._not_found(name, timeout))
            time.sleep(PAUSE)

    def statistics(self) -> dict[str, object]:
        return self._discovery.statistics()

    def _is_stale(self, stream: Stream) -> bool:
        """Whether this host's own driver announced a later epoch meanwhile (Discovery 7)."""
        if not stream.local or (channel.place(stream.control_channel), stream.control_stream_id) != self._authority:
            return False
        announced = self._plane.announced(stream.stream_id)
        if announced is None or self._plane.clock.monotonic_ns() - announced[1] > self._freshness_ns:
            return False
        return announced[0].epoch > stream.epoch

    def _not_found(self, name: str, timeout: float) -> str:
        said = f"no stream is called {name!r}, as far as anybody said within {timeout} s"
        try:
            known = self.find(Query(), ANSWER)
        except DiscoveryError as error:
            return f"{said}; what there is could not be found out: {error}"
        names = sorted({stream.name for stream in known if stream.name})
        similar = difflib.get_close_matches(name, names, SHOWN) or [
            each for each in names if each.casefold() == name.casefold()
        ]
        if similar:
            return f"{said}; similar: {_listed(similar)}"
        if names:
            return f"{said}; there are: {_listed(names)}"
        return f"{said}; there are {len(known)} streams, and none has a name"


def not_local(stream: Stream) -> str:
    """What to do about a stream of another host."""
    where = f"host {stream.host}" if stream.host else "a host that discovery does not name"
    return (
        f"stream {stream.stream_id} ({stream.name!r}) is on {where}, driver {stream.driver!r}: its memory cannot be "
        f"mapped here; set up a bridge from there to this host for it: on either side `framepool bridge` with "
        f"[[mappings]] source_stream_id = {stream.stream_id}, or name a discovery.payload_fallback_uri"
    )


def _only(name: str, streams: Sequence[Stream]) -> Stream:
    if len(streams) == 1:
        return streams[0]
    where = "this host" if streams[0].local else "other hosts"
    which = ", ".join(f"{stream.stream_id} of driver {stream.driver!r}" for stream in streams[:SHOWN])
    raise AmbiguousStream(
        f"{len(streams)} streams of {where} are called {name!r}: {which}; choose one of pool.discover({name!r}) "
        "and give that to pool.consumer"
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")
