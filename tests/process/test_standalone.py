"""Streams without a driver: a producer that owns its files, consumers that follow its announces."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.errors import AllocationError, AttachRefused
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from tests.support.onlooker import first_frame

STREAM = 10_000


@pytest.fixture
def config(base_dir: Path, media_driver: MediaDriver) -> Config:
    return Config(
        aeron=media_driver.settings,
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100),
        profiles={"default": ProfileConfig(nslots=8, pools=(PoolConfig(pool_id=1, stride_bytes=1024),))},
    )


def test_frames_pass_without_a_driver(config: Config) -> None:
    with fp.connect(config) as pool, pool.standalone(STREAM) as camera, pool.announced(STREAM) as eye:
        frame = None
        deadline = time.monotonic() + 20
        while frame is None and time.monotonic() < deadline:
            camera.publish(np.arange(10, dtype=np.uint16))
            frame = eye.latest(0.05)
        assert frame is not None
        assert frame.copy().tolist() == list(range(10))


def test_producer_without_a_pool_has_a_connection_of_its_own_and_ends_it(config: Config, base_dir: Path) -> None:
    before = threading.active_count()
    with fp.Producer.standalone(STREAM, name="camera", config=config) as camera:
        assert threading.active_count() > before
        assert camera.metadata.name == "camera"
        with fp.connect(config) as pool, pool.announced(STREAM) as eye:
            assert first_frame(camera, eye).stream_id == STREAM
    assert threading.active_count() == before
    assert list(base_dir.rglob("*.pool")) == []
    camera.close()
    with fp.Producer.standalone(STREAM, config=config) as camera:
        with pytest.raises(AllocationError):
            fp.Producer.standalone(STREAM, config=config)
    assert threading.active_count() == before, "what failed left nothing behind"


@pytest.mark.clause("W-15.14-03", "W-10.1.1-01", "W-15.21a.4-01")
def test_first_announce_finds_every_file_complete(config: Config) -> None:
    with Client.connect(config.aeron) as listener, fp.connect(config) as pool:
        announces = listener.add_subscription(channel.control(), config.stream_ids.announce)
        with pool.standalone(STREAM):
            heard: list[ShmPoolAnnounce] = []
            deadline = time.monotonic() + 20
            while len(heard) < 3 and time.monotonic() < deadline:
                for message in announces.poll():
                    announce = ShmPoolAnnounce.decode(message)
                    heard.append(announce)
                    paths = [announce.header_region_uri, *(pool.region_uri for pool in announce.payload_pools)]
                    sizes = [os.stat(path.removeprefix("shm:file?path=")).st_size for path in paths]
                    assert sizes == [64 + 8 * 256, 64 + 8 * 1024]
                time.sleep(0.005)
            assert len(heard) >= 3, "announced again and again"


@pytest.mark.clause("W-15.2-01", "W-15.2-03", "W-15.14-04")
def test_restarted_producer_has_a_higher_epoch_and_starts_at_zero(config: Config, base_dir: Path) -> None:
    epochs = []
    with fp.connect(config) as pool:
        for _ in range(3):
            with pool.standalone(STREAM) as camera:
                assert [camera.publish(np.zeros(4, np.uint8)) for _ in range(2)] == [0, 1]
                stream = camera._place.stream
                assert stream is not None
                epochs.append(stream.layout.epoch)
            assert list(base_dir.rglob("*.pool")) == [], "a clean end removes the files"
    assert epochs == sorted(set(epochs))


def test_second_owner_of_a_stream_is_refused(config: Config) -> None:
    with fp.connect(config) as pool, pool.standalone(STREAM):
        with pytest.raises(AllocationError, match="belongs to a running driver"):
            pool.standalone(STREAM)


def test_consumer_that_hears_no_announce_says_so(config: Config) -> None:
    with fp.connect(config) as pool, pytest.raises(AttachRefused, match=f"stream {STREAM}"):
        pool.announced(STREAM, timeout=0.2)


@pytest.mark.clause("W-7.1-03", "W-7.1-04")
def test_only_the_activity_stamp_of_a_superblock_changes_and_it_rises(config: Config) -> None:
    with fp.connect(config) as pool, pool.standalone(STREAM) as camera:
        stream = camera._place.stream
        assert stream is not None
        seen = set()
        deadline = time.monotonic() + 20
        while len(seen) < 4 and time.monotonic() < deadline:
            camera.publish(np.zeros(4, np.uint8))
            seen.add(bytes(stream.header.buffer[:64]))
            time.sleep(0.01)
        assert len(seen) >= 4
        assert len({block[:56] for block in seen}) == 1
        path = stream.header.uri.path
    assert not os.path.exists(path)
