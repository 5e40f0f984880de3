"""The inputs that are kept: one text file for each target, one line for each input, its name and its bytes in base64.

What a fuzzer found to fail is named after what was wrong; what it found to reach new code has a digest for a name.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).with_name("corpus")
FOUND = "found-"
"""Begins the names of inputs that failed once."""


def read(target: str) -> dict[str, bytes]:
    """The inputs of a target by name."""
    path = HERE / f"{target}.txt"
    if not path.exists():
        return {}
    pairs = (line.split(" ") for line in path.read_text().splitlines())
    return {name: base64.b64decode(data) for name, data in pairs}


def write(target: str, inputs: dict[str, bytes]) -> None:
    lines = [f"{name} {base64.b64encode(data).decode()}" for name, data in sorted(inputs.items())]
    (HERE / f"{target}.txt").write_text("\n".join(lines) + "\n" if lines else "")


def named(inputs: Iterable[bytes]) -> dict[str, bytes]:
    """Inputs with a digest for a name."""
    return {hashlib.sha256(data).hexdigest()[:12]: data for data in inputs}
