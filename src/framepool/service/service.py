"""What every long-running part of framepool is: a service that can be told things, and says what it accepted.

An agent beside the one that does the work, or the same. Commands come on the shared control stream; a native filter
lets those of the service's own tag pass and nothing else becomes a Python object (Service 5). What a command is and
which values it takes is declared (`commands`).

A command is echoed after it took effect, byte for byte as it came, identity fields that we do not know included
(`decisions.md` #65): so the status stream has exactly the commands that were accepted (Service 6), and whoever sees the
echo may rely on the effect. A command that was refused, or that failed, is answered by an `error` of the same
correlation id and not echoed. What a command gives back goes before its echo as `result`.
"""

from __future__ import annotations

import enum
import functools
import importlib.metadata
import logging
import os
import platform
from collections import Counter, deque
from typing import Any, ClassVar, Final

import msgspec

from framepool.agent import AgentTerminated, Timers
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock, MonotonicClock
from framepool.config import Config
from framepool.errors import CommandRefused, DecodeError, EncodeError, MediaDriverLost
from framepool.service.commands import SET, command, commands_of, parameters_of
from framepool.service.events import Event, Ref, Value
from framepool.service.tags import service_tag, tag_filter
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.transport.outbox import Outbox
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.values import value_of

log = logging.getLogger(__name__)

COMMANDS_PER_CYCLE: Final = 16
"""Few, because whatever the command does, the agents beside the service wait meanwhile."""
MESSAGES_PER_POLL: Final = 1_024
"""Many, because most of them are for others and cost nothing."""
OUTBOX: Final = 256
"""Echoes and status that may wait for Aeron; the oldest go first."""
BYGONE_NS: Final = 600 * NANOS_PER_SECOND
"""A stamp so much before our start, or less, is one of our clock; any other, and none, says nothing about when."""
LONGEST_ERROR: Final = 1_000

STATUS: Final = "status"
RESULT: Final = "result"
ERROR: Final = "error"
RESERVED: Final = frozenset({STATUS, RESULT, ERROR})
"""Keys that services say by themselves; no command has one of them, so an echo is known by its key."""


@functools.cache
def own_version() -> str:
    """Of the installed package; reading it is slow."""
    return importlib.metadata.version("framepool")


class ServiceState(enum.StrEnum):
    """Whether a service works."""

    RUNNING = "running"
    PAUSED = "paused"
    """It does nothing, and keeps what it holds."""
    STOPPED = "stopped"
    """It let go of what it held, and hears commands still."""
    GONE = "gone"
    """It says goodbye."""


