"""The number of the next epoch, from what earlier ones left on disk (decisions.md #33).

An epoch must rise over every restart (Wire 15.2), and the only store is the tree of Wire 15.21a.3 itself: the names
below ``<stream_id>/``, finished or not, and the superblocks in them. Only with nothing there the wall-clock second
is taken, so that epochs rise over a reboot that emptied the tmpfs too.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final

from framepool.errors import AllocationError, SuperblockError
from framepool.shm.nofollow import DIRECTORY, closing_fd, open_beneath
from framepool.shm.superblock import read_superblock
from framepool.wire.constants import SUPERBLOCK_MAGIC

HIGHEST_EPOCH: Final = 2**64 - 1
_NAME: Final = re.compile(r"(?P<finished>0|[1-9][0-9]{0,19})|\.(?P<unfinished>0|[1-9][0-9]{0,19})\.tmp")


def epoch_name(epoch: int) -> str:
    """The directory of an epoch."""
    return str(epoch)


def unfinished_name(epoch: int) -> str:
    """The directory of an epoch while it is made."""
    return f".{epoch}.tmp"


def finished_epoch(name: str) -> int | None:
    """The epoch whose directory bears this name, or None."""
    return _epoch(name, "finished")


def unfinished_epoch(name: str) -> int | None:
    """The epoch that was being made under this name, or None."""
    return _epoch(name, "unfinished")


def _epoch(name: str, state: str) -> int | None:
    match = _NAME.fullmatch(name)
    if match is None or match[state] is None:
        return None
    epoch = int(match[state])
    return epoch if epoch <= HIGHEST_EPOCH else None


def next_epoch(stream: int | None, stream_id: int, wall_clock: Callable[[], float] = time.time) -> int:
    """One more than every epoch found in the open directory `stream`; None stands for a directory not made yet.

    What cannot be read raises AllocationError: a number that was used before is worse than none.
    """
    try:
        highest = max(epochs_on_disk(stream, stream_id), default=None) if stream is not None else None
    except OSError as error:
        raise AllocationError(f"stream {stream_id}: its earlier epochs cannot be read: {error}") from error
    if highest is None:
        return int(wall_clock())
    if highest == HIGHEST_EPOCH:
        raise AllocationError(f"stream {stream_id}: epoch {highest} is the last one; use another stream or namespace")
    return highest + 1


def epochs_on_disk(stream: int, stream_id: int) -> Iterator[int]:
    """Every epoch that a name or a superblock below the open directory speaks of, in no order.

    A name counts whatever stands behind it, because it is taken; links are not followed.
    """
    for name in os.listdir(stream):
        for epoch in (finished_epoch(name), unfinished_epoch(name)):
            if epoch is not None:
                yield epoch
        # Somebody else may remove an old epoch meanwhile: what is gone has had its say by its name.
        with contextlib.suppress(FileNotFoundError):
            yield from _epochs_in_superblocks(stream, name, stream_id)


def _epochs_in_superblocks(stream: int, name: str, stream_id: int) -> Iterator[int]:
    if not stat.S_ISDIR(os.stat(name, dir_fd=stream, follow_symlinks=False).st_mode):
        return
    with closing_fd(open_beneath(stream, [name], DIRECTORY)) as directory:
        for file in os.listdir(directory):
            if not stat.S_ISREG(os.stat(file, dir_fd=directory, follow_symlinks=False).st_mode):
                continue
            with closing_fd(open_beneath(directory, [file], os.O_RDONLY | os.O_NONBLOCK)) as fd:
                with contextlib.suppress(SuperblockError):
                    block = read_superblock(fd)
                    if block.magic == SUPERBLOCK_MAGIC and block.stream_id == stream_id:
                        yield block.epoch
