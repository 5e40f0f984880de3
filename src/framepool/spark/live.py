"""The log behind a query on a live stream: a recorder in a process of its own, with a ring of segments.

A ring in shared memory forgets, and Spark asks twice. So a live query reads a recording too, one that the source has
made for it: `framepool record … --while-held`. The recorder outlives the query that started it for as long as that
may come back, is shared by queries on the same log, and ends by itself, because Spark never says goodbye.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
import zlib
from typing import Final

from framepool.config import load
from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder.manifest import Manifest

log = logging.getLogger(__name__)

SEGMENTS: Final = 16
"""In the ring, about."""
LEAST_SEGMENT: Final = 64 * 2**10
MOST_SEGMENT: Final = 256 * 2**20
LOOK_EVERY: Final = 1.0
"""Seconds between looks whether the recorder lives."""
START_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 10.0
"""For the streams to be there, the first time."""


def default_log(streams: str, config: str) -> str:
    """Where the log of these streams is kept unless it is told: the same for the same streams of the same driver."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    whose = zlib.crc32(f"{load(config or None).aeron.directory}\n{streams}".encode())
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", streams)[:80]
    return os.path.join(state, "framepool", "live", f"{name}-{whose:08x}")


class LiveLog:
    """Sees to it that somebody records the streams of a live query. In the query's process on Spark's driver."""

    def __init__(self, path: str, streams: str, config: str, retain_bytes: int, hold_seconds: int) -> None:
        self._manifest = Manifest(path)
        self._streams = [each.strip() for each in streams.split(",")]
        self._config = config
        self._retain_bytes = retain_bytes
        self._hold_seconds = hold_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._started = False
        self._look_at = 0.0

    @property
    def path(self) -> str:
        return str(self._manifest.path)

    def ensure(self) -> None:
        """Starts a recorder if nobody writes the log. The first time, `RecordingError` says why there is none."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY
        if self._manifest.is_locked():
            self._started = True
            return
        if self._started:
            if self._child is None or self._child.poll() is not None:
                log.error("the recorder of %s is gone, another one is started: %s", self.path, self._last_words())
                self._child = self._start(0.0)
            return
        self._child = self._start(WAIT_SECONDS)
        self._wait_ready(self._child)
        self._started = True
        log.warning(
            "%s: recorded by process %d into %s, a ring of %d bytes, for as long as a query reads it",
            ", ".join(self._streams), self._child.pid, self.path, self._retain_bytes,
        )  # fmt: skip

    def _start(self, wait: float) -> subprocess.Popen[bytes]:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        segment_bytes = max(LEAST_SEGMENT, min(MOST_SEGMENT, self._retain_bytes // SEGMENTS // 4096 * 4096))
        options = {
            "--retain-bytes": self._retain_bytes,
            "--segment-bytes": segment_bytes,
            "--while-held": self._hold_seconds,
            "--wait": wait,
            "--instance": f"spark-{zlib.crc32(self.path.encode()):08x}",
            **({"--config": self._config} if self._config else {}),
        }
        with open(self._log_file, "wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "framepool", "record", self.path, *self._streams]
                + [str(word) for option in options.items() for word in option],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # it outlives the query, and the signals to its processes
            )

    def _wait_ready(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(child.pid):
            if child.poll() is not None:
                if self._manifest.is_locked():  # another query was quicker
                    return
                raise RecordingError(f"{', '.join(self._streams)} cannot be recorded: {self._last_words()}")
            if time.monotonic() > deadline:
                child.terminate()
                raise RecordingError(f"no recorder of {', '.join(self._streams)} within {START_SECONDS:.0f} s")
            time.sleep(0.05)

    def _is_ready(self, pid: int) -> bool:
        try:
            told = self._manifest.watermark()
        except RecordingDamaged:
            return False
        return told is not None and told.pid == pid

    @property
    def _log_file(self) -> str:
        return f"{self.path}.log"

    def _last_words(self) -> str:
        try:
            with open(self._log_file, encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        except OSError:
            lines = []
        return lines[-1].removeprefix("framepool: ") if lines else f"nothing is in {self._log_file}"
