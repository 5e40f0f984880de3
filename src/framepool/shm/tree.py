"""The directories that epochs live in: ``<base>/tensorpool-<user>/<namespace>/<stream_id>/`` (Wire 15.21a.3).

Who owns them, who may enter them, and how to reach one without following a link. What is in an epoch's directory is
the business of `allocator`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Iterator
from typing import Final

from framepool.errors import AllocationError, ConfigurationError, RegionUriError
from framepool.shm.nofollow import DIRECTORY, closing_fd, open_beneath, open_directory, require_safe_open
from framepool.shm.paths import canonical_directory
from framepool.shm.uri import RegionUri

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,127}")


def effective_user() -> str:
    """The name of the effective user where it can be part of a path, else the uid (Wire 15.21a.3)."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
    return name if _PLAIN_NAME.fullmatch(name) else str(os.geteuid())


class Tree:
    """The directories of one namespace, of one access: private, or shared with a group (Wire 15.21a.6)."""

    def __init__(
        self, base_dir: str | os.PathLike[str], namespace: str, *, user: str | None, group: int | None
    ) -> None:
        require_safe_open()
        self.base_dir: Final = canonical_directory(base_dir)
        self.user_directory: Final = f"tensorpool-{_plain_name('user', effective_user() if user is None else user)}"
        self.namespace: Final = _plain_name("namespace", namespace)
        self._group: Final = group
        self._directory_mode: Final = 0o700 if group is None else 0o2770
        self._file_mode: Final = 0o600 if group is None else 0o660
        try:
            RegionUri(self.path)
        except RegionUriError as error:
            raise ConfigurationError(f"{self.base_dir!r} cannot be announced in a region URI: {error}") from error

    @property
    def path(self) -> str:
        """The directory of the namespace."""
        return f"{self.base_dir.rstrip('/')}/{self.user_directory}/{self.namespace}"

    def open_stream(self, stream_id: int, *, create: bool = False) -> contextlib.AbstractContextManager[int]:
        """The open directory of a stream. If the block fails, directories made for it are removed again."""
        return self._open(str(stream_id), create=create)

    def open_namespace(self, *, create: bool = False) -> contextlib.AbstractContextManager[int]:
        """The open directory of the namespace, likewise."""
        return self._open(create=create)

    @contextlib.contextmanager
    def _open(self, *below: str, create: bool) -> Iterator[int]:
        with contextlib.ExitStack() as held:
            made: list[tuple[int, str]] = []
            try:
                directory = held.enter_context(closing_fd(open_directory(self.base_dir)))
                for name in (self.user_directory, self.namespace, *below):
                    if create and self._make_directory(directory, name):
                        made.append((directory, name))
                    directory = held.enter_context(closing_fd(open_beneath(directory, [name], DIRECTORY)))
                    self._require_own(name, directory)
                yield directory
            except BaseException:
                for parent, name in reversed(made):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=parent)
                raise

    def claim_directory(self, fd: int) -> None:
        """Gives a new directory its group and mode, whatever the umask was."""
        self._claim(fd, self._directory_mode)

    def claim_file(self, fd: int) -> None:
        """Gives a new file its group and mode, whatever the umask was."""
        self._claim(fd, self._file_mode)

    def _claim(self, fd: int, mode: int) -> None:
        if self._group is not None:
            os.fchown(fd, -1, self._group)
        os.fchmod(fd, mode)

    def _make_directory(self, parent: int, name: str) -> bool:
        """Makes a directory with its mode and group before anything is in it; False if there is one."""
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            return False
        try:
            with closing_fd(open_beneath(parent, [name], DIRECTORY)) as made:
                self.claim_directory(made)
        except BaseException:
            os.rmdir(name, dir_fd=parent)
            raise
        return True

    def _require_own(self, name: str, directory: int) -> None:
        """Refuses a directory that somebody else made, or that lets in more or fewer than was asked for."""
        info = os.fstat(directory)
        mode = stat.S_IMODE(info.st_mode)
        if info.st_uid != os.geteuid():
            raise AllocationError(f"{self.path}: {name} belongs to uid {info.st_uid}, not to this user")
        wrong_group = self._group is not None and info.st_gid != self._group
        if mode != self._directory_mode or wrong_group:
            raise AllocationError(
                f"{self.path}: {name} has mode {mode:04o} and gid {info.st_gid}, wanted is "
                f"{self._directory_mode:04o}; change it or choose another namespace or user"
            )


def _plain_name(what: str, value: str) -> str:
    """A name that is one component of a path and can stand in a region URI."""
    if not _PLAIN_NAME.fullmatch(value):
        raise ConfigurationError(f"{what} {value!r}: use up to 128 letters, digits and _.@+-, with no dot in front")
    return value
