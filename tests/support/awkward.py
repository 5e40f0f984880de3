"""A recording of frames that nobody's camera makes, with what each of them was."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framepool.recorder.account import Loss, Reason
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.shm.tensor import TensorLayout, pack_bits
from framepool.wire._generated.control_900 import Dtype

STREAM, OTHER = 10_000, 10_001
DTYPES = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", "?")


class Written(NamedTuple):
    """A frame as it was given to the recording; `array` is what a reader must see."""

    ordinal: int
    stream_id: int
    epoch: int
    seq: int
    timestamp_ns: int
    array: npt.NDArray[Any]


class Awkward(NamedTuple):
    path: Path
    frames: list[Written]

    def segment(self, number: int) -> Path:
        return self.path / "segments" / f"{number:08}.seg"

    def arrays(self) -> dict[int, npt.NDArray[Any]]:
        return {frame.ordinal: frame.array for frame in self.frames}


class Harmed(NamedTuple):
    """An awkward recording after an accident."""

    path: Path
    left: list[Written]
    """The frames that are still what was recorded."""
    indexed: list[Written]
    """Those of which the index still tells."""


def some_array(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        values = random.normal(100, 30, shape).astype(kind)
        if values.size > 2:
            values.flat[1] = np.nan
        return values
    if kind.kind == "b":
        return random.random(shape) > 0.5
    limits = np.iinfo(kind)
    values = random.integers(limits.min, limits.max, shape, kind, endpoint=True)
    if values.size:
        values.flat[0] = limits.max
    return values


def write_awkward(path: Path) -> Awkward:
    """Three segments: every type and odd shape; a second epoch with a gap of 3 and its loss; another stream."""
    random = np.random.default_rng(8)
    manifest = Manifest(path)
    info = manifest.create(time.time_ns())
    frames: list[Written] = []
    shapes = ((5,), (3, 7), (2, 3, 4), (1, 1), (0,), (4, 0), (16, 9))
    plans: list[list[tuple[int, int, int, str, tuple[int, ...]]]] = [
        [(STREAM, 1, seq, DTYPES[seq % len(DTYPES)], shapes[seq % len(shapes)]) for seq in range(24)],
        [(STREAM, 2, seq, "<u2", (13, 11)) for seq in (0, 1, 2, 6, 7)],
        [(OTHER, 1, seq, "<f4", (6, 5)) for seq in range(5)] + [(OTHER, 1, 5, "bit", (3, 5))],
    ]
    for number, plan in enumerate(plans):
        file = manifest.segments / f"{number:08}.seg"
        first = len(frames)
        with SegmentFile(
            file, info.recording_id, number=number, first_ordinal=first, host=info.host, boot_id=info.boot_id
        ) as segment:
            for stream, epoch, seq, dtype, shape in plan:
                stamp = 1_000_000 * len(frames) + 17 * (seq % 3)
                if dtype == "bit":
                    array = random.random(shape) > 0.5
                    layout = TensorLayout.build(Dtype.BIT, shape)
                    packed = pack_bits(array)
                    segment.add_raw(packed, layout.header, stream_id=stream, epoch=epoch, seq=seq, timestamp_ns=stamp)
                else:
                    array = some_array(random, dtype, shape)
                    if seq % 4 == 1:
                        array = np.asfortranarray(array)
                    segment.add(array, stream_id=stream, epoch=epoch, seq=seq, timestamp_ns=stamp)
                frames.append(Written(len(frames), stream, epoch, seq, stamp, array))
            if number == 1:
                segment.add_loss(Loss(stream_id=STREAM, epoch=2, first_seq=3, last_seq=5, reason=Reason.LAPPED))
        seal(manifest, segment.contents)
    return Awkward(path, frames)


def write_harmed(path: Path) -> Harmed:
    """A flipped bit in a frame of the first segment; the third one is cut off within its first frame, its index is no
    Parquet any more."""
    whole = write_awkward(path)
    flipped = next(each for each in whole.frames if each.array.nbytes > 100)
    place = Recording(path)[flipped.ordinal].reference
    with open(place.path, "r+b") as file:
        file.seek(place.offset + 5)
        byte = file.read(1)
        file.seek(place.offset + 5)
        file.write(bytes([byte[0] ^ 0x40]))
    os.truncate(whole.segment(2), 700)
    whole.segment(2).with_suffix(".frames.parquet").write_bytes(b"no Parquet at all")
    indexed = [each for each in whole.frames if each.stream_id == STREAM]
    return Harmed(path, [each for each in indexed if each is not flipped], indexed)
