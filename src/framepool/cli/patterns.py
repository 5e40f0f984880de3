"""Where the frames of `framepool publish` and `framepool demo` come from: synthetic patterns, or files.

Patterns have the 12 bits of a common camera, fewer where the type of a pixel has less room. Pictures and videos are
read with a library only where one is there; `.npy` needs none.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framepool.errors import TensorError
from framepool.wire.constants import MAX_DIMS
from framepool.wire.dtypes import from_numpy

Image = npt.NDArray[Any]
Pattern = Literal["gradient", "noise", "moving-spot", "counter"]
PixelType = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"
]  # fmt: skip

ROUND = 16
"""Frames after which a pattern starts again; fewer where they are large."""
LARGEST_ROUND = 2**27
"""Pixels of all of them together."""
BITS = 12
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"})
VIDEOS = frozenset({".mp4", ".avi", ".mkv", ".mov", ".webm"})


class BadSource(Exception):
    """What was given holds no frames; the message says why, in one line."""


def synthetic(pattern: Pattern, width: int, height: int, dtype: PixelType) -> Iterator[Image]:
    """Frames of a pattern without end."""
    if pattern == "counter":
        return counter(width, height, dtype)
    make = {"gradient": gradient, "noise": noise, "moving-spot": moving_spot}[pattern]
    count = max(1, min(ROUND, LARGEST_ROUND // (width * height)))
    return itertools.cycle([_as_pixels(image, dtype) for image in make(width, height, count)])


def gradient(width: int, height: int, count: int = ROUND) -> list[npt.NDArray[np.uint16]]:
    """A ramp from corner to corner that moves to the right."""
    ramp = np.add.outer(np.linspace(0, 0.5, height), np.linspace(0, 0.5, width)) * (2**BITS - 1)
    return [np.roll(ramp.astype(np.uint16), step * width // count, axis=1) for step in range(count)]


def noise(width: int, height: int, count: int = ROUND) -> list[npt.NDArray[np.uint16]]:
    """Random pixels, the same ones in every run."""
    random = np.random.default_rng(0)
    return [random.integers(0, 2**BITS, (height, width), np.uint16) for _ in range(count)]


def moving_spot(width: int, height: int, count: int = ROUND) -> list[npt.NDArray[np.uint16]]:
    """A bright spot that goes round on a gradient."""
    rows, columns = np.mgrid[0:height, 0:width]
    background = (rows + columns) % 1024
    images = []
    for angle in np.linspace(0, 2 * np.pi, count, endpoint=False):
        row, column = height * (0.5 + 0.3 * np.sin(angle)), width * (0.5 + 0.3 * np.cos(angle))
        spot = 3000 * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (0.002 * width * height))
        images.append((background + spot).astype(np.uint16))
    return images


def counter(width: int, height: int, dtype: PixelType) -> Iterator[Image]:
    """Every pixel of a frame is its number, from 0 on, as far as the type goes."""
    kind = np.dtype(dtype)
    numbers = 2**24 if kind.kind == "f" else int(np.iinfo(kind).max) + 1
    for number in itertools.count():
        yield np.full((height, width), number % numbers, kind)


def from_files(source: Path, *, loop: bool = False) -> Iterator[Image]:
    """The frames of a file, or of the `.npy` files of a directory, each one frame, in the order of their names.

    The first one is read before this returns: `BadSource` if there is none.
    """
    images = itertools.chain.from_iterable(_read(source) for _ in (itertools.count() if loop else range(1)))
    try:
        first = next(images)
    except StopIteration:
        raise BadSource(f"{source}: holds no frame") from None
    return itertools.chain([first], images)


def _read(source: Path) -> Iterator[Image]:
    if source.is_dir():
        paths = sorted(source.glob("*.npy"))
        if not paths:
            raise BadSource(f"{source}: no .npy file in this directory")
        yield from map(_load, paths)
    elif source.suffix.lower() == ".npy":
        stored = _load(source)
        yield from stored if stored.ndim >= 3 else [stored]
    elif source.suffix.lower() in PICTURES | VIDEOS:
        if not source.is_file():
            raise BadSource(f"{source}: no such file")
        yield from _decoded(source, video=source.suffix.lower() in VIDEOS)
    else:
        raise BadSource(f"{source}: frames come from a .npy file, a directory of them, a picture or a video")


def _as_pixels(image: npt.NDArray[np.uint16], dtype: PixelType) -> Image:
    kind = np.dtype(dtype)
    room = BITS if kind.kind == "f" else int(np.iinfo(kind).max).bit_length()
    return (image >> max(0, BITS - room)).astype(kind)


def _load(path: Path) -> Image:
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        from_numpy(stored.dtype)
    except OSError as error:
        raise BadSource(f"{path}: {error.strerror or 'cannot be read'}") from error
    except (ValueError, EOFError, AttributeError) as error:  # what numpy says of other files, and of archives
        raise BadSource(f"{path}: not a .npy file of plain numbers") from error
    except TensorError as error:
        raise BadSource(f"{path}: {error}") from error
    if stored.size == 0 or not 1 <= stored.ndim <= MAX_DIMS:
        raise BadSource(f"{path}: holds no frame: its shape is {stored.shape}")
    return np.asarray(stored)


def _decoded(path: Path, video: bool) -> Iterator[Image]:
    """The pictures of a file through imageio, or without it through Pillow, which reads no videos."""
    try:
        if (imageio := _library("imageio.v3")) is not None:
            yield from imageio.imiter(path)
        elif not video and (pillow := _library("PIL.Image")) is not None:
            with pillow.open(path) as picture:
                yield np.asarray(picture)
        else:
            needed = "imageio[pyav]" if video else "imageio or pillow"
            raise BadSource(f"{path}: a file of this kind needs the package {needed}: pip install it")
    except (OSError, ValueError, SyntaxError) as error:  # whatever a decoder says of a broken file
        said = str(error).splitlines() or [type(error).__name__]
        raise BadSource(f"{path}: cannot be decoded: {said[0]}") from error


def _library(name: str) -> Any:
    """A module that may not be installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
