"""How long-running commands end: Ctrl-C and SIGTERM ask, the command finishes what it does.

By handlers and not by blocking the signals: libraries start threads when they are imported, and a thread that does not
block a signal takes it, with its default action. The handlers take no lock, because they run in the middle of whatever
the main thread is doing: `threading.Event.set` in a handler waits for ever if the main thread was just in its `wait`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Asked:
    """A flag that a signal handler may raise while the main thread waits for it."""

    def __init__(self) -> None:
        self._asked = False
        self._listen, self._tell = os.pipe()

    def is_set(self) -> bool:
        return self._asked

    def set(self) -> None:
        self._asked = True
        os.write(self._tell, b"!")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits up to `timeout` seconds; says whether the command is to end."""
        if not self._asked:
            select.select([self._listen], [], [], timeout)
        return self._asked

    def close(self) -> None:
        os.close(self._listen)
        os.close(self._tell)


def tidy_up_on_sigterm() -> None:
    """For commands that end in the middle of what they do: SIGTERM undoes what was made, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextlib.contextmanager
def stop_asked() -> Iterator[Asked]:
    """A flag that is raised by the first SIGINT or SIGTERM; the second one has its usual force."""
    asked = Asked()

    def ask(number: int, _frame: object) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, ask) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        asked.close()
