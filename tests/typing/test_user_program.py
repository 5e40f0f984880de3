"""The public face as a user's type checker and `help()` see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import framepool as fp

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"


def check(program: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """mypy --strict over a user's file, without the settings of this project."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        timeout=100,
    )


def test_user_program_passes_strict_type_checking_and_a_mistake_does_not(tmp_path: Path) -> None:
    done = check(HERE / "user_program.py", tmp_path / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import framepool as fp\n"
        "pool = fp.connect()\n"
        "pool.producer('camera').publish()\n"
        "pool.consumer(1.5)\n"
        "pool.discover(name=3)[0].nslots = 4\n"
    )
    done = check(wrong, tmp_path / "cache")
    assert done.returncode == 1
    assert 'incompatible type "str"; expected "int"' in done.stdout
    assert "Missing positional argument" in done.stdout
    assert 'expected "int | str | Stream"' in done.stdout
    assert 'expected "str | None"' in done.stdout
    assert "read-only" in done.stdout


def test_public_names_are_those_that_are_there() -> None:
    assert sorted(fp.__all__) == fp.__all__
    assert fp.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'Consumers'"):
        fp.Consumers
