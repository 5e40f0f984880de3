"""The other end of the control plane: sends commands, waits for their echo, and follows what is said (Service 6).

Nothing here has a thread. `command` waits and turns it by itself; a console calls `send`, then `poll` in its own loop,
and looks at the `Sent` commands.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Self

from framepool.clock import Clock, MonotonicClock
from framepool.config import Config
from framepool.errors import CommandRefused, DecodeError, MediaDriverLost, NoEcho
from framepool.service.directory import Directory, ServiceStatus
from framepool.service.events import Event, Format, Value
from framepool.service.service import ERROR, RESULT
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.describe import redacted

PAUSE: Final = 0.001
MOST_WAITING: Final = 1_024
"""Commands that wait for their answer; the oldest are given up."""


class Sent:
    """A command that was sent, and what came of it."""

    def __init__(self, tag: str, key: str, correlation_id: int) -> None:
        self.tag = tag
        self.key = key
        self.correlation_id = correlation_id
        self.result: Value = None
        """What the command gave back, once it is accepted."""
        self.echo: Event | None = None
        """The command as its service accepted it."""
        self.error: str | None = None
        """Why the service did not."""

    @property
    def done(self) -> bool:
        return self.echo is not None or self.error is not None

    def on_event(self, event: Event) -> None:
        """Takes in an event of the correlation id."""
        if event.tag != self.tag or self.done:
            return
        if event.key == self.key:
            self.echo = event
        elif event.key == ERROR:
            self.error = str(event.value)
        elif event.key == RESULT:
            self.result = event.value


class Ear:
    """The events of one stream, without secrets; what is no event is counted."""

    def __init__(self, client: Client, where: str, stream_id: int) -> None:
        self.counts: Counter[str] = Counter()
        self.subscription = client.add_subscription(channel.control_subscription(where), stream_id)
        self._listener = Listener(self.subscription)

    def hear(self) -> list[Event]:
        """What came since the last call."""
        events = []
        for data in self._listener.poll(256):
            try:
                events.append(Event.of(redacted(EventMessage.decode(data))))
            except DecodeError:
                self.counts["undecodable"] += 1
        return events

    @property
    def connected(self) -> bool:
        """Whether anybody is heard now."""
        return self._listener.connected

    @property
    def left_behind(self) -> int:
        """How often events were missed for being too slow."""
        return self._listener.left_behind


class Commander:
    """Commands services and knows who is there. One thread at a time.

    >>> with Commander.connect(config) as commander:                     # doctest: +SKIP
    ...     commander.command("service:limiter:20000", "set:rate", 10)
    """

    def __init__(self, client: Client, config: Config, *, clock: Clock | None = None, reconnect: bool = False) -> None:
        """Uses a client; with `reconnect` it brings that back after the loss of the media driver."""
        ids, channels = config.stream_ids, config.channels
        self.directory = Directory(clock or MonotonicClock())
        self._clock = clock or MonotonicClock()
        self._config = config
        self._client = client
        self._reconnect = reconnect
        self._owned = contextlib.ExitStack()
        self._sent: dict[int, Sent] = {}
        self.counts: Counter[str] = Counter()
        self._networked = channel.parse(channels.service_status)[0] != "ipc"
        self._ear = Ear(client, channels.service_status, ids.service_status)
        where = channel.control_publication(channels.service_control, config.aeron)
        self._publication = client.add_publication(where, ids.service_control)

    @classmethod
    def connect(cls, config: Config, *, clock: Clock | None = None, timeout: float | None = None) -> Self:
        """With an Aeron client of its own, which is closed with it."""
        with contextlib.ExitStack() as undo:
            client = undo.enter_context(Client.connect(config.aeron, name="framepool commander", timeout=timeout))
            commander = cls(client, config, clock=clock, reconnect=True)
            commander._owned = undo.pop_all()
        return commander

    def command(
        self, tag: str, key: str, value: Any = None, *, format: Format | None = None, timeout: float | None = None
    ) -> Sent:
        """Sends a command and waits until its service accepted it.

        Raises `CommandRefused` with the reason of the service, or `NoEcho` if none came within `timeout` seconds
        (default: `service.command_timeout_ms`).
        """
        patience = self._config.service.command_timeout_ms / 1_000 if timeout is None else timeout
        deadline = time.monotonic() + patience
        message = self._event(tag, key, value, format)
        if not self._within(deadline, self._heard_by_services):
            raise NoEcho(f"{tag}: no service listens in {self._config.aeron.directory}; start it")
        if self._networked:  # there, a stream from the very service that is to answer may need a moment more
            self._within(min(deadline, time.monotonic() + patience / 2), lambda: self.directory.knows(tag))
        if not self._within(deadline, lambda: self._offer(message)):
            raise NoEcho(f"{tag}: the control stream took nothing within {patience} s")
        sent = self._note(message)
        try:
            if not self._within(deadline, lambda: sent.done):
                raise NoEcho(f"{tag}: no echo of {key!r} within {patience} s; `framepool services` shows who is there")
        finally:
            self._sent.pop(sent.correlation_id, None)
        if sent.error is not None:
            raise CommandRefused(f"{tag}: {sent.error}")
        return sent

    def send(self, tag: str, key: str, value: Any = None, *, format: Format | None = None) -> Sent | None:
        """Sends a command without waiting; `poll` brings what comes of it. None when Aeron did not take it now."""
        message = self._event(tag, key, value, format)
        return self._note(message) if self._offer(message) else None

    def poll(self) -> list[Event]:
        """What services said since the last call; never waits. Answers go to their `Sent` commands too."""
        try:
            if self._reconnect and not self._client.try_reconnect():
                return []
            events = self._ear.hear()
        except MediaDriverLost:
            return []
        for event in events:
            self.directory.on_event(event)
            if event.correlation_id in self._sent:
                self._answer(event)
        return events

    def services(self, listen: float = 0.0) -> list[ServiceStatus]:
        """Who was heard lately, after listening for so many seconds more."""
        deadline = time.monotonic() + listen
        self._within(deadline, lambda: False)
        return self.directory.services()

    def close(self) -> None:
        """Gives its streams back."""
        self._ear.subscription.close()
        self._publication.close()
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, int]:
        """What was heard and could not be read, and how many commands wait."""
        return {
            "waiting": len(self._sent),
            **self.counts,
            "left_behind": self._ear.left_behind,
            **self._ear.counts,
            **self.directory.counts,
        }

    def _event(self, tag: str, key: str, value: Any, format: Format | None) -> Event:
        return Event(
            tag=tag,
            key=key,
            value=value,
            format=format,
            correlation_id=1 + secrets.randbelow(2**63 - 1),
            timestamp_ns=self._clock.timestamp_ns(),
        )

    def _offer(self, event: Event) -> bool:
        try:
            return self._publication.offer(event.encode()) >= 0
        except MediaDriverLost:
            return False

    def _note(self, event: Event) -> Sent:
        sent = self._sent[event.correlation_id] = Sent(event.tag, event.key, event.correlation_id)
        if len(self._sent) > MOST_WAITING:
            self.counts["given up"] += 1
            del self._sent[next(iter(self._sent))]
        return sent

    def _answer(self, event: Event) -> None:
        sent = self._sent[event.correlation_id]
        sent.on_event(event)
        if sent.done:
            del self._sent[event.correlation_id]

    def _heard_by_services(self) -> bool:
        """Whether somebody hears commands, and his answers would come back here."""
        try:
            return self._publication.is_connected and self._ear.connected
        except MediaDriverLost:
            return False

    def _within(self, deadline: float, condition: Callable[[], bool]) -> bool:
        """Turns itself until a condition holds; False at the deadline."""
        while True:
            self.poll()
            if condition():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE)
