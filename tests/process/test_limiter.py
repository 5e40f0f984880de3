"""The rate limiter between a real source and a real reader."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import framepool as fp
from framepool.clock import NANOS_PER_SECOND
from framepool.config import PoolConfig, ProfileConfig, StreamConfig
from framepool.errors import CommandRefused, ConfigurationError
from framepool.limiter.limiter import Limiter
from framepool.service import Commander
from tests.support.onlooker import small_config, wait_until

SOURCE, DEST = 10_000, 20_000
TAG = "service:limiter:20000"


@pytest.fixture
def pool(base_dir: Path) -> Iterator[fp.Pool]:
    with fp.serve(small_config(base_dir, nslots=2048, stride_bytes=1024)) as pool:
        yield pool


@pytest.fixture
def camera(pool: fp.Pool) -> fp.Producer:
    return pool.producer(SOURCE, name="camera", summary="4 numbers", metadata={"gain": 4, "serial": "SN-1"})


class Publishing:
    """A thread that publishes steadily, until the block ends."""

    def __init__(self, camera: fp.Producer, period: float = 0.002, **fields: Any) -> None:
        self._camera, self._period, self._fields = camera, period, fields
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._period):
            number += 1
            image = np.full((2, 3), number, np.uint16)
            self._camera.publish(image, timestamp_ns=1_000 + number, trace_id=number, **self._fields)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def next_frame(eye: fp.Consumer) -> fp.Frame:
    frame = eye.latest(20)
    assert frame is not None, eye.statistics()
    return frame


def test_frames_keep_what_they_are(pool: fp.Pool, camera: fp.Producer) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0), Publishing(camera):
        eye = pool.consumer(DEST)
        for _ in range(5):
            frame = next_frame(eye)
            image = frame.copy()
            number = int(image[0, 0])
            assert (frame.timestamp_ns, frame.trace_id) == (1_000 + number, number)
            assert (frame.shape, frame.dtype, frame.order) == ((2, 3), np.uint16, "C")
            assert (image == number).all()


def test_column_major_frames_stay_so(pool: fp.Pool, camera: fp.Producer) -> None:
    image = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    with Limiter(pool, SOURCE, DEST, rate=0):
        eye = pool.consumer(DEST)
        frame = None
        while frame is None:
            camera.publish(image)
            frame = eye.latest(0.05)
        assert (frame.order, frame.dtype) == ("F", np.float32)
        assert (frame.copy() == image).all()


def test_new_stream_says_what_its_source_says(pool: fp.Pool, camera: fp.Producer) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0), Publishing(camera):
        eye = pool.consumer(DEST)
        wait_until(lambda: dict(next_frame(eye).metadata or {}) == {"gain": 4, "serial": "SN-1"})
        wait_until(lambda: (source := pool.metadata.source(DEST)) and source.name == "camera")
        assert (source := pool.metadata.source(DEST))
        assert source.summary == "4 numbers"
        with camera.metadata.edit() as metadata:
            metadata["gain"] = 8
            del metadata["serial"]
        wait_until(lambda: dict(next_frame(eye).metadata or {}) == {"gain": 8})


def test_new_stream_may_have_a_name_of_its_own(pool: fp.Pool, camera: fp.Producer) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0, name="preview"), Publishing(camera):
        pool.consumer(DEST)
        wait_until(lambda: (source := pool.metadata.source(DEST)) and source.name == "preview")


def test_rate_is_kept_and_can_be_set(pool: fp.Pool, camera: fp.Producer) -> None:
    """Counted by the stamps of the limiter's own clock: at most one an interval, whatever the machine does."""
    with Limiter(pool, SOURCE, DEST, rate=20) as limiter, Commander.connect(pool.config) as commander:
        with Publishing(camera):
            wait_until(lambda: limiter.counts["republished"] >= 1)
            begin, before = time.monotonic(), limiter.counts["republished"]
            wait_until(lambda: limiter.counts["republished"] >= before + 10)
            assert limiter.counts["republished"] - before <= 20 * (time.monotonic() - begin) + 2
            commander.command(TAG, "set:rate", 0.001)
            wait_until(lambda: limiter._due_ns > limiter.clock.monotonic_ns() + 500 * NANOS_PER_SECOND)
            last = limiter.counts["republished"]
            time.sleep(0.3)
            assert limiter.counts["republished"] <= last + 1  # the one that was due when this became so
            commander.command(TAG, "set:rate", 0)
            wait_until(lambda: limiter.counts["republished"] > last + 20)
        with pytest.raises(CommandRefused, match=">= 0"):
            commander.command(TAG, "set:rate", -1)
        assert limiter.rate == 0


def test_pause_keeps_the_leases_and_resume_begins_with_what_is_new(pool: fp.Pool, camera: fp.Producer) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0) as limiter, Commander.connect(pool.config) as commander:
        eye = pool.consumer(DEST)
        with Publishing(camera):
            epoch = next_frame(eye).epoch
            commander.command(TAG, "pause")
            wait_until(lambda: eye.latest(0.2) is None)
            published = camera.current_seq
            wait_until(lambda: camera.current_seq > published + 5)
            assert eye.latest(0.1) is None
            paused = int(camera.current_seq)
            commander.command(TAG, "resume")
            frame = next_frame(eye)
        assert frame.epoch == epoch
        assert int(frame.copy()[0, 0]) >= paused - 1
        assert limiter.report()["dest_attached"]


def test_stop_gives_both_leases_back_and_start_takes_them_again(pool: fp.Pool, camera: fp.Producer) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0), Commander.connect(pool.config) as commander:
        driver = "service:driver:default"

        def dest_producer() -> object:
            streams = json.loads(str(commander.command(driver, "streams").result))
            return next((each["producer"] for each in streams if each["stream_id"] == DEST), None)

        wait_until(dest_producer)
        commander.command(TAG, "stop")
        wait_until(lambda: dest_producer() is None)
        commander.command(TAG, "start")
        with Publishing(camera):
            assert next_frame(pool.consumer(DEST)).epoch > 0


def test_frame_that_fits_no_pool_of_the_new_stream_is_counted(base_dir: Path) -> None:
    config = small_config(base_dir)
    small = ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=64),))
    config = msgspec.structs.replace(
        config,
        profiles={**config.profiles, "small": small},
        streams=(StreamConfig(stream_id=DEST, profile="small"),),
    )
    with fp.serve(config) as pool, Limiter(pool, SOURCE, DEST, rate=0) as limiter:
        camera = pool.producer(SOURCE)
        wait_until(lambda: camera.publish(np.zeros(65, np.uint8)) and limiter.counts["no pool fits"] > 1)
        wait_until(lambda: camera.publish(np.zeros(64, np.uint8)) and limiter.counts["republished"] > 1)


def test_stream_is_not_limited_into_itself(pool: fp.Pool) -> None:
    with pytest.raises(ConfigurationError, match="itself"):
        Limiter(pool, SOURCE, SOURCE)
    with pytest.raises(CommandRefused, match=">= 0"):
        Limiter(pool, SOURCE, DEST, rate=-1)


def test_limiter_may_start_before_its_source(pool: fp.Pool) -> None:
    with Limiter(pool, SOURCE, DEST, rate=0), Publishing(pool.producer(SOURCE)):
        assert next_frame(pool.consumer(DEST)).shape == (2, 3)
