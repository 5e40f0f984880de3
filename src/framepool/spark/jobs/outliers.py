"""What is unusual in a series of figures, by medians: one wild value does not hide the next. Pure; no Spark.

A value is measured against the values of the frames before it, in robust standard deviations: the median absolute
deviation from the median, or, where more than half of the values are equal, the mean absolute deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

MAD_TO_SIGMA: Final = 1.4826
MEAN_TO_SIGMA: Final = 1.2533
"""The standard deviation of normal noise is so many median, or mean, absolute deviations."""


class Outlier(msgspec.Struct, frozen=True):
    """A figure that is far from those before it."""

    measure: str
    value: float
    median: float
    sigma: float
    score: float
    """Its distance in robust standard deviations; infinite if all values before were equal."""


class Detector:
    """Follows the figures of one stream."""

    def __init__(
        self, window: int, least: int, threshold: float, before: Mapping[str, list[float]] | None = None
    ) -> None:
        self._window = window
        self._least = least
        self._threshold = threshold
        self.history: dict[str, list[float]] = {name: list(values) for name, values in (before or {}).items()}

    def feed(self, figures: Mapping[str, Any]) -> list[Outlier]:
        """The outliers among the figures of a frame; those that are missing or not finite are passed over."""
        found = []
        for measure, given in figures.items():
            if given is None or not math.isfinite(given):
                continue
            value, before = float(given), self.history.setdefault(measure, [])
            if len(before) >= self._least and (outlier := self._judge(measure, value, before)) is not None:
                found.append(outlier)
            before.append(value)
            del before[: -self._window]
        return found

    def _judge(self, measure: str, value: float, before: list[float]) -> Outlier | None:
        values = np.array(before)
        median = float(np.median(values))
        apart = np.abs(values - median)
        sigma = MAD_TO_SIGMA * float(np.median(apart)) or MEAN_TO_SIGMA * float(apart.mean())
        distance = abs(value - median)
        score = distance / sigma if sigma else math.inf if distance else 0.0
        return Outlier(measure, value, median, sigma, score) if score > self._threshold else None
