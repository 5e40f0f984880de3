"""The ledger itself: complete, and with a reason only where there is a clause."""

from __future__ import annotations

from tests.conformance.plugin import SPECS, read_ledger, read_reasons


def test_every_clause_belongs_to_a_known_specification() -> None:
    ledger = read_ledger()
    assert len(ledger) == 710
    assert {id.partition("-")[0] for id in ledger} == set(SPECS)


def test_every_reason_names_a_clause_and_says_something() -> None:
    ledger = read_ledger()
    for id, reason in read_reasons().items():
        assert id in ledger
        assert len(reason) > 20
