"""What jobs have in common: which frames they read, where their tables go, and how far they are.

Tables are Parquet, partitioned by stream and by the day (UTC) on which frames were recorded, and replaced as a whole.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from framepool.spark.options import Payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = ("stream_id", "date")
LOOK_EVERY: Final = 0.25


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames, and where the results go."""

    recording: str
    """The recording that is read."""
    out: str
    """A directory for the tables of this job; `stats` goes into `OUT/stats`."""
    stream: str = ""
    """Ids of streams, with commas between; all unless given."""
    start_time: str = ""
    """Frames recorded from this time on: ISO 8601 in UTC, or nanoseconds."""
    end_time: str = ""
    """Frames recorded before this time."""
    strict: bool = False
    """Whether damage fails the job instead of being reported and passed over."""

    def table(self, name: str) -> str:
        """Where a table of this job is."""
        return os.path.join(os.path.abspath(self.out), name)


def read(spark: SparkSession, config: JobConfig, payload: Payload = "reference", **options: str) -> DataFrame:
    """The frames that a job is about."""
    reader = spark.read.format("framepool").option("payload", payload).option("strict", str(config.strict).lower())
    for name, value in (("stream", config.stream), ("startTime", config.start_time), ("endTime", config.end_time)):
        if value:
            reader = reader.option(name, value)
    return reader.options(**options).load(config.recording)


def write(table: DataFrame, path: str, time_column: str = "recorded_ns") -> None:
    """Puts a table in place of the one before, partitioned by stream and day."""
    from pyspark.sql.functions import col, to_date

    day = to_date((col(time_column) / 1_000_000_000).cast("timestamp"))
    table.withColumn("date", day).write.mode("overwrite").partitionBy(*PARTITIONS).parquet(path)


@contextmanager
def progressing(spark: SparkSession, tell: Callable[[int, int], Any]) -> Iterator[None]:
    """Calls `tell` with the tasks that are done and all that are known, while the body runs."""
    tracker, over = spark.sparkContext.statusTracker(), threading.Event()
    group = f"framepool-{threading.get_ident()}"
    spark.sparkContext.setJobGroup(group, "framepool")

    def look() -> None:
        while not over.wait(LOOK_EVERY):
            done = total = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    if (each := tracker.getStageInfo(stage)) is not None:
                        done, total = done + each.numCompletedTasks, total + each.numTasks
            tell(done, total)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
