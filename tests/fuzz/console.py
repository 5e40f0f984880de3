"""What a browser, or whoever pretends to be one, sends to the console: HTTP, the handshake, and words on the socket."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
from starlette.websockets import WebSocket

from framepool.config import ConsoleConfig
from framepool.console.pages import Page, Pages, Said
from framepool.console.picture import Wish, decoded, encoded, picture
from framepool.console.preview import Previews
from framepool.console.web import Web
from framepool.errors import CommandRefused, NoEcho
from tests.fuzz.draw import Draw, pieced

TOKEN: Final = "a-token-for-fuzzing-only"
PATHS: Final = ("/", "/api/hello", "/api/state", "/api/history", "/api/command", "/socket", "/static/app.js", "")
HOSTS: Final = ("localhost:8800", "127.0.0.1", "[::1]:8800", "evil.example", "")
NAMES: Final = ("authorization", "origin", "host", "content-type", "sec-websocket-protocol", "range", "x")
IMAGES: Final = tuple(
    np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for shape, dtype in (((24, 32), "u2"), ((5,), "f4"), ((8, 8, 3), "u1"), ((0, 4), "i8"), ((2, 3, 4, 5), "?"))
)


class Desk:
    """Knows nothing and refuses what it is told."""

    commands: int = 0

    def hello(self) -> dict[str, Any]:
        return {}

    def state(self, events_after: int = 0) -> dict[str, Any]:
        return {}

    def history(self, stream_id: int | None) -> dict[str, Any]:
        assert stream_id is None or stream_id >= 0
        return {}

    async def command(self, tag: str, key: str, value: Any) -> dict[str, Any]:
        self.commands += 1
        raise (CommandRefused if len(key) % 2 else NoEcho)("no")


class Conversation:
    """One request through the whole application, or one socket and what the page says on it."""

    def __init__(self, config: ConsoleConfig) -> None:
        self.desk = Desk()
        self.previews = Previews(_nobody, rate_hz=10)
        self.pages = Pages(config, self.previews)
        self.web = Web(config, TOKEN, self.desk, self.pages)
        self.app = self.web.app()
        self.sent: list[Any] = []

    async def run(self, scope: dict[str, Any], received: list[dict[str, Any]]) -> None:
        waiting = iter(received)

        async def receive() -> dict[str, Any]:
            for message in waiting:
                return message
            return {"type": "websocket.disconnect" if scope["type"] == "websocket" else "http.disconnect", "code": 1000}

        async def send(message: Any) -> None:
            self.sent.append(message)

        async with asyncio.timeout(25):
            await self.app(scope, receive, send)


def _nobody(stream_id: int) -> Any:
    raise AssertionError("nothing is attached here")


def one(data: bytes) -> None:
    draw = Draw(data)
    draw.chosen((_http, _socket, _words, _picture))(draw)


def _scope(draw: Draw, kind: str) -> tuple[dict[str, Any], bool]:
    """A request with these headers; whether it has the token."""
    trusted = draw.number() % 4 == 0
    path = draw.chosen(PATHS) or "/" + draw.piece().decode(errors="replace")
    headers = [(b"host", draw.chosen(HOSTS).encode())]
    if trusted and kind == "http":
        headers.append((b"authorization", f"Bearer {TOKEN}".encode()))
    for _ in range(draw.number() % 4):
        headers.append((draw.chosen(NAMES).encode(), draw.piece()))
    protocols = [draw.piece().decode("latin-1") for _ in range(draw.number() % 3)]
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": draw.chosen(("GET", "POST", "HEAD", "DELETE")),
        "scheme": "ws" if kind == "websocket" else "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": draw.piece(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8800),
        "subprotocols": [*protocols, *([f"token.{TOKEN}"] if trusted and kind == "websocket" else [])],
        "extensions": {"websocket.http.response": {}},
        "state": {},
    }, trusted


def _http(draw: Draw) -> None:
    """Every request is answered, and none without the token changes anything."""
    scope, trusted = _scope(draw, "http")
    talk = Conversation(ConsoleConfig(max_message_bytes=256, read_only=draw.number() % 4 == 0))
    body = [{"type": "http.request", "body": draw.bytes(300), "more_body": True} for _ in range(2)]
    _runner.run(talk.run(scope, [*body, {"type": "http.request", "body": draw.rest(), "more_body": False}]))
    assert trusted or talk.desk.commands == 0
    start = talk.sent[0]
    assert start["type"] == "http.response.start"
    names = {name.lower() for name, _ in start["headers"]}
    assert b"content-security-policy" in names
    assert start["status"] < 500 or start["status"] == 504


def _socket(draw: Draw) -> None:
    scope, _ = _scope(draw, "websocket")
    talk = Conversation(ConsoleConfig(token_for=draw.chosen(("changes", "everything"))))
    received: list[dict[str, Any]] = [{"type": "websocket.connect"}]
    for _ in range(draw.number() % 8):
        kind, said = draw.number(), draw.piece()
        received.append(
            {
                "type": "websocket.receive",
                **({"bytes": said} if kind % 8 == 0 else {"text": said.decode(errors="replace")}),
            }
        )
    _runner.run(talk.run(scope, received))
    assert talk.desk.commands == 0
    assert len(talk.pages) == 0


def _words(draw: Draw) -> None:
    """What a page may say, as the server of the socket takes it in."""
    page = Page(_NO_SOCKET, trusted=False, loop=_NO_LOOP)
    for _ in range(8):
        if not draw:
            break
        try:
            page.on_message(msgspec.json.decode(draw.piece(), type=Said))
        except (msgspec.MsgspecError, ValueError):
            return
        for stream_id in page.watched():
            assert 0 <= stream_id < 2**32


def _picture(draw: Draw) -> None:
    image = draw.chosen(IMAGES)
    try:
        wish = msgspec.json.decode(draw.rest(), type=Wish)
    except (msgspec.MsgspecError, ValueError):
        return
    found = picture(image, Wish(min(wish.size, 1024), wish.region))
    assert found.values.nbytes <= max(image.nbytes, image.size * 4) + 64
    decoded(encoded(found, stream=1))


_NO_SOCKET: Final = WebSocket({"type": "websocket"}, lambda: None, lambda message: None)  # type: ignore[arg-type,return-value]
_runner: Final = asyncio.Runner()
_NO_LOOP: Final = _runner.get_loop()
atexit.register(_runner.close)


def seeds() -> Iterator[bytes]:
    kinds: list[Callable[[Draw], None]] = [_http, _socket, _words, _picture]
    watch = b'{"type":"watch","streams":{"10000":{"size":192},"7":{"region":{"x":1,"y":2,"width":3,"height":4}}}}'
    words = (watch, b'{"type":"drawn","streams":[10000]}', b'{"type":"seen"}', b'{"type":"watch","streams":{"-1":{}}}')
    order = b'{"tag":"service:limiter","key":"set:rate","value":2.5}'
    for path in range(len(PATHS) - 1):
        for trusted in (0, 1):
            for method in (0, 1):
                request = bytes([kinds.index(_http), trusted, path, 0, 0, 0, method]) + pieced(b"stream=10000") + b"\1"
                yield request + order
        yield bytes([kinds.index(_http), 1, path, 0, 2, 0]) + pieced(b"Bearer x") + b"\1" + pieced(b"http://evil")
    yield bytes([kinds.index(_http), 1, 7]) + pieced(b"static/../web.py") + bytes([1, 0, 0, 0]) + pieced(b"")
    for trusted in (0, 1):
        page = bytes([kinds.index(_socket), trusted, 5, 0, 0, 1]) + pieced(b"framepool") + b"\0" + pieced(b"")
        yield page + bytes([0, 4]) + b"".join(b"\1" + pieced(word) for word in words)
        yield page + bytes([1, 2]) + b"\0" + pieced(b"\0\1") + b"\1" + pieced(b"{}")
    yield bytes([kinds.index(_words)]) + pieced(*words)
    for image in range(len(IMAGES)):
        for wish in (b"{}", b'{"size":7}', b'{"size":3,"region":{"x":-5,"y":2,"width":99999999999,"height":0}}'):
            yield bytes([kinds.index(_picture), image]) + wish
