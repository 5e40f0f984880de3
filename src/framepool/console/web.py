"""The web side of the console: who may ask what, and the answers (HTTP and the handshake of the socket).

Looking is free to whoever can connect, which on loopback is this machine, unless the configuration says otherwise.
Changing something takes the token, in a header that no foreign page can set. A browser that was led here by another
site is told apart by two headers it cannot help sending: `Host`, against names that were made to point here, and
`Origin`, against pages of others that open our socket. The page itself may load nothing from anywhere else.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from framepool.config import ConsoleConfig
from framepool.console.pages import Pages, stream_of
from framepool.errors import CommandRefused, EncodeError, NoEcho

log = logging.getLogger(__name__)

STATIC: Final = Path(__file__).with_name("static")
PROTOCOL: Final = "framepool"
TOKEN_PROTOCOL: Final = "token."
"""Before the token, as a subprotocol: the one thing that a page can say in the handshake of a socket."""
BODY_S: Final = 5.0
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to a service, as the page sends it."""

    tag: str
    key: str
    value: bool | int | float | str | None = None


class Desk(Protocol):
    """What the console knows and can do; see `framepool.console.desk`."""

    def hello(self) -> dict[str, Any]: ...
    def state(self, events_after: int = 0) -> dict[str, Any]: ...
    def history(self, stream_id: int | None) -> dict[str, Any]: ...
    async def command(self, tag: str, key: str, value: Any) -> dict[str, Any]: ...


class Keeper:
    """Who holds the token, and who claims to."""

    def __init__(self, config: ConsoleConfig, token: str) -> None:
        self.counts: Counter[str] = Counter()
        self._config = config
        self._token = token.encode()
        self._names = frozenset({*LOCAL_NAMES, *(name.lower() for name in config.hosts), _bracketed(config.host)})
        self._logged_s = float("-inf")
        self._unlogged = 0

    def holds_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)

    def knows_host(self, headers: Headers) -> bool:
        """Whether the request was meant for us: by a name that is ours, or by an address."""
        name = _host(f"//{headers.get('host', '')}")
        return _bracketed(name) in self._names or (not self._config.is_local and _is_address(name))

    def knows_origin(self, headers: Headers) -> bool:
        """Whether a socket is opened by our own page, or by no page at all."""
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2] == headers.get("host")

    def refuse(self, why: str, who: HTTPConnection) -> None:
        """Counts and logs somebody who may not; a flood of them is one line a second."""
        self.counts[why] += 1
        now_s = time.monotonic()
        if now_s - self._logged_s < 1.0:
            self._unlogged += 1
            return
        more = f", and {self._unlogged} more" if self._unlogged else ""
        client = f"{who.client.host}:{who.client.port}" if who.client else "somebody"
        log.warning("%s refused: %s for %.100r%s", client, why, who.scope["path"], more)
        self._logged_s, self._unlogged = now_s, 0


class Gate:
    """Stands before everything: refuses what is not for us, and puts the headers on what is."""

    def __init__(self, app: ASGIApp, keeper: Keeper) -> None:
        self._app = app
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        if not self._keeper.knows_host(headers):
            self._keeper.refuse("unknown host", HTTPConnection(scope))
            await _deny(scope, receive, send_with_headers, PlainTextResponse("unknown host", status_code=421))
        elif not self._keeper.knows_origin(headers):
            self._keeper.refuse("foreign origin", HTTPConnection(scope))
            await _deny(scope, receive, send_with_headers, PlainTextResponse("foreign origin", status_code=403))
        else:
            await self._app(scope, receive, send_with_headers)


