"""From a frame to a picture that a page can draw: the part that is wanted, thinned out, with what it was.

A page gets the values themselves, not colours: contrast, colour map, histogram and pixel read-out are made there. What
is thinned out is averaged over up to nine points of each cell, not over all of them, so that a preview touches little
of a large frame. Pure functions; an image may be in shared memory and be overwritten meanwhile, its reader checks.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

POINTS: Final = 3
"""Samples of a cell along each axis."""
HEADER_LENGTH: Final = struct.Struct("<I")
ALIGNMENT: Final = 8
LARGEST_SIDE: Final = 2**31
COLOURS: Final = (3, 4)

Array = npt.NDArray[Any]


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rectangle of a frame, in its pixels."""

    x: int
    y: int
    width: int
    height: int


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a page wants to see of a stream: how large, and which part; no part is the whole."""

    size: int = 192
    region: Region | None = None


class Picture(msgspec.Struct, frozen=True):
    """The values of a part of a frame, one for each cell, and the rectangle that they stand for."""

    values: Array
    """Two-dimensional, or three-dimensional with three colours; uint8, uint16 or float32."""
    region: Region
    step: int
    """Pixels of the frame to a cell, along each axis."""


def picture(image: Array, wish: Wish) -> Picture:
    """The part of an image that is wished for, no larger than wished for."""
    flat = plane(image)
    region = clipped(wish.region, flat.shape[1], flat.shape[0])
    part = flat[region.y : region.y + region.height, region.x : region.x + region.width]
    step = max(1, -(-max(region.width, region.height) // max(1, wish.size)))
    return Picture(values=drawable(thinned(part, step)), region=region, step=step)


def plane(image: Array) -> Array:
    """Rows and columns of an image, in place, with three colours where it has them as unsigned numbers of 8 or 16 bits;
    of other colours the first, of a stack the first plane."""
    if image.ndim < 2:
        return image.reshape(1, -1)
    if image.ndim == 3 and image.shape[2] in (1, *COLOURS):
        coloured = image.shape[2] > 1 and image.dtype.kind == "u" and image.dtype.itemsize <= 2
        return image[:, :, :3] if coloured else image[:, :, 0]
    while image.ndim > 2:
        image = image[0]
    return image


def clipped(region: Region | None, width: int, height: int) -> Region:
    """The rectangle inside an image of that size; at least a pixel of it."""
    if region is None:
        return Region(0, 0, width, height)
    x = min(max(region.x, 0), max(width - 1, 0))
    y = min(max(region.y, 0), max(height - 1, 0))
    return Region(x, y, max(1, min(region.width, width - x)), max(1, min(region.height, height - y)))


def thinned(part: Array, step: int) -> Array:
    """One value for each cell of `step` pixels along each axis: the mean of a few of its points."""
    if step == 1 or 0 in part.shape:
        return part.copy()
    rows, columns = max(1, part.shape[0] // step), max(1, part.shape[1] // step)
    down, across = _offsets(min(step, part.shape[0])), _offsets(min(step, part.shape[1]))
    points = [part[y::step, x::step][:rows, :columns] for y in down for x in across]
    if part.dtype.kind == "u" and part.dtype.itemsize <= 2:
        whole = np.zeros(points[0].shape, np.uint32)
        for point in points:
            whole += point
        return (whole // len(points)).astype(part.dtype)
    total = np.zeros(points[0].shape, np.float32)
    for point in points:
        total += point
    return total / np.float32(len(points))


def drawable(values: Array) -> Array:
    """As one of the three types that a page knows; colours have 8 bits."""
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.ndim == 3:
        return values if values.dtype.itemsize == 1 else (values >> 8).astype(np.uint8)
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return values
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def encoded(found: Picture, **about: Any) -> bytes:
    """The length of a JSON header, the header, padding, the values in little-endian order, padding. A binary message is
    one or several of these, one after the other."""
    values = np.ascontiguousarray(found.values).astype(found.values.dtype.newbyteorder("<"), copy=False)
    header = {
        **about,
        "region": msgspec.to_builtins(found.region),
        "step": found.step,
        "rows": values.shape[0],
        "columns": values.shape[1],
        "colours": values.shape[2] if values.ndim == 3 else 1,
        "type": values.dtype.name,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(HEADER_LENGTH.size + len(text)) % ALIGNMENT)
    return HEADER_LENGTH.pack(len(text)) + text + values.tobytes() + bytes(-values.nbytes % ALIGNMENT)


def decoded(message: bytes) -> list[tuple[dict[str, Any], Array]]:
    """The pictures of a message, as the page reads it: for programs and tests."""
    found, at = [], 0
    while at < len(message):
        (length,) = HEADER_LENGTH.unpack_from(message, at)
        at += HEADER_LENGTH.size
        header = json.loads(message[at : at + length])
        at += length
        shape = (header["rows"], header["columns"], header["colours"])
        values = np.frombuffer(message, np.dtype(header["type"]).newbyteorder("<"), math.prod(shape), offset=at)
        at += values.nbytes + -values.nbytes % ALIGNMENT
        found.append((header, values.reshape(shape if header["colours"] > 1 else shape[:2])))
    return found


def _offsets(step: int) -> list[int]:
    """A few points of a cell, evenly spread."""
    points = min(step, POINTS)
    return [(2 * point + 1) * step // (2 * points) for point in range(points)]
