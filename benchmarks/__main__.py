"""`make bench`: every benchmark of this directory in one run, as a table and as `build/bench.json`.

Exits with 1 when a ratio is over its limit. `make bench ARGS="aeron"` runs those named.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
MODULES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in {"__init__", "__main__", "row"})


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - set(MODULES)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows = []
    for name in wanted or MODULES:
        with console.status(f"measuring {name}"):
            rows += importlib.import_module(f"benchmarks.{name}").run()
    table = Table("what", "figure", "against", "figure", "ratio", "limit")
    for row in rows:
        limit = "" if row.limit is None else f"{row.limit:g}"
        style = None if row.ok else "bold red"
        value, base = (f"{figure:,.1f} {row.unit}" for figure in (row.value, row.baseline_value))
        table.add_row(row.name, value, row.baseline, base, f"{row.ratio:.2f}", limit, style=style)
    console.print(table)
    out = HERE.parent / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
    failed = [row.name for row in rows if not row.ok]
    if failed:
        console.print(f"over the limit: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
