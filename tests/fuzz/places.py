"""A directory of this process in shared memory, for targets that read files."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

SHM = "/dev/shm" if os.path.isdir("/dev/shm") else None


SCRATCH = "FRAMEPOOL_FUZZ_SCRATCH"
"""The variable with a directory that somebody else removes: libFuzzer ends a process without ado."""


@cache
def scratch() -> Path:
    """Made when it is first asked for, removed at the end."""
    if SCRATCH in os.environ:
        return Path(os.environ[SCRATCH])
    path = tempfile.mkdtemp(prefix=f"framepool-fuzz-{os.getpid()}-", dir=SHM)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)
