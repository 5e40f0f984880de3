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
from framepool.client.plane import ControlPlane
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.clock import NANOS_PER_MILLI, Clock, MonotonicClock
from framepool.config import Config
from framepool.errors import AttachRefused
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
        self._attach = AttachSettings(keepalive_ns=config.driver.keepalive_interval_ms * NANOS_PER_MILLI)

    def producer(
        self, stream_id: int, *, create: bool = True, require_hugepages: bool = False, timeout: float = 10.0
    ) -> Producer:
        """Attaches as the producer of a stream, making it if it does not exist.

        Raises `AttachRefused` with the driver's reason if there is no lease within `timeout` seconds. Afterwards the
        producer keeps itself attached, whatever happens to the driver.
        """
        if self._publication is None:
            where = channel.descriptor_publication(self.config.channels.descriptor, self.config.aeron)
            self._publication = self._client.add_publication(where, self.config.stream_ids.descriptor)
        seat = self._seat(stream_id, Role.PRODUCER, timeout, create=create, require_hugepages=require_hugepages)
        return Producer(seat, self._publication, self._clock, on_close=lambda: self._plane.remove(seat))

    def consumer(
        self,
        stream_id: int,
        *,
        max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP,
        timeout: float = 10.0,
    ) -> Consumer:
        """Attaches as a consumer of a stream. Raises `AttachRefused` if there is no lease within `timeout` seconds."""
        only = Filter(
            schema_id=FrameDescriptor.SCHEMA_ID,
            template_id=FrameDescriptor.TEMPLATE_ID,
            offset=STREAM_ID_OFFSET,
            pattern=stream_id.to_bytes(4, "little"),
        )
        descriptors = self._client.add_subscription(
            channel.descriptor_subscription(self.config.channels.descriptor),
            self.config.stream_ids.descriptor,
            only=only,
        )
        drain = descriptors.drain(capacity=QUEUE, max_message=64)

        def close(seat: Seat | None = None) -> None:
            drain.close()
            descriptors.close()
            if seat is not None:
                self._plane.remove(seat)

        try:
            seat = self._seat(stream_id, Role.CONSUMER, timeout)
        except BaseException:
            close()
            raise
        return Consumer(seat, drain, max_outstanding_seq_gap=max_outstanding_seq_gap, on_close=lambda: close(seat))

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

    def _seat(
        self, stream_id: int, role: Role, timeout: float, *, create: bool = False, require_hugepages: bool = False
    ) -> Seat:
        seat = Seat(
            self._plane,
            stream_id,
            role,
            allowed=self._allowed,
            create=create,
            require_hugepages=require_hugepages,
            settings=self._attach,
        )
        self._plane.add(seat)
        if not wait_until(lambda: seat.stream is not None, timeout):
            self._plane.remove(seat)
            refusal = seat.attachment.last_refusal or seat.mapping.last_refusal
            raise AttachRefused(
                f"stream {stream_id}: not attached as {role.name.lower()} within {timeout} s: "
                f"{refusal or 'no answer; is a driver running? Start one with: framepool driver'}"
            )
        return seat


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
