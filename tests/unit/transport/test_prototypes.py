"""The declarations that framepool is compiled with, against the headers of the Aeron that it loads."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
HEADER = HERE.parents[2] / "src/framepool/_native/aeron_api.h"


def fold(text: str) -> str:
    """White space and the place of the star do not matter."""
    return re.sub(r"\s*([*(),{}=])\s*", r"\1", " ".join(text.split()))


def theirs() -> list[str]:
    lines = (HERE / "aeron-prototypes.txt").read_text().splitlines()
    return [fold(line) for line in lines if line and not line.startswith("#")]


def ours() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def test_every_declared_function_is_aerons() -> None:
    block = re.search(r"#define FP_AERON_FUNCTIONS\(X\)(.*?)\n\n", ours(), re.DOTALL)
    assert block is not None
    text = block.group(1).replace("\\\n", " ")
    entries = re.findall(r"X\(([^,]+),\s*(\w+),\s*(\(.*?\))\)(?=\s*X\(|\s*$)", text, re.DOTALL)
    declared = [fold(f"{result} {name}{parameters};") for result, name, parameters in entries]
    expected = [line for line in theirs() if not line.startswith("typedef")]
    assert len(declared) == len(expected) > 70
    assert declared == expected


def test_every_declared_structure_and_callback_is_aerons() -> None:
    header = fold(ours())
    expected = [line for line in theirs() if line.startswith("typedef")]
    assert len(expected) > 10
    assert [line for line in expected if line not in header] == []
