"""Real processes for tests: started through one place that always ends them, with their output read as it comes."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Process:
    """A child whose standard output arrives line by line without blocking the test."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with contextlib.suppress(ValueError):  # closed before a child of the child had let go of it
            for line in self.popen.stdout:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def line(self, timeout: float = 60.0) -> str:
        """The next line of output; fails with all output so far when none comes."""
        try:
            line = self._queue.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no line within {timeout} s from {self._describe()}") from None
        if line is None:
            raise AssertionError(f"ended with {self.popen.wait(5)}: {self._describe()}")
        self.lines.append(line)
        return line

    def wait_line(self, prefix: str, timeout: float = 60.0) -> str:
        """The next line that starts with `prefix`, passing over others."""
        deadline = time.monotonic() + timeout
        while True:
            line = self.line(max(0.01, deadline - time.monotonic()))
            if line.startswith(prefix):
                return line

    def has_line(self, prefix: str) -> bool:
        """Whether a line that starts with `prefix` has come, without waiting; others before it are passed over."""
        while not self._queue.empty():
            if self.line().startswith(prefix):
                return True
        return False

    def say(self, text: str) -> None:
        """Writes a line to the child's standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP, and waits until every thread stands still."""
        self.signal(signal.SIGSTOP)
        while any(_state_of(path) not in "TZ" for path in Path(f"/proc/{self.pid}/task").glob("*/stat")):
            time.sleep(0.001)

    def kill(self) -> None:
        """kill -9, also of a stopped process, and wait."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code; the rest of the output is in `lines` afterwards."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"not at its end after {timeout:.0f} s: {self._describe()}") from error
        self._reader.join(5)
        while not self._queue.empty():
            line = self._queue.get_nowait()
            if line is not None:
                self.lines.append(line)
        return code

    def _describe(self) -> str:
        return f"{self.popen.args!r}; output so far: {self.lines!r}"

    def close(self) -> None:
        """Ends it and what it started itself, as far as that stayed in its group."""
        if self.popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait(10)
        self._reader.join(5)
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it was told something that it did not live to hear
                    stream.close()


def _state_of(path: Path) -> str:
    try:
        return path.read_text().rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return "Z"


class Processes:
    """The children of one test."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._started: list[Process] = []

    def start(self, *args: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()) -> Process:
        """Runs `python ARGS…`; standard error joins the output so that a traceback is seen.

        A prefix is a command that becomes the one behind it, such as `nsenter`.
        """
        popen = subprocess.Popen(
            [*prefix, self._python, "-u", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # so that what it started itself can be ended with it
        )
        process = Process(popen)
        self._started.append(process)
        return process

    def stop_all(self) -> None:
        for process in reversed(self._started):
            process.close()
