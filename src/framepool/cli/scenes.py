"""What the sources of `framepool demo` see: a star field through moving air, a test chart, and noise that is read out.

Each scene draws straight into a slot of shared memory, so that nothing is copied, and is the same in every run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[Any]

SKY = 96
"""The level of the night sky, in counts of a 12-bit camera."""
BRIGHTEST = 3_700
STAMP = 13
WIDTHS = 6
BARS = np.array(
    [(235, 235, 235), (235, 200, 40), (60, 200, 210), (70, 190, 90), (190, 80, 190), (210, 70, 60), (60, 90, 200)]
)


class StarField:
    """Stars that tremble and blur as the air moves, on a noisy sky; the whole field drifts with the telescope."""

    dtype = np.dtype(np.uint16)

    def __init__(self, width: int, height: int, stars: int = 140) -> None:
        self.shape = (height, width)
        random = np.random.default_rng(2)
        noise = random.normal(SKY, 7, (height + 64, width + 64)).clip(0)
        self._sky = noise.astype(np.uint16)
        self._offsets = random.integers(0, 64, (4096, 2))
        self._rows = random.uniform(0, height, stars)
        self._columns = random.uniform(0, width, stars)
        magnitudes = random.uniform(0, 1, stars) ** 5
        levels = 80 + magnitudes * BRIGHTEST
        self._phases = random.uniform(0, 2 * np.pi, (stars, 3))
        spots = [_spot(width) / width for width in np.linspace(1.0, 2.3, WIDTHS)]
        self._stamps = [[(level * spot).astype(np.uint16) for spot in spots] for level in levels]

    def draw(self, number: int, image: Image) -> None:
        """The frame of that number."""
        height, width = self.shape
        top, left = self._offsets[number % len(self._offsets)]
        np.copyto(image, self._sky[top : top + height, left : left + width])
        time = number / 120
        tip, tilt = 3.0 * np.sin(1.7 * time) + 1.2 * np.sin(7.1 * time), 3.0 * np.cos(1.3 * time)
        shimmer = np.sin(self._phases[:, 0] + 11 * time) + np.sin(self._phases[:, 1] + 17 * time)
        rows = (self._rows + tip + 0.8 * shimmer) % height
        columns = (self._columns + tilt + 2.0 * time + 0.8 * np.cos(self._phases[:, 2] + 13 * time)) % width
        seeing = ((shimmer + 2) / 4 * (WIDTHS - 1)).astype(int)
        half = STAMP // 2
        for stamps, row, column, blur in zip(
            self._stamps, rows.astype(int).tolist(), columns.astype(int).tolist(), seeing.tolist(), strict=True
        ):
            top, left = max(row - half, 0), max(column - half, 0)
            part = image[top : row + half + 1, left : column + half + 1]
            part += stamps[blur][top - row + half :, left - column + half :][: part.shape[0], : part.shape[1]]


class Chart:
    """A test chart in colour: bars, a star of Siemens, rings, and a line that sweeps over them."""

    dtype = np.dtype(np.uint8)

    def __init__(self, width: int, height: int) -> None:
        self.shape = (height, width, 3)
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        base = np.zeros(self.shape, np.uint8)
        base[:] = BARS[np.minimum(columns * len(BARS) // width, len(BARS) - 1).astype(int)]
        lower = rows > 0.66 * height
        base[lower] = (255 * columns / width)[..., None].astype(np.uint8)[lower]
        y, x = rows - 0.5 * height, columns - 0.5 * width
        radius, angle = np.hypot(x, y), np.arctan2(y, x)
        disc = radius < 0.34 * height
        base[disc] = np.where(np.sin(36 * angle) > 0, 245, 12)[..., None].astype(np.uint8).repeat(3, axis=2)[disc]
        ring = (radius >= 0.34 * height) & (radius < 0.37 * height)
        base[ring] = 20
        self._base = base

    def draw(self, number: int, image: Image) -> None:
        """The frame of that number."""
        height, width, _ = self.shape
        np.copyto(image, self._base)
        sweep = number * 5 % width
        image[:, max(0, sweep - 2) : sweep + 3] = (255, 255, 255)
        row, column = int(height * (0.83 + 0.11 * np.sin(number / 17))), int(width * (0.5 + 0.42 * np.cos(number / 23)))
        image[max(0, row - 9) : row + 9, max(0, column - 9) : column + 9] = (240, 60, 50)


class Noise:
    """A detector that is read out row by row: noise with a slow wave in it, in electrons."""

    dtype = np.dtype(np.float32)

    def __init__(self, width: int, height: int) -> None:
        self.shape = (height, width)
        random = np.random.default_rng(3)
        self._noise = random.normal(0, 1, (height + 128, width)).astype(np.float32)
        self._offsets = random.integers(0, 128, 1024)
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        self._distance = np.hypot(rows - height / 2, columns - width / 2) / max(width, height) * 40

    def rows(self, number: int, first: int, last: int) -> Image:
        """These rows of the frame of that number."""
        start = int(self._offsets[number % len(self._offsets)])
        noise = self._noise[start + first : start + last]
        wave: Image = noise + 1.6 * np.sin(self._distance[first:last] - number / 3)
        return wave


def _spot(width: float) -> Image:
    """The picture of a star, with its brightest point at 1."""
    rows, columns = np.mgrid[0:STAMP, 0:STAMP] - STAMP // 2
    spot: Image = np.exp(-(rows**2 + columns**2) / (2 * width**2)).astype(np.float32)
    return spot
