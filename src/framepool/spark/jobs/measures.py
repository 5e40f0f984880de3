"""What is measured of one frame, in plain numpy. Elements that are not finite are counted and left out of the rest."""

from __future__ import annotations

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
    row["mean"], row["std"] = float(kept.mean(dtype=np.float64)), float(kept.std(dtype=np.float64))
    limit = saturation_limit(array.dtype) if saturation is None else saturation
    row["saturated"] = 0 if limit is None else int(np.count_nonzero(kept >= limit))
    row["centroid"] = centroid(values if whole else np.where(finite, values, kept.min()))
    row["sharpness"] = sharpness(values)
    row["histogram"] = np.histogram(kept, bins, (low, high))[0].tolist()
    return row


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


def centroid(values: npt.NDArray[Any]) -> list[float] | None:
    """Where the light is, in elements along each axis, weighted by what is above the darkest; None if all are equal."""
    weights = values.astype(np.float64)
    weights -= weights.min()
    total = weights.sum()
    if not total > 0:
        return None
    axes = range(weights.ndim)
    found = []
    for axis in axes:
        along = weights.sum(axis=tuple(other for other in axes if other != axis))
        found.append(float(along @ np.arange(len(along)) / total))
    return found


def sharpness(values: npt.NDArray[Any]) -> float | None:
    """The mean square of the steps between neighbours along the last two axes; None if no element has one."""
    wide = values.astype(np.float64)
    total, count = 0.0, 0
    for axis in range(max(0, wide.ndim - 2), wide.ndim):
        steps = np.diff(wide, axis=axis)
        known = steps[np.isfinite(steps)]
        total, count = total + float(np.square(known).sum()), count + known.size
    return total / count if count else None