class Web:
    """The routes."""

    def __init__(
        self,
        config: ConsoleConfig,
        token: str,
        desk: Desk,
        pages: Pages,
        report: Callable[[str], Path | None] = lambda name: None,
    ) -> None:
        """`report` says where the report of a recording is."""
        self.keeper = Keeper(config, token)
        self._config = config
        self._desk = desk
        self._pages = pages
        self._report = report

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.index),
            Route("/api/hello", self.hello),
            Route("/api/state", self.state),
            Route("/api/history", self.history),
            Route("/api/command", self.command, methods=["POST"]),
            Route("/report", self.report),
            WebSocketRoute("/socket", self.socket),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return Gate(Starlette(routes=routes), self.keeper)

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def hello(self, request: Request) -> Response:
        """What the console is, and whether the token that came along is the right one."""
        if (refused := self._looks(request)) is not None:
            return refused
        trusted = bool(_bearer(request))  # a wrong one was refused
        return _json({**self._desk.hello(), "trusted": trusted, "read_only": self._config.read_only})

    async def state(self, request: Request) -> Response:
        return self._looks(request) or _json(self._desk.state())

    async def history(self, request: Request) -> Response:
        if (refused := self._looks(request)) is not None:
            return refused
        asked = request.query_params.get("stream", "")
        try:
            stream_id = stream_of(asked) if asked else None
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=400)
        return _json(self._desk.history(stream_id))

    async def report(self, request: Request) -> Response:
        """The report of a recording: a page of somebody else, that may draw and do nothing."""
        if (refused := self._looks(request)) is not None:
            return refused
        page = await asyncio.to_thread(self._report, request.query_params.get("recording", ""))
        if page is None:
            return PlainTextResponse("no report of this recording", status_code=404)
        return FileResponse(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})

    async def command(self, request: Request) -> Response:
        """Sends a command to a service and answers with its echo, its result or its refusal."""
        if (refused := self._changes(request)) is not None:
            return refused
        try:
            order = msgspec.json.decode(await self._body(request), type=Order)
        except (msgspec.MsgspecError, ValueError, RecursionError, TimeoutError) as error:
            return PlainTextResponse(f"no command: {error}", status_code=400)
        try:
            return _json(await self._desk.command(order.tag, order.key, order.value))
        except (CommandRefused, EncodeError) as error:
            return _json({"error": str(error)}, status_code=409)
        except NoEcho as error:
            return _json({"error": str(error)}, status_code=504)

    async def socket(self, socket: WebSocket) -> None:
        given = next((each for each in socket.scope["subprotocols"] if each.startswith(TOKEN_PROTOCOL)), "")
        given = given.removeprefix(TOKEN_PROTOCOL)
        if given and not self.keeper.holds_token(given):
            self.keeper.refuse("wrong token", socket)
            await socket.send_denial_response(PlainTextResponse("wrong token", status_code=401))
        elif not given and self._config.token_for == "everything":
            self.keeper.refuse("no token", socket)
            await socket.send_denial_response(PlainTextResponse("no token", status_code=401))
        else:
            protocol = PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None
            await self._pages.serve(socket, trusted=bool(given), protocol=protocol)

    def _looks(self, request: Request) -> Response | None:
        """Nothing if this request may look; else the refusal."""
        given = _bearer(request)
        if given is None and self._config.token_for == "changes":
            return None
        return self._check(request, given)

    def _changes(self, request: Request) -> Response | None:
        """Nothing if this request may change something; else the refusal."""
        refused = self._check(request, _bearer(request))
        if refused is None and self._config.read_only:
            return PlainTextResponse("this console is read-only", status_code=403)
        return refused

    def _check(self, request: Request, given: str | None) -> Response | None:
        if given is not None and self.keeper.holds_token(given):
            return None
        why = "no token" if given is None else "wrong token"
        self.keeper.refuse(why, request)
        return PlainTextResponse(why, status_code=401, headers={"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytes:
        body = b""
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > self._config.max_message_bytes:
                    raise ValueError(f"more than {self._config.max_message_bytes} bytes")
        return body


async def _deny(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    if scope["type"] == "http":
        await response(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).send_denial_response(response)


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _json(value: Any, status_code: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(value), status_code, headers, media_type="application/json")


def _bracketed(name: str) -> str:
    """A host as it stands in an address."""
    return f"[{name}]" if ":" in name and not name.startswith("[") else name.lower()


def _host(address: str) -> str:
    """The name in an address; none in one that is no address."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
