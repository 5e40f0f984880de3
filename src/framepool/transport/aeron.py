"""The Aeron client that every role uses: adds that wait or do not, and a way back after the loss of the media driver.

`Publication`, `Subscription`, `Drain` and `Counter` are the compiled objects themselves (`_native.aeron`). When the
media driver is lost, every use of them raises `MediaDriverLost`; `Client.reconnect`, or `try_reconnect` in an agent's
duty cycle, gives the same objects new life on the new media driver and raises `Client.generation`.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import threading
import time
import weakref
from typing import Protocol, Self

import msgspec

from framepool._native import aeron as native
from framepool._native.aeron import (
    AnyPublication,
    Claim,
    Counter,
    Drain,
    Ears,
    ExclusivePublication,
    Heartbeat,
    Image,
    Publication,
    Subscription,
)
from framepool.errors import ForkedError, MediaDriverLost, TransportBusy, TransportError, TransportTimeout
from framepool.transport import cnc
from framepool.transport.settings import AeronSettings, nanoseconds

__all__ = [
    "AnyPublication",
    "Claim",
    "Client",
    "Counter",
    "Drain",
    "Ears",
    "ExclusivePublication",
    "Filter",
    "Heartbeat",
    "Image",
    "Outcome",
    "Pending",
    "Publication",
    "Subscription",
]

HEARTBEAT_FRESH = 2.0
"""Seconds: a media driver writes its heartbeat at least once a second."""

POLL_FIRST, POLL_LONGEST = 0.0002, 0.005
RETRY_FIRST, RETRY_LONGEST = 0.02, 0.5


class Outcome(enum.IntEnum):
    """Why `offer` or `try_claim` sent nothing: their result where it is negative."""

    NOT_CONNECTED = -1
    BACK_PRESSURED = -2
    ADMIN_ACTION = -3
    CLOSED = -4
    MAX_POSITION_EXCEEDED = -5


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages a subscription lets pass: by SBE header and by bytes at an offset, from the beginning of the
    message or from the end of its block, wherever its own blockLength says that this is."""

    schema_id: int | None = None
    template_id: int | None = None
    offset: int = 0
    after_block: bool = False
    pattern: bytes = b""

    def apply(self, subscription: Subscription) -> None:
        subscription.set_filter(
            schema_id=self.schema_id,
            template_id=self.template_id,
            offset=self.offset,
            after_block=self.after_block,
            pattern=self.pattern,
        )


class _Addable(Protocol):
    def add(self) -> None: ...
    def poll_add(self) -> bool: ...
    def close(self) -> None: ...
    def describe(self) -> str: ...


class Pending[T: _Addable]:
    """An add that the media driver has not answered yet."""

    def __init__(self, child: T) -> None:
        self._child = child

    def poll(self) -> T | None:
        """The object once it is there; raises what the media driver refused."""
        return self._child if self._child.poll_add() else None

    def wait(self, timeout: float) -> T:
        """The object, or an error (TransportTimeout where nothing was answered): then nothing is left behind. What the
        media driver cannot give now is asked for again until then."""
        try:
            return self._wait(timeout)
        except BaseException:
            self.cancel()
            raise

    def _wait(self, timeout: float) -> T:
        deadline = time.monotonic() + timeout
        pause = POLL_FIRST
        busy: TransportBusy | None = None
        while True:
            refused = False
            try:
                if (child := self.poll()) is not None:
                    return child
            except TransportBusy as refusal:
                busy, refused = refusal, True
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_LONGEST if refused else pause)
            pause = min(2 * pause, POLL_LONGEST)
            if refused:
                self._child.add()
        raise busy or TransportTimeout(f"no answer from the media driver for {self._child.describe()} in {timeout} s")

    def cancel(self) -> None:
        self._child.close()


