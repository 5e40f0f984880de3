"""`framepool bench`: framepool and its peers side by side."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from framepool.bench.peer import PEERS
from framepool.bench.plot import svg
from framepool.bench.run import Result, Sample, available, cells, run, stamp
from framepool.cli.stopping import tidy_up_on_sigterm


def bench(
    *,
    quick: Annotated[bool, Parameter(negative="", help="A few minutes instead of half an hour.")] = False,
    peers: Annotated[str, Parameter(help="Those to compare with, separated by commas.")] = ",".join(PEERS),
    rounds: Annotated[int, Parameter(help="Turns that everybody has in each cell; 0: 5, or 3 if quick.")] = 0,
    json: Annotated[Path | None, Parameter(help="A file for all figures.")] = None,
    plot: Annotated[Path | None, Parameter(help="A file for a picture, SVG.")] = None,
) -> None:
    """Measure latency and rate of framepool and of other transports in turns, and print ratios.

    Each cell is measured in rounds in which everybody has a turn, beside what the machine itself can do. Figures of
    one run compare with each other and with nothing else.
    """
    try:
        names, missing = available([name.strip() for name in peers.split(",") if name.strip()])
    except ValueError as error:
        print(f"framepool bench: {error}", file=sys.stderr)
        sys.exit(2)
    tidy_up_on_sigterm()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for name, reason in missing.items():
        console.print(f"skipped {name}: {reason}")
    with contextlib.ExitStack() as shown:
        status = shown.enter_context(console.status("measuring"))
        results = run(names, cells(quick), rounds or (3 if quick else 5), status.update)
    console.print(table(results))
    if json is not None:
        said = {**stamp(), "skipped": missing, "results": msgspec.to_builtins(results)}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")
    if plot is not None:
        plot.write_text(svg(results))


def table(results: list[Result]) -> Table:
    """For people: what each did, and how framepool compares."""
    found = Table(
        "cell", "who", "p50 or delivered", "p99 or published", "framepool to it", "spread", title="in one run"
    )
    for result in results:
        noisy = " (noisy)" if result.noisy else ""
        for index, line in enumerate(result.lines):
            known = [each for each in line.rounds if not each.failed]
            first, second = figures(known) if known else (next(each.failed for each in line.rounds)[:40], "")
            ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
            spread = "" if line.spread is None else f"{line.spread:.0%}"
            found.add_row(result.title + noisy if index == 0 else "", line.peer, first, second, ratio, spread)
        for what, microseconds in result.limits.items():
            ratio = f"[dim]{result.limit_ratios[what]:.2f}[/dim]" if what in result.limit_ratios else ""
            found.add_row("", f"[dim]{what}[/dim]", f"[dim]{microseconds:.2f} µs[/dim]", "", ratio, "")
        found.add_section()
    return found


def figures(samples: list[Sample]) -> tuple[str, str]:
    """The medians of the rounds, with their units."""

    def middle(values: list[float | None]) -> float:
        known = sorted(value for value in values if value is not None)
        return known[len(known) // 2]

    if samples[0].p50_us is not None:
        p50, p99 = middle([each.p50_us for each in samples]), middle([each.p99_us for each in samples])
        return f"{p50:,.2f} µs", f"{p99:,.1f} µs"
    delivered = middle([each.delivered for each in samples])
    gigabytes = middle([each.gigabytes for each in samples])
    return f"{delivered:,.0f}/s, {gigabytes:.1f} GB/s", f"{middle([each.published for each in samples]):,.0f}/s"
