"""Writes the generated code: ``python -m framepool.wire.codegen``, or ``--check`` to see whether it is stale.

The schemas in `schemas/` are the single source of every layout. From them come the modules of
`wire/_generated/` and the header `_native/layout.h`; both are checked in, so that an installation needs no
generator and a change of a layout shows in review.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from framepool.wire.emit_header import emit_header
from framepool.wire.emit_python import emit_module
from framepool.wire.schema import read_schemas

PACKAGE = Path(__file__).resolve().parent.parent
SCHEMAS = PACKAGE.parent.parent / "schemas"


def generate(schemas: Path = SCHEMAS, package: Path = PACKAGE) -> dict[Path, str]:
    """The text of every generated file by its path."""
    read = read_schemas(schemas)
    if not read:
        raise FileNotFoundError(f"no schemas in {schemas}: run this in a checkout of the sources")
    files = {package / "wire" / "_generated" / f"{schema.name}_{schema.id}.py": emit_module(schema) for schema in read}
    return {**files, package / "_native" / "layout.h": emit_header(read)}


def stale(files: dict[Path, str]) -> list[Path]:
    """The files whose text on disk is not the generated one, and generated modules without a schema."""
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    modules = {path.parent for path in files if path.suffix == ".py"}
    orphans = [
        path
        for directory in modules
        for path in sorted(directory.glob("*.py"))
        if path not in files and path.name != "__init__.py"
    ]
    return wrong + orphans


def main(arguments: list[str] | None = None) -> int:
    """Writes what is stale and says so; with ``--check`` only says so, and fails."""
    parser = argparse.ArgumentParser(prog="python -m framepool.wire.codegen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is stale")
    check = parser.parse_args(arguments).check
    files = generate()
    wrong = stale(files)
    for path in wrong:
        shown = path.relative_to(PACKAGE)
        if check:
            print(f"stale: {shown}: run python -m framepool.wire.codegen", file=sys.stderr)
        elif path in files:
            path.write_text(files[path])
            print(f"wrote {shown}")
        else:
            path.unlink()
            print(f"removed {shown}")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
