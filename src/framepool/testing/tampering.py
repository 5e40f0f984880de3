"""What somebody with write access can do to the files of a stream while they are in use, and how it is undone.

Each of these is a context manager: the fault is there inside `with`. Files are found by the layout of Wire 15.21a.3
below the base directory, as the nemesis sees it from outside of the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from framepool.wire.constants import HEADER_SLOT_BYTES, SUPERBLOCK_SIZE

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine)
_EXCHANGE = 2
_AT_FDCWD = -100

HARMLESS = range(56, 64)
"""The stamp of activity, which the driver writes anew all the time."""
POISONOUS = range(16, 20)
"""The upper half of the epoch: all that follow would have to be higher still."""


def epoch_directory(base: Path, stream_id: int) -> Path | None:
    """The newest epoch of a stream that has files."""
    found = [path for path in base.glob(f"tensorpool-*/*/{stream_id}/*/header.ring") if path.parent.name.isdigit()]
    return max((path.parent for path in found), key=lambda path: int(path.name), default=None)


def region_files(base: Path, stream_id: int) -> list[Path]:
    """The files of that epoch, the header ring first."""
    directory = epoch_directory(base, stream_id)
    return [] if directory is None else sorted(directory.iterdir(), key=lambda path: path.name != "header.ring")


@contextlib.contextmanager
def truncated(file: Path, detail: int) -> Iterator[None]:
    """A part of it is gone, and comes back as zeros."""
    size = file.stat().st_size
    os.truncate(file, detail % size)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(file, size)


@contextlib.contextmanager
def replaced(file: Path, aside: Path) -> Iterator[None]:
    """A copy stands in its place; what is mapped is the original."""
    copy = aside.with_name(aside.name + ".copy")
    shutil.copyfile(file, copy)
    copy.chmod(file.stat().st_mode & 0o777)
    os.rename(file, aside)
    os.rename(copy, file)
    try:
        yield
    finally:
        if file.exists():
            os.rename(aside, file)
        else:  # its epoch is over
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def swapped(component: Path, aside: Path, decoy: str, pause: float = 0.0005) -> Iterator[None]:
    """The component is a link to `decoy` half of the time, and itself the other half, in turn, without a gap."""
    os.symlink(decoy, aside)
    turns = [0]

    def swap(stop: threading.Event) -> None:
        while not stop.is_set():
            if not exchange(component, aside):
                return
            turns[0] += 1
            time.sleep(pause)

    try:
        with meanwhile(swap):
            yield
    finally:
        if turns[0] % 2 and not exchange(component, aside):
            with contextlib.suppress(OSError):
                os.rename(aside, component)
        if aside.is_symlink():
            aside.unlink()
        else:
            shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Another thread works until the event, which is the end of `with`."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def exchange(one: Path, other: Path) -> bool:
    """Each gets the other's place in one step; False where one of them is gone."""
    paths = (ctypes.c_char_p(os.fsencode(path)) for path in (one, other))
    first, second = paths
    done = _libc.syscall(
        ctypes.c_long(_SYS_RENAMEAT2 or -1), ctypes.c_int(_AT_FDCWD), first, ctypes.c_int(_AT_FDCWD), second,
        ctypes.c_uint(_EXCHANGE),
    )  # fmt: skip
    return bool(done == 0)


@contextlib.contextmanager
def corrupted_superblock(file: Path, detail: int) -> Iterator[None]:
    """A bit of it is another one."""
    offsets = [offset for offset in range(SUPERBLOCK_SIZE) if offset not in HARMLESS and offset not in POISONOUS]
    offset, bit = offsets[detail % len(offsets)], 1 << detail // 64 % 8
    with contextlib.ExitStack() as opened:
        fd = os.open(file, os.O_RDWR)
        opened.callback(os.close, fd)
        os.pwrite(fd, bytes([os.pread(fd, 1, offset)[0] ^ bit]), offset)
        try:
            yield
        finally:
            os.pwrite(fd, bytes([os.pread(fd, 1, offset)[0] ^ bit]), offset)


LIES = (
    (0, lambda chance: struct.pack("<Q", 0)),
    (0, lambda chance: struct.pack("<Q", chance.randrange(2**40, 2**41) << 1)),
    (8, lambda chance: b"\xff\xff\xff\xff"),
    (12, lambda chance: struct.pack("<I", chance.randrange(1_000, 2**32))),
    (16, lambda chance: struct.pack("<H", chance.randrange(100, 2**16))),
    (60, lambda chance: struct.pack("<I", chance.randrange(1_000, 2**32))),
    (64, lambda chance: chance.randbytes(8)),
)
"""What no producer writes into a slot header: no commit, a number of years to come, a length, a
payload slot and a pool that do not exist, a header of another length, another message. None of them makes a frame that
is being written look whole: against that only permissions help."""


@contextlib.contextmanager
def lying_slots(file: Path, detail: int, pause: float = 0.002) -> Iterator[None]:
    """Slot headers are overwritten at random, all the time."""
    chance = random.Random(detail)

    def lie(stop: threading.Event) -> None:
        with contextlib.ExitStack() as opened:
            fd = os.open(file, os.O_RDWR)
            opened.callback(os.close, fd)
            slots = (os.fstat(fd).st_size - SUPERBLOCK_SIZE) // HEADER_SLOT_BYTES
            while not stop.wait(pause):
                offset, make = chance.choice(LIES)
                slot = chance.randrange(slots)
                os.pwrite(fd, make(chance), SUPERBLOCK_SIZE + slot * HEADER_SLOT_BYTES + offset)

    with meanwhile(lie):
        yield


@contextlib.contextmanager
def full(base: Path) -> Iterator[None]:
    """Not a byte is left in this filesystem."""
    filler = base / "filler"
    fd = os.open(filler, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        size = 0
        for step in (2**20, 2**12):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(fd, size, step)
                    size += step
        yield
    finally:
        os.close(fd)
        filler.unlink(missing_ok=True)
