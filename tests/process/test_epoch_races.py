"""Regions that the control plane lets go of in the very moment in which a producer or a consumer turns to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import framepool as fp
from framepool.config import Config, DriverConfig
from framepool.transport.settings import AeronSettings


def test_whoever_turns_to_regions_that_are_being_let_go_has_none(base_dir: Path) -> None:
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
    )
    with fp.serve(config) as pool, pool.producer(10_000) as camera, pool.consumer(10_000) as eye:
        camera.publish(np.zeros(4))
        with pool.plane.lock():  # which would map them anew
            for each in (camera, eye):  # as if they had not looked yet
                stream = each._place.stream
                assert stream is not None
                each._leave()
                each._seen = -1
                stream.close()
            assert eye.poll() == []
            assert eye.newest() is None
            assert camera.publish(np.zeros(4)) is None, "the frame is dropped and counted"
