"""How much of the disk a recorder gets: a stream recorded without loss, against a plain sequential write of the bytes.

The camera publishes in this process at a share of the rate that the disk just had, the recorder is a process of its
own, as `framepool record` runs it. The disk's own rate is that of direct writes of the same size into a file whose room
is reserved, made durable at the end. Both in each round, in turn; the best round counts, because whatever else the
machine does makes one of the two slower. What the camera notices of the recorder is measured against the same camera
without one. Needs about 5 GB of disk below `build/`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import framepool as fp
from benchmarks.row import Row
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.recorder.manifest import Manifest
from framepool.transport.settings import MIB, AeronSettings

STREAM = 10_000
FRAME = 512 * 1024
FRAMES = 4096
NSLOTS = 512
ROUNDS = 5
SHARE = 0.8
"""Of the disk's own rate, at which the camera publishes."""
REQUIRED = 0.70
UNDISTURBED = 1.05
PIECE = 8 * MIB
FLUSH_MS = 50
"""So that waiting for the last flush is a small part of what is measured."""
STAGING = 256 * MIB
"""Enough for the hiccups of a disk at full speed; the default is for machines that do other things too."""
BUILD = Path(__file__).parents[1] / "build"
PATIENCE = 60.0


def plain_write(directory: Path, nbytes: int) -> float:
    """Seconds to write so much, directly, in large pieces, and make it durable."""
    path = directory / "plain"
    memory = mmap.mmap(-1, PIECE)
    memory.write(np.random.default_rng(1).bytes(PIECE))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(path, flags | os.O_DIRECT)
    except OSError:
        fd = os.open(path, flags)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        begun = time.perf_counter()
        for offset in range(0, nbytes, PIECE):
            os.pwrite(fd, memory, offset)
        os.fdatasync(fd)
        return time.perf_counter() - begun
    finally:
        os.close(fd)
        path.unlink()
        memory.close()


class Camera:
    """Publishes at a steady rate and knows how long that took."""

    def __init__(self, pool: fp.Pool) -> None:
        self.producer = pool.producer(STREAM)
        self._image = np.random.default_rng(1).integers(0, 4096, FRAME // 2, np.uint16)

    def run(self, rate: float) -> tuple[float, float]:
        """Seconds for all frames, and the median of one call, in nanoseconds."""
        publish, image, clock = self.producer.publish, self._image, time.perf_counter
        calls = []
        begun = clock()
        for number in range(FRAMES):
            wait = begun + number / rate - clock()
            if wait > 0:
                time.sleep(wait)
            called = clock()
            publish(image)
            calls.append(clock() - called)
        return clock() - begun, statistics.median(calls) * 1e9


@contextlib.contextmanager
def recorder(config: Path, path: Path) -> Iterator[None]:
    """`framepool record`, attached; stopped in good order."""
    command = [sys.executable, "-m", "framepool", "record", str(path), str(STREAM), "--config", str(config), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def durable(path: Path) -> tuple[int, int]:
    """Frames that are durable, and frames that are lost."""
    watermark = Manifest(path).watermark()
    return (0, 0) if watermark is None else (watermark.ordinal, sum(watermark.lost.values()))


def recorded(camera: Camera, config: Path, path: Path, rate: float) -> tuple[float, float, float, int]:
    """Nanoseconds per byte that became durable, what the camera needed, and how many frames were lost."""
    with recorder(config, path):
        while not camera.producer.has_readers:
            time.sleep(0.001)
        time.sleep(0.2)
        begun = time.perf_counter()
        elapsed, call = camera.run(rate)
        while sum(durable(path)) < FRAMES and time.perf_counter() - begun < PATIENCE:
            time.sleep(0.001)
        needed = time.perf_counter() - begun
        kept, lost = durable(path)
    shutil.rmtree(path)
    return needed * 1e9 / max(1, kept * FRAME), elapsed, call, lost


class Round(NamedTuple):
    """One round: nanoseconds per byte of disk and recorder, and what the camera needed alone and recorded."""

    disk_ns: float
    recorded_ns: float
    lost: int
    alone_s: float
    call_alone_ns: float
    beside_s: float
    call_beside_ns: float


def run() -> list[Row]:
    BUILD.mkdir(exist_ok=True)
    profile = ProfileConfig(nslots=NSLOTS, pools=(PoolConfig(pool_id=1, stride_bytes=FRAME),))
    rounds: list[Round] = []
    with (
        tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as shm,
        tempfile.TemporaryDirectory(prefix="recorder-", dir=BUILD) as place,
    ):
        config = Config(
            aeron=AeronSettings(directory=f"{shm}/aeron"),
            driver=DriverConfig(shm_base_dir=shm),
            profiles={"default": profile},
        )
        file = Path(shm) / "framepool.toml"
        file.write_text(
            f'[aeron]\ndirectory = "{shm}/aeron"\n[driver]\nshm_base_dir = "{shm}"\n'
            f"[recorder]\nstaging_bytes = {STAGING}\nflush_interval_ms = {FLUSH_MS}\npriority = -10\n"
        )
        with fp.serve(config) as pool:
            camera = Camera(pool)
            for number in range(ROUNDS):
                disk = plain_write(Path(place), FRAMES * FRAME) * 1e9 / (FRAMES * FRAME)
                rate = SHARE * 1e9 / disk / FRAME
                alone = camera.run(rate)
                cost, *beside, lost = recorded(camera, file, Path(place) / f"rec-{number}", rate)
                rounds.append(Round(disk, cost, lost, *alone, *beside))
    best = min(rounds, key=lambda each: each.recorded_ns / each.disk_ns)
    calm = min(rounds, key=lambda each: each.beside_s / each.alone_s)
    middle = statistics.median
    return [
        Row(
            f"recorder: a byte of a stream, durable ({best.lost} of {FRAMES} frames lost)",
            best.recorded_ns,
            "plain direct write of it",
            best.disk_ns,
            1 / REQUIRED,
        ),
        Row(
            "recorder: the camera, a frame at its rate, recorded",
            calm.beside_s * 1e9 / FRAMES,
            "not recorded",
            calm.alone_s * 1e9 / FRAMES,
            UNDISTURBED,
        ),
        Row(
            "recorder: the camera's call, recorded",
            middle(each.call_beside_ns for each in rounds),
            "not recorded",
            middle(each.call_alone_ns for each in rounds),
        ),
    ]
