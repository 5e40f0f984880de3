"""Recorders that are killed, stopped and left alone: recorded = published minus the loss table, exactly."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import framepool as fp
from framepool.config import Config, load
from framepool.recorder.manifest import Manifest
from framepool.recorder.recorder import Recorder
from framepool.recorder.recording import Recording
from framepool.recorder.verify import verify
from tests.support.drivers import table, write_toml
from tests.support.processes import Process, Processes

STREAM = 10_000
PATIENCE = 60.0
WORDS = 500


def picture(epoch: int, seq: int) -> npt.NDArray[np.uint64]:
    """Differs from every other frame in every word."""
    return np.arange(WORDS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(epoch * 1_000_003 + seq)


def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Camera:
    """Publishes in a thread of the test, steadily, and knows what it published."""

    def __init__(self, pool: fp.Pool, stream_id: int = STREAM, period: float = 0.002) -> None:
        self.published: list[tuple[int, int]] = []
        self._pool = pool
        self._stream_id = stream_id
        self._period = period
        self._stop = threading.Event()
        self.producer = pool.producer(stream_id)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Camera:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            slot = self.producer.claim(WORDS, np.uint64)
            slot.array[:] = picture(slot.epoch, slot.seq)
            slot.commit()
            self.published.append((slot.epoch, slot.seq))

    def __enter__(self) -> Camera:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)


@pytest.fixture
def config_file(base_dir: Path) -> Path:
    values = table(base_dir)
    values["profiles"]["default"] = {"nslots": 64, "pools": [{"pool_id": 1, "stride_bytes": 8192}]}
    return write_toml(base_dir / "framepool.toml", values)


@pytest.fixture
def config(config_file: Path) -> Config:
    return load(config_file)


def recorder(processes: Processes, config_file: Path, path: Path, *options: str) -> tuple[Process, dict[str, Any]]:
    """`framepool record`, once it is attached."""
    process = processes.start(
        "-m", "framepool", "record", str(path), str(STREAM), "--config", str(config_file), "--json", *options
    )
    return process, json.loads(process.wait_line('{"event": "ready"', PATIENCE))


def stop(process: Process) -> dict[str, Any]:
    process.signal(signal.SIGTERM)
    end: dict[str, Any] = json.loads(process.wait_line('{"event": "end"', PATIENCE))
    assert process.wait(PATIENCE) == 0, process.lines
    return end


def durable(path: Path) -> int:
    watermark = Manifest(path).watermark()
    return 0 if watermark is None else watermark.ordinal


def accounted(recording: Recording) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """What is recorded and what is lost; nothing is either twice."""
    kept = [(frame.epoch, frame.seq) for frame in recording]
    lost = []
    for row in recording.losses():
        assert row.loss.last_seq is not None
        lost += [(row.loss.epoch, seq) for seq in range(row.loss.first_seq, row.loss.last_seq + 1)]
    assert len(set(kept)) == len(kept)
    assert len(set(lost)) == len(lost)
    assert not set(kept) & set(lost)
    return set(kept), set(lost)


def check_against(recording: Recording, published: list[tuple[int, int]]) -> None:
    """Recorded = published minus losses, from the first frame of the account to the last, and every bit is right."""
    kept, lost = accounted(recording)
    first, last = min(kept | lost), max(kept | lost)
    assert {each for each in published if first <= each <= last} - lost == kept
    assert kept | lost <= set(published)
    for frame in recording:
        frame.check()
        assert np.array_equal(frame.array, picture(frame.epoch, frame.seq))


def test_killed_recorders_lose_nothing_that_was_durable_and_account_for_the_rest(
    config: Config, config_file: Path, processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "rec"
    with fp.serve(config) as pool, Camera(pool) as camera:
        process, _ = recorder(processes, config_file, path, "--segment-bytes", "400000", "--flush-interval-ms", "20")
        camera.start()
        for round_ in range(4):
            before = durable(path)
            until(lambda before=before: durable(path) > before + 60)  # type: ignore[misc]
            saved = durable(path)
            process.kill()
            process, ready = recorder(
                processes, config_file, path, "--segment-bytes", "400000", "--flush-interval-ms", "20"
            )
            assert ready["next_ordinal"] >= saved, "what was durable is there"
            assert ready["recovered_segments"] >= 1, round_
        until(lambda: durable(path) > saved + 60)
        end = stop(process)
    recording = Recording(path)
    assert len(recording) == durable(path)
    assert [frame.ordinal for frame in recording] == list(range(len(recording)))
    assert {row.loss.reason.value for row in recording.losses()} >= {"not recording"}
    assert end["frames"] > 0
    check_against(recording, camera.published)
    kept, lost = accounted(recording)
    assert min(kept | lost) == camera.published[0], "the recorder was there before the first frame"
    assert verify(str(path)).ok


def test_recorder_that_is_stopped_for_a_while_accounts_for_what_it_missed(
    config: Config, config_file: Path, processes: Processes, tmp_path: Path
) -> None:
    path = tmp_path / "rec"
    with fp.serve(config) as pool, Camera(pool) as camera:
        process, _ = recorder(processes, config_file, path)
        camera.start()
        until(lambda: durable(path) > 50)
        process.signal(signal.SIGSTOP)
        missed = len(camera.published)
        until(lambda: len(camera.published) > missed + 200)
        process.signal(signal.SIGCONT)
        before = durable(path)
        until(lambda: durable(path) > before + 50)
        stop(process)
    recording = Recording(path)
    assert sum(row.loss.frames or 0 for row in recording.losses()) >= 100
    check_against(recording, camera.published)
    assert verify(str(path)).ok


def test_producer_that_comes_back_is_another_epoch_of_the_same_recording(config: Config, tmp_path: Path) -> None:
    published: list[tuple[int, int]] = []
    with fp.serve(config) as pool, Recorder(pool, tmp_path / "rec", [STREAM], timeout=0) as recording_:
        for _ in range(3):
            with Camera(pool) as camera:
                until(lambda: STREAM in recording_.attached)
                before = recording_.progress().frames
                camera.start()
                until(lambda camera=camera: len(camera.published) > 50)  # type: ignore[misc]
                until(lambda before=before: recording_.progress().frames > before)  # type: ignore[misc]
            camera.producer.close()
            published.extend(camera.published)
            until(lambda: recording_.progress().frames + sum(recording_.progress().lost.values()) >= len(published))
    recording = Recording(tmp_path / "rec")
    assert len({frame.epoch for frame in recording}) == 3
    check_against(recording, published)
    assert accounted(recording)[0] | accounted(recording)[1] == set(published)
    assert verify(str(tmp_path / "rec")).ok


def test_driver_that_is_killed_and_comes_back_costs_frames_and_no_account(
    config: Config, config_file: Path, processes: Processes, tmp_path: Path
) -> None:
    def driver() -> Process:
        started = processes.start("-m", "framepool", "driver", "--config", str(config_file))
        started.wait_line("driver ready", PATIENCE)
        return started

    path = tmp_path / "rec"
    running = driver()
    with fp.connect(config) as pool:
        process, _ = _camera_and_recorder(processes, config_file, path, pool)
        until(lambda: durable(path) > 50)
        running.kill()
        running = driver()
        until(lambda: Recording(path)[-1].epoch != Recording(path)[0].epoch)  # the old one goes on for a while
        before = durable(path)
        until(lambda: durable(path) > before + 50)
        stop(process)
    recording = Recording(path)
    assert len({frame.epoch for frame in recording}) >= 2
    accounted(recording)
    assert verify(str(path)).ok


def _camera_and_recorder(
    processes: Processes, config_file: Path, path: Path, pool: fp.Pool
) -> tuple[Process, dict[str, Any]]:
    """A camera in a process of its own, which finds its way back by itself, and a recorder."""
    processes.start("-m", "framepool", "publish", str(STREAM), "--width", "32", "--height", "32", "--rate", "500",
                    "--config", str(config_file))  # fmt: skip
    with contextlib.closing(pool.consumer(STREAM, timeout=PATIENCE)):
        pass
    return recorder(processes, config_file, path)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 8 MiB."""
    import subprocess

    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.requires("root")
def test_full_disk_is_a_reason_in_the_loss_table_and_room_ends_it(config: Config, full_disk: Path) -> None:
    path = full_disk / "rec"
    ballast = full_disk / "ballast"
    with fp.serve(config) as pool, Camera(pool) as camera:
        with Recorder(
            pool, path, [STREAM], segment_bytes=2**20, staging_bytes=2**20, segment_seconds=600, flush_interval_ms=20
        ) as recording_:
            camera.start()
            until(lambda: recording_.progress().ordinal > 20)
            ballast.write_bytes(bytes(4 * 2**20))
            until(lambda: recording_.progress().lost.get("disk full", 0) > 50)
            assert "No space left" in recording_.progress().refusal
            ballast.unlink()
            before = recording_.progress().ordinal
            until(lambda: recording_.progress().ordinal > before + 50 and not recording_.progress().refusal)
    recording = Recording(path)
    check_against(recording, camera.published)
    assert verify(str(path)).ok
