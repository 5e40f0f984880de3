"""A directory between Spark's driver and its tasks, which goes for good when the driver says so.

Spark tells a writer to abort while other tasks of the batch may still run. So the driver alone makes the directory:
a task that comes late finds none, instead of making it again after it was removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def remove_staging(staging: Path) -> None:
    """Removes it with all that is in it. It is renamed first, so that no task adds a file between two looks at it."""
    away = staging.with_name(f"{staging.name}.removed")
    try:
        staging.rename(away)
    except FileNotFoundError:
        return
    shutil.rmtree(away, ignore_errors=True)
