"""`framepool top`: streams, rates, drops and latencies at a glance, in this terminal."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from framepool.config import load

NEEDED = "framepool top needs more packages: pip install 'framepool[console]'"
SETTLE_S = 2.5
"""Everybody reports once a second: after so long, two reports of each are known."""

WIDE = 160
"""Columns where there is no terminal that would say how many it has."""


def top(
    *,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    once: Annotated[bool, Parameter(negative="", help="Print one look and end.")] = False,
    json: Annotated[bool, Parameter(negative="", help="With --once: one JSON document.")] = False,
    seconds: Annotated[float, Parameter(help="With --once: how long to listen before.")] = SETTLE_S,
) -> None:
    """Show the streams of this machine, sortable, with a detail view; q ends it."""
    if json and not once:
        print("framepool top: --json goes with --once", file=sys.stderr)
        sys.exit(2)
    from framepool.console.glance import Glance

    settings = load(config)
    if once:
        with Glance(settings) as glance:
            glance.watch(max(0.0, seconds - 1.0))
            glance.look()  # the next one has rates
            glance.watch(min(1.0, seconds))
            state = glance.look()
        print(jsonlib.dumps(state)) if json else show(state)
        return
    try:
        from framepool.console.top import Top
    except ModuleNotFoundError as error:
        print(f"{NEEDED} ({error.name} is missing)", file=sys.stderr)
        sys.exit(1)
    with Glance(settings) as glance:
        Top(glance).run()


def show(state: dict[str, Any]) -> None:
    """One look as a table."""
    table = Table("stream", "name", "state", "frames/s", "MB/s", "drops/s", "p50 µs", "p99 µs", "readers")
    for row in state["streams"]:
        latency = row["latency"] or {}
        table.add_row(
            str(row["id"]),
            row["name"],
            row["state"],
            _shown(row["frames_per_s"]),
            _shown(row["bytes_per_s"], 1e6),
            _shown(row["drops_per_s"]),
            _shown(latency.get("p50_ns"), 1e3),
            _shown(latency.get("p99_ns"), 1e3),
            str(len(row["consumers"])),
        )
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def _shown(value: float | None, unit: float = 1.0) -> str:
    return "–" if value is None else f"{value / unit:.1f}"
