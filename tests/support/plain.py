"""The jobs' results by other means: plain loops and textbook formulas, for comparison."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import numpy.typing as npt


def plain_measures(array: npt.NDArray[Any], bins: int) -> dict[str, Any]:
    """What `stats` should say of a frame, element by element in Python's own numbers."""
    elements = [(place, value) for place, value in np.ndenumerate(array)]
    numbers = [(place, float(value)) for place, value in elements if math.isfinite(value)]
    values = [value for _, value in numbers]
    top = float(np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else math.inf
    found: dict[str, Any] = {
        "elements": len(elements),
        "not_finite": len(elements) - len(values),
        "saturated": sum(value >= top for value in values),
        "minimum": min(values, default=None),
        "maximum": max(values, default=None),
        "mean": None,
        "std": None,
        "centroid": None,
        "sharpness": None,
        "histogram": [0] * bins,
    }
    if not values:
        return found
    mean = math.fsum(values) / len(values)
    found["mean"] = mean
    found["std"] = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    dark = min(values)
    weight = math.fsum(value - dark for value in values)
    if weight > 0:
        found["centroid"] = [
            math.fsum((value - dark) * place[axis] for place, value in numbers) / weight for axis in range(array.ndim)
        ]
    at = dict(numbers)
    squares = []
    for place, value in numbers:
        for axis in range(max(0, array.ndim - 2), array.ndim):
            after = tuple(each + (number == axis) for number, each in enumerate(place))
            if after in at:
                squares.append((at[after] - value) ** 2)
    found["sharpness"] = math.fsum(squares) / len(squares) if squares else None
    found["histogram"] = histogram(array, values, bins)
    return found


def histogram(array: npt.NDArray[Any], values: list[float], bins: int) -> list[int] | None:
    """Counts over all values of a small integer type; None where the frame itself sets the edges."""
    kind = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype
    if kind.kind not in "iu" or kind.itemsize > 2:
        return None
    limits = np.iinfo(kind)
    counts = [0] * bins
    for value in values:
        counts[int((value - limits.min) * bins // (int(limits.max) - int(limits.min) + 1))] += 1
    return counts


def plain_outliers(
    before: list[float], value: float, *, least: int, threshold: float
) -> tuple[float, float, float] | None:
    """Median, sigma and score of a value that is further from those before it than so many robust deviations."""
    if len(before) < least:
        return None
    median = statistics.median(before)
    deviations = [abs(each - median) for each in before]
    sigma = 1.4826 * statistics.median(deviations) or 1.2533 * statistics.fmean(deviations)
    score = abs(value - median) / sigma if sigma else math.inf if value != median else 0.0
    return (median, sigma, score) if score > threshold else None


def same(told: Any, expected: Any) -> bool:
    """Whether two results are equal within the rounding of sums."""
    if expected is None or told is None:
        return told is None and expected is None
    return bool(np.allclose(told, expected, rtol=1e-9, atol=1e-9))
