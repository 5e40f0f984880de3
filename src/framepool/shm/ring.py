"""The header ring: 256 bytes a slot behind a superblock, each led by its `seq_commit` word (Wire 8.1, 8.3).

This is the readable model. Its loads and stores of `seq_commit` are single aligned 8-byte accesses in program
order and carry no fences: enough to say what the rules are and to test them, not to run beside another process on
a machine with weak ordering. The compiled twin in `_native.seqlock` has the acquire and release of Wire 15.3.
"""

from __future__ import annotations

from collections.abc import Buffer
from typing import Final

from framepool.errors import RegionError, RegionSizeError
from framepool.shm.layout import is_power_of_two
from framepool.wire.constants import HEADER_SLOT_BYTES, SUPERBLOCK_SIZE

MAX_SEQUENCE: Final = 2**63 - 1


def in_progress(seq: int) -> int:
    """`seq_commit` while frame `seq` is being written (Wire 8.3)."""
    return seq << 1


def committed(seq: int) -> int:
    """`seq_commit` once frame `seq` is whole (Wire 8.3)."""
    return (seq << 1) | 1


def is_committed(word: int) -> bool:
    """The commit bit (Wire 8.3)."""
    return bool(word & 1)


def sequence(word: int) -> int:
    """The logical sequence in a `seq_commit` word (Wire 8.3)."""
    return word >> 1


def check_nslots(nslots: int) -> None:
    """RegionError unless `nslots` is a power of two that its u32 field holds (Wire 3)."""
    if not is_power_of_two(nslots) or nslots > 2**31:
        raise RegionError(f"{nslots} slots: a ring and its pools have a power of two of them")


class HeaderRing:
    """`nslots` header slots in `buffer`, which starts with the superblock; writable if the buffer is."""

    def __init__(self, buffer: Buffer, nslots: int) -> None:
        check_nslots(nslots)
        view = memoryview(buffer).cast("B")
        needed = SUPERBLOCK_SIZE + nslots * HEADER_SLOT_BYTES
        if view.nbytes < needed:
            raise RegionSizeError(f"a ring of {nslots} slots needs {needed} bytes, not {view.nbytes}")
        self.nslots = nslots
        self._bytes = view[:needed]
        self._words = self._bytes.cast("Q")

    def index(self, seq: int) -> int:
        """The slot of frame `seq` (Wire 10.2.1)."""
        return seq & (self.nslots - 1)

    def offset(self, index: int) -> int:
        """Where slot `index` starts in the file (Wire 8.1)."""
        return SUPERBLOCK_SIZE + index * HEADER_SLOT_BYTES

    def word(self, index: int) -> int:
        """`seq_commit` of a slot."""
        return int(self._words[self.offset(index) // 8])

    def store(self, index: int, word: int) -> None:
        """Sets `seq_commit` of a slot."""
        self._words[self.offset(index) // 8] = word

    def slot(self, index: int) -> memoryview:
        """The 256 bytes of a slot, in place."""
        offset = self.offset(index)
        return self._bytes[offset : offset + HEADER_SLOT_BYTES]
