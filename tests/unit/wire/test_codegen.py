"""Generated code is what the schemas say, and a stale file is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from framepool.wire import codegen


def test_generated_files_are_not_stale() -> None:
    stale = codegen.stale(codegen.generate())
    assert [path.name for path in stale] == [], "run python -m framepool.wire.codegen"


def test_check_passes_on_the_checked_in_files() -> None:
    assert codegen.main(["--check"]) == 0


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package directory of its own, with everything generated."""
    monkeypatch.setattr(codegen, "PACKAGE", tmp_path)
    generate = codegen.generate
    monkeypatch.setattr(codegen, "generate", lambda: generate(package=tmp_path))
    (tmp_path / "wire" / "_generated").mkdir(parents=True)
    (tmp_path / "_native").mkdir()
    assert codegen.main([]) == 0
    return tmp_path


@pytest.mark.parametrize("name", ["wire/_generated/trace_904.py", "_native/layout.h"])
def test_check_fails_on_a_changed_file_and_a_run_repairs_it(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / name
    good = path.read_text()
    path.write_text(good + "\n")
    assert codegen.main(["--check"]) == 1
    assert f"stale: {name}" in capsys.readouterr().err
    assert path.read_text() != good
    assert codegen.main([]) == 0
    assert path.read_text() == good
    assert codegen.main(["--check"]) == 0


def test_module_without_a_schema_is_stale_and_removed(copy: Path) -> None:
    orphan = copy / "wire" / "_generated" / "gone_999.py"
    orphan.write_text("")
    assert codegen.main(["--check"]) == 1
    assert codegen.main([]) == 0
    assert not orphan.exists()


def test_missing_schemas_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run this in a checkout"):
        codegen.generate(schemas=tmp_path)
