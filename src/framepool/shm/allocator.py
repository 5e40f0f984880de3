"""Making and removing the files of an epoch (Wire 15.14; `design.md`, "Safety of shared memory").

An epoch appears whole or not at all: its directory is made under a hidden name, the space is reserved, the
superblocks are written, and only then it gets its name. A name is never used twice, a file never shrinks. All work
goes through descriptors of directories, so that no link planted on the way leads elsewhere. Where the directories
are and whose is for `tree`, the number of the next epoch for `epochs`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from framepool.errors import AllocationError, ConfigurationError, HugepagesRequired, RegionError, SuperblockError
from framepool.shm.epochs import epoch_name, finished_epoch, next_epoch, unfinished_epoch, unfinished_name
from framepool.shm.layout import PoolLayout, StreamLayout
from framepool.shm.nofollow import DIRECTORY, Filesystem, closing_fd, filesystem, open_beneath, open_directory
from framepool.shm.paths import backing_size
from framepool.shm.superblock import pool_superblock, read_superblock, ring_superblock
from framepool.shm.tree import Tree
from framepool.shm.uri import RegionUri
from framepool.wire._generated.control_900 import ShmRegionSuperblock
from framepool.wire.constants import HEADER_SLOT_BYTES, LAYOUT_VERSION, SUPERBLOCK_SIZE

HEADER_FILE: Final = "header.ring"
LOCK_FILE: Final = ".driver.lock"
_STREAM: Final = re.compile(r"[1-9][0-9]{0,9}")
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


def pool_file(pool_id: int) -> str:
    """The name of a pool's file."""
    return f"{pool_id}.pool"


