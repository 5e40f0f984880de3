"""`framepool torture`: break a cluster on purpose, and let the checker decide (`docs/testing.md`)."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import framepool
from framepool.cli.stopping import tidy_up_on_sigterm
from framepool.cli.stream import refuse
from framepool.testing.faults import plan
from framepool.testing.torture import Report, run

SAID = 10
"""Findings that are shown, at the most."""


def torture(
    *,
    minutes: float = 0.0,
    seconds: float = 0.0,
    seed: int = 1,
    json: Path | None = None,
    report: Path | None = None,
    directory: Path | None = None,
    alone: bool = False,
    only_plan: bool = False,
) -> None:
    """Run a cluster of real processes, do it harm by a plan made of a seed, and check every frame that passed.

    Nothing outside of it is touched: it has shared memory, media drivers and, where there is root, a network of its
    own. Exit code 1 if anything was wrong.

    Parameters
    ----------
    minutes
        How long; together with seconds, and 2 minutes without either.
    seconds
        How long.
    seed
        What the plan of faults is made of: the same seed gives the same sequence.
    json
        Write the report there, as JSON; `-` is standard output.
    report
        Write the report there, as Markdown.
    directory
        Keep journals and recording there, in an empty directory.
    alone
        Do without a second host and its network, as without root.
    only_plan
        Only print the faults, a line of JSON each, and run nothing.
    """
    length = 60 * minutes + seconds or 120.0
    if not 0 < length < float("inf"):
        refuse("torture", f"it lasts more than 0 seconds, not {length:g}")
    if only_plan:
        for fault in plan(seed, length):
            print(msgspec.json.encode(fault).decode())
        return
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            refuse("torture", f"{directory} is not empty")
    tidy_up_on_sigterm()
    found = run(length, seed, directory=directory, alone=alone, tell=say)
    encoded = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    if json is not None and str(json) != "-":
        json.write_text(encoded + "\n")
    if report is not None:
        report.write_text(as_markdown(found))
    print(encoded if str(json) == "-" else as_text(found), flush=True)
    sys.exit(0 if found.ok else 1)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def as_text(found: Report) -> str:
    """For the terminal."""
    accepted = found.frames.get("received", 0)
    lines = [
        f"{found.verdict}: seed {found.seed}, {found.elapsed:.0f} s, {sum(found.faults.values())} faults, "
        f"{found.frames.get('published', 0)} frames published, {accepted} accepted, "
        f"{found.frames.get('recorded', 0)} recorded, {found.frames.get('replayed', 0)} replayed",
        "  " + ", ".join(f"{count} {kind}" for kind, count in found.faults.items()),
    ]
    lines += [f"  left out: {count} {what}" for what, count in found.left_out.items()]
    for finding in found.findings[:SAID]:
        lines.append(f"VIOLATION {finding.violation}")
        lines += [f"    {msgspec.json.encode(event).decode()}" for event in finding.history[:SAID]]
    lines += [f"NOT WELL {what}" for what in found.stuck[:SAID]]
    lines += [f"ENDED BY ITSELF {each.process} with {each.code}: {each.said}" for each in found.exits if not each.after]
    return "\n".join(lines)


def as_markdown(found: Report) -> str:
    """For a page."""
    explained: dict[str, int] = {}
    for each in found.exits:
        explained[each.after or "nothing that explains it"] = (
            explained.get(each.after or "nothing that explains it", 0) + 1
        )
    parts = [
        f"# Torture, seed {found.seed}: {found.verdict}",
        f"framepool {framepool.__version__}, {found.seconds:g} s asked for, {found.elapsed:g} s in all, "
        f"{found.planned} faults planned (sequence `{found.sequence}`), {found.processes} processes started.",
        _table(("fault", "times"), found.faults),
        _table(("left out", "times"), found.left_out),
        _table(("in the journals", "events"), found.frames),
        _table(("processes ended by themselves after", "times"), explained),
        "\n".join(f"- {finding.violation}" for finding in found.findings),
        "\n".join(f"- {what}" for what in found.stuck),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(head: tuple[str, str], rows: dict[str, int]) -> str:
    if not rows:
        return ""
    lines = [f"| {head[0]} | {head[1]} |", "| --- | ---: |"]
    return "\n".join([*lines, *(f"| {name} | {count} |" for name, count in rows.items())])
