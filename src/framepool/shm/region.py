"""Mapped files: one region, and all regions of a stream's epoch at once or not at all (Wire 15.21, 15.22).

Readers map read-only. A region keeps its descriptor beside the map: the size and identity of the file can be asked
again at every announce, and payloads can be read by `preadv`, which returns short where a map would kill the
process (`faults.md`). The slots inside are for `ring` and `pool`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from framepool.errors import RegionError, RegionSizeError, SuperblockError
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import (
    OWN_FILES,
    AllowedDirectories,
    OwnerPolicy,
    backing_size,
    check_file,
    open_region_file,
)
from framepool.shm.superblock import pool_superblock, read_superblock, ring_superblock, validate_superblock
from framepool.shm.uri import RegionUri
from framepool.wire._generated.control_900 import ShmRegionSuperblock
from framepool.wire.constants import SUPERBLOCK_SIZE

STAT_BLOCK: Final = 512  # what st_blocks counts in
_ACTIVITY_WORD: Final = 7  # activity_timestamp_ns is the last of the superblock's eight 64-bit words


class Region:
    """One file of a stream: opened and checked, then mapped. `buffer` is its content.

    It owns its descriptor and its map. Closing twice is fine. Views of the buffer that are still held when it is
    closed stay good: the memory is unmapped when the last of them is dropped, and no new ones are given out.
    """

    def __init__(self, fd: int, uri: RegionUri, nbytes: int, *, writable: bool, owners: OwnerPolicy) -> None:
        info = os.fstat(fd)
        self.uri: Final = uri
        self.nbytes: Final = nbytes
        self.writable: Final = writable
        self.identity: Final = (info.st_dev, info.st_ino)
        # From the layout and not from the file, which may have changed since it was checked.
        self._file_bytes: Final = backing_size(uri.path, fd, nbytes, require_hugepages=uri.require_hugepages)
        self._owners: Final = owners
        self._fd: int | None = fd
        self._mapped: mmap.mmap | None = None
        self._buffer: memoryview | None = None
        self._words: memoryview | None = None
        """The superblock as 64-bit words."""

    @classmethod
    def open(
        cls, uri: RegionUri, nbytes: int, allowed: AllowedDirectories, *, writable: bool, owners: OwnerPolicy
    ) -> Region:
        """Opens the file of a region with every check of `paths`; nothing is mapped yet."""
        fd = open_region_file(
            uri.path,
            allowed,
            expected_size=nbytes,
            writable=writable,
            owners=owners,
            require_hugepages=uri.require_hugepages,
        )
        return cls(fd, uri, nbytes, writable=writable, owners=owners)

    def map(self, *, ahead: bool = False) -> None:
        """Maps the file, read-only unless it was opened to be written. `ahead` has the kernel enter every page now and
        not each at its first touch; not those of a file with holes, which that would fill."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE if self.writable else mmap.PROT_READ
        flags = mmap.MAP_SHARED
        if ahead and os.fstat(self.fd).st_blocks * STAT_BLOCK >= self.nbytes:
            flags |= getattr(mmap, "MAP_POPULATE", 0)
        try:
            self._mapped = mmap.mmap(self.fd, self._file_bytes, flags=flags, prot=protection)
        except ValueError as error:  # the module looks at the size once more
            raise RegionSizeError(f"{self.uri.path}: truncated after it was checked") from error
        except OSError as error:
            raise RegionError(f"{self.uri.path}: cannot be mapped: {error.strerror}") from error
        self._buffer = memoryview(self._mapped)[: self.nbytes]
        self._words = self._buffer[:SUPERBLOCK_SIZE].cast("Q")

    @property
    def closed(self) -> bool:
        return self._fd is None

    @property
    def buffer(self) -> memoryview:
        """The region from its superblock to the end of its last slot."""
        if self._buffer is None:
            raise RegionError(f"{self.uri.path}: the region is not mapped")
        return self._buffer

    @property
    def fd(self) -> int:
        """The descriptor behind the map, for guarded reads; it lives as long as the region is open."""
        if self._fd is None:
            raise RegionError(f"{self.uri.path}: the region is closed")
        return self._fd

    def recheck(self) -> None:
        """Raises a RegionError if the file was cut, grown, removed, given away, or replaced at its path."""
        path = self.uri.path
        check_file(path, os.fstat(self.fd), self._file_bytes, self._owners)
        try:
            there = os.stat(path, follow_symlinks=False)
        except OSError as error:
            raise RegionError(f"{path}: the mapped file is not at its path any more: {error.strerror}") from error
        if (there.st_dev, there.st_ino) != self.identity:
            raise RegionError(f"{path}: another file has taken the place of the mapped one")

    def read_payload(self, offset: int, nbytes: int, out: bytearray | memoryview) -> None:
        """Copies `nbytes` at `offset` into `out` without touching the map; see `read_payload`."""
        read_payload(self.fd, offset, nbytes, out)

    def refresh_activity(self, timestamp_ns: int) -> None:
        """Writes activity_timestamp_ns in one aligned 8-byte store; nothing else there ever changes."""
        if self._words is None:
            raise RegionError(f"{self.uri.path}: the region is not mapped")
        self._words[_ACTIVITY_WORD] = timestamp_ns

    def close(self) -> None:
        fd, self._fd = self._fd, None
        mapped, self._mapped = self._mapped, None
        buffer, self._buffer = self._buffer, None
        words, self._words = self._words, None
        if words is not None:
            words.release()
        if fd is not None:
            os.close(fd)
        if mapped is not None and buffer is not None:
            with contextlib.suppress(BufferError):  # a view is still held; the last one to go unmaps
                buffer.release()
                mapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_payload(fd: int, offset: int, nbytes: int, out: bytearray | memoryview) -> None:
    """Fills the first `nbytes` of `out` from the file; RegionSizeError if the file ends before.

    For readers that must survive a hostile producer: a truncated file is an error here and a SIGBUS in a map.
    """
    with memoryview(out) as whole, whole.cast("B") as target:
        if len(target) < nbytes:
            raise ValueError(f"{nbytes} bytes do not fit into a buffer of {len(target)}")
        done = 0
        while done < nbytes:
            got = os.preadv(fd, [target[done:nbytes]], offset + done)
            if got == 0:
                raise RegionSizeError(f"the file ends after {done} of {nbytes} bytes at offset {offset}")
            done += got


