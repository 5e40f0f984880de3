"""The files, frames and counters of the torn-read test, shared by its producer, its consumer and the test.

A frame is a vector of bytes: the CRC-32 of the rest, the sequence, the size, and noise that differs from frame to
frame. A reader that mixes two frames, or takes one for another, sees it.
"""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from collections.abc import Buffer
from dataclasses import dataclass
from pathlib import Path

from framepool._native.seqlock import RingReader
from framepool.shm.pool import Pool

NSLOTS = 4
STRIDES = (1024, 16384)
HEAD = struct.Struct("<IQI")
BODY = struct.Struct("<QI")
SIZES = (64, 100, 255, 512, 1000, 1024, 1025, 1500, 2048, 4096, 6000, 8192, 12000, 16384)
VARIANTS = 97
"""Coprime to the ring: the frames that follow each other in one slot are of different noise and size."""


@dataclass(frozen=True, slots=True)
class Files:
    """The ring and its pools in plain files, as two processes share them."""

    header: mmap.mmap
    pools: list[Pool]


def create(base: Path) -> None:
    """Makes the files, all zero."""
    (base / "header").write_bytes(bytes(64 + 256 * NSLOTS))
    for stride in STRIDES:
        (base / f"{stride}.pool").write_bytes(bytes(64 + stride * NSLOTS))


def attach(base: Path, *, writable: bool) -> Files:
    """Maps the files, read-only for a consumer."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ

    def mapped(name: str) -> mmap.mmap:
        with (base / name).open("r+b" if writable else "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=access)

    pools = [Pool(i, stride, NSLOTS, mapped(f"{stride}.pool")) for i, stride in enumerate(STRIDES, 1)]
    return Files(mapped("header"), pools)


def templates() -> list[bytearray]:
    """Frames of noise of all sizes, to be stamped before they are sent."""
    noise = random.Random(20261115)
    return [bytearray(noise.randbytes(SIZES[i % len(SIZES)])) for i in range(VARIANTS)]


def stamp(frame: bytearray, seq: int) -> None:
    """Puts sequence, size and checksum in front."""
    BODY.pack_into(frame, 4, seq, len(frame))
    frame[:4] = zlib.crc32(memoryview(frame)[4:]).to_bytes(4, "little")


def verdict(frame: Buffer, seq: int) -> str:
    """Whether the bytes are exactly the frame that was sent as `seq`, another one, or none that was ever sent."""
    view = memoryview(frame).cast("B")
    crc, stamped, size = HEAD.unpack_from(view)
    if size != view.nbytes or crc != zlib.crc32(view[4:]):
        return "torn"
    return "accepted" if stamped == seq else "mistaken"


def newest(ring: RingReader) -> int:
    """The highest committed sequence in the ring, -1 if there is none: what a descriptor would say."""
    return max((word >> 1 for word in map(ring.word, range(NSLOTS)) if word & 1), default=-1)
