"""Descriptors of a real producer as others hear them, and what a real consumer makes of anybody's (Wire 10.2.1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool._native.frames import FrameWriter
from framepool._native.seqlock import RingReader, RingWriter
from framepool.client.mapping import ring_parts
from framepool.clock import NANOS_PER_MILLI, RealtimeSyncedClock
from framepool.config import Config
from framepool.errors import FrameOverwritten
from framepool.shm.superblock import read_superblock
from framepool.wire._generated.control_900 import FrameDescriptor
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.message import MESSAGE_HEADER, UINT64_NULL
from tests.support.onlooker import STREAM, Ear, Onlooker, first_frame, small_config, take, wait_until

SPOT = np.full(16, 7, np.uint8)


@pytest.fixture
def ear(config: Config, onlooker: Onlooker) -> Ear:
    return onlooker.listen(config.stream_ids.descriptor)


def epoch_of(camera: fp.Producer) -> int:
    stream = camera._place.stream
    assert stream is not None
    return stream.layout.epoch


def heard_by(camera: fp.Producer, ear: Ear) -> int:
    """Publishes until the ear hears it; the sequence number from which it hears all."""
    wait_until(lambda: (camera.publish(SPOT), ear.all(FrameDescriptor))[1])
    last = camera.current_seq
    wait_until(lambda: ear.all(FrameDescriptor)[-1].seq == last)
    return last + 1


@pytest.mark.clause("W-10.2.1-01", "W-10.2.1-02")
def test_each_frame_has_one_descriptor_with_stream_and_epoch(pool: fp.Pool, ear: Ear) -> None:
    camera = pool.producer(STREAM)
    start = heard_by(camera, ear)
    for _ in range(50):
        camera.publish(SPOT)
        with camera.claim(4):
            pass
    wait_until(lambda: len(ear.all(FrameDescriptor)) and ear.all(FrameDescriptor)[-1].seq == start + 99)
    told = [descriptor for descriptor in ear.all(FrameDescriptor) if descriptor.seq >= start]
    assert [descriptor.seq for descriptor in told] == list(range(start, start + 100))
    stream = camera._place.stream
    assert stream is not None
    assert {descriptor.epoch for descriptor in told} == {read_superblock(stream.header.fd).epoch}
    assert {descriptor.stream_id for descriptor in told} == {STREAM}


@pytest.mark.clause("W-10.1-02", "W-10.2.1-06")
def test_what_a_descriptor_does_not_say_is_null_on_the_wire(pool: fp.Pool, ear: Ear) -> None:
    heard_by(pool.producer(STREAM), ear)
    for raw in ear.raw_of(FrameDescriptor):
        _, _, _, timestamp, _, trace_id = FrameDescriptor.BLOCK.unpack(raw[MESSAGE_HEADER.size :])
        assert (timestamp, trace_id) == (UINT64_NULL, 0)


@pytest.mark.clause("W-10.2.1-09")
def test_nothing_is_told_of_a_frame_that_is_not_committed(pool: fp.Pool, ear: Ear) -> None:
    camera = pool.producer(STREAM)
    start = heard_by(camera, ear)
    with camera.claim(4):
        time.sleep(0.05)
        assert ear.all(FrameDescriptor)[-1].seq < start
    with pytest.raises(ZeroDivisionError), camera.claim(4):
        1 // 0
    last = camera.publish(SPOT)
    wait_until(lambda: ear.all(FrameDescriptor)[-1].seq == last)
    assert [each.seq for each in ear.all(FrameDescriptor) if each.seq >= start] == [start, start + 2]


@pytest.mark.clause("W-10.2.1-09")
def test_whoever_hears_of_a_frame_finds_it_committed(pool: fp.Pool, ear: Ear) -> None:
    """Looked at where the payload is made visible, just before the commit, and again when its descriptor is heard."""
    camera = pool.producer(STREAM)
    start = heard_by(camera, ear)
    stream = camera._place.stream
    assert stream is not None
    ring = RingReader(*ring_parts(stream))
    uncommitted: list[int] = []

    def look(payload: memoryview) -> None:
        seq = camera.current_seq
        assert ear.all(FrameDescriptor)[-1].seq < seq, "told of before the commit"
        assert not ring.word(seq % ring.nslots) & 1
        uncommitted.append(seq)

    make_visible_with(camera, look)
    try:
        for number in range(20):
            if number % 2:
                camera.publish(SPOT)
            else:
                with camera.claim(4):
                    pass
            seq = ear.all(FrameDescriptor)[-1].seq
            assert ring.word(seq % ring.nslots) == seq << 1 | 1
    finally:
        ring.close()
    assert uncommitted == list(range(start, start + 20))
    assert [each.seq for each in ear.all(FrameDescriptor) if each.seq >= start] == uncommitted


def make_visible_with(camera: fp.Producer, visibility: Callable[[memoryview], None]) -> None:
    """Goes on with the epoch of a producer, calling `visibility` before each of its commits."""
    stream, before = camera._place.stream, camera._frames
    assert stream is not None
    assert before is not None
    ring = RingWriter(*ring_parts(stream), visibility)
    camera._frames = FrameWriter(camera._descriptors, ring, STREAM, before.epoch, describe=camera._describe)
    camera._frames.next_seq = before.next_seq
    before.ring.close()


@pytest.mark.clause("W-10.2.1-05", "W-15.7-01")
def test_slots_bear_the_monotonic_time_of_their_frame(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    spans = []
    for _ in range(20):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        camera.publish(SPOT)
        spans.append((before, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    stamps = [frame.timestamp_ns for frame in take(eye, 20)]
    for stamp, (before, after) in zip(stamps, spans, strict=True):
        assert before <= stamp <= after
    assert stamps == sorted(stamps)


@pytest.mark.clause("W-10.2.1-04", "W-10.2.1-07", "W-10.2.1-08", "W-15.7-04")
def test_publish_time_is_that_of_the_descriptor_and_not_of_the_frame(pool: fp.Pool, ear: Ear) -> None:
    camera = pool.producer(STREAM, publish_timestamps=True)
    eye = pool.consumer(STREAM)
    first_frame(camera, eye)
    start = heard_by(camera, ear)
    while eye.latest(0.05):
        pass
    spans = []
    for _ in range(20):
        with camera.claim(4) as slot:
            slot.array[:] = 1
            filled = time.monotonic_ns()
        spans.append((filled, time.monotonic_ns()))
    frames = take(eye, 20)
    wait_until(lambda: ear.all(FrameDescriptor)[-1].seq == start + 19)
    told = [descriptor.timestamp_ns for descriptor in ear.all(FrameDescriptor) if descriptor.seq >= start]
    for stamp, frame, (filled, after) in zip(told, frames, spans, strict=True):
        assert stamp is not None
        assert frame.timestamp_ns <= filled <= stamp <= after
    for series in (told, [frame.timestamp_ns for frame in frames]):
        assert all(a <= b for a, b in pairwise(series)), series  # type: ignore[operator]


@pytest.mark.clause("W-15.7-02")
def test_stamps_are_of_the_realtime_clock_where_that_is_asked_for(base_dir: Path) -> None:
    config = small_config(base_dir, clock="realtime_synced", clock_error_budget_us=100)
    with fp.serve(config), fp.Pool(config, clock=RealtimeSyncedClock(100_000)) as pool:
        camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
        first_frame(camera, eye)
        before = time.time_ns()
        camera.publish(SPOT)
        after = time.time_ns()
        (frame,) = take(eye, 1)
        assert before - NANOS_PER_MILLI <= frame.timestamp_ns <= after + NANOS_PER_MILLI


@pytest.mark.clause("W-15.7-03")
def test_latency_of_a_frame_counts_from_the_stamp_of_its_slot(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    eye.latency.histogram.reset()
    stamp = time.monotonic_ns() - 5 * NANOS_PER_MILLI
    camera.publish(SPOT, timestamp_ns=stamp)
    take(eye, 1)
    histogram = eye.latency.histogram
    assert histogram.count == 1
    assert histogram.maximum is not None
    assert 5 * NANOS_PER_MILLI <= histogram.maximum <= time.monotonic_ns() - stamp


@pytest.mark.clause("W-10.1-03", "W-10.2.1-08")
def test_descriptor_without_a_time_leaves_the_decision_to_the_slot(
    pool: fp.Pool, config: Config, onlooker: Onlooker
) -> None:
    """A null time that were read as a number would hold a rate-limited reader for ever, or at another pace."""
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM, max_rate_hz=10)
    wait_until(lambda: (camera.publish(SPOT), eye.latest(0.05))[1])
    start = time.monotonic_ns() + 10**9
    for number in range(20):
        camera.publish(SPOT, timestamp_ns=start + number * 100 * NANOS_PER_MILLI)
    frames = take(eye, 19)
    assert [frame.trace_id for frame in frames] == [None] * len(frames)
    assert all(b.timestamp_ns - a.timestamp_ns == 100 * NANOS_PER_MILLI for a, b in pairwise(frames))


@pytest.mark.clause("W-10.2.1-08", "W-10.2.1-07")
@pytest.mark.parametrize("stamp", [1, 2**63, UINT64_NULL - 1])
def test_times_that_differ_as_they_like_drop_no_frame(
    pool: fp.Pool, config: Config, onlooker: Onlooker, stamp: int
) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    seq = untold_frame(camera, eye)
    told = FrameDescriptor(stream_id=STREAM, epoch=epoch_of(camera), seq=seq, timestamp_ns=stamp)
    onlooker.say(config.stream_ids.descriptor, told)
    (frame,) = take(eye, 1)
    assert frame.seq == seq
    assert frame.timestamp_ns != stamp


@pytest.mark.clause("W-10.2.1-18")
def test_traced_frames_come_like_untraced_ones(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    sent = [camera.publish(SPOT, trace_id=trace) for trace in (None, 5, None, 2**64 - 1)]
    frames = take(eye, 4)
    assert [frame.seq for frame in frames] == sent
    assert [frame.trace_id for frame in frames] == [None, 5, None, 2**64 - 1]
    assert [frame.copy().tolist() for frame in frames] == [SPOT.tolist()] * 4


@pytest.mark.clause("W-10.2.1-17")
def test_derived_frame_names_the_traces_it_was_made_of(pool: fp.Pool, config: Config, onlooker: Onlooker) -> None:
    ear = onlooker.listen(config.stream_ids.metadata)
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera.publish(SPOT, trace_id=5)
    camera.publish(SPOT, trace_id=6)
    parents = take(eye, 2)
    made = camera.publish(SPOT, trace_id=7, parents=parents)
    wait_until(lambda: ear.all(TraceLinkSet))
    (links,) = ear.all(TraceLinkSet)
    assert (links.stream_id, links.epoch, links.seq, links.trace_id) == (STREAM, epoch_of(camera), made, 7)
    assert [parent.trace_id for parent in links.parents] == [5, 6]


@pytest.mark.clause("W-10.2.1-10")
def test_descriptors_of_other_epochs_are_ignored(pool: fp.Pool, config: Config, onlooker: Onlooker) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    seq = untold_frame(camera, eye)
    epoch = epoch_of(camera)
    others = eye.counts["other epoch"]
    for wrong in (epoch - 1, epoch + 1):
        onlooker.say(config.stream_ids.descriptor, FrameDescriptor(stream_id=STREAM, epoch=wrong, seq=seq))
    seen: list[fp.Frame] = []

    def settled() -> bool:
        seen.extend(eye.poll())
        return bool(seen) or eye.counts["other epoch"] == others + 2

    wait_until(settled)
    assert seen == []
    onlooker.say(config.stream_ids.descriptor, FrameDescriptor(stream_id=STREAM, epoch=epoch, seq=seq))
    assert [frame.seq for frame in take(eye, 1)] == [seq], "the very same frame, told of rightly"


@pytest.mark.clause("W-15.3-02")
@pytest.mark.parametrize("way", ["in place", "as a copy"])
def test_frame_that_changes_while_it_is_read_is_late(pool: fp.Pool, way: str) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    before = dict(eye.counts)
    camera.publish(SPOT)
    (frame,) = take(eye, 1)
    if way == "in place":
        with pytest.raises(FrameOverwritten), frame:
            camera.publish_batch([SPOT] * 64)
    else:
        camera.publish_batch([SPOT] * 64)
        with pytest.raises(FrameOverwritten):
            frame.copy()
    assert eye.counts["late"] == before.get("late", 0) + 1
    assert eye.counts["received"] == before["received"]


def untold_frame(camera: fp.Producer, eye: fp.Consumer) -> int:
    """The sequence number of a committed frame that nobody has been told of yet."""
    first_frame(camera, eye)
    slot = camera.claim(SPOT.shape)
    slot.array[:] = SPOT
    slot.ring.commit(slot.seq, slot.layout, slot.timestamp_ns, slot.meta_version)
    return slot.seq
