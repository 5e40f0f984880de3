"""Streams of a consumer's own between a real producer and a real consumer, and what is left out there (Wire 5, 10)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config
from framepool.wire._generated.control_900 import (
    Bool,
    ConsumerConfig,
    FrameProgress,
    FrameProgressState,
    Mode,
)
from framepool.wire.message import MESSAGE_HEADER
from tests.support.onlooker import STREAM, Onlooker, first_frame, small_config, take, wait_until

SPOT = np.full(16, 7, np.uint8)


@pytest.fixture
def config(base_dir: Path) -> Config:
    return small_config(base_dir, stride_bytes=2**18)


def own_streams(eye: fp.Consumer) -> tuple[int, int]:
    """Of descriptors and of progress, once the consumer listens there."""
    assert eye.duties is not None
    duties = eye.duties
    wait_until(lambda: (eye.poll(), duties.assignment.descriptor and eye._progress)[1])
    return duties.assignment.descriptor.stream_id, duties.assignment.control.stream_id


@pytest.mark.clause("W-5-12", "W-5-13", "W-5-14")
def test_progress_comes_on_a_stream_of_its_own_and_nothing_else_does(
    pool: fp.Pool, config: Config, onlooker: Onlooker
) -> None:
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM, progress=True, own_stream=True)
    _, control = own_streams(eye)
    own, shared = onlooker.listen(control), onlooker.listen(config.stream_ids.control)
    first_frame(camera, eye)
    with camera.claim((100, 1000), np.uint16, progress="rows") as slot:
        slot.array[:50] = 3
        wait_until(lambda: slot.progress(rows=50))
        wait_until(lambda: (partial := eye.partial(slot.seq)) and partial.rows == 50)
    wait_until(lambda: [m for m in own.all(FrameProgress) if m.state is FrameProgressState.COMPLETE])
    camera.close()
    following = pool.producer(STREAM)
    assert first_frame(following, eye).epoch > slot.epoch, "announces are still heard on the shared streams"
    assert {type(message) for message in own.hear()} == {FrameProgress}
    assert shared.all(FrameProgress) == []


@pytest.mark.clause("W-10.1-04", "W-10.1-05")
def test_stream_that_is_not_given_has_no_length_and_leaves_the_consumer_where_everybody_is(
    pool: fp.Pool, config: Config, onlooker: Onlooker
) -> None:
    control = onlooker.listen(config.stream_ids.control)
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM, progress=True, own_stream=True)
    own_streams(eye)
    assert eye.duties is not None
    duties = eye.duties
    wait_until(lambda: control.all(ConsumerConfig))
    granted = control.raw_of(ConsumerConfig)[0]
    assert data_lengths(granted) == [0, len("aeron:ipc"), len("aeron:ipc")]
    told = ConsumerConfig(
        stream_id=STREAM,
        consumer_id=duties.introduction.consumer_id,
        use_shm=Bool.TRUE,
        mode=Mode.STREAM,
        descriptor_stream_id=0,
        control_stream_id=0,
    )
    assert data_lengths(told.encode()) == [0, 0, 0]
    duties.introduction.wishes = pool.consumer(STREAM).duties.wishes  # type: ignore[union-attr] # asks no more
    onlooker.say(config.stream_ids.control, told)
    wait_until(lambda: (eye.poll(), not eye._progress)[1])
    assert eye._descriptors.subscription.stream_id == config.stream_ids.descriptor
    first_frame(camera, eye)


def data_lengths(message: bytes) -> list[int]:
    """The lengths of the variable data behind the block of a ConsumerConfig, byte by byte."""
    at, lengths = MESSAGE_HEADER.size + ConsumerConfig.BLOCK_LENGTH, []
    while at < len(message):
        lengths.append(int.from_bytes(message[at : at + 4], "little"))
        at += 4 + lengths[-1]
    return lengths


@pytest.mark.clause("W-10.2.2-05")
def test_progress_means_nothing_to_who_did_not_ask_for_it(pool: fp.Pool, config: Config, onlooker: Onlooker) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    other = pool.consumer(STREAM, progress=True)
    first_frame(camera, other)
    first_frame(camera, eye)
    assert camera.duties is not None
    agreement = camera.duties.progress
    wait_until(lambda: agreement.policy)
    slot = camera.claim((100, 1000), np.uint16, progress="rows")
    wait_until(lambda: slot.progress(rows=50))
    complete = FrameProgress(
        stream_id=STREAM,
        epoch=slot.epoch,
        seq=slot.seq,
        payload_bytes_filled=slot.array.nbytes,
        state=FrameProgressState.COMPLETE,
    )
    onlooker.say(config.stream_ids.control, complete)
    wait_until(lambda: (partial := other.partial(slot.seq)) and partial.rows)
    assert eye.poll() == [], "COMPLETE or not: there is no descriptor"
    with pytest.raises(ValueError, match="did not ask"):
        eye.partial(slot.seq)
    slot.commit()
    assert [frame.seq for frame in take(eye, 1)] == [slot.seq]
