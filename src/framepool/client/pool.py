"""The public face: a connection to a driver, and the producers and consumers that live on it (`design.md`).

A thread keeps leases alive and mappings current; everything a program calls runs on its own thread and never waits
for that one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from framepool.agent import Runner, Sleeping
from framepool.client.attach import AttachSettings
from framepool.client.consumer import MAX_OUTSTANDING_SEQ_GAP, Consumer
from framepool.client.plane import ControlPlane, Place
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.client.standalone import AnnouncedPlace, OwnedPlace
from framepool.clock import NANOS_PER_MILLI, Clock, MonotonicClock
from framepool.config import Config
from framepool.errors import AttachRefused
from framepool.shm.allocator import Allocator
from framepool.shm.paths import AllowedDirectories
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter, Publication
from framepool.wire._generated.control_900 import FrameDescriptor
from framepool.wire._generated.driver_901 import Role

STREAM_ID_OFFSET = 8
"""Of a descriptor's stream id, behind the message header."""
QUEUE = 4096
"""Descriptors that wait for a consumer; the oldest go first."""


class Pool:
    """A connection to a driver. Make one with `framepool.connect()` or `framepool.serve()`."""

    def __init__(
        self, config: Config, *, clock: Clock | None = None, owned: contextlib.ExitStack | None = None
    ) -> None:
        self.config = config
        self._clock = clock or MonotonicClock()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            if owned is not None:
                undo.push(owned)
            self._allowed = AllowedDirectories(filter(None, (config.driver.shm_base_dir, config.driver.hugepages_dir)))
            self._client = undo.enter_context(Client.connect(config.aeron, name="framepool client"))
            self._plane = ControlPlane(self._client, self._clock, config.stream_ids, config.channels)
            undo.enter_context(Runner(self._plane, idle=Sleeping()).start())
            self._open = undo.pop_all()
        self._publication: Publication | None = None
        self._attach_settings = AttachSettings(keepalive_ns=config.driver.keepalive_interval_ms * NANOS_PER_MILLI)

    def producer(
        self, stream_id: int, *, create: bool = True, require_hugepages: bool = False, timeout: float = 10.0
    ) -> Producer:
        """Attaches as the producer of a stream, making it if it does not exist.

        Raises `AttachRefused` with the driver's reason if there is no lease within `timeout` seconds. Afterwards the
        producer keeps itself attached, whatever happens to the driver.
        """
        seat = self._seat(stream_id, Role.PRODUCER, create=create, require_hugepages=require_hugepages)
        self._attach(seat, timeout)
        return self._producer(seat)

    def consumer(
        self,
        stream_id: int,
        *,
        max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP,
        timeout: float = 10.0,
    ) -> Consumer:
        """Attaches as a consumer of a stream. Raises `AttachRefused` if there is no lease within `timeout` seconds."""
        return self._consumer(self._seat(stream_id, Role.CONSUMER), timeout, max_outstanding_seq_gap)

    def announced(
        self, stream_id: int, *, max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP, timeout: float = 10.0
    ) -> Consumer:
        """A consumer without a lease, that maps what is announced: for streams that no driver owns.

        Raises `AttachRefused` if nothing usable is announced within `timeout` seconds.
        """
        place = AnnouncedPlace(self._plane, stream_id, allowed=self._allowed)
        return self._consumer(place, timeout, max_outstanding_seq_gap)

    def standalone(self, stream_id: int, *, profile: str = "default") -> Producer:
        """A producer without a driver: it owns its files, in a namespace of its own, and announces them itself."""
        driver = self.config.driver
        allocator = Allocator(driver.shm_base_dir, f"standalone-{stream_id}", prefault=driver.prefault, sync=True)
        announces = self._client.add_publication(
            channel.control_publication(self.config.channels.announce, self.config.aeron),
            self.config.stream_ids.announce,
        )
        place = OwnedPlace(self._plane, stream_id, self.config.profile(profile), allocator, announces, self.config)
        self._plane.add(place)
        return self._producer(place)

    def close(self) -> None:
        """Gives every lease back and disconnects; what `serve` started ends with it."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """The connection and every place on it."""
        places = [place.statistics() for place in self._plane.places]
        return {**self._client.statistics(), **self._plane.statistics(), "places": places}

    def _seat(self, stream_id: int, role: Role, *, create: bool = False, require_hugepages: bool = False) -> Seat:
        return Seat(
            self._plane,
            stream_id,
            role,
            allowed=self._allowed,
            create=create,
            require_hugepages=require_hugepages,
            settings=self._attach_settings,
        )

    def _attach(self, place: Place, timeout: float) -> None:
        """Takes the place in and waits until it has regions."""
        self._plane.add(place)
        if wait_until(lambda: place.stream is not None, timeout):
            return
        self._plane.remove(place)
        refusal = place.refusal() or "no answer; is a driver running? Start one with: framepool driver"
        raise AttachRefused(f"stream {place.stream_id}: not attached within {timeout} s: {refusal}")

    def _producer(self, place: Place) -> Producer:
        """A producer on the one descriptor publication of this process."""
        if self._publication is None:
            where = channel.descriptor_publication(self.config.channels.descriptor, self.config.aeron)
            self._publication = self._client.add_publication(where, self.config.stream_ids.descriptor)
        return Producer(place, self._publication, self._clock, on_close=lambda: self._plane.remove(place))

    def _consumer(self, place: Place, timeout: float, max_outstanding_seq_gap: int) -> Consumer:
        """A consumer with a native queue of its own for the descriptors of its stream."""
        only = Filter(
            schema_id=FrameDescriptor.SCHEMA_ID,
            template_id=FrameDescriptor.TEMPLATE_ID,
            offset=STREAM_ID_OFFSET,
            pattern=place.stream_id.to_bytes(4, "little"),
        )
        with contextlib.ExitStack() as undo:
            where = channel.descriptor_subscription(self.config.channels.descriptor)
            subscription = self._client.add_subscription(where, self.config.stream_ids.descriptor, only=only)
            undo.callback(subscription.close)
            drain = subscription.drain(capacity=QUEUE, max_message=64)
            undo.callback(drain.close)
            undo.callback(self._plane.remove, place)
            self._attach(place, timeout)
            kept = undo.pop_all()
        return Consumer(place, drain, max_outstanding_seq_gap=max_outstanding_seq_gap, on_close=kept.close)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Looks often at first, then less so."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True
