"""`framepool doctor`: what this machine lacks for framepool, and what to change."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from framepool.cli.machine import Finding, Machine, examine
from framepool.config import Config, load
from framepool.errors import ConfigurationError

MARKS = {"ok": "[green]✓[/]", "note": "[cyan]·[/]", "warning": "[yellow]![/]", "failure": "[red]✗[/]"}


def doctor(
    *,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    strict: Annotated[bool, Parameter(negative="", help="Warnings fail too.")] = False,
    json: Annotated[bool, Parameter(negative="", help="One JSON document.")] = False,
) -> None:
    """Check this machine and say what to change. Exit code 1 if something keeps framepool from working."""
    try:
        machine = Machine(config=load(config))
    except ConfigurationError as error:
        machine = Machine(config=Config(), refusal=str(error))
    findings = list(examine(machine))
    counts = {state: sum(finding.state == state for finding in findings) for state in MARKS}
    healthy = not counts["failure"] and not (strict and counts["warning"])
    if json:
        print(jsonlib.dumps({"ok": healthy, "counts": counts, "findings": msgspec.to_builtins(findings)}))
    else:
        show(findings)
        print(f"{counts['ok']} in order, {counts['note']} to know, {counts['warning']} to mend, "
              f"{counts['failure']} in the way")  # fmt: skip
    sys.exit(0 if healthy else 1)


def show(findings: list[Finding]) -> None:
    """A line each, with what to do below those that want something done."""
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(MARKS[finding.state], f"[bold]{finding.name}[/]", escape(finding.found))
        if finding.remedy and finding.state != "ok":
            table.add_row("", "", f"[dim]→ {escape(finding.remedy)}[/]")
    Console(highlight=False).print(table)
