"""Parts of the compiled core that are plain C, in programs of their own with sanitizers where the compiler has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "src/framepool/_native"
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Werror", "-Wno-unused-function", f"-I{NATIVE}", "-pthread")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover")


def run_c(source: Path, directory: Path) -> str:
    """What a program prints, which is built in a directory and has to end well and without a complaint."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: install the package gcc")
    program = str(directory / source.stem)
    build = [compiler, *FLAGS, str(source), "-o", program, "-ldl"]
    if subprocess.run([*build, *SANITIZE], capture_output=True).returncode:
        subprocess.run(build, check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert (result.stderr, result.returncode) == ("", 0), result.stdout
    return result.stdout
