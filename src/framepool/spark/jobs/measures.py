"""What is measured of one frame, in plain numpy. Elements that are not finite are counted and left out of the rest."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FULL_RANGE_BITS: Final = 16
"""Histograms of integers up to here go over all values of their type, so that those of many frames can be added."""


def measure(array: npt.NDArray[Any], bins: int, saturation: float | None = None) -> dict[str, Any]:
    """One row of the table `stats` (`docs/spark.md`). Of a frame without finite elements most is None."""
    values = array.view(np.uint8) if array.dtype == np.bool_ else array
    finite = np.isfinite(values)
    whole = bool(finite.all())
    kept = values.reshape(-1) if whole else values[finite]
    low, high = histogram_range(values.dtype, kept, bins)
    row: dict[str, Any] = {
        "elements": values.size,
        "not_finite": values.size - kept.size,
        "minimum": None,
        "maximum": None,
        "mean": None,
        "std": None,
        "saturated": 0,
        "centroid": None,
        "sharpness": None,
        "histogram": [0] * bins,
        "histogram_low": low,
        "histogram_high": high,
    }
    if not kept.size:
        return row
    row["minimum"], row["maximum"] = float(kept.min()), float(kept.max())
    row["mean"], row["std"] = mean_and_std(kept)
    limit = saturation_limit(array.dtype) if saturation is None else saturation
    row["saturated"] = 0 if limit is None else int(np.count_nonzero(kept >= limit))
    row["centroid"] = centroid(values if whole else np.where(finite, values, kept.min()))
    row["sharpness"] = sharpness(values, whole=whole)
    row["histogram"] = histogram(kept, bins, low, high).tolist()
    return row


def mean_and_std(kept: npt.NDArray[Any]) -> tuple[float, float]:
    mean = float(kept.mean(dtype=np.float64))
    apart = scratch("steps", kept.shape)
    np.subtract(kept, mean, out=apart, dtype=np.float64)
    return mean, math.sqrt(float(np.square(apart, out=apart).mean()))


def saturation_limit(dtype: np.dtype[Any]) -> int | None:
    """The highest value of an integer type; others do not saturate."""
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else None


def histogram_range(dtype: np.dtype[Any], kept: npt.NDArray[Any], bins: int) -> tuple[float, float]:
    """From where to where a histogram goes."""
    if dtype.kind in "iu" and dtype.itemsize * 8 <= FULL_RANGE_BITS:
        limits = np.iinfo(dtype)
        return float(limits.min), float(limits.max) + 1
    if not kept.size:
        return 0.0, 1.0
    low, high = float(kept.min()), float(kept.max())
    # Equal values, or large ones so close that floating point has no edges between them, get some room.
    narrowest = bins * 4 * float(np.spacing(max(abs(low), abs(high))))
    if high - low > narrowest:
        return low, high
    room = max(0.5, narrowest)
    return low - room, high + room


def histogram(kept: npt.NDArray[Any], bins: int, low: float, high: float) -> npt.NDArray[Any]:
    """Elements in each of so many steps; of many elements of a small type, those with one value are counted first."""
    if kept.dtype.kind not in "iu" or kept.dtype.itemsize * 8 > FULL_RANGE_BITS or kept.size < int(high - low):
        return np.asarray(np.histogram(kept, bins, (low, high))[0])
    unsigned = kept.view(f"u{kept.dtype.itemsize}")  # negative numbers come behind the others
    counts = np.bincount(unsigned, minlength=int(high - low))
    values = np.arange(len(counts)).astype(unsigned.dtype).view(kept.dtype)
    return np.asarray(np.histogram(values, bins, (low, high), weights=counts)[0].astype(np.int64))


def centroid(values: npt.NDArray[Any]) -> list[float] | None:
    """Where the light is, in elements along each axis, weighted by what is above the darkest; None if all are equal."""
    weights = scratch("wide", values.shape)
    np.subtract(values, float(values.min()), out=weights, dtype=np.float64)
    total = weights.sum()
    if not total > 0:
        return None
    axes = range(weights.ndim)
    found = []
    for axis in axes:
        along = weights.sum(axis=tuple(other for other in axes if other != axis))
        found.append(float(along @ np.arange(len(along)) / total))
    return found


def sharpness(values: npt.NDArray[Any], *, whole: bool = False) -> float | None:
    """The mean square of the steps between neighbours along the last two axes; None if no element has one. `whole` says
    that all elements are finite."""
    wide = scratch("wide", values.shape)
    np.copyto(wide, values)
    total, count = 0.0, 0
    for axis in range(max(0, wide.ndim - 2), wide.ndim):
        if not wide.shape[axis]:
            continue
        before = (slice(None),) * axis
        steps = scratch("steps", (*wide.shape[:axis], wide.shape[axis] - 1, *wide.shape[axis + 1 :]))
        np.subtract(wide[(*before, slice(1, None))], wide[(*before, slice(None, -1))], out=steps)
        known = steps if whole else steps[np.isfinite(steps)]
        total, count = total + float(np.square(known, out=known).sum()), count + known.size
    return total / count if count else None


_scratch: dict[str, npt.NDArray[np.float64]] = {}


def scratch(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Room for a frame as floating point, the same for the next one: fresh pages cost more than the arithmetic."""
    size = math.prod(shape)
    room = _scratch.get(name)
    if room is None or room.size < size:
        room = _scratch[name] = np.empty(size, np.float64)
    return room[:size].reshape(shape)
