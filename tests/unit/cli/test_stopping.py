"""Signals that ask a command to end, at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from framepool.cli.stopping import STOPPING, stop_asked


@pytest.mark.parametrize("number", STOPPING)
def test_signal_at_any_moment_of_a_wait_ends_it(number: int) -> None:
    """A handler that takes a lock of the main thread hangs here after a few rounds."""
    for round_ in range(300):
        with stop_asked() as asked:
            delay = round_ % 30 / 20_000
            sender = threading.Thread(target=lambda delay=delay: (time.sleep(delay), os.kill(os.getpid(), number)))
            sender.start()
            while not asked.wait(0):
                pass
            sender.join()
            assert asked.is_set()


def test_wait_without_a_signal_ends_with_its_time_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_asked() as asked:
        assert signal.getsignal(signal.SIGTERM) is not before
        assert not asked.wait(0.01)
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_signal_has_its_usual_force() -> None:
    interrupted = pytest.raises(KeyboardInterrupt)
    with interrupted, stop_asked() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
