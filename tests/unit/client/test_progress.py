"""What a producer says of a frame while it fills it, with a clock that the test moves."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from framepool._native.seqlock import Layout
from framepool.client.progress import ProgressPolicy, ProgressReporter, ProgressStream, filled_bytes
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import (
    Bool,
    ConsumerHello,
    Dtype,
    FrameProgress,
    FrameProgressState,
    MajorOrder,
    Mode,
    ProgressUnit,
)

STREAM = 10_000
EPOCH = 9
US = 1_000
KIB = 1_024
STARTED, PROGRESS, COMPLETE = FrameProgressState.STARTED, FrameProgressState.PROGRESS, FrameProgressState.COMPLETE

IMAGE = TensorLayout.build(np.uint8, (1_024, 4_096), progress_unit=ProgressUnit.ROWS)


def hello(
    consumer_id: int = 1,
    *,
    progress: bool = True,
    interval_us: int | None = None,
    bytes_delta: int | None = None,
    rows: int | None = None,
) -> ConsumerHello:
    return ConsumerHello(
        stream_id=STREAM,
        consumer_id=consumer_id,
        supports_shm=Bool.TRUE,
        supports_progress=Bool(progress),
        mode=Mode.STREAM,
        max_rate_hz=0,
        expected_layout_version=1,
        progress_interval_us=interval_us,
        progress_bytes_delta=bytes_delta,
        progress_major_delta_units=rows,
        descriptor_stream_id=0,
        control_stream_id=0,
    )


class World:
    """A stream, those who listen, and what they hear with the time at which they do."""

    def __init__(self, policy: ProgressPolicy | None = None, *listeners: ConsumerHello) -> None:
        self.clock = ManualClock()
        self.heard: list[tuple[int, FrameProgress]] = []
        self.open = True
        self.stream = ProgressStream(STREAM, send=self.send, clock=self.clock, policy=policy)
        self.stream.agree(listeners or [hello()])

    def send(self, message: FrameProgress) -> bool:
        if self.open:
            self.heard.append((self.clock.monotonic_ns(), message))
        return self.open

    def begin(self, seq: int = 0, layout: TensorLayout = IMAGE, **keywords: Any) -> ProgressReporter:
        frame = self.stream.frame(EPOCH, seq, layout, layout.extent, **keywords)
        frame.start()
        return frame

    def take(self) -> list[tuple[FrameProgressState, int]]:
        heard, self.heard = self.heard, []
        return [(message.state, message.payload_bytes_filled) for _, message in heard]


@pytest.mark.clause("W-10.2.2-02", "W-10.2.2-15")
def test_frame_is_started_once_and_complete_once() -> None:
    world = World()
    frame = world.begin(5)
    world.clock.advance(300 * US)
    frame.update(IMAGE.extent // 2)
    frame.complete()
    assert [message.seq for _, message in world.heard] == [5, 5, 5]
    assert {message.epoch for _, message in world.heard} == {EPOCH}
    assert world.take() == [(STARTED, 0), (PROGRESS, IMAGE.extent // 2), (COMPLETE, IMAGE.extent)]
    with pytest.raises(ValueError, match="already"):
        frame.start()
    with pytest.raises(ValueError, match="complete"):
        frame.update(IMAGE.extent)
    with pytest.raises(ValueError, match="complete"):
        frame.complete()
    assert world.take() == []


@pytest.mark.clause("W-10.1.2-05", "W-10.2.2-03", "W-10.2.2-16")
def test_without_hints_progress_takes_250_us_and_64_kib() -> None:
    world = World()
    frame = world.begin()
    world.clock.advance(249 * US)
    assert not frame.update(200 * KIB)
    world.clock.advance(1 * US)
    assert frame.poll()
    world.clock.advance(250 * US)
    assert not frame.update(264 * KIB - 1)
    assert frame.update(264 * KIB)
    assert world.take() == [(STARTED, 0), (PROGRESS, 200 * KIB), (PROGRESS, 264 * KIB)]


@pytest.mark.clause("W-10.2.2-17")
def test_flood_of_updates_is_held_to_the_rate_and_ends_with_the_latest() -> None:
    world = World(ProgressPolicy(max_rate_hz=1_000, burst=4, min_bytes_delta=1), hello(bytes_delta=1))
    frame = world.begin()
    for i in range(1, 100_001):  # one second
        world.clock.advance(10 * US)
        frame.update(i)
    assert 990 <= len(world.heard) <= 1_004
    world.clock.advance(1_000 * US)
    frame.poll()
    assert world.take()[-1] == (PROGRESS, 100_000)


@pytest.mark.clause("W-10.2.2-18")
def test_trickle_is_told_of_at_every_tick() -> None:
    world = World()
    frame = world.begin()
    for i in range(1, 101):  # 100 ms, a byte each
        world.clock.advance(NANOS_PER_SECOND // 1_000)
        frame.update(i)
    assert world.take() == [(STARTED, 0), *((PROGRESS, 10 * i) for i in range(1, 11))]


def test_silence_without_news_stays_silence() -> None:
    world = World()
    frame = world.begin()
    world.take()
    for _ in range(10):
        world.clock.advance(NANOS_PER_SECOND)
        assert not frame.poll()


@pytest.mark.clause("W-10.2.2-19")
def test_nobody_is_told_unless_somebody_asked() -> None:
    world = World(None, hello(progress=False))
    frame = world.begin()
    world.clock.advance(NANOS_PER_SECOND)
    frame.update(IMAGE.extent)
    world.stream.agree([hello(progress=False), hello(2)])
    frame.complete()
    assert world.take() == [], "a frame that began unheard stays so"
    frame = world.begin(1)
    world.stream.agree([])
    world.clock.advance(NANOS_PER_SECOND)
    frame.update(IMAGE.extent)
    frame.complete()
    assert world.take() == [(STARTED, 0), (COMPLETE, IMAGE.extent)], "and one that began is ended"


@pytest.mark.clause("W-10.2.2-20", "W-10.1.2-06")
@pytest.mark.parametrize(
    ("hellos", "interval_us", "bytes_delta", "rows"),
    [
        (
            [hello(interval_us=500, bytes_delta=128 * KIB), hello(interval_us=300, bytes_delta=64 * KIB)],
            300,
            64 * KIB,
            0,
        ),
        ([hello(interval_us=10, bytes_delta=1, rows=1)], 250, 4_096, 2),
        ([hello(interval_us=0, bytes_delta=0, rows=0)], 250, 4_096, 0),
        ([hello(interval_us=9_000), hello()], 250, 64 * KIB, 0),
        ([hello(interval_us=9_000), hello(interval_us=1, progress=False)], 9_000, 64 * KIB, 0),
        ([hello(rows=7), hello(rows=5), hello()], 250, 64 * KIB, 5),
    ],
)
def test_most_eager_hints_count_within_the_minima(
    hellos: list[ConsumerHello], interval_us: int, bytes_delta: int, rows: int
) -> None:
    policy = ProgressPolicy(min_interval_us=250, min_bytes_delta=4_096, min_major_delta_units=2)
    agreed = policy.agreed(hellos)
    assert agreed is not None
    assert (agreed.interval_us, agreed.bytes_delta, agreed.major_delta_units) == (interval_us, bytes_delta, rows)


def test_rows_asked_for_are_enough_for_a_progress() -> None:
    world = World(None, hello(rows=4))
    frame = world.begin()
    world.clock.advance(250 * US)
    assert not frame.update(rows=3)
    assert frame.update(rows=4)
    plain = TensorLayout.build(np.uint8, (1_024, 4_096))
    unmarked = world.begin(1, plain)
    world.clock.advance(5_000 * US)
    assert not unmarked.update(rows=4), "without a unit in its header the consumer cannot count rows either"


@pytest.mark.clause("W-10.2.2-08", "W-10.2.2-09")
def test_progress_that_goes_back_or_beyond_is_refused() -> None:
    world = World()
    frame = world.begin()
    world.clock.advance(250 * US)
    frame.update(100 * KIB)
    for wrong in (100 * KIB - 1, -1, IMAGE.extent + 1):
        with pytest.raises(ValueError, match="are filled of"):
            frame.update(wrong)
    world.clock.advance(NANOS_PER_SECOND)
    assert not frame.poll()
    assert world.take() == [(STARTED, 0), (PROGRESS, 100 * KIB)]


def test_progress_is_one_number_of_a_started_frame() -> None:
    world = World()
    frame = world.stream.frame(EPOCH, 0, IMAGE, IMAGE.extent)
    with pytest.raises(ValueError, match="not started"):
        frame.update(1)
    frame.start()
    with pytest.raises(ValueError, match="either"):
        frame.update(1, rows=1)
    with pytest.raises(ValueError, match="either"):
        frame.update()


def test_header_is_written_before_the_first_progress_and_once() -> None:
    written: list[int] = []
    world = World()
    frame = world.begin(write_header=lambda: written.append(len(world.heard)))
    assert not frame.update(1)
    assert written == []
    for i in range(1, 4):
        world.clock.advance(500 * US)
        frame.update(i * 100 * KIB)
    assert written == [1], "after STARTED, before PROGRESS"


def test_message_that_aeron_does_not_take_is_made_up_for_by_a_later_one() -> None:
    world = World()
    frame = world.begin()
    world.open = False
    world.clock.advance(250 * US)
    assert not frame.update(100 * KIB)
    world.open = True
    assert not frame.poll(), "not before the interval"
    world.clock.advance(250 * US)
    assert frame.poll()
    assert world.take() == [(STARTED, 0), (PROGRESS, 100 * KIB)]
    assert world.stream.statistics() == {"STARTED": 1, "PROGRESS": 1, "lost": 1}


def test_abandoned_frame_says_nothing_more() -> None:
    world = World()
    frame = world.begin()
    frame.abandon()
    world.clock.advance(NANOS_PER_SECOND)
    assert not frame.poll()
    with pytest.raises(ValueError, match="complete"):
        frame.complete()
    assert world.take() == [(STARTED, 0)]


@pytest.mark.parametrize(
    ("layout", "unit", "count", "nbytes"),
    [
        (IMAGE, ProgressUnit.ROWS, 3, 3 * 4_096),
        (TensorLayout.build(np.uint16, (4, 5), strides=(16, 2)), ProgressUnit.ROWS, 3, 48),
        (TensorLayout.build(np.uint16, (4, 5), strides=(16, 2)), ProgressUnit.ROWS, 4, 58),
        (TensorLayout.build(np.uint16, (4, 5), order=MajorOrder.COLUMN), ProgressUnit.COLUMNS, 2, 16),
        (TensorLayout.build(Dtype.BIT, (4, 24), progress_unit=ProgressUnit.ROWS), ProgressUnit.ROWS, 2, 6),
        (TensorLayout.build(np.uint16, (0, 5)), ProgressUnit.ROWS, 0, 0),
    ],
)
def test_rows_and_columns_become_bytes_by_their_stride(
    layout: TensorLayout, unit: ProgressUnit, count: int, nbytes: int
) -> None:
    assert filled_bytes(layout, unit, count) == nbytes
    assert filled_bytes(Layout(layout.header), unit, count) == nbytes


@pytest.mark.parametrize(
    ("layout", "unit", "count"),
    [
        (IMAGE, ProgressUnit.ROWS, 1_025),
        (IMAGE, ProgressUnit.ROWS, -1),
        (TensorLayout.build(np.uint8, (7,)), ProgressUnit.COLUMNS, 1),
        (TensorLayout.build(Dtype.BIT, (4, 24)), ProgressUnit.ROWS, 1),
    ],
)
def test_units_that_the_layout_does_not_have_are_refused(layout: TensorLayout, unit: ProgressUnit, count: int) -> None:
    with pytest.raises(ValueError, match=unit.name):
        filled_bytes(layout, unit, count)


@pytest.mark.parametrize("field", ["interval_us", "bytes_delta", "tick_us", "max_rate_hz", "burst"])
def test_policy_without_a_limit_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ProgressPolicy(**{field: 0})
    with pytest.raises(ValueError, match="min_interval_us"):
        ProgressPolicy(min_interval_us=-1)


POLICY = ProgressPolicy(interval_us=250, bytes_delta=1_000, tick_us=2_000, max_rate_hz=1_000, burst=3)
SIZE = 20_000
BYTES = TensorLayout.build(np.uint8, (SIZE,))


class Throttle(RuleBasedStateMachine):
    """Frames filled at all speeds, several at once: never more than the policy allows, no silence that it forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(POLICY)
        self.frames: list[ProgressReporter] = []
        self.seq = 0

    @precondition(lambda self: len(self.frames) < 3)
    @rule()
    def start(self) -> None:
        self.frames.append(self.world.begin(self.seq, BYTES))
        self.seq += 1

    @rule(us=st.sampled_from([1, 50, 249, 250, 1_000, 2_000, 20_000]))
    def wait(self, us: int) -> None:
        self.world.clock.advance(us * US)

    @precondition(lambda self: self.frames)
    @rule(data=st.data(), nbytes=st.sampled_from([0, 1, 999, 1_000, 5_000]))
    def update(self, data: st.DataObject, nbytes: int) -> None:
        frame = data.draw(st.sampled_from(self.frames))
        frame.update(min(SIZE, frame.filled + nbytes))
        self.must_have_spoken(frame)

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.frames))
        frame.poll()
        self.must_have_spoken(frame)

    @precondition(lambda self: self.frames)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.frames))
        self.frames.remove(frame)
        frame.complete()

    def must_have_spoken(self, frame: ProgressReporter) -> None:
        now = self.world.clock.monotonic_ns()
        if now - self.world.heard[-1][0] < 1_000 * US * POLICY.burst:
            return  # the rate of the stream may hold it back
        last_ns, last = [heard for heard in self.world.heard if heard[1].seq == frame.seq][-1]
        silence = now - last_ns
        assert frame.filled - last.payload_bytes_filled < POLICY.bytes_delta
        assert silence < POLICY.tick_us * US or frame.filled == last.payload_bytes_filled

    @invariant()
    def keeps_order_interval_and_delta(self) -> None:
        frames: dict[int, list[tuple[int, FrameProgress]]] = defaultdict(list)
        for time, message in self.world.heard:
            frames[message.seq].append((time, message))
        for heard in frames.values():
            assert heard[0][1].state is STARTED
            for (before_ns, before), (time, message) in pairwise(heard):
                new = message.payload_bytes_filled - before.payload_bytes_filled
                assert before.state is not COMPLETE
                assert message.state is not STARTED
                assert new >= 0
                assert message.payload_bytes_filled <= SIZE
                if message.state is PROGRESS:
                    assert time - before_ns >= POLICY.interval_us * US
                    assert new >= POLICY.bytes_delta or (new and time - before_ns >= POLICY.tick_us * US)

    @invariant()
    def keeps_the_rate(self) -> None:
        times = [time for time, message in self.world.heard if message.state is PROGRESS]
        for i, first in enumerate(times):
            for count, last in enumerate(times[i:], start=1):
                assert count <= (last - first) * POLICY.max_rate_hz / NANOS_PER_SECOND + POLICY.burst


TestThrottle = Throttle.TestCase
TestThrottle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