class Service:
    """One service under one tag. Subclasses declare commands and parameters, and do their duty in `work`.

    ::

        class Heater(Service):
            target = Parameter(Annotated[float, msgspec.Meta(ge=0, le=80)], 20.0, "Degrees.")

            @command
            def boost(self, seconds: int) -> None:
                \"\"\"Full power for a while.\"\"\"

    It uses the Aeron client that it is given. With `reconnect` it brings that back after the loss of the media driver;
    without, whoever else uses the client does, and the service waits for it.
    """

    without: ClassVar[frozenset[str]] = frozenset()
    """Commands of the base that make no sense for this kind of service."""

    def __init__(
        self,
        client: Client,
        config: Config,
        *,
        name: str,
        instance: str = "",
        clock: Clock | None = None,
        reconnect: bool = False,
    ) -> None:
        self.tag = service_tag(name, instance)
        self.state = ServiceState.RUNNING
        self.counts: Counter[str] = Counter()
        self.clock = clock or MonotonicClock()
        self._client = client
        self._config = config
        self._reconnect = reconnect
        self._commands = {key: each for key, each in commands_of(type(self)).items() if key not in self.without}
        if reserved := RESERVED & self._commands.keys():
            raise TypeError(f"{self.tag}: {sorted(reserved)} are said by services and cannot be commands")
        self._timers = Timers(self.clock)
        self._started_ns = self.clock.monotonic_ns()
        self._open = False
        self._lost = False
        self._ending = False
        self._heard: deque[bytes] = deque()
        self._joins = self._joined_ns = 0

    @property
    def role(self) -> str:
        return self.tag

    # What subclasses have

    def work(self) -> int:
        """The duty of the service, called in each cycle while it is running; never waits."""
        return 0

    def report(self) -> dict[str, Any]:
        """What the answer to `state` says beyond state and parameters."""
        return {}

    def on_state(self, state: ServiceState) -> None:
        """Called before the state changes; raises `CommandRefused` if it cannot."""

    def on_set(self, name: str, value: Any) -> None:
        """Called before a parameter changes; raises `CommandRefused` if it cannot."""

    def tell(
        self,
        key: str,
        value: Value | dict[str, Any] | list[Any] = None,
        *,
        correlation_id: int = 0,
        ref: Ref | None = None,
    ) -> None:
        """Says something on the status stream, of the frame `ref` perhaps; a dict or a list goes as JSON. A key of a
        command would be an echo."""
        if key in self._commands:
            raise ValueError(f"{key!r} is a command: said as a status, it would be taken for its echo")
        self._say(key, value, correlation_id, ref)

    # Commands that every service has

    @command
    def start(self) -> None:
        """Work, from a stop or a pause."""
        self._enter(ServiceState.RUNNING)

    @command
    def stop(self) -> None:
        """Stop working and let go of everything, but hear commands still."""
        self._enter(ServiceState.STOPPED)

    @command
    def pause(self) -> None:
        """Stop working for a while and keep everything at hand."""
        if self.state is ServiceState.STOPPED:
            raise CommandRefused("it is stopped")
        self._enter(ServiceState.PAUSED)

    @command
    def resume(self) -> None:
        """Work, from a pause."""
        if self.state is ServiceState.STOPPED:
            raise CommandRefused("it is stopped: start it")
        self._enter(ServiceState.RUNNING)

    @command(key="state")
    def report_state(self) -> dict[str, Any]:
        """State, parameters, counts and what else there is to know."""
        values = {name: getattr(self, name) for name in parameters_of(type(self))}
        return {**self._status(), "parameters": values, "counts": dict(self.counts), **self.report()}

    @command(key="commands")
    def describe_commands(self) -> list[dict[str, Any]]:
        """What this service can be told."""
        return [each.describe() for each in self._commands.values()]

    # The agent

    def on_start(self) -> None:
        self._joined_ns = self.clock.timestamp_ns()
        ids, channels = self._config.stream_ids, self._config.channels
        control = channel.control(channels.service_control)  # every command counts, so it is not left behind
        status = channel.control_publication(channels.service_status, self._config.aeron)
        self._subscription = self._client.add_subscription(control, ids.service_control, only=tag_filter(self.tag))
        self._ear = Listener(self._subscription, tethered=True)
        self._publication = self._client.add_publication(status, ids.service_status)
        self._longest = self._publication.max_message_length
        self._outbox = Outbox(self._publication, "status", self.counts, capacity=OUTBOX)
        self._open = True
        period_ns = self._config.service.status_period_ms * NANOS_PER_MILLI
        self._timers.every(period_ns, self._say_status, first_ns=0)

    def do_work(self) -> int:
        done = self._come_back() if self._lost else self._obey()
        self._timers.poll()
        if self._ending:
            raise AgentTerminated
        return done + (self.work() if self.state is ServiceState.RUNNING else 0)

    def on_close(self) -> None:
        """Says goodbye as far as somebody listens, and gives its streams back."""
        self.state = ServiceState.GONE
        if self._open:
            self._open = False
            self._say_status()
            self._subscription.close()
            self._publication.close()

    def statistics(self) -> dict[str, Any]:
        """Commands by what became of them, and messages that the filter kept away."""
        filtered = self._subscription.statistics()["filtered"] if self._open else 0
        return {"tag": self.tag, "state": self.state.value, "filtered": filtered, **self.counts}

    def receive(self, data: bytes) -> None:
        """One message of the control stream with our tag, whoever sent it.

        Who joins a local stream hears it from where its slowest reader is, a dead one included. So a command may have
        been said before we were there, to a predecessor who obeyed it; it is not obeyed again.
        """
        try:
            message = EventMessage.decode(data)
        except DecodeError as error:
            self._count_bad("undecodable", error)
            return
        if message.timestamp_ns and 0 < self._joined_ns - message.timestamp_ns < BYGONE_NS:
            self.counts["said before our time"] += 1
            return
        try:
            if len(data) > self._longest:
                raise CommandRefused(f"its echo would have {len(data)} bytes, {self._longest} fit a message")
            result = self._execute(message)
            if result is not None:
                self._say(RESULT, result, message.correlation_id)
        except (CommandRefused, DecodeError, EncodeError) as refusal:
            self._count_bad("refused", f"{message.key}: {refusal}")
            self._say_error(str(refusal), message)
        except Exception as error:
            self.counts["failed"] += 1
            log.exception("%s: command %s failed", self.tag, message.key)
            self._say_error(f"{type(error).__name__}: {error}", message)
        else:
            self.counts["accepted"] += 1
            self._outbox.put(self._echo(message, data))

    def _obey(self) -> int:
        work = self._outbox.flush()
        try:
            if self._outbox.lost is not None:
                raise self._outbox.lost
            if not self._heard:
                self._heard.extend(self._ear.poll(MESSAGES_PER_POLL))
                if self._ear.joins != self._joins:
                    self._joins, self._joined_ns = self._ear.joins, self.clock.timestamp_ns()
        except MediaDriverLost as error:
            log.warning("%s: media driver lost, waiting for it: %s", self.tag, error)
            self._lost = True
            return 0
        for _ in range(min(COMMANDS_PER_CYCLE, len(self._heard))):
            work += 1
            self.receive(self._heard.popleft())
        return work

    def _come_back(self) -> int:
        """After the media driver was lost: echoes that wait go out when it is back."""
        if self._reconnect:
            back = self._client.try_reconnect()
        else:
            back = self._client.connected and not self._client.rejoining
        if not back:
            return 0
        self._lost = False
        self._outbox.lost = None
        self.counts["reconnects"] += 1
        self._say_status()
        return 1

    def _execute(self, message: EventMessage) -> Any:
        known = self._commands.get(message.key)
        if known is None:
            raise CommandRefused(f"no command {message.key!r}; there are {', '.join(self._commands)}")
        arguments = known.arguments(value_of(message))
        if not known.method:
            self._set(known.key.removeprefix(SET), *arguments)
            return None
        try:
            return getattr(self, known.method)(*arguments)
        except AgentTerminated:
            self._ending = True
            return None

    def _set(self, name: str, value: Any) -> None:
        self.on_set(name, value)
        setattr(self, name, value)

    def _enter(self, state: ServiceState) -> None:
        if state is not self.state:
            self.on_state(state)
            self.state = state
            self._say_status()

    def _echo(self, message: EventMessage, data: bytes) -> bytes:
        """The command as it came; a secret is not told to everybody (`decisions.md` #15)."""
        if not self._commands[message.key].secret:
            return data
        starred = msgspec.structs.replace(message, format=Format.STRING, value=b"*" * len(message.value))
        return starred.encode()

    def _status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "uptime_s": round((self.clock.monotonic_ns() - self._started_ns) / NANOS_PER_SECOND, 3),
            "version": own_version(),
            "host": platform.node(),
            "pid": os.getpid(),
        }

    def _say_status(self) -> None:
        self._say(STATUS, self._status(), 0)

    def _say_error(self, text: str, message: EventMessage) -> None:
        """Why a command was not accepted; as much of it as a message holds, whatever was said to us."""
        self._say(ERROR, text.encode(errors="replace")[:LONGEST_ERROR].decode(errors="replace"), message.correlation_id)

    def _say(self, key: str, value: Any, correlation_id: int, ref: Ref | None = None) -> None:
        if isinstance(value, dict | list):
            value = msgspec.json.encode(value).decode()
        event = Event(
            tag=self.tag,
            key=key,
            value=value,
            ref=ref,
            correlation_id=correlation_id,
            timestamp_ns=self.clock.timestamp_ns(),
        )
        data = event.encode()
        if len(data) > self._longest:
            raise EncodeError(f"{key} would have {len(data)} bytes, {self._longest} fit a message")
        self._outbox.put(data)

    def _count_bad(self, kind: str, why: object) -> None:
        self.counts[kind] += 1
        if self.counts[kind].bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: a flood does not fill the log
            log.warning("%s: %s, the %d. so far: %s", self.tag, kind, self.counts[kind], why)
