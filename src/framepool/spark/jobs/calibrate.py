"""`framepool spark calibrate`: master dark and flat by sigma-clipped means, bad pixels, and frames corrected by them.

Means are gathered pixel by pixel in one pass a round, by a method that stays exact over any number of frames: tasks
keep count, mean and squared deviation, and those are put together pairwise. A round leaves out what was further than
`sigma` standard deviations from the mean of the round before; NaN and infinities never count.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from framepool.errors import RecordingError
from framepool.spark.frames import SparkFrame, frames_in, needed_columns
from framepool.spark.jobs.job import JobConfig, account, read, with_recording
from framepool.spark.jobs.outliers import MAD_TO_SIGMA
from framepool.spark.writing import write_recording

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Image = npt.NDArray[np.float64]


class CalibrateConfig(JobConfig, frozen=True, kw_only=True):
    """What `calibrate` is asked for."""

    dark: str
    """A recording of frames without light."""
    flat: str = ""
    """A recording of evenly lit frames; without it nothing is divided."""
    sigma: Annotated[float, msgspec.Meta(gt=0)] = 3.0
    """What is further from the mean, in standard deviations, is left out."""
    rounds: Annotated[int, msgspec.Meta(ge=0, le=100)] = 5
    """Of leaving out, at the most; it ends earlier when nothing changes."""
    bad_sigma: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    """Pixels of the master dark that are further from its median, in robust standard deviations, are bad."""
    flat_low: float = 0.5
    """Pixels with less response than this share of the median are bad."""
    flat_high: float = 2.0
    """Pixels with more response are bad."""


class Moments(msgspec.Struct):
    """Count, mean and summed squared deviation of each pixel."""

    count: npt.NDArray[np.int64]
    mean: Image
    squares: Image
    frames: int = 0

    @classmethod
    def zero(cls, shape: tuple[int, ...]) -> Moments:
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    def add(self, values: Image, wanted: npt.NDArray[np.bool_]) -> None:
        """One more frame, where wanted."""
        self.frames += 1
        self.count += wanted
        step = np.where(wanted, values - self.mean, 0.0)
        self.mean += step / np.maximum(self.count, 1)
        self.squares += step * np.where(wanted, values - self.mean, 0.0)

    def merge(self, other: Moments) -> None:
        """The frames of both."""
        count = self.count + other.count
        apart = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        self.mean += apart * share
        self.squares += other.squares + np.square(apart) * self.count * share
        self.count = count
        self.frames += other.frames

    @property
    def std(self) -> Image:
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    def dump(self) -> bytes:
        file = io.BytesIO()
        np.savez(file, count=self.count, mean=self.mean, squares=self.squares, frames=self.frames)
        return file.getvalue()

    @classmethod
    def load(cls, data: bytes) -> Moments:
        with np.load(io.BytesIO(data)) as stored:
            return cls(stored["count"], stored["mean"], stored["squares"], int(stored["frames"]))


def run(spark: SparkSession, config: CalibrateConfig) -> dict[str, Any]:
    """Writes `OUT/master_dark.npy`, `master_flat.npy`, `bad_pixels.npy` and the recording `OUT/calibrated`."""
    os.makedirs(config.out, exist_ok=True)
    target = config.table("calibrated")
    if os.path.exists(target):
        raise RecordingError(f"{target} is there already: name another OUT")
    dark, used = clipped_mean(read(spark, with_recording(config, config.dark)), config)
    flat = np.ones_like(dark)
    if config.flat:
        lit, lit_used = clipped_mean(read(spark, with_recording(config, config.flat)), config)
        flat, used = (lit - dark) / median(lit - dark), used + lit_used
    bad = bad_pixels(dark, flat, config)
    for name, array in (("master_dark", dark), ("master_flat", flat), ("bad_pixels", bad)):
        np.save(config.table(f"{name}.npy"), array)
    made = write_recording(read(spark, config), target, Corrected(config.table("")), strict=config.strict)
    sources = [config.recording, config.dark, *([config.flat] if config.flat else [])]
    problems = account(spark, config, made + used, *sources)
    return {"frames": made, "bad_pixels": int(bad.sum()), "problems": problems, "recording": target}


def clipped_mean(frames: DataFrame, config: CalibrateConfig) -> tuple[Image, int]:
    """The mean of each pixel without outliers, NaN where a pixel has no value; and of how many frames."""
    found = gather(frames, None, None, config.strict)
    for _ in range(config.rounds):
        reach = config.sigma * found.std
        again = gather(frames, found.mean - reach, found.mean + reach, config.strict)
        same = np.array_equal(again.count, found.count)
        found = again
        if same:
            break
    return np.where(found.count > 0, found.mean, np.nan), found.frames


def gather(frames: DataFrame, low: Image | None, high: Image | None, strict: bool) -> Moments:
    """One pass over all frames, in executors."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        moments: Moments | None = None
        for frame in frames_in(batches, strict=strict):
            values = frame.array.astype(np.float64)
            moments = Moments.zero(values.shape) if moments is None else moments
            _check_shape(moments.mean.shape, values.shape)
            wanted = np.isfinite(values)
            if low is not None and high is not None:
                _check_shape(low.shape, values.shape)
                wanted &= (values >= low) & (values <= high)
            moments.add(np.where(wanted, values, 0.0), wanted)
        if moments is not None:
            yield pa.RecordBatch.from_pydict({"moments": pa.array([moments.dump()], pa.binary())})

    total: Moments | None = None
    for row in frames.select(*needed_columns(frames.columns)).mapInArrow(task, "moments binary").toLocalIterator():
        part = Moments.load(bytes(row["moments"]))
        if total is None:
            total = part
        else:
            _check_shape(total.mean.shape, part.mean.shape)
            total.merge(part)
    if total is None:
        raise RecordingError("there are no frames to calibrate with")
    return total


def median(image: Image) -> float:
    """Of the pixels that have a value; NaN if none has."""
    known = image[np.isfinite(image)]
    return float(np.median(known)) if known.size else math.nan


def bad_pixels(dark: Image, flat: Image, config: CalibrateConfig) -> npt.NDArray[np.bool_]:
    """Pixels that are too bright in the dark, too dim or too bright in even light, or without a value."""
    middle = median(dark)
    spread = MAD_TO_SIGMA * median(np.abs(dark - middle))
    wild = np.abs(dark - middle) > config.bad_sigma * spread if spread > 0 else dark != middle
    known = np.isfinite(dark) & np.isfinite(flat)
    bad: npt.NDArray[np.bool_] = ~known | wild | (flat < config.flat_low) | (flat > config.flat_high)
    return bad


class Corrected:
    """Corrects frames in executors: without dark, even in response, NaN where a pixel is bad; float32."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._masters: tuple[Image, Image, npt.NDArray[np.bool_]] | None = None

    def __call__(self, frame: SparkFrame) -> npt.NDArray[np.float32]:
        if self._masters is None:
            names = ("master_dark", "master_flat", "bad_pixels")
            dark, flat, bad = (np.load(os.path.join(self._directory, f"{name}.npy")) for name in names)
            self._masters = dark, flat, bad
        dark, flat, bad = self._masters
        values = frame.array
        _check_shape(dark.shape, values.shape)
        usable = np.where(bad, 1.0, flat)
        return np.where(bad, np.nan, (values - dark) / usable).astype(np.float32)


def _check_shape(known: tuple[int, ...], given: tuple[int, ...]) -> None:
    if known != given:
        raise RecordingError(f"frames of shapes {known} and {given} cannot be calibrated together: choose a stream")