@dataclass(frozen=True, slots=True)
class MappedStreamStatistics:
    """What a mapped stream occupies and how often it was looked after."""

    regions: int
    mapped_bytes: int
    rechecks: int


class MappedStream:
    """All regions of one epoch of a stream, mapped and validated together."""

    def __init__(self, layout: StreamLayout, header: Region, pools: dict[int, Region]) -> None:
        self.layout: Final = layout
        self.header: Final = header
        self.pools: Final = pools
        self.regions: Final = (header, *pools.values())
        self._rechecks = 0

    def recheck(self) -> None:
        """Looks at every file and superblock again, as each announce of the epoch demands (Wire 15.1)."""
        self._rechecks += 1
        for (uri, _, expected), region in zip(_expected_regions(self.layout), self.regions, strict=True):
            region.recheck()
            _require_superblock(uri, region.fd, expected)

    def superblock(self) -> ShmRegionSuperblock:
        """The header ring's superblock as it is now, read from the file."""
        return read_superblock(self.header.fd)

    def refresh_activity(self, timestamp_ns: int) -> None:
        """Shows in every superblock that the writer lives."""
        for region in self.regions:
            region.refresh_activity(timestamp_ns)

    def statistics(self) -> MappedStreamStatistics:
        held = [region for region in self.regions if not region.closed]
        return MappedStreamStatistics(len(held), sum(region.nbytes for region in held), self._rechecks)

    def close(self) -> None:
        for region in self.regions:
            region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def map_stream(
    layout: StreamLayout,
    allowed: AllowedDirectories,
    *,
    writable: bool = False,
    owners: OwnerPolicy = OWN_FILES,
    ahead: bool = False,
) -> MappedStream:
    """Maps a stream: every file is opened and every superblock compared before the first one is mapped. `ahead` is for
    those who will touch all of it, again and again: no frame then waits for the kernel to enter a page.

    Any refusal is a RegionError that names the region, and leaves neither descriptor nor map behind: a stream is
    never partially consumed (Wire 15.22).
    """
    layout.validate()
    with contextlib.ExitStack() as undo:
        regions = []
        for uri, nbytes, expected in _expected_regions(layout):
            region = undo.enter_context(Region.open(uri, nbytes, allowed, writable=writable, owners=owners))
            _require_superblock(uri, region.fd, expected)
            regions.append(region)
        for region in regions:
            region.map(ahead=ahead)
        undo.pop_all()
    header, *pools = regions
    return MappedStream(
        layout, header, {pool.pool_id: region for pool, region in zip(layout.pools, pools, strict=True)}
    )


def _expected_regions(layout: StreamLayout) -> Iterator[tuple[RegionUri, int, ShmRegionSuperblock]]:
    """Where each region is, how long, and what its superblock must say; the header ring first."""
    yield layout.header_uri, layout.header_file_bytes, ring_superblock(layout)
    for pool in layout.pools:
        yield pool.uri, pool.file_bytes, pool_superblock(layout, pool)


def _require_superblock(uri: RegionUri, fd: int, expected: ShmRegionSuperblock) -> None:
    try:
        validate_superblock(read_superblock(fd), expected)
    except SuperblockError as error:
        raise SuperblockError(f"{uri.path}: {error}") from error