class Allocator:
    """Makes epochs below ``<base_dir>/tensorpool-<user>/<namespace>/``.

    Private by default (directories 0700, files 0600); with `group` they belong to that gid and its members may
    write (2770, 0660), and so truncate: that group is trusted. The umask has no say. `require_hugepages` demands a
    base on hugetlbfs and announces it in the URIs. `prefault` touches every page at once, `sync` calls fsync.
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str],
        namespace: str,
        *,
        user: str | None = None,
        group: int | None = None,
        require_hugepages: bool = False,
        prefault: bool = False,
        sync: bool = True,
    ) -> None:
        self._tree: Final = Tree(base_dir, namespace, user=user, group=group)
        self._require_hugepages: Final = require_hugepages
        self._prefault: Final = prefault
        self._sync: Final = sync
        self._filesystem: Final = self._check_base()

    @property
    def base_dir(self) -> str:
        """The canonical base directory."""
        return self._tree.base_dir

    @property
    def directory(self) -> str:
        """The directory of this namespace."""
        return self._tree.path

    def create(
        self, stream_id: int, epoch: int, *, nslots: int, strides: Mapping[int, int], timestamp_ns: int
    ) -> StreamLayout:
        """Makes the files of an epoch, pools by id with their stride, and gives the layout to announce.

        AllocationError leaves nothing behind: no space, no permission, numbers that no layout can have, or an epoch
        that exists already, made or half-made.
        """
        layout = self._layout(stream_id, epoch, nslots, strides)
        ring = ring_superblock(layout, pid=os.getpid(), timestamp_ns=timestamp_ns)
        regions = {HEADER_FILE: (self._file_bytes(layout.header_file_bytes), ring)}
        for pool in layout.pools:
            block = pool_superblock(layout, pool, pid=os.getpid(), timestamp_ns=timestamp_ns)
            regions[pool_file(pool.pool_id)] = (self._file_bytes(pool.file_bytes), block)
        try:
            with self._tree.open_stream(stream_id, create=True) as stream:
                self._create_epoch(stream, epoch, regions)
        except OSError as error:
            needed = sum(size for size, _ in regions.values())
            raise self._refusal(layout, needed, error) from error
        return layout

    def share(self, fd: int) -> None:
        """Gives another new file of the namespace the group and mode that regions have."""
        self._tree.claim_file(fd)

    def streams(self) -> list[int]:
        """The streams that ever had an epoch here, in order; a link in the place of one is none."""
        found: list[int] = []
        with _explained(f"{self.directory}: cannot be read"), self._tree.open_namespace() as namespace:
            for name in os.listdir(namespace):
                if _STREAM.fullmatch(name) and _is_directory(name, namespace):
                    found.append(int(name))
        return sorted(found)

    def epochs(self, stream_id: int) -> list[int]:
        """The finished epochs of a stream whose directories are there, in order."""
        found: list[int] = []
        with (
            _explained(f"stream {stream_id}: its directory cannot be read"),
            self._tree.open_stream(stream_id) as stream,
        ):
            found += _finished(stream)
        return found

    def read_superblock(self, stream_id: int, epoch: int) -> ShmRegionSuperblock | None:
        """The superblock of an epoch's header ring, or None where there is none that can be read."""
        with (
            contextlib.suppress(OSError, SuperblockError),
            self._tree.open_stream(stream_id) as stream,
            closing_fd(open_beneath(stream, [epoch_name(epoch), HEADER_FILE], os.O_RDONLY | os.O_NONBLOCK)) as fd,
        ):
            return read_superblock(fd)
        return None

    def lock(self) -> NamespaceLock:
        """Takes this namespace for one driver; AllocationError while another holds it."""
        with _explained(f"{self.directory}: cannot be made"), self._tree.open_namespace(create=True) as namespace:
            return NamespaceLock(self.directory, namespace)
        raise AllocationError(f"{self.directory}: cannot be made")

    @contextlib.contextmanager
    def unused(self) -> Iterator[bool]:
        """Whether no driver has this namespace; if so, none can take it while the block runs.

        Looking makes nothing and writes nothing, and where it is not certain it says no.
        """
        with contextlib.ExitStack() as held:
            try:
                namespace = held.enter_context(self._tree.open_namespace())
                lock = open_beneath(namespace, [LOCK_FILE], os.O_RDONLY | os.O_NONBLOCK)
                free = _lock(held.enter_context(closing_fd(lock)))
            except FileNotFoundError:
                free = True  # no driver ever was here
            except (OSError, AllocationError):
                free = False
            yield free

    def next_epoch(self, stream_id: int, wall_clock: Callable[[], float] = time.time) -> int:
        """The epoch to create next; see `epochs.next_epoch`."""
        with _explained(f"stream {stream_id}: its directory cannot be read"):
            try:
                with self._tree.open_stream(stream_id) as stream:
                    return next_epoch(stream, stream_id, wall_clock)
            except FileNotFoundError:
                return next_epoch(None, stream_id, wall_clock)

    def remove_epoch(self, stream_id: int, epoch: int) -> None:
        """Removes an epoch's files, and its directory unless it is the newest: that one keeps the count.

        Maps of the files stay good until they are closed. An epoch that is not there is no error.
        """
        with (
            _explained(f"stream {stream_id}: epoch {epoch} cannot be removed"),
            self._tree.open_stream(stream_id) as stream,
        ):
            if epoch < max(_finished(stream), default=epoch):
                shutil.rmtree(epoch_name(epoch), dir_fd=stream)
                return
            with closing_fd(open_beneath(stream, [epoch_name(epoch)], DIRECTORY)) as directory:
                _empty(directory)

    def remove_unfinished(self, stream_id: int) -> list[int]:
        """Removes what a killed process left half-made; one that is being made right now is left alone."""
        removed: list[int] = []
        with (
            _explained(f"stream {stream_id}: unfinished epochs cannot be removed"),
            self._tree.open_stream(stream_id) as stream,
        ):
            for name in os.listdir(stream):
                epoch = unfinished_epoch(name)
                if epoch is None:
                    continue
                with closing_fd(open_beneath(stream, [name], DIRECTORY)) as directory:
                    if _lock(directory):
                        shutil.rmtree(name, dir_fd=stream)
                        removed.append(epoch)
        return removed

    def remove_namespace(self) -> None:
        """Removes everything, the count of epochs too: only for a private, temporary namespace.

        decisions.md #33: any other namespace keeps the directory of its newest epoch for good.
        """
        user, namespace = self._tree.user_directory, self._tree.namespace
        with (
            _explained(f"{self.directory} cannot be removed"),
            closing_fd(open_directory(self.base_dir)) as base,
        ):
            with closing_fd(open_beneath(base, [user], DIRECTORY)) as parent:
                shutil.rmtree(namespace, dir_fd=parent)
            with contextlib.suppress(OSError):  # other namespaces live there too
                os.rmdir(user, dir_fd=base)

    def _check_base(self) -> Filesystem | None:
        """What the base is stored on, if regions of this kind can be made and removed there."""
        if not shutil.rmtree.avoids_symlink_attacks:
            raise ConfigurationError("this platform cannot remove a directory without following links")
        with closing_fd(open_directory(self.base_dir, DIRECTORY)) as base:
            try:
                backing_size(self.base_dir, base, 0, require_hugepages=self._require_hugepages)
            except HugepagesRequired as error:
                raise ConfigurationError(str(error)) from error
            return filesystem(base)

    def _file_bytes(self, needed: int) -> int:
        return needed if self._filesystem is None else self._filesystem.file_bytes(needed)

    def _layout(self, stream_id: int, epoch: int, nslots: int, strides: Mapping[int, int]) -> StreamLayout:
        directory = f"{self.directory}/{stream_id}/{epoch_name(epoch)}"
        layout = StreamLayout(
            stream_id=stream_id,
            epoch=epoch,
            layout_version=LAYOUT_VERSION,
            nslots=nslots,
            header_slot_bytes=HEADER_SLOT_BYTES,
            header_uri=RegionUri(f"{directory}/{HEADER_FILE}", self._require_hugepages),
            pools=tuple(
                PoolLayout(id, nslots, stride, RegionUri(f"{directory}/{pool_file(id)}", self._require_hugepages))
                for id, stride in sorted(strides.items())
            ),
        )
        try:
            layout.validate()
        except RegionError as error:
            raise AllocationError(str(error)) from error
        return layout

    def _create_epoch(self, stream: int, epoch: int, regions: Mapping[str, tuple[int, ShmRegionSuperblock]]) -> None:
        hidden = unfinished_name(epoch)
        os.mkdir(hidden, 0o700, dir_fd=stream)
        try:
            with closing_fd(open_beneath(stream, [hidden], DIRECTORY)) as directory:
                if not _lock(directory):
                    raise FileExistsError(errno.EEXIST, "it is being removed", hidden)
                # Whoever holds the hidden name is alone with this epoch, so this look is not too early.
                _require_absent(stream, epoch_name(epoch))
                for name, (size, superblock) in regions.items():
                    self._create_file(directory, name, size, superblock)
                self._tree.claim_directory(directory)
                if self._sync:
                    os.fsync(directory)
                os.rename(hidden, epoch_name(epoch), src_dir_fd=stream, dst_dir_fd=stream)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(hidden, dir_fd=stream)
            raise
        if self._sync:
            os.fsync(stream)

    def _create_file(self, directory: int, name: str, size: int, superblock: ShmRegionSuperblock) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(name, flags, 0o600, dir_fd=directory)) as fd:
            self._tree.claim_file(fd)
            os.posix_fallocate(fd, 0, size)
            # By a map, because hugetlbfs has no write.
            populate = mmap.MAP_POPULATE if self._prefault else 0
            with mmap.mmap(fd, size, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ | mmap.PROT_WRITE) as region:
                region[:SUPERBLOCK_SIZE] = superblock.encode_body()
            if self._sync:
                os.fsync(fd)

    def _refusal(self, layout: StreamLayout, needed: int, error: OSError) -> AllocationError:
        epoch = f"stream {layout.stream_id}, epoch {layout.epoch}"
        if error.errno in _NO_SPACE:
            there = os.statvfs(self.base_dir)
            return AllocationError(
                f"{epoch}: no space in {self.base_dir} ({error.strerror}): {needed} bytes needed, "
                f"{there.f_bavail * there.f_frsize} free; use fewer or smaller slots, or a larger filesystem"
            )
        if error.errno == errno.EEXIST:
            return AllocationError(f"{epoch}: exists already, or is being made; take the next epoch")
        return AllocationError(f"{epoch}: cannot be made in {self.directory}: {error}")


class NamespaceLock:
    """A namespace kept to one driver (Driver 2.1). It goes with its holder, killed or not."""

    def __init__(self, path: str, namespace: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd: int | None = os.open(LOCK_FILE, flags, 0o600, dir_fd=namespace)
        if not _lock(self._fd):
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise AllocationError(f"{path}: belongs to a running driver, process {holder}; use it or another namespace")
        with contextlib.suppress(OSError):  # hugetlbfs has no write; the lock holds all the same
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """What is not there needs no removing; any other failure of the system is an AllocationError."""
    try:
        yield
    except FileNotFoundError:
        return
    except OSError as error:
        raise AllocationError(f"{what}: {error}") from error


def _require_absent(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _finished(stream: int) -> list[int]:
    return sorted(number for name in os.listdir(stream) if (number := finished_epoch(name)) is not None)


def _lock(fd: int) -> bool:
    """Takes an exclusive lock if it is free; it goes with its holder, killed or not."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _empty(directory: int) -> None:
    """Removes what is in a directory and leaves the directory."""
    for name in os.listdir(directory):
        if _is_directory(name, directory):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
