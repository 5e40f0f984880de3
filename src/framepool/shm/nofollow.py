"""Opening below a directory without ever passing a symbolic link, and asking which filesystem answered.

`openat2` does it in one system call where the kernel has it; elsewhere each component is opened by itself with
O_NOFOLLOW. Both give the same descriptors and the same errno. `paths`, `allocator` and `epochs` build on this;
nothing else in the package opens a region file or its directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from framepool.errors import PathNotAllowed

HUGETLBFS_MAGIC: Final = 0x958458F6

_SYS_OPENAT2: Final = 437  # the same number on every architecture that has it
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_BENEATH: Final = 0x08
_ARCHITECTURES: Final = frozenset({"x86_64", "aarch64"})

# A descriptor that can be walked through and listed, and one that can only be walked through.
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
PASSAGE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Statfs(ctypes.Structure):
    """The head of `struct statfs` on 64-bit Linux; the rest is room for the kernel to write in."""

    _fields_ = (("f_type", ctypes.c_long), ("f_bsize", ctypes.c_long), ("_rest", ctypes.c_byte * 240))


_libc: Final = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Closes a descriptor at the end of a `with` block."""
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Filesystem:
    """What a file is stored on, as far as it matters for mapping it."""

    hugepages: bool
    block_bytes: int

    def file_bytes(self, needed: int) -> int:
        """The size of a file that holds `needed` bytes: hugetlbfs only has whole pages, others any size."""
        return -(-needed // self.block_bytes) * self.block_bytes if self.hugepages else needed


def filesystem(fd: int) -> Filesystem | None:
    """The filesystem of an open file, or None where the platform cannot say whether it has hugepages."""
    if sys.platform != "linux" or sys.maxsize < 2**63 - 1:
        return None
    answer = _Statfs()
    if _libc.fstatfs(ctypes.c_int(fd), ctypes.byref(answer)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return Filesystem(answer.f_type & 0xFFFFFFFF == HUGETLBFS_MAGIC, answer.f_bsize)


def require_safe_open() -> None:
    """Fails closed where a file cannot be opened without following links (Wire 15.21a.5)."""
    has_nofollow = hasattr(os, "O_NOFOLLOW")
    if not (has_nofollow and {os.open, os.stat} <= os.supports_dir_fd and os.stat in os.supports_follow_symlinks):
        raise PathNotAllowed("this platform cannot open a file without following links, so no region can be trusted")


def open_by_openat2(directory: int, components: Sequence[str], flags: int) -> int:
    """One system call: no link in any component, nothing outside `directory`."""
    # Without O_NOFOLLOW: with it and O_PATH a link at the end would be opened itself instead of refused.
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    path = "/".join(components)
    while True:
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def open_stepwise(directory: int, components: Sequence[str], flags: int) -> int:
    """The same, a component at a time, each with O_NOFOLLOW."""
    *parents, name = components
    held = os.dup(directory)
    try:
        for parent in parents:
            below = _open_one(held, parent, PASSAGE)
            os.close(held)
            held = below
        return _open_one(held, name, flags)
    finally:
        os.close(held)


def _open_one(directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except NotADirectoryError:
        # With O_DIRECTORY a link is reported as "not a directory"; openat2 calls it by its name.
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


@functools.cache
def openat2_works() -> bool:
    """Whether this kernel has openat2 and no sandbox hides it."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return False
    with closing_fd(os.open("/", PASSAGE | os.O_CLOEXEC)) as root:
        try:
            os.close(open_by_openat2(root, ["."], PASSAGE))
        except OSError:
            return False
    return True


def opener() -> Callable[[int, Sequence[str], int], int]:
    """The best of the two ways that this machine has."""
    return open_by_openat2 if openat2_works() else open_stepwise


def open_beneath(directory: int, components: Sequence[str], flags: int) -> int:
    """Opens `components` below the open `directory`. A link anywhere is ELOOP; the caller closes the descriptor.

    Components are names: neither empty nor ``.`` nor ``..`` nor with a slash inside.
    """
    if not components:
        raise ValueError("no component to open")
    for name in components:
        if name in {"", ".", ".."} or "/" in name:
            raise PathNotAllowed(f"{name!r} is not the name of a file or directory")
    require_safe_open()
    return opener()(directory, components, flags)


def open_directory(path: str, flags: int = PASSAGE) -> int:
    """Opens an absolute, canonical directory from the root: if a link has taken its place, that is ELOOP."""
    require_safe_open()
    components = [name for name in path.split("/") if name]
    root = os.open("/", PASSAGE | os.O_CLOEXEC if components else flags | os.O_CLOEXEC)
    if not components:
        return root
    with closing_fd(root):
        return open_beneath(root, components, flags)
