"""Each line of SECURITY.md names its test, and the test is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    """The lines of the tables that say something."""
    lines = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("|")]
    return [line for line in lines if not line.endswith("| shown by |") and not line.startswith("| ---")]


@cache
def functions_of(path: str) -> frozenset[str]:
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_lines_about_everybody() -> None:
    assert len(rows()) > 40


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[-3 if row.count("|") > 3 else 1].strip()[:60])
def test_line_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row.split("|")[-2])
    assert named, row
    for path, name in named:
        assert name in functions_of(path), f"{path} has no {name}"
