"""How long-running commands end: Ctrl-C and SIGTERM ask, the command finishes what it does.

By handlers and not by blocking the signals: libraries start threads when they are imported, and a thread that does not
block a signal takes it, with its default action.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM; the second one has its usual force."""
    asked = threading.Event()

    def ask(number: int, _frame: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
