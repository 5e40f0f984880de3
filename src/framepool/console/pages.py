"""The pages that are open: one WebSocket each, with little in flight and nothing that piles up.

The server says two things: the state once a second, and pictures of the streams that the page watches; each of them
only after the page has taken the last one in (`seen`, `drawn`). A page says what it watches and what it has taken in,
nothing else: changes go over HTTP, with a token. So what waits for a slow page is one of each, the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from framepool.client.rate import Pace
from framepool.config import ConsoleConfig
from framepool.console.picture import Wish
from framepool.console.preview import Pictures, Previews
from framepool.wire.message import UINT32_NULL

MOST_WATCHED: Final = 64
"""Streams that one page watches at a time."""
MESSAGE_BYTES: Final = 2**20
"""Of pictures in one message, and one picture more."""
MESSAGES_HZ: Final = 1_000
"""What a page says at the most: it answers each message, and no more."""
FIRST_WORD_S: Final = 5.0
"""A page says what it watches within this time, or it is none."""
SILENCE_S: Final = 5.0
"""A page that said nothing for so long may have to make room for another."""
SEND_S: Final = 20.0
"""A page that takes nothing for so long is gone."""

POLICY, GONE = 1008, 1001


class Watch(msgspec.Struct, frozen=True, tag_field="type", tag="watch", forbid_unknown_fields=True):
    """The streams that the page shows now, and how it wants each."""

    streams: dict[str, Wish]


class Drawn(msgspec.Struct, frozen=True, tag_field="type", tag="drawn", forbid_unknown_fields=True):
    """The last pictures of these streams are on the screen: send others."""

    streams: list[int]


class Seen(msgspec.Struct, frozen=True, tag_field="type", tag="seen", forbid_unknown_fields=True):
    """The last state was taken in."""


def stream_of(text: str) -> int:
    """The id of a stream, as a page writes it; `ValueError` for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < UINT32_NULL):
        raise ValueError(f"{text!r:.20} is no stream")
    return int(text)


Said = Watch | Drawn | Seen
_decode = msgspec.json.Decoder(Said).decode


