"""The supervisor as a service: its observer hears all that is said, it decides and acts (Wire 10.5).

It tells consumers by ConsumerConfig, services by commands, and people by notices: those that matter go out as `alert`
on the status stream.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
from typing import Annotated, Any, Final, Self

import msgspec

from framepool.agent import Runner
from framepool.agent import State as RunnerState
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config
from framepool.errors import CommandRefused
from framepool.service import Commander, Sent, Service, ServiceState, command
from framepool.supervisor.notices import Kind, Level, Notice
from framepool.supervisor.observer import Observer
from framepool.supervisor.policy import Order, Policy, Tell, Who
from framepool.supervisor.state import State
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.attentive import Attentive
from framepool.transport.outbox import Outbox
from framepool.wire._generated.control_900 import Mode

log = logging.getLogger(__name__)

TICK_NS: Final = 100 * NANOS_PER_MILLI
LONGEST_WAIT: Final = 0.032
"""Seconds: naps end together, so a tick may be late by twice as much."""
MOST_SENT: Final = 256
"""Commands whose answer is waited for."""
ALERT: Final = "alert"
ALERTS_PER_TICK: Final = 16
"""When everything breaks at once, people read no faster than this."""

StreamId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Supervisor(Service):
    """The supervisor, `service:supervisor[:<instance>]`.

    Paused, it stays up to date and decides nothing; stopped, it hears nobody and forgets what it knew. Another thread
    may ask for `snapshot` while it is turned.
    """

    def __init__(self, config: Config, client: Client, clock: Clock | None = None, *, reconnect: bool = True) -> None:
        settings = config.supervisor
        super().__init__(
            client, config, name="supervisor", instance=settings.instance, clock=clock, reconnect=reconnect
        )
        self._turn = threading.RLock()
        self._commander: Commander | None = None
        self._sent: list[tuple[Order, Sent]] = []
        self._alerted = 0
        self._next_id = itertools.count(1 + secrets.randbelow(2**31))
        self._begin()

    def snapshot(self, notices_after: int = 0) -> dict[str, Any]:
        """Everything that is known as plain values, and the notices after that number; from any thread."""
        with self._turn:
            notices = [each.plain() for each in self._known.journal.after(notices_after)]
            return {**self._known.describe(), "now_ns": self._known.now_ns, "notices": notices}

    def notices(self, after: int = 0) -> list[Notice]:
        """What happened after that notice; from any thread."""
        with self._turn:
            return self._known.journal.after(after)

    def notice_counts(self) -> dict[str, int]:
        """How often what happened; from any thread."""
        with self._turn:
            return dict(self._known.journal.counts)

    # Commands

    @command
    def limit(self, who: str) -> None:
        """Force a consumer, STREAM/CONSUMER, into RATE_LIMITED until it is released."""
        self._policy.decree(self._who(who), Mode.RATE_LIMITED)

    @command
    def unlimit(self, who: str) -> None:
        """Force a consumer, STREAM/CONSUMER, into STREAM until it is released."""
        self._policy.decree(self._who(who), Mode.STREAM)

    @command
    def release(self, who: str) -> None:
        """Leave a consumer, STREAM/CONSUMER, to the rules and to itself again."""
        if not self._policy.release(self._who(who)):
            raise CommandRefused(f"nothing was ordered for {who}")

    @command
    def consumer_id(self, stream_id: StreamId) -> int:
        """An id for a new consumer of a stream, that nobody else has (Wire 10.1.2)."""
        stream = self._known.streams.get(stream_id)
        taken = () if stream is None else stream.consumers
        return next(each for each in self._next_id if each not in taken)

    # The agent

    def on_start(self) -> None:
        super().on_start()
        ids, channels = self._config.stream_ids, self._config.channels
        where = channel.control_publication(channels.control, self._config.aeron)
        self._control = self._client.add_publication(where, ids.control)
        self._configs = Outbox(self._control, "configs", self.counts)
        if any(rule.then == "command" for rule in self._config.supervisor.rules):
            self._commander = Commander(self._client, self._config, clock=self.clock)
        self._observer.listen()
        self._timers.every(TICK_NS, self._tick)

    def do_work(self) -> int:
        with self._turn:
            done = super().do_work()
            return done + (0 if self.state is ServiceState.STOPPED else self._observer.do_work())

    def work(self) -> int:
        """Acts on what is known."""
        if self._configs.lost is not None and self._client.connected and not self._client.rejoining:
            self._configs.lost = None
        return self._configs.flush() + self._follow_up()

    def on_state(self, state: ServiceState) -> None:
        if state is ServiceState.STOPPED:
            self._observer.close()
            self._begin()
        elif self.state is ServiceState.STOPPED:
            self._observer.listen()

    def on_close(self) -> None:
        with self._turn:
            self._observer.close()
            if self._commander is not None:
                self._commander.close()
            if self._open:
                self._control.close()
            super().on_close()

    def report(self) -> dict[str, Any]:
        """How many of what there are."""
        return {"supervisor": self._known.statistics()}

    def statistics(self) -> dict[str, Any]:
        with self._turn:
            return {**super().statistics(), **self._observer.statistics()}

    # Steps

    @property
    def _known(self) -> State:
        return self._observer.state

    def _begin(self) -> None:
        """Knows nothing."""
        settings = self._config.supervisor
        self._observer = Observer(self._client, self._config, self.clock)
        self._policy = Policy(settings.rules, interval_ns=settings.config_interval_ms * NANOS_PER_MILLI)
        self._alerted = 0

    def _tick(self) -> None:
        if self.state is ServiceState.STOPPED:
            return
        if self.state is ServiceState.RUNNING:
            for decision in self._policy.decide(self._known):
                self._act(decision)
        for notice in self._known.journal.after(self._alerted)[:ALERTS_PER_TICK]:
            self._alerted = notice.number
            if notice.level is not Level.INFO:
                self.tell(ALERT, notice.plain())

    def _act(self, decision: Tell | Order) -> None:
        if isinstance(decision, Tell):
            config = decision.config
            self._configs.put(config.encode())
            target = config.payload_fallback_uri or config.mode.name
            self._note(Kind.CONSUMER_TOLD, f"{target}: {decision.why}", config.stream_id, config.consumer_id)
            return
        assert self._commander is not None
        sent = self._commander.send(decision.service, decision.command, decision.value)
        if sent is None:
            self._note(Kind.COMMAND, f"{decision.service} {decision.command}: nobody listens", decision.stream_id)
            return
        self._sent.append((decision, sent))
        self._note(Kind.COMMAND, f"{decision.service} {decision.command}: {decision.why}", decision.stream_id)

    def _follow_up(self) -> int:
        """Tells what became of the commands."""
        if self._commander is None:
            return 0
        heard = len(self._commander.poll())
        for order, sent in [each for each in self._sent if each[1].done]:
            said = "accepted" if sent.error is None else f"refused: {sent.error}"
            self._note(Kind.COMMAND, f"{order.service} {order.command} {said}", order.stream_id)
        self._sent = [each for each in self._sent if not each[1].done][-MOST_SENT:]
        return heard

    def _note(self, kind: Kind, text: str, stream_id: int, client_id: int | None = None) -> None:
        now = self.clock.monotonic_ns()
        self._known.journal.note(kind, now, text, stream_id=stream_id, client_id=client_id)

    def _who(self, text: str) -> Who:
        stream_id, _, consumer_id = text.partition("/")
        if not (stream_id.isdecimal() and consumer_id.isdecimal()):
            raise CommandRefused(f"{text!r}: say STREAM/CONSUMER, such as 10000/42")
        who = (int(stream_id), int(consumer_id))
        if self._known.consumer(*who) is None and who not in self._policy.words:
            raise CommandRefused(f"stream {stream_id} has no consumer {consumer_id}")
        return who


class SupervisorServer:
    """A supervisor with an Aeron client and a thread of its own, from `start` to `close`, and its figures served."""

    def __init__(self, config: Config) -> None:
        self._opened = contextlib.ExitStack()
        self.metrics_port = 0
        """Where the figures are, if they are served."""
        with contextlib.ExitStack() as undo:
            client = undo.enter_context(Client.connect(config.aeron, name="framepool supervisor"))
            self.supervisor = Supervisor(config, client)
            if config.supervisor.metrics_port:
                from framepool.supervisor.metrics import serve_metrics

                metrics = serve_metrics(self.supervisor, config.supervisor)
                undo.callback(metrics.close)
                self.metrics_port = metrics.port
            idle = Attentive(client, longest=LONGEST_WAIT)
            self._runner = Runner(self.supervisor, idle=idle, stands_back=True, wake=idle.wake)
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
        return self._runner.state is not RunnerState.CLOSED

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
