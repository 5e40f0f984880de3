"""The desk: where everything comes together that a console shows and does.

An agent. It listens to what all say and keeps the supervisor's state of it, looks at it once a second, remembers the
last minutes, and sends commands to services and waits for their echo. What it found is a plain value that replaces the
last one, so that the threads that show it wait for nothing.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from framepool.agent import Timers
from framepool.client import gauges
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock, MonotonicClock
from framepool.config import Config
from framepool.console.history import History
from framepool.console.view import COLUMNS, TOTALS, Scene, Seen, row, worded
from framepool.errors import CommandRefused, NoEcho
from framepool.service import Commander, Event, Sent
from framepool.service.events import plain_value
from framepool.service.service import STATUS
from framepool.supervisor.notices import Notice
from framepool.supervisor.state import State

log = logging.getLogger(__name__)

MOST_EVENTS: Final = 2_000
EVENTS_AT_ONCE: Final = 200
"""Told to a page in one message."""
MOST_HISTORIES: Final = 256
"""Streams whose past is kept."""
MOST_ORDERS: Final = 32
"""Commands that wait for their echo."""
LONGEST_TEXT: Final = 400
RECENT: Final = 60


class Watch(Protocol):
    """Listens, and folds what it hears into a state."""

    state: State

    def do_work(self) -> int: ...


class Order:
    """A command on its way: handed over by the web, answered by the desk."""

    def __init__(self, tag: str, key: str, value: Any) -> None:
        self.tag = tag
        self.key = key
        self.value = value
        self.sent: Sent | None = None
        self.deadline_ns = 0
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()

    def settle(self, result: dict[str, Any] | Exception) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: dict[str, Any] | Exception) -> None:
        if self.answer.done():
            return
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class Desk:
    """What the console knows, and what it can have done."""

    role = "desk"

    def __init__(
        self,
        config: Config,
        watch: Watch,
        commander: Commander,
        *,
        own: Callable[[], Collection[int]] = tuple,
        seen: Callable[[int], Seen | None] = lambda _: None,
        refusal: Callable[[int], str] = lambda _: "",
        recordings: Callable[[], list[dict[str, Any]]] = list,
        clock: Clock | None = None,
    ) -> None:
        """`own`, `seen` and `refusal` ask the previews: their consumer ids, what they saw of a stream, and why they
        see nothing. `recordings` has what was last seen of those."""
        low, high = config.stream_ids.bridge_destinations
        self.on_look: Callable[[], None] = lambda: None
        """Called after each look, on the desk's thread."""
        self._config = config
        self._watch = watch
        self._commander = commander
        self._own = own
        self._refusal = refusal
        self._recordings = recordings
        self._clock = clock or MonotonicClock()
        self._scene = Scene(bridged=lambda stream_id: low <= stream_id <= high, seen=seen)
        self._timers = Timers(self._clock)
        self._totals = History(TOTALS, config.console.history_seconds)
        self.counts: Counter[str] = Counter()
        self._histories: dict[int, History] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._event_number = 0
        self._noticed = 0
        self._orders: deque[Order] = deque()
        self._waiting: list[Order] = []
        self._state: dict[str, Any] = {
            "streams": [],
            "services": [],
            "recordings": [],
            "totals": {},
            "time": time.time(),
        }

    # What others ask, on any thread

    def hello(self) -> dict[str, Any]:
        return {
            "version": importlib.metadata.version("framepool"),
            "host": platform.node(),
            "namespace": self._config.driver.namespace,
            "pid": os.getpid(),
            "history_seconds": self._config.console.history_seconds,
        }

    def state(self, events_after: int = 0) -> dict[str, Any]:
        """The last look, with the events after that one."""
        events = [event for event in tuple(self._events) if event["number"] > events_after]
        return {**self._state, "events": events[-EVENTS_AT_ONCE:]}

    def history(self, stream_id: int | None) -> dict[str, Any]:
        """The past of a stream; without one, of all together, and how often each had frames lately."""
        if stream_id is not None:
            past = self._histories.get(stream_id)
            return past.read() if past is not None else {name: [] for name in ("time", *COLUMNS)}
        recent = {
            str(number): past.read(("frames_per_s",), last=RECENT)["frames_per_s"]
            for number, past in tuple(self._histories.items())
        }
        return {"totals": self._totals.read(), "recent": recent}

    async def command(self, tag: str, key: str, value: Any) -> dict[str, Any]:
        """Has a command sent, and waits for its echo: `CommandRefused` or `NoEcho` if it does not come."""
        if len(self._orders) + len(self._waiting) >= MOST_ORDERS:
            self.counts["too many commands"] += 1
            raise CommandRefused("too many commands wait for their echo")
        order = Order(tag, key, value)
        self._orders.append(order)
        return await order.answer

    # The agent

    def on_start(self) -> None:
        self._timers.every(NANOS_PER_SECOND, self._look, first_ns=0)

    def do_work(self) -> int:
        work = self._watch.do_work()
        for event in self._commander.poll():
            self._on_event(event)
            work += 1
        return work + self._send() + self._answer() + self._timers.poll()

    def on_close(self) -> None:
        for order in (*self._orders, *self._waiting):
            order.settle(NoEcho("the console ends"))

    def knows(self, stream_id: int) -> bool:
        """Whether a stream is announced. From any thread."""
        return stream_id in self._watch.state.streams

    def statistics(self) -> dict[str, Any]:
        return {
            "events": self._event_number,
            "waiting": len(self._waiting),
            **self.counts,
            **self._watch.state.statistics(),
        }

    def _look(self) -> None:
        now_s = time.time()
        state = self._watch.state
        shown = self._scene.look(state, gauges.read(self._config.aeron.directory), self._own())
        for stream in shown["streams"]:
            stream["preview"] = self._refusal(stream["id"])
            self._remember(stream, now_s)
        self._totals.add(now_s, shown["totals"])
        for gone in self._histories.keys() - state.streams.keys():
            del self._histories[gone]
        for notice in state.journal.after(self._noticed):
            self._noticed = notice.number
            self._on_notice(notice, now_s, state.now_ns)
        services = [
            {"tag": each.tag, "state": each.state, "uptime_s": each.uptime_s, "version": each.version,
             "host": each.host, "pid": each.pid, "age_s": self._commander.directory.age_s(each)}
            for each in self._commander.directory.services()
        ]  # fmt: skip
        self._state = {
            "time": now_s,
            "host": platform.node(),
            **shown,
            "services": services,
            "recordings": self._recordings(),
        }
        self.on_look()

    def _remember(self, stream: dict[str, Any], now_s: float) -> None:
        past = self._histories.get(stream["id"])
        if past is None:
            if len(self._histories) >= MOST_HISTORIES:
                self.counts["histories not kept"] += 1
                return
            past = self._histories[stream["id"]] = History(COLUMNS, self._config.console.history_seconds)
        past.add(now_s, row(stream))

    # Events

    def _on_notice(self, notice: Notice, now_s: float, now_ns: int) -> None:
        about = "" if notice.stream_id is None else f"stream {notice.stream_id}"
        when_s = now_s - (now_ns - notice.at_ns) / NANOS_PER_SECOND
        self._note(when_s, notice.level.value, notice.kind.value, about, worded(notice))

    def _on_event(self, event: Event) -> None:
        """What services say beyond that they live: echoes, results, errors and news of their own."""
        if event.key == STATUS:
            return
        value = "" if event.value is None else f" = {plain_value(event.value)}"
        level = "warning" if event.key == "error" else "info"
        self._note(time.time(), level, "service", event.tag, f"{event.key}{value}")

    def _note(self, when_s: float, level: str, kind: str, about: str, text: str) -> None:
        self._event_number += 1
        short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
        self._events.append(
            {"number": self._event_number, "time": when_s, "level": level, "kind": kind, "about": about, "text": short}
        )

    # Commands

    def _send(self) -> int:
        work = 0
        while self._orders:
            order = self._orders.popleft()
            work += 1
            try:
                order.sent = self._commander.send(order.tag, order.key, order.value)
            except Exception as error:  # what cannot be encoded is the page's mistake, and the page is told
                order.settle(error)
                continue
            if order.sent is None:
                order.settle(NoEcho(f"{order.tag}: no service listens"))
                continue
            patience_ns = self._config.service.command_timeout_ms * NANOS_PER_MILLI
            order.deadline_ns = self._clock.monotonic_ns() + patience_ns
            self._waiting.append(order)
        return work

    def _answer(self) -> int:
        if not self._waiting:
            return 0
        now_ns = self._clock.monotonic_ns()
        still: list[Order] = []
        for order in self._waiting:
            sent = order.sent
            assert sent is not None
            if sent.error is not None:
                order.settle(CommandRefused(sent.error))
            elif sent.echo is not None:
                order.settle({"echo": sent.echo.plain(), "result": plain_value(sent.result)})
            elif now_ns > order.deadline_ns:
                order.settle(NoEcho(f"{order.tag}: no echo of {order.key!r}"))
            else:
                still.append(order)
        settled = len(self._waiting) - len(still)
        self._waiting = still
        return settled
