"""The conformance ledger: which clauses of the specifications have a passing test.

A test says what it shows with ``@pytest.mark.clause("W-8.3-02")``. With ``--conformance`` the run ends with a
count per specification and level, and writes ``build/conformance.json`` and ``docs/conformance.md``.
An id that the ledger does not have fails the collection, in every run.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LEDGER = HERE / "clauses.tsv"
REASONS = HERE / "reasons.tsv"
SPECS = {
    "W": "Wire 1.2",
    "D": "Driver model 1.0",
    "N": "Discovery 1.0",
    "B": "UDP bridge 1.0",
    "S": "Service control plane 1.0",
}


@dataclass(frozen=True)
class Clause:
    """One row of the ledger."""

    id: str
    level: str
    role: str
    section: str
    requirement: str
    check: str


def read_ledger() -> dict[str, Clause]:
    """Every clause by id, in the order of the file."""
    with LEDGER.open(newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row["id"]: Clause(**row) for row in rows}


def read_reasons() -> dict[str, str]:
    """Why a clause has no test of its own: one line each."""
    with REASONS.open(newline="") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


class Conformance:
    """Collects the outcome of each marked test."""

    def __init__(self, ledger: dict[str, Clause], write: bool) -> None:
        self.ledger = ledger
        self.write = write
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.outcome: dict[str, bool] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        unknown = set()
        for item in items:
            for mark in item.iter_markers("clause"):
                for id in mark.args:
                    if id not in self.ledger:
                        unknown.add(f"{id} in {item.nodeid}")
                    elif item.nodeid not in self.tests[id]:
                        self.tests[id].append(item.nodeid)
        if unknown:
            raise pytest.UsageError("clauses that the ledger does not have: " + ", ".join(sorted(unknown)))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        gone = {item.nodeid for item in items}
        for id in self.tests:
            self.tests[id] = [test for test in self.tests[id] if test not in gone]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.outcome[report.nodeid] = self.outcome.get(report.nodeid, True) and report.passed

    def passed(self, id: str) -> bool:
        """A clause is shown when it has tests and each of them ran and passed."""
        tests = self.tests.get(id, [])
        return bool(tests) and all(self.outcome.get(test, False) for test in tests)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.write:
            return
        shown: Counter[tuple[str, str]] = Counter()
        total: Counter[tuple[str, str]] = Counter()
        for clause in self.ledger.values():
            key = (clause.id.partition("-")[0], clause.level)
            total[key] += 1
            shown[key] += self.passed(clause.id)
        terminalreporter.section("conformance")
        for key in sorted(total):
            spec, level = key
            terminalreporter.write_line(f"{SPECS[spec]:28} {level:12} {shown[key]:4} of {total[key]}")
        self._write_json()
        self._write_page()
        terminalreporter.write_line("wrote build/conformance.json and docs/conformance.md")

    def _write_json(self) -> None:
        path = ROOT / "build" / "conformance.json"
        path.parent.mkdir(exist_ok=True)
        ledger = {
            clause.id: {
                "level": clause.level,
                "tests": self.tests.get(clause.id, []),
                "passed": self.passed(clause.id),
            }
            for clause in self.ledger.values()
        }
        path.write_text(json.dumps(ledger, indent=1) + "\n")

    def _write_page(self) -> None:
        reasons = read_reasons()
        lines = [
            "# Conformance",
            "",
            "Written by `make conformance`: each clause of the five specifications, the tests that show it, and",
            "for a clause without a passing test the reason.",
        ]
        for spec, title in SPECS.items():
            lines += [
                "",
                f"## {title}",
                "",
                "| clause | level | requirement | shown by |",
                "| --- | --- | --- | --- |",
            ]
            for clause in self.ledger.values():
                if clause.id.partition("-")[0] != spec:
                    continue
                names = sorted({test.partition("[")[0] for test in self.tests.get(clause.id, [])})
                if self.passed(clause.id):
                    by = "<br>".join(f"`{name}`" for name in names)
                elif names:
                    by = "**failing**: " + "<br>".join(f"`{name}`" for name in names)
                else:
                    by = reasons.get(clause.id, "not yet: its part is open")
                requirement = clause.requirement.replace("|", "\\|")
                lines.append(f"| {clause.id} | {clause.level} | {requirement} | {by} |")
        (ROOT / "docs" / "conformance.md").write_text("\n".join(lines) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="store_true", help="write the conformance ledger")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--conformance") and config.getoption("numprocesses", None):
        raise pytest.UsageError("the ledger is written by one process: make conformance, or -n 0")
    config.pluginmanager.register(Conformance(read_ledger(), config.getoption("--conformance")), "conformance")
