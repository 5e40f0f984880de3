"""The plan of faults: made of the seed alone, whole, and never two at once on one victim."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.testing.faults import ALSO, CHOICES, Fault, Kind, fingerprint, plan


@settings(max_examples=25)
@given(st.integers(), st.floats(1, 600))
def test_the_same_seed_gives_the_same_sequence(seed: int, seconds: float) -> None:
    assert plan(seed, seconds) == plan(seed, seconds)


def test_the_sequence_of_a_seed_does_not_depend_on_the_process() -> None:
    """Nor on the hash of strings, which differs from one to the next: what CI runs is what anybody can run."""
    command = [sys.executable, "-m", "framepool", "torture", "--only-plan", "--seconds", "60", "--seed", "1"]
    said = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
    assert [msgspec.json.decode(line, type=Fault) for line in said] == plan(1, 60)
    assert fingerprint(plan(1, 60)) == "68704cb6a4def73e", (
        "the plan of a seed changed: reports of before cannot be repeated"
    )


def test_other_seeds_give_other_sequences() -> None:
    assert len({fingerprint(plan(seed, 60)) for seed in range(100)}) == 100


@settings(max_examples=25)
@given(st.integers())
def test_a_run_of_a_minute_has_every_kind(seed: int) -> None:
    assert {fault.kind for fault in plan(seed, 60)} == set(Kind)


@settings(max_examples=25)
@given(st.integers(), st.floats(30, 600))
def test_no_victim_has_two_faults_at_once(seed: int, seconds: float) -> None:
    free: dict[tuple[int, str], float] = {}
    for fault in plan(seed, seconds):
        assert fault.target in CHOICES[fault.kind].targets
        for victim in (fault.target, *ALSO.get(fault.kind, ())):
            assert fault.at >= free.get((fault.round, victim), 0.0)
            free[fault.round, victim] = fault.at + fault.seconds


@pytest.mark.parametrize("kind", Kind)
def test_a_plan_of_one_kind_has_no_other(kind: Kind) -> None:
    assert {fault.kind for fault in plan(3, 60, [kind])} == {kind}