class Client(native.Client):
    """A connection to the media driver in `settings.directory`, with everything that was added to it.

    Objects may be used and closed from any thread, in any order. One thread at a time polls a subscription.
    """

    def __init__(self, settings: AeronSettings | None = None, *, name: str = "framepool") -> None:
        self.settings = settings or AeronSettings()
        self.name = name
        self.generation = 0
        self._turn = threading.Lock()
        self._retry_at = 0.0
        self._retry_pause = RETRY_FIRST
        _clients.add(self)

    @classmethod
    def connect(
        cls, settings: AeronSettings | None = None, *, name: str = "framepool", timeout: float | None = None
    ) -> Self:
        """A connected client; waits up to `timeout` (default: the driver timeout) for a media driver to come up."""
        client = cls(settings, name=name)
        try:
            client.reconnect(timeout)
        except BaseException:
            client.close()
            raise
        return client

    def add_publication_async(self, channel: str, stream_id: int) -> Pending[Publication]:
        publication = Publication(self, channel, stream_id)
        publication.add()
        return Pending(publication)

    def add_exclusive_publication_async(self, channel: str, stream_id: int) -> Pending[ExclusivePublication]:
        publication = ExclusivePublication(self, channel, stream_id)
        publication.add()
        return Pending(publication)

    def add_subscription_async(
        self, channel: str, stream_id: int, *, only: Filter | None = None
    ) -> Pending[Subscription]:
        subscription = Subscription(self, channel, stream_id)
        if only is not None:
            only.apply(subscription)
        subscription.add()
        return Pending(subscription)

    def add_counter_async(self, type_id: int, label: str, key: bytes = b"") -> Pending[Counter]:
        counter = Counter(self, type_id, label, key)
        counter.add()
        return Pending(counter)

    def add_publication(self, channel: str, stream_id: int, *, timeout: float | None = None) -> Publication:
        return self.add_publication_async(channel, stream_id).wait(self._patience(timeout))

    def add_exclusive_publication(
        self, channel: str, stream_id: int, *, timeout: float | None = None
    ) -> ExclusivePublication:
        return self.add_exclusive_publication_async(channel, stream_id).wait(self._patience(timeout))

    def add_subscription(
        self, channel: str, stream_id: int, *, only: Filter | None = None, timeout: float | None = None
    ) -> Subscription:
        return self.add_subscription_async(channel, stream_id, only=only).wait(self._patience(timeout))

    def add_counter(self, type_id: int, label: str, key: bytes = b"", *, timeout: float | None = None) -> Counter:
        return self.add_counter_async(type_id, label, key).wait(self._patience(timeout))

    def rejoin(self, subscription: Subscription, *, timeout: float | None = None) -> None:
        """Joins anew the publications that put an untethered subscription to rest, near their newest message: the
        last ones that were received before may come again."""
        subscription.renew()
        Pending(subscription).wait(self._patience(timeout))

    def _patience(self, timeout: float | None) -> float:
        return self.settings.driver_timeout if timeout is None else timeout

    def reconnect(self, timeout: float | None = None) -> None:
        """Waits for a media driver, connects and adds again everything that this client holds.

        Does nothing on a client that is connected. TransportTimeout where none came in time; try again at will.
        """
        timeout = self._patience(timeout)
        deadline = time.monotonic() + timeout
        while not self.try_reconnect():
            if time.monotonic() >= deadline:
                raise TransportTimeout(f"no media driver in {self.settings.directory} within {timeout} s")
            time.sleep(POLL_LONGEST)

    def try_reconnect(self) -> bool:
        """One step towards a connection without waiting for the media driver: True when all is there again.

        Call it in each duty cycle after `MediaDriverLost`; it paces itself.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._step()
        finally:
            self._turn.release()

    def _step(self) -> bool:
        if self.connected and not self.rejoining:
            return True
        if not self.connected:
            if time.monotonic() < self._retry_at:
                return False
            if not cnc.is_active(self.settings.directory, HEARTBEAT_FRESH):
                self._postpone()
                return False
            self._open()
        return self._rejoined()

    def _open(self) -> None:
        self.rejoining = True
        self.shut()
        settings = self.settings
        try:
            self.open(
                settings.directory,
                name=self.name,
                driver_timeout_ms=round(1000 * silence_allowed(settings)),
                keepalive_interval_ns=nanoseconds(settings.keepalive_interval),
                resource_linger_ns=nanoseconds(settings.resource_linger),
                idle_sleep_ns=nanoseconds(settings.idle_sleep),
            )
            for child in self.children():
                child.add()
        except BaseException:
            self._postpone()
            raise

    def _rejoined(self) -> bool:
        try:
            if not all(child.poll_add() for child in self.children()):
                return False
        except MediaDriverLost:
            self._postpone()
            return False
        except TransportError as refusal:
            self._postpone()
            self.shut()
            if isinstance(refusal, TransportBusy):
                return False
            raise
        self.rejoining = False
        self.generation += 1
        self._retry_pause = RETRY_FIRST
        return True

    def _postpone(self) -> None:
        self._retry_at = time.monotonic() + self._retry_pause
        self._retry_pause = min(2 * self._retry_pause, RETRY_LONGEST)

    def counters(self) -> list[cnc.CounterRecord]:
        """All counters of the media driver and of its clients."""
        self.verify()
        return cnc.counters(self.settings.directory)

    def statistics(self) -> dict[str, int | bool]:
        return {
            "connected": self.connected,
            "generation": self.generation,
            "children": len(self.children()),
            "errors": len(self.errors()),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def silence_allowed(settings: AeronSettings) -> float:
    """How old a heartbeat may be. It is looked at once per keepalive interval, so for the loss to be known within the
    driver timeout it must be younger by that."""
    return max(settings.driver_timeout - settings.keepalive_interval - 0.05, settings.driver_timeout / 2)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Says goodbye to the media driver instead of letting it wait for a timeout."""
    for client in list(_clients):
        with contextlib.suppress(ForkedError):  # those of a parent
            client.close()
