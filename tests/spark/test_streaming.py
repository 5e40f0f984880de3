"""`spark.readStream.format("framepool")`: each recorded frame once in the sink, over restarts and kill -9."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from framepool.recorder.account import Reason
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.spark.stream import durable
from tests.spark.query import start
from tests.support.awkward import Awkward
from tests.support.processes import Processes
from tests.support.streaming import (
    PATIENCE,
    Camera,
    check_account,
    check_each_once,
    kill_within_a_batch,
    record,
    until,
    written,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requires("java"), pytest.mark.timeout(1800)]


def test_what_there_is_arrives_in_batches_of_the_asked_size(
    spark: SparkSession, awkward: Awkward, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    frames = spark.readStream.format("framepool").option("maxFramesPerTrigger", 20).load(str(awkward.path))
    writer = frames.select("ordinal", "crc").writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("path", str(out)).option("checkpointLocation", str(tmp_path / "c")).start()
    assert query.awaitTermination(int(PATIENCE))
    told = [progress for progress in query.recentProgress if progress.numInputRows]
    assert [progress.numInputRows for progress in told] == [20, 15]
    source = told[0].sources[0]
    ordinals = [json.loads(each)["ordinal"] for each in (source.endOffset, source.latestOffset)]
    assert ordinals == [20, 35], "where the batch ends, and how far it could have gone"
    assert sorted((row["ordinal"], row["crc"]) for row in written(out)) == [
        (frame.ordinal, frame.crc) for frame in Recording(awkward.path)
    ]


def test_each_frame_is_there_once_after_kill_9_of_query_and_recorder(
    spark: SparkSession, processes: Processes, camera: Camera, config_file: Path, tmp_path: Path
) -> None:
    path, out, checkpoint = tmp_path / "rec", tmp_path / "out", tmp_path / "checkpoint"

    recorder = record(processes, path, config_file)
    until(lambda: durable(Recording(path)) > 50)
    follower = processes.start("-m", "tests.spark.query", str(path), str(out), str(checkpoint), "local[2]", "follow")
    follower.wait_line("started", PATIENCE)
    interrupted = kill_within_a_batch(follower, checkpoint)
    recorder.kill()
    before = durable(Recording(path))
    recorder = record(processes, path, config_file)
    until(lambda: durable(Recording(path)) > before + 100)
    camera.end()
    recorder.signal(signal.SIGTERM)
    assert recorder.wait(PATIENCE) == 0
    query = start(spark, path, out, checkpoint, 100_000, availableNow=True)
    assert query.awaitTermination(int(PATIENCE))
    assert query.recentProgress[0].batchId == interrupted, "it goes on with what it had planned"
    check_each_once(path, out)
    check_account(path, camera.published)


def test_live_stream_is_read_through_a_recorder_that_the_query_has_and_that_ends_after_it(
    spark: SparkSession, camera: Camera, config_file: Path, tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    live = spark.readStream.format("framepool").option("stream", "camera").option("config", str(config_file))
    live = live.option("log", str(log)).option("holdSeconds", 8).option("retainBytes", 2**25)  # all of it
    writer = live.load().select("ordinal", "epoch", "seq", "crc").writeStream.format("parquet")
    query = writer.option("path", str(out)).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        until(lambda: query.exception() or len(written(out)) > 50)
        first = Manifest(log).watermark()
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        before = len(written(out))
        until(lambda: query.exception() or len(written(out)) > before + 200)
        assert query.exception() is None
        second = Manifest(log).watermark()
        assert second is not None
        assert second.pid != first.pid, "a query sees to its recorder"
    finally:
        query.stop()
    until(lambda: not Manifest(log).is_locked())
    assert camera.is_alive(), "it ended because nobody reads, not for want of frames"
    recording = Recording(log)
    recorded = {(frame.ordinal, frame.epoch, frame.seq, frame.crc) for frame in recording}
    rows = [(row["ordinal"], row["epoch"], row["seq"], row["crc"]) for row in written(out)]
    assert len(rows) == len(set(rows)) > 0
    assert set(rows) <= recorded
    newest_seq = max(seq for _, _, seq, _ in recorded)
    reasons = {row.loss.reason for row in recording.losses()}
    assert Reason.NOT_RECORDING in reasons, f"none recorded for a while: {list(recording.losses())}"
    check_account(log, newest_seq + 1)
