"""`framepool spark stats`: statistics of each frame, computed where the segments lie.

A frame that cannot be read has a row in the table `problems` instead, unless the job is strict.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from framepool.spark.frames import map_frames
from framepool.spark.jobs.job import JobConfig, account, read, write
from framepool.spark.jobs.measures import measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS: Final = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns", "dtype", "shape")
MEASURES: Final = (
    "elements bigint, not_finite bigint, minimum double, maximum double, mean double, std double, saturated bigint, "
    "centroid array<double>, sharpness double, histogram array<bigint>, histogram_low double, histogram_high double"
)


class StatsConfig(JobConfig, frozen=True, kw_only=True):
    """What `stats` is asked for."""

    bins: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 32
    """Of each histogram."""
    saturation: float | None = None
    """Elements from this value on count as saturated; without it, those with the highest value of an integer type."""


def measured(frames: DataFrame, config: StatsConfig) -> DataFrame:
    """One row of statistics a frame."""
    fn = partial(measure, bins=config.bins, saturation=config.saturation)
    return map_frames(frames, fn, MEASURES, keys=KEYS, strict=config.strict)


def run(spark: SparkSession, config: StatsConfig) -> dict[str, Any]:
    """Writes `OUT/stats` and `OUT/problems`, and says how many rows they have."""
    write(measured(read(spark, config), config), config.table("stats"))
    made = spark.read.parquet(config.table("stats")).count()
    return {"frames": made, "problems": account(spark, config, made), "table": config.table("stats")}
