"""Frames that are copied in the ways of `payload.h`, by length, alignment of the source and length of the ring."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.bench.peer import Place
from framepool.bench.peers.own import STREAM, configuration

MIB = 2**20
TRIALS = 4 * (4 + 8) * 16
"""Frames after which all other ways had their turn in a ring of so few slots."""
NOISE = np.random.default_rng(0).integers(0, 256, 8 * MIB + 64, np.uint8)


@pytest.mark.parametrize("slots", [2, 8])
def test_every_byte_of_a_frame_arrives(base_dir: Path, slots: int) -> None:
    place = Place(str(base_dir), "frames", 8 * MIB, 1, slots)
    with fp.serve(configuration(place)) as pool, pool.producer(STREAM) as camera, pool.consumer(STREAM) as eye:
        for length in (63, 64 * 1024 + 1, MIB - 1, MIB, MIB + 65, 4 * MIB - 1, 4 * MIB, 4 * MIB + 37, 8 * MIB):
            for offset in (0, 1, 16):
                image = NOISE[offset : offset + length]
                frame = None
                while frame is None:
                    camera.publish(image)
                    frame = eye.latest(timeout=10)
                with frame as seen:
                    assert np.array_equal(seen, image), (length, offset)


@pytest.mark.parametrize("slots", [2, 8])
@pytest.mark.parametrize("length", [64 * 1024 + 1, MIB + 65, 4 * MIB + 37])
def test_every_byte_arrives_whichever_way_is_tried(base_dir: Path, slots: int, length: int) -> None:
    place = Place(str(base_dir), "frames", 8 * MIB, 1, slots)
    with fp.serve(configuration(place)) as pool, pool.producer(STREAM) as camera, pool.consumer(STREAM) as eye:
        trials = 0
        for count in range(TRIALS):
            image = NOISE[count % 3 : count % 3 + length]
            trying = camera._frames is not None and camera._frames.copies.trying
            frame = None
            while frame is None:
                camera.publish(image)
                frame = eye.latest(timeout=10)
            with frame as seen:
                assert np.array_equal(seen, image), count
            trials += trying != camera._frames.copies.trying
            if trials == 6:
                break
        assert trials == 6, "three trials began and ended"


@pytest.fixture
def patient_threads() -> Iterator[None]:
    """Nobody loses the interpreter who does not give it away."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("patient_threads")
def test_a_publish_below_a_mib_does_not_wait_for_other_threads(base_dir: Path) -> None:
    place = Place(str(base_dir), "frames", MIB // 2, 1, 8)
    with fp.serve(configuration(place)) as pool, pool.producer(STREAM) as camera:
        image = NOISE[: MIB // 2]
        turns, over = 0, False

        def take_turns() -> None:
            nonlocal turns
            while not over:
                turns += 1
                time.sleep(0)

        other = threading.Thread(target=take_turns)
        other.start()
        try:
            while not camera.publish(image) or turns < 100:
                time.sleep(0.001)
            seen = []
            for _ in range(200):
                before = turns
                camera.publish(image)
                seen.append(turns - before)
                time.sleep(0)
        finally:
            over = True
            other.join()
        assert np.count_nonzero(seen) < 20, "a few go the long way, because something changed"
