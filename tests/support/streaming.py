"""What tests of streaming queries share: a camera that goes on, kills at the worst moment, accounts of what came."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import framepool as fp
from framepool.recorder.recording import Recording
from tests.support.processes import Process, Processes

STREAM = 10_000
PATIENCE = 800.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def written(out: Path) -> list[dict[str, Any]]:
    """The rows of a file sink: of the files that its log names, as Spark reads them."""
    log = out / "_spark_metadata"
    files: set[str] = set()
    for each in sorted(log.glob("[0-9]*")) if log.exists() else []:
        for line in each.read_text().splitlines()[1:]:
            files.add(json.loads(line)["path"].removeprefix("file://"))
    return [row for file in sorted(files) for row in pq.read_table(file).to_pylist()]


def newest(log: Path) -> int:
    """The last batch in a log of a checkpoint."""
    return max((int(each.name) for each in log.glob("[0-9]*")), default=-1)


def kill_within_a_batch(query: Process, checkpoint: Path) -> int:
    """kill -9 of Python and the JVM that it started, at a moment when a batch is planned and not done: which one."""
    until(lambda: newest(checkpoint / "commits") > 0)
    while True:
        until(lambda: newest(checkpoint / "offsets") > newest(checkpoint / "commits"))
        os.killpg(query.pid, signal.SIGSTOP)
        planned = newest(checkpoint / "offsets")
        if planned > newest(checkpoint / "commits"):
            os.killpg(query.pid, signal.SIGKILL)
            query.wait(PATIENCE)
            return planned
        os.killpg(query.pid, signal.SIGCONT)


def check_each_once(path: Path, out: Path) -> None:
    """The table has each recorded frame once, and its executor has seen its bytes."""
    recorded = Counter((frame.ordinal, frame.epoch, frame.seq, frame.crc) for frame in Recording(path))
    rows = written(out)
    assert Counter((row["ordinal"], row["epoch"], row["seq"], row["crc"]) for row in rows) == recorded
    assert set(recorded.values()) == {1}
    assert all(row["found"] == row["crc"] for row in rows)


def check_account(path: Path, published: int) -> None:
    """From the first one on, every frame of the camera is recorded, or lost with a reason."""
    recording = Recording(path)
    known = Counter(frame.seq for frame in recording)
    for row in recording.losses():
        assert row.loss.last_seq is not None
        known.update(range(row.loss.first_seq, row.loss.last_seq + 1))
    assert {seq for seq in known if seq < published} == set(range(recording[0].seq, published))
    assert set(known.values()) == {1}


class Camera(threading.Thread):
    """Publishes a hundred frames a second until it is told to stop."""

    def __init__(self, pool: fp.Pool) -> None:
        super().__init__(daemon=True)
        self.published = 0
        self._ended = threading.Event()
        self._producer = pool.producer(STREAM, name="camera")

    def run(self) -> None:
        while not self._ended.wait(0.01):
            self._producer.publish(np.full(600, self.published, np.uint32))
            self.published += 1

    def end(self) -> None:
        self._ended.set()
        self.join(PATIENCE)


def record(processes: Processes, path: Path, config_file: Path) -> Process:
    """A recorder of the camera in a process of its own, in small segments."""
    options = ("--segment-bytes", "200000", "--flush-interval-ms", "50", "--json")
    process = processes.start(
        "-m", "framepool", "record", str(path), str(STREAM), "--config", str(config_file), *options
    )
    process.wait_line('{"event": "ready"', PATIENCE)
    return process
