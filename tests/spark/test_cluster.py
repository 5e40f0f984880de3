"""A real standalone cluster, one master and two workers: the same programs, and a worker that is killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from framepool._native.crc32c import crc32c
from framepool.recorder.recording import Recording
from framepool.spark.stream import durable
from tests.support.awkward import Awkward
from tests.support.processes import Processes
from tests.support.spark_cluster import SparkCluster
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

pytestmark = [pytest.mark.requires("java"), pytest.mark.timeout(3000)]
HERE = Path(__file__).parent


def test_functions_on_frames_run_on_every_worker(processes: Processes, awkward: Awkward, tmp_path: Path) -> None:
    cluster = SparkCluster(processes, tmp_path)
    both = {  # it begins when both workers are there
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    }
    program = cluster.submit(str(HERE / "cluster_program.py"), str(awkward.path), **both)
    rows = json.loads(program.wait_line("FOUND ", PATIENCE).removeprefix("FOUND "))
    assert program.wait(PATIENCE) == 0
    assert {ordinal: seen for ordinal, seen, _ in rows} == {
        ordinal: crc32c(array.tobytes("A")) for ordinal, array in awkward.arrays().items()
    }
    assert len(rows) == len(awkward.frames)
    assert {worker for _, _, worker in rows} == {"worker-0", "worker-1"}


@pytest.mark.soak
def test_each_frame_is_there_once_after_kill_9_of_a_worker_the_query_and_the_recorder(
    processes: Processes, camera: Camera, config_file: Path, tmp_path: Path
) -> None:
    path, out, checkpoint = tmp_path / "rec", tmp_path / "out", tmp_path / "checkpoint"
    recorder = record(processes, path, config_file)
    cluster = SparkCluster(processes, tmp_path)
    words = str(path), str(out), str(checkpoint), cluster.url
    follower = cluster.submit(str(HERE / "query.py"), *words, "follow")
    until(lambda: len(written(out)) >= 40)
    cluster.kill_worker(0)
    before = len(written(out))
    until(lambda: len(written(out)) >= before + 120)
    interrupted = kill_within_a_batch(follower, checkpoint)
    recorder.kill()
    kept = durable(Recording(path))
    recorder = record(processes, path, config_file)
    until(lambda: durable(Recording(path)) > kept + 100)
    camera.end()
    recorder.signal(signal.SIGTERM)
    assert recorder.wait(PATIENCE) == 0
    finisher = cluster.submit(str(HERE / "query.py"), *words, "finish")
    finisher.wait_line("finished", PATIENCE)
    assert (checkpoint / "commits" / str(interrupted)).exists()
    check_each_once(path, out)
    check_account(path, camera.published)
