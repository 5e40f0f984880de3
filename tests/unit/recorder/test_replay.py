"""The pace of a replay, by a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Buffer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framepool.agent import AgentTerminated
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.errors import RecordingError
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.replay import Replay
from framepool.recorder.segment_file import SegmentFile

STREAM, OTHER = 10_000, 10_001
SECOND = NANOS_PER_SECOND


class Stage:
    """Takes what a producer would publish, and when."""

    def __init__(self, clock: ManualClock, stream_id: int = STREAM) -> None:
        self.stream_id = stream_id
        self.has_readers = False
        self.published: list[tuple[float, int]] = []
        self.stamps: list[int] = []
        self.full = False
        self._clock = clock
        self._start = clock.monotonic_ns()

    def publish_raw(self, payload: Buffer, tensor_header: bytes, **told: Any) -> int | None:
        if self.full:
            return None
        seconds = (self._clock.monotonic_ns() - self._start) / SECOND
        self.published.append((seconds, int(np.frombuffer(payload, np.uint8)[0])))
        self.stamps.append(told["timestamp_ns"])
        return len(self.published)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """Frames 0 to 5 at 10, 11, 12, 13, 23 and 24 seconds of their source's clock."""
    manifest = Manifest(tmp_path / "rec")
    info = manifest.create(1)
    with SegmentFile(manifest.segments / "00000000.seg", info.recording_id) as file:
        for seq, seconds in enumerate([10, 11, 12, 13, 23, 24]):
            array = np.full(4, seq, np.uint8)
            file.add(array, stream_id=STREAM, epoch=1, seq=seq, timestamp_ns=seconds * SECOND)
        file.add(np.full(4, 99, np.uint8), stream_id=OTHER, epoch=1, seq=0)
    manifest.publish(file.contents.entry(indexed=False))
    return Recording(tmp_path / "rec")


def play(replay: Replay, clock: ManualClock, seconds: float) -> bool:
    """Turns it for so long; whether it ended."""
    for _ in range(int(seconds * 10)):
        try:
            while replay.do_work():
                pass
        except AgentTerminated:
            return True
        clock.advance(SECOND // 10)
    return False


def test_frames_come_at_the_recorded_pace_with_their_own_timestamps(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    replay = Replay(recording, {STREAM: stage}, clock=clock)  # type: ignore[dict-item]
    assert play(replay, clock, 20)
    assert stage.published == [(0, 0), (1, 1), (2, 2), (3, 3), (13, 4), (14, 5)]
    assert stage.stamps == [seconds * SECOND for seconds in (10, 11, 12, 13, 23, 24)]
    assert replay.counts["published"] == 6


@pytest.mark.parametrize(
    ("speed", "times"), [(2.0, [0, 0.5, 1, 1.5, 6.5, 7]), (0.5, [0, 2, 4, 6, 26, 28]), (0, [0] * 6)]
)
def test_pace_can_be_multiplied_or_left_out(
    recording: Recording, clock: ManualClock, speed: float, times: list[float]
) -> None:
    stage = Stage(clock)
    assert play(Replay(recording, {STREAM: stage}, clock=clock, speed=speed), clock, 40)  # type: ignore[dict-item]
    assert [when for when, _ in stage.published] == times


def test_part_of_a_recording_can_be_played(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    replay = Replay(recording, {STREAM: stage}, clock=clock, start=1.5, end=13.5)  # type: ignore[dict-item]
    assert (replay.total, replay.position) == (3, 2.0)
    assert play(replay, clock, 40)
    assert stage.published == [(0, 2), (1, 3), (11, 4)]


def test_seek_goes_anywhere_within_it(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    replay = Replay(recording, {STREAM: stage}, clock=clock)  # type: ignore[dict-item]
    play(replay, clock, 1.5)
    replay.seek(13)
    play(replay, clock, 0.1)
    replay.seek(0.5)
    play(replay, clock, 0.1)
    assert [frame for _, frame in stage.published] == [0, 1, 4, 1]
    replay.seek(1000)
    assert play(replay, clock, 1)


def test_loop_begins_again(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    replay = Replay(recording, {STREAM: stage}, clock=clock, loop=True, end=2.5)  # type: ignore[dict-item]
    assert not play(replay, clock, 4.05)
    assert stage.published == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
    assert replay.counts["rounds"] == 1


def test_several_streams_keep_together(recording: Recording, clock: ManualClock) -> None:
    one, two = Stage(clock), Stage(clock, OTHER)
    replay = Replay(recording, {STREAM: one, OTHER: two}, clock=clock, speed=0)  # type: ignore[dict-item]
    assert play(replay, clock, 5)
    assert (len(one.published), len(two.published)) == (6, 1)


def test_replay_waits_for_readers_if_it_is_told_to(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    replay = Replay(recording, {STREAM: stage}, clock=clock, speed=0, wait_for_readers=True)  # type: ignore[dict-item]
    assert not play(replay, clock, 2)
    assert stage.published == []
    stage.has_readers = True
    assert play(replay, clock, 2)
    assert len(stage.published) == 6


def test_frames_that_cannot_be_published_are_counted(recording: Recording, clock: ManualClock) -> None:
    stage = Stage(clock)
    stage.full = True
    replay = Replay(recording, {STREAM: stage}, clock=clock, speed=0)  # type: ignore[dict-item]
    assert play(replay, clock, 2)
    assert replay.statistics()["dropped"] == 6


def test_nonsense_is_refused(recording: Recording, clock: ManualClock) -> None:
    stage: Any = Stage(clock)
    for options in ({"speed": -1.0}, {"start": -1.0}, {"start": 5.0, "end": 5.0}):
        with pytest.raises(ValueError, match="0 or more"):
            Replay(recording, {STREAM: stage}, **options)
    with pytest.raises(ValueError, match="at least one"):
        Replay(recording, {})
    with pytest.raises(RecordingError, match="no stream 7"):
        Replay(recording, {7: stage})
