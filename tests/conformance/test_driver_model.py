"""The driver model is implemented as a whole or not at all (Driver 12)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conformance.plugin import read_ledger

TESTS = Path(__file__).parent.parent


def clauses_in_tests() -> set[str]:
    """Every clause that a test names; the run itself says whether it passes."""
    ledger = read_ledger()
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in ledger:
                found.add(node.value)
    return found


@pytest.mark.clause("D-12-01")
def test_every_rule_of_the_driver_model_has_a_test() -> None:
    rules = {id for id, clause in read_ledger().items() if id.startswith("D-") and clause.level.startswith("MUST")}
    assert len(rules) > 100
    assert sorted(rules - clauses_in_tests()) == []
