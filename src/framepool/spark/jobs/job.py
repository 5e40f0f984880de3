"""What jobs have in common: which frames they read, where their tables go, and how far they are.

Tables are Parquet, partitioned by stream and by the day (UTC) on which frames were recorded, and replaced as a whole.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from framepool.recorder.manifest import Hold, Manifest
from framepool.recorder.recording import Recording
from framepool.spark.options import Payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

PARTITIONS: Final = ("stream_id", "date")
LOOK_EVERY: Final = 0.25
HELD_S: Final = 600.0
"""A job that was killed keeps retention from a recording no longer than this."""


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


def read(
    spark: SparkSession,
    config: JobConfig,
    payload: Payload = "reference",
    *,
    streaming: bool = False,
    **options: str,
) -> DataFrame:
    """The frames that a job is about."""
    strict = str(config.strict).lower()
    chosen = {"payload": payload, "strict": strict, **({"failOnDataLoss": strict} if streaming else {}), **options}
    for name, value in (("stream", config.stream), ("startTime", config.start_time), ("endTime", config.end_time)):
        if value:
            chosen[name] = value
    reader = spark.readStream if streaming else spark.read
    return reader.format("framepool").options(**chosen).load(config.recording)


def write(table: DataFrame, path: str, time_column: str = "recorded_ns") -> None:
    """Puts a table in place of the one before, partitioned by stream and day."""
    from pyspark.sql.functions import col, to_date

    day = to_date((col(time_column) / 1_000_000_000).cast("timestamp"))
    table.withColumn("date", day).write.mode("overwrite").partitionBy(*PARTITIONS).parquet(path)


def account(spark: SparkSession, config: JobConfig, made: int, *recordings: str) -> int:
    """Says how many frames could not be read: what is wrong is listed in `OUT/problems` if fewer came than there are.

    Every byte is read again only then. Of several recordings, `made` is of all of them together. Each job has a part of
    the table to itself, and takes back what it said before.
    """
    from pyspark.sql.functions import lit

    chosen = [with_recording(config, path) for path in recordings or (config.recording,)]
    target = config.table(f"problems/job={type(config).__name__.removesuffix('Config').lower()}")
    shutil.rmtree(target, ignore_errors=True)
    if made >= sum(_recorded(spark, each) for each in chosen):
        with suppress(OSError):  # there, and others have said something
            os.rmdir(config.table("problems"))
        return 0
    for each in chosen:
        problems = read(spark, each, table="problems").select(lit(each.recording).alias("recording"), "*")
        problems.write.mode("append").parquet(target)
    listed = spark.read.parquet(target).count()
    if listed:
        log.warning("%d problems are listed in %s", listed, target)
    return listed


def with_recording(config: JobConfig, recording: str) -> JobConfig:
    """The same frames of another recording; times are those of the first one only."""
    if recording == config.recording:
        return config
    return JobConfig(recording=recording, out=config.out, stream=config.stream, strict=config.strict)


def _recorded(spark: SparkSession, config: JobConfig) -> int:
    """How many frames there should be, as far as that is written down."""
    if config.start_time or config.end_time:
        return read(spark, config, "none").count()
    streams = Recording(config.recording).streams
    wanted = {int(each) for each in config.stream.split(",")} if config.stream else streams.keys()
    return sum(count for stream, count in streams.items() if stream in wanted)


@contextmanager
def held(*recordings: Path) -> Iterator[None]:
    """Keeps retention from what these recordings have now, while the body runs."""
    name, over = f"job-{secrets.token_hex(8)}", threading.Event()
    first = {manifest: manifest.retained().first_ordinal for manifest in map(Manifest, recordings)}

    def hold() -> None:
        for manifest, ordinal in first.items():
            with suppress(OSError):  # a recording that can only be read is one that nobody removes from here
                manifest.hold(name, Hold(ordinal=ordinal, expires_ns=time.time_ns() + round(HELD_S * 1e9)))

    def hold_on() -> None:
        while not over.wait(HELD_S / 4):
            hold()

    hold()
    holder = threading.Thread(target=hold_on, name="held", daemon=True)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()
        for manifest in first:
            manifest.release(name)


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
            if total:  # a streaming query counts by itself
                tell(done, total)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
