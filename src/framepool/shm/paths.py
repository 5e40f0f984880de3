"""Which files may be mapped: containment in allowed directories, and the checks before and after the open.

This is Wire 15.21a.5 in the order it demands, plus what `design.md` adds: exact size, owner and mode, one link.
There is no switch that turns a check off. The descriptor that comes back is the file that was checked, whatever
happens to its name afterwards. What the file says of itself is for `superblock`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from framepool.errors import (
    ConfigurationError,
    HugepagesRequired,
    NotARegularFile,
    PathNotAllowed,
    RegionError,
    RegionOwnerError,
    RegionSizeError,
)
from framepool.shm.nofollow import (
    PASSAGE,
    closing_fd,
    filesystem,
    open_beneath,
    open_directory,
)

# A FIFO or a device must neither hang the open nor become a controlling terminal.
_CAUTIOUS: Final = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """Whose files may be mapped: ours, root's, and those of the users and groups named here.

    A file that others may write is never accepted, and one that its group may write only where that group is named
    here or is one of our own: whoever may write a region may also truncate it under its readers.
    """

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()

    @classmethod
    def sharing(cls, group: int | None) -> OwnerPolicy:
        """That of somebody who shares a pool with a group, or with nobody."""
        return cls() if group is None else cls(gids=frozenset({group}))

    def check(self, path: str, info: os.stat_result) -> None:
        """Raises RegionOwnerError unless owner and mode are allowed."""
        if info.st_uid not in {os.geteuid(), 0} | self.uids and info.st_gid not in self.gids:
            raise RegionOwnerError(f"{path}: owned by uid {info.st_uid}, gid {info.st_gid}; allow that user or group")
        if info.st_mode & stat.S_IWOTH:
            raise RegionOwnerError(f"{path}: mode {stat.S_IMODE(info.st_mode):04o} lets everybody write")
        trusted_groups = {0, os.getegid(), *os.getgroups()} | self.gids
        if info.st_mode & stat.S_IWGRP and info.st_gid not in trusted_groups:
            raise RegionOwnerError(
                f"{path}: mode {stat.S_IMODE(info.st_mode):04o} lets gid {info.st_gid} write; allow that group"
            )


OWN_FILES: Final = OwnerPolicy()


class AllowedDirectories:
    """The directories that regions may lie in, each made canonical once, here (Wire 15.21a.5)."""

    def __init__(self, directories: Iterable[str | os.PathLike[str]]) -> None:
        self.bases: Final = tuple(canonical_directory(directory) for directory in directories)
        if not self.bases:
            raise ConfigurationError("no allowed directory: name at least one that regions may lie in")

    def __repr__(self) -> str:
        return f"AllowedDirectories({list(self.bases)!r})"

    def locate(self, path: str) -> tuple[str, tuple[str, ...]]:
        """The base that holds `path` and the names that lead from there to the file; or PathNotAllowed.

        The path is judged by its canonical form. Links above the base are the machine's business (``/var/run`` is
        one on many), links below it are refused.
        """
        names = _names(path)
        real = _split(os.path.realpath(path))
        for base in self.bases:
            above = _split(base)
            below = real[len(above) :]
            if not below or real[: len(above)] != above:
                continue
            prefix = "/" + "/".join(names[: -len(below)])
            if names[-len(below) :] != below or os.path.realpath(prefix) != base:
                raise PathNotAllowed(f"{path}: passes a symbolic link below {base}")
            return base, below
        raise PathNotAllowed(f"{path}: lies in none of the allowed directories {', '.join(self.bases)}")


def canonical_directory(directory: str | os.PathLike[str]) -> str:
    """The canonical path of an existing directory; ConfigurationError for anything else."""
    text = os.fspath(directory)
    if not os.path.isabs(text):
        raise ConfigurationError(f"{text!r}: a base directory must be an absolute path")
    try:
        real = os.path.realpath(text, strict=True)
    except OSError as error:
        raise ConfigurationError(f"{text}: {error.strerror}; make the directory first") from error
    if not os.path.isdir(real):
        raise ConfigurationError(f"{text}: not a directory")
    return real


def open_region_file(
    path: str,
    allowed: AllowedDirectories,
    *,
    expected_size: int,
    writable: bool = False,
    owners: OwnerPolicy = OWN_FILES,
    require_hugepages: bool = False,
) -> int:
    """Opens a region's file after every check of Wire 15.21a.5; raises a RegionError and leaves nothing open.

    On hugetlbfs, whose files are whole pages, the expected size is rounded up to them.
    """
    base, below = allowed.locate(path)
    try:
        with closing_fd(open_directory(base)) as directory:
            seen = examine(directory, below)
            require_regular(path, seen)
            flags = (os.O_RDWR if writable else os.O_RDONLY) | _CAUTIOUS
            fd = open_beneath(directory, below, flags)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        opened = os.fstat(fd)
        if (opened.st_dev, opened.st_ino) != (seen.st_dev, seen.st_ino):
            raise PathNotAllowed(f"{path}: another file took its place while it was opened")
        size = backing_size(path, fd, expected_size, require_hugepages=require_hugepages)
        check_file(path, opened, size, owners)
    except BaseException:
        os.close(fd)
        raise
    return fd


def examine(directory: int, below: tuple[str, ...]) -> os.stat_result:
    """What stands at the path before it is opened, itself and not what it links to."""
    *parents, name = below
    if not parents:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    with closing_fd(open_beneath(directory, parents, PASSAGE)) as parent:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)


def check_file(path: str, info: os.stat_result, size: int, owners: OwnerPolicy) -> None:
    """Regular, of one name, of an allowed owner and mode, and of exactly `size` bytes."""
    require_regular(path, info)
    owners.check(path, info)
    if info.st_nlink == 0:
        raise RegionError(f"{path}: the file was removed")
    if info.st_nlink > 1:
        raise PathNotAllowed(f"{path}: the file has {info.st_nlink} hard links, so it is also known by another name")
    if info.st_size != size:
        relation = "truncated" if info.st_size < size else "too long"
        raise RegionSizeError(f"{path}: {relation}, {info.st_size} bytes instead of {size}")


def require_regular(path: str, info: os.stat_result) -> None:
    """Raises PathNotAllowed for a link and NotARegularFile for anything else that is no file."""
    if stat.S_ISLNK(info.st_mode):
        raise PathNotAllowed(f"{path}: a symbolic link")
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "not a file")
        raise NotARegularFile(f"{path}: {kind}, not a regular file")


def backing_size(path: str, fd: int, needed: int, *, require_hugepages: bool) -> int:
    """The exact size of a file for `needed` bytes, once the demand for hugepages is met (Wire 15.22)."""
    system = filesystem(fd)
    if system is None:
        if require_hugepages:
            raise HugepagesRequired(f"{path}: this platform cannot tell whether a file is backed by hugepages")
        return needed
    if require_hugepages and not system.hugepages:
        raise HugepagesRequired(f"{path}: not on hugetlbfs; mount one and name it as an allowed directory")
    return system.file_bytes(needed)


def _names(path: str) -> tuple[str, ...]:
    """The components of an absolute path that says plainly where it leads."""
    if not path.startswith("/"):
        raise PathNotAllowed(f"{path!r}: not an absolute path")
    if "\0" in path:
        raise PathNotAllowed(f"{path!r}: contains a NUL")
    names = tuple(path[1:].split("/"))
    for name in names:
        if name in {"", ".", ".."}:
            raise PathNotAllowed(f"{path!r}: the component {name!r} is not allowed")
    return names


def _split(canonical: str) -> tuple[str, ...]:
    return tuple(name for name in canonical.split("/") if name)


def _refusal(path: str, error: OSError) -> RegionError:
    """The error of ours that a failed system call on the way to the file means."""
    match error.errno:
        case errno.ELOOP | errno.EXDEV:
            return PathNotAllowed(f"{path}: passes a symbolic link")
        case errno.ENOENT | errno.ENOTDIR:
            return RegionError(f"{path}: no such file")
        case errno.EISDIR | errno.ENXIO | errno.ENODEV:
            return NotARegularFile(f"{path}: {error.strerror}")
        case errno.EACCES | errno.EPERM:
            return RegionOwnerError(f"{path}: this process (uid {os.geteuid()}) may not open it: {error.strerror}")
        case _:
            return RegionError(f"{path}: {error.strerror}")
