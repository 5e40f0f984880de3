"""`framepool spark qos`: how well frames arrived, per stream, epoch and window of time, from the index alone.

Latency is from the producer's timestamp to the moment of recording, by the clock that the producer stamps with; the
interval is between a frame and the one before it in its epoch, and jitter how far that is from the median of the
window. Frames that are missing within an epoch are counted as gaps, and those that the loss table explains as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from framepool.spark.jobs.job import JobConfig, account, read, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NANOS: Final = 1_000_000_000


class QosConfig(JobConfig, frozen=True, kw_only=True):
    """What `qos` is asked for."""

    window_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """The length of a window; the first begins with 1970."""
    clock: Literal["monotonic", "realtime"] = "monotonic"
    """With which clock producers stamp frames: that of their host since boot, or the time of day."""


def run(spark: SparkSession, config: QosConfig) -> dict[str, Any]:
    """Writes `OUT/qos`, and says how many windows, frames, losses and problems there are."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    width = int(config.window_seconds * NANOS)
    began = fn.expr(f"recorded_ns div {width} * {width}").alias("window_ns")
    received = "monotonic_ns" if config.clock == "monotonic" else "recorded_ns"
    before = Window.partitionBy("stream_id", "epoch").orderBy("seq")
    keys = ("stream_id", "epoch", "window_ns")
    each = read(spark, config, "none").select(
        *("stream_id", "epoch", "seq", "recorded_ns", "raw_length", began),
        (fn.col(received) - fn.col("timestamp_ns")).alias("latency_ns"),
        (fn.col("timestamp_ns") - fn.lag("timestamp_ns").over(before)).alias("interval_ns"),
        (fn.col("seq") - fn.lag("seq").over(before) - 1).alias("missing"),
    )
    middle = fn.percentile("interval_ns", 0.5).over(Window.partitionBy(*keys))
    spread = each.withColumn("jitter_ns", fn.abs(fn.col("interval_ns") - middle))
    figures = [
        fn.percentile(f"{what}_ns", share).alias(f"{what}_{name}_ns")
        for what in ("latency", "interval", "jitter")
        for name, share in PERCENTILES.items()
    ]
    windows = spread.groupBy(*keys).agg(
        fn.count("*").alias("frames"),
        fn.sum("raw_length").alias("bytes"),
        fn.min("seq").alias("first_seq"),
        fn.max("seq").alias("last_seq"),
        fn.coalesce(fn.sum("missing"), fn.lit(0)).alias("gaps"),
        *figures,
    )
    losses = (
        read(spark, config, table="losses")
        .select("stream_id", "epoch", began, "frames")
        .groupBy(*keys)
        .agg(fn.sum("frames").alias("lost"))
    )
    both = windows.join(losses, list(keys), "full").fillna(0, ["frames", "bytes", "gaps", "lost"])
    write(both, config.table("qos"), "window_ns")
    made = spark.read.parquet(config.table("qos"))
    rows, frames, lost = made.agg(fn.count("*"), fn.sum("frames"), fn.sum("lost")).collect()[0]
    found = {"windows": rows, "frames": frames or 0, "lost": lost or 0}
    return {**found, "problems": account(spark, config, found["frames"]), "table": config.table("qos")}
