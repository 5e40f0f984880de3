"""The console as one thing that is started and closed: desk, previews, pages and server, on their threads."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from framepool.agent import Runner, Sleeping
from framepool.client.consumer import Consumer
from framepool.client.pool import Pool
from framepool.clock import MonotonicClock
from framepool.config import Config
from framepool.console.desk import Desk
from framepool.console.pages import Page, Pages
from framepool.console.preview import Previews
from framepool.console.server import Server, new_token
from framepool.console.view import Seen
from framepool.console.web import Web
from framepool.errors import AttachRefused
from framepool.recorder.shelf import Shelf
from framepool.service import Commander
from framepool.supervisor.observer import Observer
from framepool.transport.aeron import Client

ATTACH_PAUSE_S: Final = 0.05
ATTACH_PATIENCE_S: Final = 2.0
SHELF_PAUSE_S: Final = 1.0
TURN_S: Final = 0.03
"""Between two turns of the desk: nobody sees such a delay, and each turn takes a core from somebody for a moment."""


class Console:
    """A web console of the streams of one host, from `start` to `close`.

    >>> with Console(config).start() as console:              # doctest: +SKIP
    ...     print(console.address)                            # with the token that lets its reader change something
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._opened = contextlib.ExitStack()
        self._ended = threading.Event()
        self.token = config.console.token or new_token()
        clock = MonotonicClock()
        with contextlib.ExitStack() as undo:
            self._server = Server(config.console)
            undo.callback(self._server.close)
            client = undo.enter_context(Client.connect(config.aeron, name="framepool console"))
            commander = Commander(client, config, clock=clock, reconnect=True)
            undo.callback(commander.close)
            observer = Observer(client, config, clock)
            undo.callback(observer.close)
            observer.listen()
            self._pool = undo.enter_context(Pool(config))
            settings = config.console
            self.previews = Previews(
                self._attach, rate_hz=settings.preview_rate_hz, largest=settings.preview_pixels, clock=clock
            )
            self.shelf = Shelf(Path(settings.recordings)) if settings.recordings else None
            self._recordings: list[dict[str, Any]] = []
            self.desk = Desk(
                config,
                observer,
                commander,
                own=self._own_ids,
                seen=self._seen,
                refusal=self._refusal,
                recordings=lambda: self._recordings,
                clock=clock,
            )
            self.pages = Pages(settings, self.previews)
            report = self.shelf.report if self.shelf is not None else lambda name: None
            self._web = Web(settings, self.token, self.desk, self.pages, report)
            self._opened = undo.pop_all()
        self._desk_runner = Runner(self.desk, idle=Sleeping(TURN_S), stands_back=True)
        self._preview_runner = Runner(self.previews, idle=self.previews, stands_back=True, wake=self.previews.rouse)
        self._attacher = threading.Thread(target=self._attach_all, name="framepool-attach", daemon=True)
        self._librarian = threading.Thread(target=self._look_at_recordings, name="framepool-shelf", daemon=True)

    @property
    def url(self) -> str:
        """Where the page is, without the token."""
        return self._server.address

    @property
    def address(self) -> str:
        """Where the page is, with the token behind the `#`, where it stays in the browser."""
        return f"{self.url}#token={self.token}"

    @property
    def running(self) -> bool:
        return self._server.running

    def start(self) -> Self:
        """Serves from when this returns; where that cannot begin, all is closed again."""
        self.desk.on_look = self._tell_pages
        try:
            self._desk_runner.start()
            self._desk_runner.wait_started()
            self._preview_runner.start()
            self._attacher.start()
            self._librarian.start()
            self._server.start(self._web.app())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends pages, readers and connections."""
        self._ended.set()
        self.desk.on_look = lambda: None
        try:
            self._server.close()
            for thread in (self._attacher, self._librarian):
                if thread.is_alive():
                    thread.join(2 * ATTACH_PATIENCE_S)
            self._preview_runner.close()
            self._desk_runner.close()
        finally:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, Any]:
        return {
            "pages": self.pages.statistics(),
            "previews": self.previews.statistics(),
            "desk": self.desk.statistics(),
            "refused": dict(self._web.keeper.counts),
            "connections ended": self._server.doors.ended,
        }

    def _attach(self, stream_id: int) -> Consumer:
        """The reader of a preview: with a lease, or without one from a stream that no driver owns."""
        rate = self._config.console.preview_rate_hz
        if not self.desk.knows(stream_id):  # at once: what pages ask for may not exist, and others wait meanwhile
            raise AttachRefused(f"stream {stream_id} is not announced")
        try:
            return self._pool.consumer(stream_id, max_rate_hz=rate, timeout=ATTACH_PATIENCE_S)
        except AttachRefused as refusal:
            try:
                return self._pool.announced(stream_id, timeout=ATTACH_PATIENCE_S)
            except AttachRefused:
                raise refusal from None

    def _attach_all(self) -> None:
        while not self._ended.wait(ATTACH_PAUSE_S):
            self.previews.attach_due()

    def _look_at_recordings(self) -> None:
        """Beside everything else: a directory may be on a disk that takes its time."""
        while self.shelf is not None:
            self._recordings = self.shelf.look()
            if self._ended.wait(SHELF_PAUSE_S):
                return

    def _own_ids(self) -> set[int]:
        consumers = [watched.source for watched in self.previews.streams()]
        return {each.consumer_id for each in consumers if each is not None and each.consumer_id is not None}

    def _seen(self, stream_id: int) -> Seen | None:
        watched = self.previews.known(stream_id)
        return None if watched is None else (watched.frame_bytes, watched.shape, watched.dtype)

    def _refusal(self, stream_id: int) -> str:
        watched = self.previews.known(stream_id)
        return "" if watched is None else watched.refusal

    def _tell_pages(self) -> None:
        """Has the loop of the server give every page the new state."""
        loop = self.pages.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(self.pages.tell, self._state_for)

    def _state_for(self, page: Page) -> str:
        state = self.desk.state(page.events_sent)
        if state["events"]:
            page.events_sent = state["events"][-1]["number"]
        return msgspec.json.encode(state).decode()
