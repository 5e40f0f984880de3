"""A consumer that joins the descriptor stream again, as one does that was stopped: it misses nothing and maps nothing
anew, although it hears the last descriptors twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import framepool as fp
from framepool.client.mapping import MappingState
from tests.support.onlooker import STREAM, Onlooker, first_frame, small_config, take

FRAMES = 40


def test_consumer_that_joins_again_goes_on_where_it_was(base_dir: Path) -> None:
    config = small_config(base_dir)
    with fp.serve(config) as pool, Onlooker(config) as onlooker:
        camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
        first_frame(camera, eye)
        still = onlooker.listen(config.stream_ids.descriptor)  # whoever joins now is let in where this one stands
        sent = camera.publish_batch([np.full(4, value, np.uint8) for value in range(FRAMES)])
        assert [frame.seq for frame in take(eye, FRAMES)] == sent
        pool.client.rejoin(eye._descriptors.subscription)
        seq = camera.publish(np.full(4, 7, np.uint8))
        assert [frame.seq for frame in take(eye, 1)] == [seq]
        assert eye.counts["repeated"] >= FRAMES, "the test has seen what it is about"
        assert (eye.counts["gap"], eye.state) == (0, MappingState.MAPPED)
        assert eye.statistics()["mapping"]["mapped"] == 1  # type: ignore[index]
        assert len(still.hear()) >= FRAMES
