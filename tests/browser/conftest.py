"""A real Chromium, and a page that fails its test if the browser has anything to complain about."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.console_site import STREAM, ConsoleSite
from tests.support.directories import private_directory
from tests.support.processes import Processes

expect.set_options(timeout=30_000)

HOSTILE = "<img src=x onerror=alert(1)><b>other"
"""A name that would do harm as markup."""
LOOK = {"map": "grey", "scale": "linear", "stretch": "full"}
"""Values as they are: 8 bits to 8 bits."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of the system, once."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=60_000)
        yield browser
        browser.close()


@pytest.fixture
def unused_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Window:
    """Opens pages, and keeps what the browser says about them."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.expected = "nothing"
        """Complaints with these words are no surprise."""

    def open(self, address: str, *, width: int = 1280, height: int = 800, look: Any = LOOK, **options: Any) -> Page:
        context = self._chromium.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(30_000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"{error}"))
        page.on("console", lambda said: said.type in ("error", "warning") and self.complaints.append(said.text))
        if look is not None:
            page.add_init_script(f"localStorage.setItem('framepool.look', {json.dumps(json.dumps(look))})")
        page.goto(address)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def window(chromium: Browser) -> Iterator[Window]:
    window = Window(chromium)
    yield window
    window.close()
    assert [said for said in window.complaints if window.expected not in said] == []


@pytest.fixture(scope="module")
def site() -> Iterator[ConsoleSite]:
    """A driver, two streams of 8-bit pixels that count frames, a reader of the first, a recorder of the other, and a
    console: for tests that leave it as it was."""
    running = Processes(sys.executable)
    try:
        with private_directory() as base_dir:
            site = ConsoleSite(running, base_dir, console=f'recordings = "{base_dir}/recordings"')
            site.start_driver()
            site.publish(STREAM, "--name", "counter", "--dtype", "uint8")
            site.publish(STREAM + 1, "--name", HOSTILE, "--dtype", "uint8")
            site.start_console()
            site.wait_state(lambda state: len(state["streams"]) == 2, 60)
            site.framepool("consume", str(STREAM))
            site.framepool("record", str(base_dir / "recordings" / "night"), str(STREAM + 1), "--segment-seconds", "1")
            yield site
            running.stop_all()
    finally:
        running.stop_all()
