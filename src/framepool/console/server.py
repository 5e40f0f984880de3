"""The server below the page: one thread with a loop, and doors that a crowd cannot block.

uvicorn does HTTP and the socket. What it leaves open is closed here: a connection that asks nothing is ended after a
few seconds, and sooner if too many are open; one that sends pings and reads no pongs is ended before they pile up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from framepool.config import ConsoleConfig
from framepool.errors import ConfigurationError, FramepoolError

log = logging.getLogger(__name__)

FIRST_REQUEST_S: Final = 5.0
"""A connection asks for something within this time."""
MOST_UNREAD: Final = 8 * 2**20
"""Bytes that may wait for a page: more than the largest picture."""
PING_S: Final = 20.0
PATIENCE_S: Final = 10.0


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(24)


class Doors:
    """The HTTP connections that are open, the one that asked nothing for longest first."""

    def __init__(self, most: int) -> None:
        self.ended = 0
        self._most = most
        self._open: dict[HttpConnection, None] = {}

    def entered(self, connection: HttpConnection) -> None:
        self._open[connection] = None
        if len(self._open) > self._most:
            self.end(next((each for each in self._open if each.is_idle), connection))

    def left(self, connection: HttpConnection) -> None:
        self._open.pop(connection, None)

    def end(self, connection: HttpConnection) -> None:
        self.ended += 1
        self.left(connection)
        connection.transport.abort()


class HttpConnection(H11Protocol):
    """A connection that is ended if it asks nothing."""

    doors: ClassVar[Doors]

    @property
    def is_idle(self) -> bool:
        """Whether no answer is on its way."""
        return not self.has_asked or self.cycle.response_complete

    @property
    def has_asked(self) -> bool:
        return bool(self.cycle)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.doors.entered(self)
        self._first = self.loop.call_later(FIRST_REQUEST_S, self._end_unasked)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._leave()
        super().handle_websocket_upgrade(event)

    def _leave(self) -> None:
        self._first.cancel()
        self.doors.left(self)

    def _end_unasked(self) -> None:
        if not self.has_asked:
            self.doors.end(self)


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket that cannot make us keep what it does not read, and that the page may end at once."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        scope: Any = getattr(self, "scope", {})  # none of a handshake that was no good
        scope["transport"] = self.transport

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.transport.abort()
        else:
            super().handle_ping()


class Server:
    """Serves an application from a thread of its own, at an address that is known before it starts."""

    def __init__(self, config: ConsoleConfig) -> None:
        self._socket = _listen(config)
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        self.doors = Doors(config.max_connections)
        self._config = config
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: ASGIApp) -> None:
        """Serves from now on; returns once it does."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=type("Http", (HttpConnection,), {"doors": self.doors}),
                ws=SocketConnection,
                ws_max_size=self._config.max_message_bytes,
                ws_ping_interval=PING_S,
                ws_ping_timeout=PING_S,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="framepool-console", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise FramepoolError(f"the console did not start at {self.address}; see the log")
            time.sleep(0.005)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Ends connections and thread."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(PATIENCE_S)
            self._server = self._thread = None
        self._socket.close()


def _listen(config: ConsoleConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(
            f"console at {config.host}:{config.port}: {error.strerror}; choose another with --port, 0 is a free one"
        ) from error
