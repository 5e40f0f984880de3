"""`framepool top` against real streams: the table, its order, the detail, and the look for scripts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot
from textual.widgets import Static

import framepool as fp
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.console.glance import Glance
from framepool.console.top import Detail, Events, Streams, Table, Top, duration, number
from framepool.transport.settings import AeronSettings
from tests.support.console_site import STREAM, ConsoleSite
from tests.support.processes import Processes

SLOW = "slow [/b][red"
"""A name that is no markup."""


@pytest.fixture
def config(base_dir: Path) -> Iterator[Config]:
    """Two streams: a quick one with a reader, and a slower one without."""
    profile = ProfileConfig(nslots=8, pools=(PoolConfig(pool_id=1, stride_bytes=4096),))
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=200, lease_expiry_ms=60_000),
        profiles={"default": profile},
    )
    ended = threading.Event()
    with fp.serve(config) as pool:
        quick, slow = pool.producer(STREAM, name="quick"), pool.producer(STREAM + 1, name=SLOW)
        reader = pool.consumer(STREAM)

        def publish() -> None:
            for count in itertools.count():
                if ended.wait(0.005):
                    return
                quick.publish(np.zeros(100, np.uint8))
                reader.poll()
                if count % 10 == 0:
                    slow.publish(np.zeros(100, np.uint8))

        thread = threading.Thread(target=publish)
        thread.start()
        yield config
        ended.set()
        thread.join()


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        await pilot.pause(0.1)


def rows(app: Top) -> list[list[str]]:
    table = app.screen.query_one(Table)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


def test_the_table_shows_sorts_and_opens_streams(config: Config) -> None:
    async def scene() -> None:
        with Glance(config) as glance:
            app = Top(glance)
            async with app.run_test(size=(140, 40)) as pilot:
                expected = [[str(STREAM), "quick", "live"], [str(STREAM + 1), SLOW, "live"]]
                await until(pilot, lambda: [row[:3] for row in rows(app)] == expected)  # names come by themselves
                assert isinstance(app.screen, Streams)
                await until(pilot, lambda: rows(app)[0][3] != "–")
                await until(pilot, lambda: rows(app)[0][6].endswith("s") and rows(app)[0][6] != "–")
                await until(pilot, lambda: rows(app)[0][8] == "1")
                await pilot.press("r")
                assert [row[1] for row in rows(app)] == [SLOW, "quick"]
                await pilot.press("r", "s", "s", "s")  # by name, state, frames a second
                assert "by frames/s" in str(app.screen.query_one("#totals", Static).render())
                await until(pilot, lambda: [row[1] for row in rows(app)] == ["quick", SLOW])
                await pilot.press("enter")
                assert isinstance(app.screen, Detail)
                facts = str(app.screen.query_one("#facts", Static).render())
                assert "quick" in facts
                assert "8 slots" in facts
                await until(pilot, lambda: len(rows(app)) == 1)
                assert rows(app)[0][2] == "STREAM"
                await pilot.press("escape", "e")
                assert isinstance(app.screen, Events)
                await until(pilot, lambda: any("producer" in row[3] for row in rows(app)))
                await pilot.press("escape", "q")
            assert app.return_code == 0

    asyncio.run(scene())


def test_the_cursor_stays_on_its_stream_when_the_order_changes(config: Config) -> None:
    async def scene() -> None:
        with Glance(config) as glance:
            app = Top(glance)
            async with app.run_test(size=(140, 40)) as pilot:
                await until(pilot, lambda: len(rows(app)) == 2)
                await pilot.press("down", "r")
                await pilot.press("enter")
                assert isinstance(app.screen, Detail)
                assert app.screen.stream_id == STREAM + 1

    asyncio.run(scene())


def test_one_look_as_json_for_scripts(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    site.publish(STREAM, "--name", "counter")
    site.framepool("consume", str(STREAM)).wait_line("")
    top = site.framepool("top", "--once", "--json", "--seconds", "5")
    assert top.wait(60) == 0, top.lines
    (line,) = top.lines
    (stream,) = json.loads(line)["streams"]
    assert (stream["id"], stream["name"], stream["state"]) == (STREAM, "counter", "live")
    assert stream["frames_per_s"] > 0
    assert stream["consumers"][0]["mode"] == "STREAM"
    table = site.framepool("top", "--once", "--seconds", "5")
    assert table.wait(60) == 0
    assert any("counter" in line and "live" in line for line in table.lines)


def test_it_runs_in_a_terminal_and_ends_with_q(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    site.publish(STREAM, "--name", "counter")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "framepool", "top", "--config", str(site.path)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"}
    top = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    try:
        seen = b""
        deadline = time.monotonic() + 60
        while b"counter" not in seen:
            assert time.monotonic() < deadline, seen[-2000:]
            seen += os.read(master, 65_536)
        os.write(master, b"q")
        with contextlib.suppress(OSError):  # the terminal ends with it
            while os.read(master, 65_536):
                pass
        assert top.wait(60) == 0
    finally:
        top.kill()
        top.wait()
        os.close(master)


def test_json_without_once_is_refused(processes: Processes) -> None:
    top = processes.start("-m", "framepool", "top", "--json")
    assert top.wait(60) == 2
    assert top.lines == ["framepool top: --json goes with --once"]


def test_without_a_media_driver_it_says_so_in_one_line(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    top = site.framepool("top", "--once")
    assert top.wait(60) == 1
    assert "no media driver" in top.lines[-1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.25, "0.2"),
        (99.94, "99.9"),
        (512.4, "512"),
        (12_345, "12.3k"),
        (2.5e6, "2.5M"),
        (3e9, "3.0G"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("nanos", "text"), [(None, "–"), (12, "12 ns"), (1_500, "1.5 µs"), (2e6, "2.0 ms"), (3e9, "3.0 s")]
)
def test_times_are_in_their_unit(nanos: float | None, text: str) -> None:
    assert duration(nanos) == text
