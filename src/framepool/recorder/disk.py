"""The disk's side of a recording: whole blocks in large writes, made durable at every flush (`docs/recording.md`).

An agent of its own, because it waits for the disk while frames go on coming. It writes around the page cache where the
filesystem takes that: no memory is spent on copies that nobody reads, and a recorder that falls behind falls behind
here, at once, and not a gigabyte later. What the disk refuses stays in the staging buffer and is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.recorder.format import BLOCK
from framepool.recorder.manifest import sync_directory
from framepool.recorder.segments import Begin, End, Flush, Segment, SegmentLog

log = logging.getLogger(__name__)

WRITE_BYTES: Final = 8 * 2**20
"""Written at a time, at the most."""
WRITE_FROM: Final = 2**20
"""Written before a flush asks for it, at the least."""
RETRY_NS: Final = 250 * NANOS_PER_MILLI
NOT_SUPPORTED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class Disk:
    """Writes what the log lays out. An agent."""

    role = "recorder disk"

    def __init__(
        self,
        directory: Path,
        source: SegmentLog,
        clock: Clock,
        *,
        reserve_bytes: int,
        direct: bool = True,
        priority: int = 0,
        on_flushed: Callable[[Flush], object] = lambda flush: None,
        on_ended: Callable[[Segment], object] = lambda segment: None,
        on_refused: Callable[[], object] = lambda: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.refusal = ""
        """What the disk says while it takes nothing."""
        self.failure: OSError | None = None
        """Why nothing is written any more. A disk that could not make durable what it took has lost some of it, and
        says so once only: to go on would be to trust it with the rest."""
        self.direct = direct
        """Whether writes go around the page cache, as far as it was tried."""
        self._directory = directory
        self._staging = source.staging
        self._queue = source.queue
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._priority = priority
        self._enough = min(WRITE_FROM, self._staging.capacity // 4)
        self._on_flushed = on_flushed
        self._on_ended = on_ended
        self._on_refused = on_refused
        self._fd: int | None = None
        self._origin = 0
        self._retry_at_ns = 0

    @property
    def is_idle(self) -> bool:
        """Whether everything that was asked for is done."""
        return not self._queue

    def on_start(self) -> None:
        set_priority(self._priority)

    def do_work(self) -> int:
        """One write, or one of the things that the log asked for; 0 while there is nothing to do or no way to."""
        if self.failure or (self.refusal and self._clock.monotonic_ns() < self._retry_at_ns):
            return 0
        try:
            done = self._step()
        except OSError as error:
            self._refused(error)
            return 0
        if done:
            self.refusal = ""
        return done

    def on_close(self) -> None:
        """Lets go of the file; what is not written by now is for recovery to find missing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def statistics(self) -> dict[str, object]:
        waiting = self._staging.ready - self._staging.tail
        return {"waiting_bytes": waiting, "direct": self.direct, "refusal": self.refusal, **self.counts}

    def _step(self) -> int:
        request = self._queue[0] if self._queue else None
        if isinstance(request, Begin):
            self._begin(request.segment)
            self._queue.popleft()
            return 1
        if self._fd is None:
            return 0
        tail = self._staging.tail
        until = self._staging.ready // BLOCK * BLOCK if request is None else request.position
        if until - tail >= (self._enough if request is None else 1):
            self._write(self._fd, tail, min(until, tail + WRITE_BYTES))
            return 1
        if request is None:
            return 0
        if isinstance(request, Flush):
            self._sync(os.fdatasync, self._fd)
            self.counts["flushes"] += 1
            self._on_flushed(request)
        else:
            self._end(request, self._fd)
        self._queue.popleft()
        return 1

    def _begin(self, segment: Segment) -> None:
        """Makes the file of a segment, with its room reserved and its name durable."""
        path = self._directory / segment.contents.file
        fd = self._create(path)
        try:
            try:
                os.posix_fallocate(fd, 0, self._reserve_bytes)
            except OSError as error:
                if error.errno not in NOT_SUPPORTED:
                    raise
            sync_directory(self._directory)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        self._fd = fd
        self._origin = segment.origin

    def _create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        if self.direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o666)
            except OSError as error:
                if error.errno not in NOT_SUPPORTED:
                    raise
                self.direct = False
        return os.open(path, flags, 0o666)

    def _write(self, fd: int, start: int, end: int) -> None:
        with self._staging.view(start, end) as piece:
            try:
                written = os.pwrite(fd, piece, start - self._origin)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                # It could be opened so, and not be written so.
                self.direct = False
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
                written = os.pwrite(fd, piece, start - self._origin)
        written -= written % BLOCK  # the rest of a block goes with the next one
        self._staging.release(start + written)
        self.counts["writes"] += 1
        self.counts["bytes"] += written

    def _end(self, request: End, fd: int) -> None:
        os.ftruncate(fd, request.segment.contents.bytes)
        self._sync(os.fsync, fd)
        os.close(fd)
        self._fd = None
        self._on_ended(request.segment)

    def _sync(self, sync: Callable[[int], None], fd: int) -> None:
        try:
            sync(fd)
        except OSError as error:
            self.failure = error
            raise

    def _refused(self, error: OSError) -> None:
        self._retry_at_ns = self._clock.monotonic_ns() + RETRY_NS
        self.counts["refused"] += 1
        said = error.strerror or type(error).__name__
        if self.refusal != said:
            log.error("recording to %s is stalled: %s", self._directory, said)
            self._on_refused()
        self.refusal = said


def set_priority(nice: int) -> None:
    """Gives this thread another nice value, where the system allows it."""
    if nice:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        except OSError as error:
            log.warning("priority %d is not allowed: %s", nice, error.strerror)
