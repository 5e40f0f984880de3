"""`framepool spark join`: which frames of several streams belong together, from the index alone.

The first stream leads. Each of its frames has one row for each other stream, with the frame that belongs to it or with
nulls. By sequence and by trace, several frames may fit, as with the same sequence in another epoch: then it is the one
that was recorded nearest, and of two that are equally near the earlier one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder.recording import Recording
from framepool.spark.jobs.job import JobConfig, account, read, write
from framepool.wire._generated.trace_904 import TraceLinkSet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

MINE: Final = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns", "trace_id")
THEIRS: Final = tuple(f"other_{name}" for name in MINE)
By = Literal["seq", "time", "trace"]


class JoinConfig(JobConfig, frozen=True, kw_only=True):
    """What `join` is asked for. `stream` has two ids or more; the first one leads."""

    by: By = "seq"
    """Equal sequence; nearest timestamp; or equal trace id, or a trace link from one to the other."""
    tolerance_ms: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Timestamps that are further apart do not belong together."""

    @property
    def streams(self) -> list[int]:
        return [int(each) for each in self.stream.split(",") if each]


def run(spark: SparkSession, config: JoinConfig) -> dict[str, Any]:
    """Writes `OUT/join`, and says how many rows have a partner."""
    from pyspark.sql import functions as fn

    if len(set(config.streams)) < 2:
        raise RecordingError("join needs the ids of two streams or more, the one that leads first")
    lead, *others = config.streams
    frames = read(spark, config, "none").select(*MINE)
    mine = frames.where(fn.col("stream_id") == lead)
    theirs = frames.where(fn.col("stream_id").isin(others)).toDF(*THEIRS)
    names = spark.createDataFrame([(each,) for each in others], "wanted_stream_id bigint")
    pairs = nearest(candidates(spark, config, mine, theirs), config.by)
    every = mine.crossJoin(names)
    kept = pairs.select(fn.col("ordinal").alias("at"), *THEIRS)
    same = (fn.col("ordinal") == fn.col("at")) & (fn.col("wanted_stream_id") == fn.col("other_stream_id"))
    joined = every.join(kept, same, "left").withColumn("other_stream_id", fn.col("wanted_stream_id"))
    apart = (fn.col("other_timestamp_ns") - fn.col("timestamp_ns")).alias("apart_ns")
    write(joined.select(*MINE, *THEIRS, apart), config.table("join"))
    made = spark.read.parquet(config.table("join"))
    rows, matched = made.agg(fn.count("*"), fn.count("other_ordinal")).collect()[0]
    problems = account(spark, config, frames.count())
    return {"rows": rows, "matched": matched, "problems": problems, "table": config.table("join")}


def candidates(spark: SparkSession, config: JoinConfig, mine: DataFrame, theirs: DataFrame) -> DataFrame:
    """Pairs of frames that fit each other, several for one frame perhaps."""
    from pyspark.sql import functions as fn

    match config.by:
        case "seq":
            return mine.join(theirs, fn.col("seq") == fn.col("other_seq"))
        case "trace":
            return _by_trace(spark, config, mine, theirs)
    # Cells as wide as the tolerance: what is near lies in the same cell or in the next one on either side.
    width = max(1, int(config.tolerance_ms * 1_000_000))

    def cell(column: str) -> Column:
        return fn.expr(f"({column} - pmod({column}, {width})) div {width}")

    around = fn.explode(fn.array(*(cell("other_timestamp_ns") + step for step in (-1, 0, 1))))
    spread = theirs.withColumn("cell", around)
    near = fn.abs(fn.col("other_timestamp_ns") - fn.col("timestamp_ns")) <= int(config.tolerance_ms * 1_000_000)
    return mine.withColumn("cell", cell("timestamp_ns")).join(spread, "cell").where(near).drop("cell")


def nearest(pairs: DataFrame, by: By) -> DataFrame:
    """One partner for each frame and stream: the nearest."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    clock = "timestamp_ns" if by == "time" else "recorded_ns"
    distance = fn.abs(fn.col(f"other_{clock}") - fn.col(clock))
    order = Window.partitionBy("ordinal", "other_stream_id").orderBy(distance, "other_ordinal")
    return pairs.withColumn("place", fn.row_number().over(order)).where("place = 1").drop("place")


def _by_trace(spark: SparkSession, config: JoinConfig, mine: DataFrame, theirs: DataFrame) -> DataFrame:
    from pyspark.sql import functions as fn

    links = spark.createDataFrame(trace_links(config), "child bigint, parent bigint")
    both = links.unionAll(links.select("parent", "child"))
    own = mine.where("trace_id IS NOT NULL").select("trace_id", fn.col("trace_id").alias("linked")).distinct()
    tied = own.join(both, fn.col("trace_id") == fn.col("child")).select("trace_id", fn.col("parent").alias("linked"))
    linked = own.unionAll(tied).distinct()
    return mine.join(linked, "trace_id").join(theirs, fn.col("linked") == fn.col("other_trace_id")).drop("linked")


def trace_links(config: JoinConfig) -> list[tuple[int, int]]:
    """Which trace was made of which, as it was heard; ids as Spark has them."""
    found: set[tuple[int, int]] = set()
    for segment in Recording(config.recording).segments:
        try:
            links = [
                segment.message(row)
                for row in segment.messages
                if (row.schema_id, row.template_id) == (TraceLinkSet.SCHEMA_ID, TraceLinkSet.TEMPLATE_ID)
            ]
        except RecordingDamaged as error:
            if config.strict:
                raise
            log.error("passed over: %s", error)
            continue
        for link in links:
            assert isinstance(link, TraceLinkSet)
            found.update((_signed(link.trace_id), _signed(parent.trace_id)) for parent in link.parents)
    return sorted(found)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
