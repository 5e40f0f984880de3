"""Configuration files for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def write_toml(path: Path, values: Mapping[str, Any]) -> Path:
    """Writes a configuration file; JSON and TOML agree on scalars and on lists of them."""
    path.write_text("\n".join(_lines(values, "")))
    return path


def _lines(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            yield f"{key} = {json.dumps(value)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"[{prefix}{key}]"
            yield from _lines(value, f"{prefix}{key}.")
        elif _is_tables(value):
            for each in value:
                yield f"[[{prefix}{key}]]"
                yield from _lines(each, f"{prefix}{key}.")


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
