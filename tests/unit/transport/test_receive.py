"""The receiving side in C, with frames that no living media driver would show it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "src/framepool/_native"


def test_frames_overwritten_under_the_reader_make_no_message(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: install the package gcc")
    program = tmp_path / "receive_test"
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Werror", "-Wno-unused-function", f"-I{NATIVE}", "-pthread"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover"]
    source = str(HERE / "receive_test.c")
    built = subprocess.run([compiler, *flags, *sanitize, source, "-o", str(program), "-ldl"], capture_output=True)
    if built.returncode:
        subprocess.run([compiler, *flags, source, "-o", str(program), "-ldl"], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True)
    assert (result.stdout, result.stderr, result.returncode) == ("ok\n", "", 0)
