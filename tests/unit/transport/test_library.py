"""Where Aeron comes from, and what is said when it does not come."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framepool._native import aeron

IMPORT = "import sys, framepool._native.aeron; print('pyaeron' in sys.modules)"


def imported_with(library: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FRAMEPOOL_AERON_LIBRARY": library}
    return subprocess.run([sys.executable, "-c", IMPORT], env=environment, capture_output=True, text=True)


def test_wheel_is_found_without_running_it() -> None:
    result = imported_with("")
    assert (result.returncode, result.stdout.strip()) == (0, "False")
    assert "pyaeron" in aeron.LIBRARY
    assert "1.53" in aeron.aeron_version()


def test_named_library_is_used() -> None:
    assert imported_with(aeron.LIBRARY).returncode == 0


def test_library_that_is_missing_is_named(base_dir: Path) -> None:
    result = imported_with(str(base_dir / "libaeron.so"))
    assert "AeronLibraryError: cannot load" in result.stderr
    assert "libaeron.so" in result.stderr


def test_all_missing_functions_are_named_in_one_message(base_dir: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: install the package gcc")
    source = base_dir / "fake.c"
    source.write_text("int aeron_context_init(void **context) { return -1; }\nint aeron_close(void *c) { return 0; }\n")
    library = base_dir / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    message = imported_with(str(library)).stderr.splitlines()[-1]
    assert "AeronLibraryError" in message
    assert "aeron_init, " in message
    assert message.endswith("aeron_driver_close")
    assert "aeron_context_init" not in message
    assert " lacks 84 of the functions" in message
