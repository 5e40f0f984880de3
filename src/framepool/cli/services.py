"""`framepool services`: who is there, in which state, and how long ago it was heard."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from framepool.cli.ctl import printable
from framepool.cli.stopping import stop_asked
from framepool.config import load
from framepool.service import Commander, ServiceStatus

PERIODS = 2.2
"""Periods of status to listen for: one may be just past, and one late."""
SILENT_PERIODS = 3
"""Periods without a word after which a service counts as silent."""


def services(
    *,
    watch: Annotated[bool, Parameter(negative="", help="Go on until Ctrl-C, renewed each second.")] = False,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON document, each second with --watch.")] = False,
) -> None:
    """List the services that say that they are there, with state, age of their last word, and where they run."""
    settings = load(config)
    period_s = settings.service.status_period_ms / 1_000
    with Commander.connect(settings) as commander:

        def now() -> list[dict[str, Any]]:
            silent_s = SILENT_PERIODS * period_s
            known = [(each, commander.directory.age_s(each)) for each in commander.services()]
            return [spelled(each, age_s, silent=age_s > silent_s) for each, age_s in known]

        if not watch:
            commander.services(PERIODS * period_s)
            listed = now()
            if json:
                print(jsonlib.dumps(listed))
            elif listed:
                console().print(table(listed))
            else:
                print(f"no service said a word within {PERIODS * period_s:g} s")
            return
        with stop_asked() as asked, showing(json) as show:
            while not asked.is_set():
                commander.services(0.2)
                show(now())
                asked.wait(0.8)


def spelled(service: ServiceStatus, age_s: float, *, silent: bool) -> dict[str, Any]:
    """A service as plain values."""
    said = msgspec.structs.asdict(service)
    del said["heard_ns"]
    return {**said, "age_s": round(age_s, 3), "silent": silent}


def table(listed: list[dict[str, Any]]) -> Table:
    """For people."""
    result = Table("service", "state", "heard s ago", "up s", "host", "process", "version")
    for each in listed:
        state = f"{each['state']}, silent" if each["silent"] else each["state"]
        times = (f"{each['age_s']:.1f}", f"{each['uptime_s']:.0f}")
        cells = (each["tag"], state, *times, each["host"], str(each["pid"]), each["version"])
        result.add_row(*(Text(printable(cell)) for cell in cells), style="dim" if each["silent"] else None)
    return result


@contextlib.contextmanager
def showing(json: bool) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """A table in place on a terminal, one below the other elsewhere, a line a second as JSON."""
    screen = console()
    if json:
        yield lambda listed: print(jsonlib.dumps(listed), flush=True)
    elif screen.is_terminal:
        with Live(console=screen, auto_refresh=False) as live:
            yield lambda listed: live.update(table(listed), refresh=True)
    else:
        yield lambda listed: screen.print(table(listed))


def console() -> Console:
    """As wide as the terminal; elsewhere wide enough that no tag is cut."""
    return Console(width=None if sys.stdout.isatty() else 160)
