"""The public face as a user's type checker and `help()` see it."""

from __future__ import annotations

import doctest
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
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
    wrong.write_text("import framepool as fp\nfp.connect().producer('camera').publish()\n")
    done = check(wrong, tmp_path / "cache")
    assert done.returncode == 1
    assert 'incompatible type "str"; expected "int"' in done.stdout
    assert "Missing positional argument" in done.stdout


def public() -> Iterator[tuple[str, object]]:
    """Every public name, and the public names of the classes among them."""
    for name in fp.__all__:
        if name == "__version__":
            continue
        thing = getattr(fp, name)
        yield name, thing
        if inspect.isclass(thing):
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield f"{name}.{attribute}", member


@pytest.mark.parametrize("name", [name for name, _ in public()])
def test_every_public_name_says_what_it_is(name: str) -> None:
    thing = dict(public())[name]
    assert inspect.getdoc(thing), f"{name} has no docstring"


def test_public_names_are_those_that_are_there() -> None:
    assert sorted(fp.__all__) == fp.__all__
    assert fp.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'Consumers'"):
        fp.Consumers


def test_first_ten_lines_of_the_manual_work(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEPOOL_AERON_DIRECTORY", str(base_dir / "aeron"))
    monkeypatch.setenv("FRAMEPOOL_DRIVER_SHM_BASE_DIR", str(base_dir))
    results = doctest.testmod(fp)
    assert (results.failed, results.attempted > 0) == (0, True)