class Page:
    """One open page. Its own task sends; other threads only leave things to be sent."""

    def __init__(self, socket: WebSocket, *, trusted: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.trusted = trusted
        self.heard_s = time.monotonic()
        self.has_watched = False
        self.events_sent = 0
        """Up to which event it was told."""
        self._socket = socket
        self._loop = loop
        self._wishes: dict[int, Wish] = {}
        self._ready: set[int] = set()
        self._pictures: Pictures = {}
        self._states_out = 0
        self._state: str | None = None
        self._wake = asyncio.Event()

    # On the thread of the previews

    def wishes(self, stream_id: int) -> Wish | None:
        """What the page would draw of a stream now; nothing until it has drawn the last picture."""
        return self._wishes.get(stream_id) if stream_id in self._ready else None

    def show(self, pictures: Pictures) -> None:
        """Leaves pictures to be sent."""
        self._ready.difference_update(pictures)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave, pictures)

    # On the loop

    @property
    def wants_state(self) -> bool:
        return self._states_out == 0 and self._state is None and self.has_watched

    def tell(self, state: str) -> None:
        """Leaves a state to be sent."""
        self._state = state
        self._wake.set()

    def on_message(self, said: Said) -> None:
        """Takes in what the page says."""
        self.heard_s = time.monotonic()
        match said:
            case Watch():
                self._watch({stream_of(name): wish for name, wish in said.streams.items()})
            case Drawn():
                self._ready.update(stream_id for stream_id in said.streams if stream_id in self._wishes)
            case Seen():
                self._states_out = 0

    def watched(self) -> list[int]:
        return list(self._wishes)

    def abort(self) -> None:
        """Ends the connection at once, whatever waits in it."""
        transport: asyncio.Transport | None = self._socket.scope.get("transport")
        if transport is not None:
            transport.abort()

    async def send_all(self) -> None:
        """Sends what is left to be sent, for as long as the page takes it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            async with asyncio.timeout(SEND_S):
                if self._state is not None:
                    state, self._state = self._state, None
                    self._states_out = 1
                    await self._socket.send_text(state)
                while self._pictures:
                    await self._socket.send_bytes(self._next_message())

    def _watch(self, wishes: dict[int, Wish]) -> None:
        if len(wishes) > MOST_WATCHED:
            raise ValueError(f"a page watches {MOST_WATCHED} streams at the most")
        new = wishes.keys() - self._wishes.keys()
        self._wishes = wishes
        self._ready = {stream_id for stream_id in self._ready | new if stream_id in wishes}
        self._pictures = {stream_id: data for stream_id, data in self._pictures.items() if stream_id in wishes}
        self.has_watched = True

    def _leave(self, pictures: Pictures) -> None:
        self._pictures |= {stream_id: data for stream_id, data in pictures.items() if stream_id in self._wishes}
        self._wake.set()

    def _next_message(self) -> bytes:
        """Pictures that were left, as many as make a message of some length."""
        parts: list[bytes] = []
        size = 0
        while self._pictures and size < MESSAGE_BYTES:
            data = self._pictures.pop(next(iter(self._pictures)))
            parts.append(data)
            size += len(data)
        return b"".join(parts)


class Pages:
    """All open pages: as many as configured, and those who hold the token before those who do not."""

    def __init__(self, config: ConsoleConfig, previews: Previews) -> None:
        self.counts: Counter[str] = Counter()
        self._config = config
        self._previews = previews
        self._open: set[Page] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where pages are told; there from the first one on."""

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, state_for: Callable[[Page], str]) -> None:
        """Gives the state to every page that has taken in the last one."""
        for page in self._open:
            if page.wants_state:
                page.tell(state_for(page))

    async def serve(self, socket: WebSocket, *, trusted: bool, protocol: str | None) -> None:
        """Lives as long as the connection."""
        self.loop = asyncio.get_running_loop()
        page = Page(socket, trusted=trusted, loop=self.loop)
        if not self._has_room(page):
            self.counts["turned away"] += 1
            await socket.send_denial_response(PlainTextResponse("too many pages are open", status_code=503))
            return
        self._open.add(page)  # before the first wait, so that it counts
        self.counts["opened"] += 1
        sender: asyncio.Task[None] | None = None
        try:
            await socket.accept(subprotocol=protocol)
            sender = asyncio.create_task(page.send_all())
            listener = asyncio.create_task(self._listen(socket, page))
            done, _ = await asyncio.wait((sender, listener), return_when=asyncio.FIRST_COMPLETED)
            listener.cancel()
            code = listener.result() if listener in done and not listener.cancelled() else GONE
            if code is not None:
                self.counts[f"closed with {code}"] += 1
                with contextlib.suppress(RuntimeError, TimeoutError):
                    await asyncio.wait_for(socket.close(code), 1.0)
        except (WebSocketDisconnect, OSError):
            pass
        finally:
            self._open.discard(page)
            self._previews.leave(page)
            if sender is not None:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await sender
            page.abort()

    def close(self) -> None:
        """Ends every connection."""
        for page in list(self._open):
            page.abort()

    def statistics(self) -> dict[str, Any]:
        return {"open": len(self._open), **self.counts}

    async def _listen(self, socket: WebSocket, page: Page) -> int | None:
        """Takes in what the page says until it goes: None; or until it breaks a rule: the code to close with."""
        pace = Pace(MESSAGES_HZ, burst=MESSAGES_HZ)
        try:
            while True:
                async with asyncio.timeout(None if page.has_watched else FIRST_WORD_S):
                    text = await socket.receive_text()
                if not pace.admits(time.monotonic_ns()):
                    return POLICY
                watched = page.watched()
                page.on_message(_decode(text))
                if page.watched() != watched:
                    self._previews.watch(page, page.watched())
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: the sender noticed first
            return None
        except (msgspec.MsgspecError, ValueError, KeyError, TimeoutError):  # KeyError: bytes, not text
            return POLICY

    def _has_room(self, page: Page) -> bool:
        """Whether one more may come, making room if somebody silent, or untrusted, can go for it."""
        if len(self._open) < self._config.max_sockets:
            return True
        now_s = time.monotonic()
        last = min(self._open, key=lambda each: (each.trusted, each.heard_s))
        if now_s - last.heard_s < SILENCE_S and not (page.trusted and not last.trusted):
            return False
        self.counts["made room"] += 1
        self._open.discard(last)
        last.abort()
        return True
