"""Who stands back: threads that look around now and then do not interrupt those that move frames.

A thread that wakes takes the processor from one that has run for a while, even if it has nothing to do but look. Under
SCHED_BATCH it waits for its turn; its share of the processors stays the same.
"""

from __future__ import annotations

import contextlib
import os


def stand_back() -> None:
    """Has this thread wait for its turn, and those that it starts, where the system allows it. Another policy than the
    usual one was chosen by somebody, and stays."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
