"""Everything that fuzzing found to be worth keeping, through its target once more: what failed once fails no more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fuzz import corpus
from tests.fuzz.__main__ import TARGETS


@pytest.mark.timeout(600)
def test_kept_inputs_raise_documented_errors_only_within_bounds_of_time_and_memory() -> None:
    """In a process of its own, because it is given no more memory than it needs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "replay"], capture_output=True, text=True, errors="replace", timeout=500
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["target"]: each["inputs"] for each in told} == {name: len(corpus.read(name)) for name in TARGETS}


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.stem for path in corpus.HERE.glob("*.txt")} == set(TARGETS)
    assert all(corpus.read(target) for target in TARGETS)
