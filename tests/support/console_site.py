"""A driver, publishers and a console, each in a process of its own, and clients of the console for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from framepool.config import Config, load
from framepool.console.picture import Array, decoded
from tests.support.processes import Process, Processes

TOKEN = "a-token-for-tests-only"
STREAM = 10_000

TEMPLATE = """
[aeron]
directory = "{base}/aeron"
driver_timeout = 6.0
keepalive_interval = 0.2

[driver]
shm_base_dir = "{base}"
announce_period_ms = 500
keepalive_interval_ms = 500
lease_expiry_ms = 8000

[supervisor]
report_period_ms = 1000

[console]
port = {port}
token = "{token}"
{console}

[profiles.default]
nslots = 8
pools = [{{pool_id = 1, stride_bytes = 65536}}]
"""


class ConsoleSite:
    """One namespace with a console."""

    def __init__(self, processes: Processes, base_dir: Path, console: str = "", port: int = 0) -> None:
        self._processes = processes
        self.path = base_dir / "site.toml"
        self.path.write_text(TEMPLATE.format(base=base_dir, token=TOKEN, console=console, port=port))
        self.config: Config = load(self.path, {})
        self.url = ""

    def framepool(self, *args: str) -> Process:
        return self._processes.start("-m", "framepool", *args, "--config", str(self.path))

    def start_driver(self) -> Process:
        driver = self.framepool("driver", "--json")
        driver.wait_line('{"event": "ready"')
        return driver

    def publish(self, stream: int = STREAM, *args: str) -> Process:
        """A publisher of 32 x 24 pixels, each the number of its frame."""
        size = ("--width", "32", "--height", "24", "--pattern", "counter", "--rate", "100")
        return self.framepool("publish", str(stream), *size, *args)

    def start_console(self, *args: str) -> Process:
        console = self.framepool("console", "--json", *args)
        ready = json.loads(console.wait_line('{"event": "ready"'))
        self.url = ready["url"]
        assert ready["address"] == f"{self.url}#token={TOKEN}"
        return console

    # HTTP

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection(self.host, timeout=20)
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, path: str, *, token: str | None = None) -> Any:
        status, _, body = self.request("GET", path, token=token)
        assert status == 200, (status, body)
        return json.loads(body)

    def command(self, tag: str, key: str, value: Any = None, *, token: str | None = TOKEN) -> tuple[int, Any]:
        status, headers, body = self.request(
            "POST", "/api/command", {"tag": tag, "key": key, "value": value}, token=token
        )
        is_json = headers["content-type"].startswith("application/json")
        return status, json.loads(body) if is_json else body.decode()

    def wait_state(self, holds: Callable[[dict[str, Any]], object], timeout: float = 30.0) -> dict[str, Any]:
        """The first state for which `holds`."""
        deadline = time.monotonic() + timeout
        while True:
            state: dict[str, Any] = self.ask("/api/state")
            if holds(state):
                return state
            assert time.monotonic() < deadline, f"not within {timeout} s; the last state was {state}"
            time.sleep(0.1)

    def wait_stream(
        self, holds: Callable[[dict[str, Any]], object], stream: int = STREAM, timeout: float = 30.0
    ) -> dict[str, Any]:
        """The first state of a stream for which `holds`."""

        def found(state: dict[str, Any]) -> list[dict[str, Any]]:
            return [each for each in state["streams"] if each["id"] == stream and holds(each)]

        return found(self.wait_state(found, timeout))[0]

    # The socket

    @contextlib.contextmanager
    def page(self, *streams: int, token: str | None = None, **options: Any) -> Iterator[PageClient]:
        """A page as a program, that watches these streams."""
        protocols = ["framepool", f"token.{token}"] if token else ["framepool"]
        options.setdefault("origin", self.url.rstrip("/"))
        where = self.url.replace("http", "ws", 1) + "socket"
        with connect(where, subprotocols=protocols, max_size=None, proxy=None, **options) as socket:
            page = PageClient(socket)
            if streams:
                page.watch(*streams)
            yield page


class PageClient:
    """Says what a page says, when the test wants it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._pictures: list[tuple[dict[str, Any], Array]] = []

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def watch(self, *streams: int, size: int = 64) -> None:
        self.say(type="watch", streams={str(stream): {"size": size} for stream in streams})

    def receive(self, timeout: float = 20.0) -> dict[str, Any] | tuple[dict[str, Any], Array]:
        """The next state, or the next picture as header and values."""
        if self._pictures:
            return self._pictures.pop(0)
        message = self.socket.recv(timeout)
        if isinstance(message, bytes):
            self._pictures = decoded(message)
            return self._pictures.pop(0)
        state: dict[str, Any] = msgspec.json.decode(message)
        return state

    def picture(self, timeout: float = 20.0) -> tuple[dict[str, Any], Array]:
        """The next picture, which counts as drawn; states before it count as seen."""
        while True:
            message = self.receive(timeout)
            if isinstance(message, tuple):
                self.say(type="drawn", streams=[message[0]["stream"]])
                return message
            self.say(type="seen")

    def state(self, timeout: float = 20.0) -> dict[str, Any]:
        """The next state, which counts as seen; pictures before it count as drawn."""
        while True:
            message = self.receive(timeout)
            if isinstance(message, dict):
                self.say(type="seen")
                return message
            self.say(type="drawn", streams=[message[0]["stream"]])

    def closed_with(self) -> int:
        """The code with which the server ends this page, whatever it says before."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(20)
        code = self.socket.close_code
        assert code is not None
        return code
