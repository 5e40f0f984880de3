"""The media driver: Aeron's C driver in this process, alone on its directory.

Two media drivers on one directory destroy each other's files, so one is started only behind two checks: a lock on
`DIRECTORY.lock`, which every framepool media driver holds for life, and the heartbeat in cnc.dat, for drivers started
by others. What a dead one left is removed, but only where it looks like an Aeron directory; what we made, we remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
import weakref
from typing import Self

from framepool._native import aeron as native
from framepool.errors import ConfigurationError, MediaDriverRunning, TransportError
from framepool.transport import cnc
from framepool.transport.settings import AeronSettings, nanoseconds

AERON_FILES = frozenset({"cnc.dat", "loss-report.dat", "publications", "images"})
HEARTBEAT_WATCH = 2.5
"""Seconds after which a heartbeat that did not move is that of a dead driver: they move every second or faster."""


class MediaDriver:
    """A running media driver; `close` ends it and removes its directory.

    Its files are for its user alone, or for the members of a group, who can then use it and disturb whoever does.
    """

    def __init__(self, settings: AeronSettings | None = None, *, group: int | None = None) -> None:
        self.settings = settings or AeronSettings()
        self._group = group
        self._mask: int | None = None
        self.directory = os.path.abspath(self.settings.directory)
        self.pid = os.getpid()
        os.makedirs(os.path.dirname(self.directory), mode=0o700, exist_ok=True)
        self._lock = DirectoryLock(self.directory)
        try:
            clear_stale(self.directory, self._lock.previous)
            self._driver: native.Driver = self._start()
        except BaseException:
            self._lock.release()
            raise
        # Runs at close, when this object is dropped and at exit, whichever comes first, and only in this process.
        self._finish = weakref.finalize(self, _finish, self._driver, self.directory, self._lock, self.pid, self._mask)

    def _start(self) -> native.Driver:
        settings = self.settings
        driver = native.Driver()
        # Aeron makes its directory with mode 0777, and files as they are needed. For a group the umask stays.
        mask = os.umask(0o077 if self._group is None else 0o007)
        try:
            driver.start(
                self.directory,
                threading=settings.threading,
                timer_interval_ns=nanoseconds(settings.timer_interval),
                client_liveness_timeout_ns=nanoseconds(settings.client_liveness_timeout),
                publication_unblock_timeout_ns=nanoseconds(settings.publication_unblock_timeout),
                publication_linger_timeout_ns=nanoseconds(settings.publication_linger_timeout),
                image_liveness_timeout_ns=nanoseconds(settings.image_liveness_timeout),
                untethered_window_limit_timeout_ns=nanoseconds(settings.untethered_window_limit_timeout),
                untethered_linger_timeout_ns=nanoseconds(settings.untethered_linger_timeout),
                untethered_resting_timeout_ns=nanoseconds(settings.untethered_resting_timeout),
                term_length=settings.term_length,
                ipc_term_length=settings.ipc_term_length,
                counters_length=settings.counters_length,
            )
            if self._group is not None:
                share(self.directory, self._group)
        except BaseException:
            driver.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            os.umask(mask)
            raise
        if self._group is None:
            os.umask(mask)
        else:
            self._mask = mask
        return driver

    @property
    def running(self) -> bool:
        return self._driver.running

    def status(self) -> cnc.DriverStatus:
        return cnc.driver_status(self.directory)

    def statistics(self) -> dict[str, int]:
        """Aeron's system counters by label."""
        return {record.label: record.value for record in cnc.counters(self.directory) if record.type_id == 0}

    def close(self) -> None:
        """Ends the driver; its clients notice within their keepalive interval. May be called twice."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def share(directory: str, group: int) -> None:
    """Gives what is in a directory to a group, and all that will be."""
    for path, _, files in os.walk(directory):
        os.chown(path, -1, group)
        os.chmod(path, 0o2770)  # noqa: S103 that is what sharing means
        for name in files:
            os.chown(os.path.join(path, name), -1, group)
            os.chmod(os.path.join(path, name), 0o660)


def _finish(driver: native.Driver, directory: str, lock: DirectoryLock, pid: int, mask: int | None) -> None:
    if os.getpid() == pid:
        driver.close()
        if mask is not None:
            os.umask(mask)
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()


class DirectoryLock:
    """An exclusive `flock` on DIRECTORY.lock, with the owner's process id in it.

    It stands beside the directory because Aeron deletes and makes the directory itself. `previous` is the process id
    that the last owner wrote: it held the lock, so it is gone.
    """

    def __init__(self, directory: str) -> None:
        self.path = directory + ".lock"
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise MediaDriverRunning(
                    f"process {owner} runs a media driver in {directory}; use that one or choose another directory"
                ) from None
            if self._is_current(fd):
                break
            os.close(fd)  # its owner removed the file between our open and our lock
        self.fd = fd
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        self.previous = int(text) if text.isdigit() else None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def _is_current(self, fd: int) -> bool:
        mine = os.fstat(fd)
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.abandon()

    def abandon(self) -> None:
        """Closes the file without removing it: for a forked child, which would keep the lock alive."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        _held.discard(self)


_held: set[DirectoryLock] = set()


def _after_fork() -> None:
    for lock in list(_held):
        lock.abandon()


os.register_at_fork(after_in_child=_after_fork)


def clear_stale(directory: str, previous_owner: int | None) -> None:
    """Removes what a dead media driver left; refuses where one is alive or the directory holds something else."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(f"{directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise ConfigurationError(f"{directory} belongs to user {status.st_uid}")
    foreign = sorted(set(os.listdir(directory)) - AERON_FILES)
    if foreign:
        raise ConfigurationError(
            f"{directory} holds {foreign[0]!r}, which no media driver makes; choose a directory of its own"
        )
    refuse_if_alive(directory, previous_owner)
    shutil.rmtree(directory)


def refuse_if_alive(directory: str, previous_owner: int | None) -> None:
    """MediaDriverRunning if the heartbeat in the directory still moves."""
    try:
        before = cnc.driver_status(directory)
    except TransportError:
        return
    if before.pid == previous_owner or before.age() > HEARTBEAT_WATCH:
        return
    deadline = time.monotonic() + HEARTBEAT_WATCH
    over = False
    while not over:
        over = time.monotonic() >= deadline  # and one more look: we may have slept longer than meant to
        time.sleep(0.02)
        if cnc.driver_status(directory).heartbeat_ms != before.heartbeat_ms:
            raise MediaDriverRunning(
                f"process {before.pid} runs a media driver in {directory}; use that one or choose another directory"
            )
