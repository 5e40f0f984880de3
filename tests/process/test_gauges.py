"""What producers and consumers tell in Aeron counters, read by a process that takes no part (Wire 15.16)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.client import gauges
from framepool.client.histogram import LatencyHistogram, LatencyWindow
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.driver_901 import Role

STREAM = 10_000
SHAPE = (32, 48)


@pytest.fixture
def config(base_dir: Path) -> Config:
    profile = ProfileConfig(nslots=8, pools=(PoolConfig(pool_id=1, stride_bytes=65_536),))
    return Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={"default": profile},
    )


def until(condition: Callable[[], object], work: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        work()
        time.sleep(0.005)


LATENCIES = ("latency_p50_ns", "latency_p99_ns")


def told(config: Config, role: Role) -> dict[str, int]:
    return {gauge.name: gauge.value for gauge in gauges.read(config.aeron.directory) if gauge.role is role}


def test_frames_their_size_and_their_age_are_told_in_counters(config: Config) -> None:
    with fp.serve(config) as pool, pool.producer(STREAM) as camera, pool.consumer(STREAM) as eye:

        def work() -> None:
            camera.publish(np.zeros(SHAPE, np.uint16))
            eye.poll()

        producer: dict[str, int] = {}
        consumer: dict[str, int] = {}

        def all_told() -> bool:
            producer.update(told(config, Role.PRODUCER))
            consumer.update(told(config, Role.CONSUMER))
            return {"frames", "frame_bytes"} <= producer.keys() and {*LATENCIES} <= consumer.keys()

        until(all_told, work)
        assert producer["frame_bytes"] == 2 * 32 * 48
        assert 0 < consumer["latency_p50_ns"] <= consumer["latency_p99_ns"]
        assert {gauge.stream_id for gauge in gauges.read(config.aeron.directory)} == {STREAM}
        eye.close()
        until(lambda: not told(config, Role.CONSUMER))
        until(lambda: told(config, Role.PRODUCER)["frames"] == camera.counts["published"])


def test_a_stream_that_stands_still_has_no_age(config: Config) -> None:
    with fp.serve(config) as pool, pool.producer(STREAM) as camera, pool.consumer(STREAM) as eye:

        def work() -> None:
            camera.publish(np.zeros(SHAPE, np.uint16))
            eye.poll()

        until(lambda: told(config, Role.CONSUMER).get("latency_p50_ns"), work)
        until(lambda: "latency_p50_ns" not in told(config, Role.CONSUMER))
        assert told(config, Role.CONSUMER)["frames"] > 0


def test_without_a_media_driver_there_is_nothing_to_read(base_dir: Path) -> None:
    assert list(gauges.read(str(base_dir))) == []


def test_a_window_sees_what_came_since_the_last_look_only() -> None:
    histogram = LatencyHistogram()
    histogram.record_many(np.full(1000, 50))
    window = LatencyWindow(histogram)
    assert window.look(50, 99) == [None, None]
    histogram.record_many([100] * 90 + [200] * 10)
    assert window.look(50, 90, 91, 100) == [100, 100, 200, 200]
    assert window.look(50) == [None]
    histogram.reset()
    histogram.record(70)
    assert window.look(50) == [70]
