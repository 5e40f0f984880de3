"""The compiled core in threads, without Python: stress, and ThreadSanitizer on the headers that order memory.

A seqlock races by design: readers copy what a writer may be writing, and throw the copy away if it was. So the two
copies are functions of their own, and the only names that are suppressed; that they are reported without the
suppression shows that ThreadSanitizer sees what it is to see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from framepool import _native

HERE = Path(__file__).parent
INCLUDE = Path(_native.__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("clang")
BY_DESIGN = "race:copy_in\nrace:copy_out\n"
RACE = 66
LENGTH_MS = 400
TRIES = 20
"""Until the machine happens to run writer and reader at once."""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="install gcc or clang")


def build(directory: Path, name: str, *, broken: str = "", sanitize: bool = True) -> Path:
    program = directory / f"{name}{broken}{sanitize}"
    # A memcpy of known length is a few instructions that nobody instruments: as a call it is seen.
    thread = ("-fsanitize=thread", "-fno-builtin-memcpy", "-fno-builtin-memset") if sanitize else ()
    given = [f"-D{broken}"] if broken else []
    command = [str(COMPILER), "-O2", "-g", "-std=c11", "-w", "-pthread", *thread, *given, f"-I{INCLUDE}"]
    done = subprocess.run([*command, str(HERE / f"{name}.c"), "-o", str(program)], capture_output=True, text=True)
    if sanitize and "tsan" in done.stderr:
        pytest.skip("install the ThreadSanitizer of the compiler (libtsan)")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, suppressed: str = "", milliseconds: int = LENGTH_MS) -> tuple[int, dict[str, Any], str]:
    """How it ended, what it counted, and what ThreadSanitizer said."""
    names = program.with_name("suppressions")
    names.write_text(suppressed)
    options = f"suppressions={names} exitcode={RACE} report_bugs=1"
    done = subprocess.run(
        [str(program), str(milliseconds), "2"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TSAN_OPTIONS": options},
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run with this kernel's layout of memory")
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.clause("W-8.3-06", "W-15.3-03")
def test_lapped_readers_in_threads_accept_no_torn_frame(tmp_path: Path) -> None:
    program = build(tmp_path, "seqlock_stress", sanitize=False)
    for _ in range(TRIES):
        code, counted, _ = run(program)
        assert (code, counted["torn"]) == (0, 0)
        if counted["accepted"] and counted["dropped"]:
            return
    raise AssertionError("nobody was lapped, or nobody read")


@pytest.mark.parametrize("broken", ["BROKEN_SECOND_LOOK", "BROKEN_BEGIN"])
def test_a_step_that_is_left_out_shows_in_torn_frames(tmp_path: Path, broken: str) -> None:
    program = build(tmp_path, "seqlock_stress", broken=broken)
    for _ in range(TRIES):
        _, counted, _ = run(program, BY_DESIGN)
        if counted["torn"]:
            return
    raise AssertionError("the stress run notices nothing")


def test_nothing_of_the_seqlock_races_but_the_copies_between_the_looks(tmp_path: Path) -> None:
    program = build(tmp_path, "seqlock_stress")
    code, counted, said = run(program, BY_DESIGN)
    assert (code, counted["torn"]) == (0, 0), said
    for _ in range(TRIES):
        code, _, said = run(program)
        if code == RACE:
            break
    assert code == RACE, "ThreadSanitizer sees no race where there is one by design"
    assert all(" in copy_" in line for line in said.splitlines() if line.startswith("SUMMARY"))


def test_nothing_races_between_a_recorder_and_its_disk(tmp_path: Path) -> None:
    program = build(tmp_path, "staging_stress")
    for _ in range(TRIES):
        code, counted, said = run(program)
        assert (code, counted["wrong"]) == (0, 0), said
        if counted["pieces"]:
            return
    raise AssertionError("the disk's thread took nothing")


def test_a_position_without_order_is_a_race(tmp_path: Path) -> None:
    program = build(tmp_path, "staging_stress", broken="BROKEN_POSITION")
    for _ in range(TRIES):
        code, _, said = run(program)
        if code == RACE:
            break
    assert code == RACE
    assert "data race" in said
