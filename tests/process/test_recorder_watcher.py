"""A watcher of a consumer is told of every frame that is not handed over, and of every epoch as it comes and goes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool._native.seqlock import RingReader
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.recorder.account import Survey
from framepool.shm.drop import DropReason
from framepool.transport.settings import AeronSettings

STREAM = 10_000
NSLOTS = 4


class Notes:
    def __init__(self) -> None:
        self.mapped: list[tuple[int, Survey]] = []
        self.left: list[tuple[int, Survey]] = []
        self.dropped: list[tuple[int, int, DropReason | None]] = []

    def on_mapped(self, epoch: int, ring: RingReader) -> None:
        self.mapped.append((epoch, Survey.of(ring)))

    def on_left(self, epoch: int, ring: RingReader) -> None:
        self.left.append((epoch, Survey.of(ring)))

    def on_dropped(self, epoch: int, seq: int, rule: DropReason | None) -> None:
        self.dropped.append((epoch, seq, rule))


@pytest.fixture
def config(base_dir: Path) -> Config:
    profile = ProfileConfig(nslots=NSLOTS, pools=(PoolConfig(pool_id=1, stride_bytes=1024),))
    return Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={"default": profile},
    )


def settle(eye: fp.Consumer, condition: object) -> list[int]:
    """Polls until it holds; the sequences that came."""
    came: list[int] = []
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        came += [frame.seq for frame in eye.poll()]
        time.sleep(0.001)
    return came


def test_watcher_hears_of_lapped_frames_and_of_epochs(config: Config) -> None:
    notes = Notes()
    with fp.serve(config) as pool:
        camera = pool.producer(STREAM)
        eye = pool.consumer(STREAM, watcher=notes, max_outstanding_seq_gap=2**62)
        settle(eye, lambda: camera.has_readers and notes.mapped)
        epoch = eye.epoch
        assert notes.mapped == [(epoch, Survey(None, None, True))]
        for value in range(10):
            camera.publish(np.full(8, value, np.uint8))
        came = settle(eye, lambda: eye.counts["received"] + eye.counts["late"] == 10)
        assert came == [6, 7, 8, 9]
        assert notes.dropped == [(epoch, seq, DropReason.WRONG_SEQUENCE) for seq in range(6)]
        camera.close()
        camera = pool.producer(STREAM)
        stream = camera._place.stream
        assert stream is not None
        settle(eye, lambda: notes.mapped[-1][0] == stream.layout.epoch)  # the epoch between the two may be seen as well
        assert notes.left[0] == (epoch, Survey(6, 9, False))
        assert epoch is not None
        assert stream.layout.epoch > epoch
        camera.publish(np.zeros(8, np.uint8), timestamp_ns=5)
        assert settle(eye, lambda: eye.counts["received"] == 5) == [0]


def test_frame_says_when_it_was_told_of(config: Config) -> None:
    with fp.serve(config) as pool:
        camera = pool.producer(STREAM, publish_timestamps=True)
        eye = pool.consumer(STREAM)
        settle(eye, lambda: camera.has_readers)
        camera.publish(np.zeros(8, np.uint8), timestamp_ns=5)
        frame = eye._next_within(20)
        assert frame is not None
        assert frame.publish_timestamp_ns is not None
        assert 0 <= time.monotonic_ns() - frame.publish_timestamp_ns < 60e9
