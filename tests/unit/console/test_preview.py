"""Previews with a manual clock: when frames are looked at, for whom, and when nobody looks any more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.console.picture import Wish, decoded
from framepool.console.preview import (
    FULL_RATE_STREAMS,
    LATE_NS,
    LINGER_NS,
    LONGEST_NS,
    MOST_STREAMS,
    RETRY_NS,
    Pictures,
    Previews,
)
from framepool.errors import AttachRefused, FrameOverwritten

STREAM = 10_000
RATE = 10
PERIOD_NS = NANOS_PER_SECOND // RATE


class Frame:
    """A frame that may be overwritten while it is looked at."""

    def __init__(self, seq: int, *, overwritten: bool = False) -> None:
        self.seq = seq
        self.timestamp_ns = seq
        self.epoch = 1
        self.image = np.full((8, 8), seq, np.uint16)
        self.shape = self.image.shape
        self.dtype = self.image.dtype
        self._overwritten = overwritten

    def __enter__(self) -> Any:
        return self.image

    def __exit__(self, *error: object) -> None:
        if self._overwritten:
            raise FrameOverwritten("gone")


class Source:
    """A stream that has the next frame whenever it is asked."""

    def __init__(self) -> None:
        self.consumer_id = 7
        self.asked = 0
        self.closed = False
        self.overwritten = False
        self.dry = False

    def newest(self) -> Frame | None:
        if self.dry:
            return None
        self.asked += 1
        return Frame(self.asked, overwritten=self.overwritten)

    def close(self) -> None:
        self.closed = True


class Viewer:
    """Takes a picture, and no other until it is ready again."""

    def __init__(self, size: int = 8) -> None:
        self.shown: list[dict[str, Any]] = []
        self.ready = True
        self.size = size
        self.calls = 0

    def wishes(self, stream_id: int) -> Wish | None:
        return Wish(size=self.size) if self.ready else None

    def show(self, pictures: Pictures) -> None:
        self.ready = False
        self.calls += 1
        self.shown += [header for message in pictures.values() for header, _ in decoded(message)]


class Room:
    """Previews of streams that are made on demand."""

    def __init__(self) -> None:
        self.clock = ManualClock(NANOS_PER_SECOND)
        self.sources: dict[int, Source] = {}
        self.refuse = False
        self.previews = Previews(self._attach, rate_hz=RATE, clock=self.clock)

    def _attach(self, stream_id: int) -> Source:
        if self.refuse:
            raise AttachRefused("no driver")
        source = self.sources[stream_id] = Source()
        return source

    def watch(self, viewer: Viewer, *stream_ids: int) -> None:
        self.previews.watch(viewer, stream_ids)
        self.previews.attach_due()

    def turn(self, nanos: int = 0) -> int:
        self.clock.advance(nanos)
        return self.previews.do_work()


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_stream_is_not_read_unless_somebody_watches(room: Room) -> None:
    room.previews.attach_due()
    assert room.sources == {}
    room.watch(Viewer(), STREAM)
    assert list(room.sources) == [STREAM]


def test_pictures_come_no_more_often_than_configured(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, STREAM)
    for _ in range(1_000):
        viewer.ready = True
        room.turn(NANOS_PER_SECOND // 100)
    assert len(viewer.shown) == 10 * RATE + 1, "the first at once"
    assert room.sources[STREAM].asked == 10 * RATE + 1


def test_streams_that_began_at_different_times_are_shown_at_the_same_ones(room: Room) -> None:
    early, late = Viewer(), Viewer()
    room.watch(early, STREAM)
    room.turn(1)
    room.watch(late, STREAM + 1)
    room.turn(PERIOD_NS // 3)
    assert len(early.shown) == len(late.shown) == 1
    for _ in range(100):
        before = len(early.shown)
        early.ready = late.ready = True
        room.turn(PERIOD_NS // 10)
        assert len(early.shown) - before == len(late.shown) - before
    assert len(early.shown) == len(late.shown) == 11


def test_many_streams_share_what_a_few_would_take(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, *range(STREAM, STREAM + 2 * FULL_RATE_STREAMS))
    room.turn()
    viewer.shown.clear()
    for _ in range(100 * 10):
        viewer.ready = True
        room.turn(NANOS_PER_SECOND // 100)
    assert len(viewer.shown) == 10 * RATE * FULL_RATE_STREAMS


def test_all_streams_of_a_viewer_are_shown_in_one_go(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, STREAM, STREAM + 1, STREAM + 2)
    room.turn()
    assert sorted(header["stream"] for header in viewer.shown) == [STREAM, STREAM + 1, STREAM + 2]
    assert viewer.calls == 1


def test_a_viewer_that_has_not_drawn_costs_nothing(room: Room) -> None:
    slow, quick = Viewer(), Viewer()
    room.watch(slow, STREAM)
    room.turn()
    for _ in range(5):
        room.turn(PERIOD_NS)
    assert len(slow.shown) == 1
    assert room.sources[STREAM].asked == 1
    room.watch(quick, STREAM)
    for _ in range(5):
        quick.ready = True
        room.turn(PERIOD_NS)
    assert len(slow.shown) == 1
    assert len(quick.shown) == 5


def test_equal_wishes_share_a_picture_and_others_have_their_own(room: Room) -> None:
    one, same, smaller = Viewer(8), Viewer(8), Viewer(4)
    for viewer in (one, same, smaller):
        room.watch(viewer, STREAM)
    room.turn()
    assert one.shown == same.shown
    assert (one.shown[0]["rows"], smaller.shown[0]["rows"]) == (8, 4)
    assert room.sources[STREAM].asked == 1


def test_no_picture_is_larger_than_configured_whatever_is_wished_for(room: Room) -> None:
    room.previews = Previews(room._attach, rate_hz=RATE, clock=room.clock, largest=4)
    greedy = Viewer(2**40)
    room.watch(greedy, STREAM)
    room.turn()
    assert (greedy.shown[0]["rows"], greedy.shown[0]["columns"]) == (4, 4)


def test_a_frame_that_was_overwritten_is_shown_to_nobody(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, STREAM)
    room.sources[STREAM].overwritten = True
    room.turn()
    assert viewer.shown == []
    assert room.previews.counts["overwritten"] == 1
    room.sources[STREAM].overwritten = False
    room.turn(PERIOD_NS)
    assert len(viewer.shown) == 1


def test_a_reader_ends_a_while_after_the_last_viewer(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, STREAM)
    room.previews.leave(viewer)
    room.turn(LINGER_NS)
    assert not room.sources[STREAM].closed
    room.turn(1)
    assert room.sources[STREAM].closed
    assert room.previews.statistics()["watched"] == 0


def test_whoever_comes_back_in_time_finds_the_same_reader(room: Room) -> None:
    viewer = Viewer()
    room.watch(viewer, STREAM)
    first = room.sources[STREAM]
    room.previews.leave(viewer)
    room.turn(LINGER_NS // 2)
    room.watch(viewer, STREAM)
    room.turn(LINGER_NS)
    assert room.sources[STREAM] is first
    assert not first.closed


def test_a_refusal_is_told_and_tried_again_later(room: Room) -> None:
    room.refuse = True
    room.watch(Viewer(), STREAM)
    watched = room.previews.known(STREAM)
    assert watched is not None
    assert watched.refusal == "no driver"
    room.refuse = False
    room.clock.advance(RETRY_NS - 1)
    assert room.previews.attach_due() == 0
    room.clock.advance(1)
    assert room.previews.attach_due() == 1
    assert watched.refusal == ""


def test_a_reader_that_comes_too_late_is_closed(room: Room) -> None:
    viewer = Viewer()
    attach = room._attach

    def late(stream_id: int) -> Source:
        source = attach(stream_id)
        room.previews.leave(viewer)
        room.turn(LINGER_NS + 1)
        return source

    room.previews._attach = late
    room.watch(viewer, STREAM)
    assert room.sources[STREAM].closed


def test_the_shape_of_the_last_frame_is_known(room: Room) -> None:
    room.watch(Viewer(), STREAM)
    room.turn()
    watched = room.previews.known(STREAM)
    assert watched is not None
    assert (watched.frame_bytes, watched.shape, watched.dtype) == (128, (8, 8), "uint16")


def test_closing_closes_every_reader(room: Room) -> None:
    room.watch(Viewer(), STREAM, STREAM + 1)
    room.previews.on_close()
    assert all(source.closed for source in room.sources.values())


def test_pages_that_ask_for_ever_more_streams_meet_a_bound(room: Room) -> None:
    faithful, greedy = Viewer(), Viewer()
    room.watch(faithful, STREAM)
    for first in range(0, 10 * MOST_STREAMS, 64):
        room.previews.watch(greedy, range(20_000 + first, 20_064 + first))
    assert room.previews.statistics()["watched"] <= MOST_STREAMS
    others = [Viewer() for _ in range(2 * MOST_STREAMS // 64)]
    for number, viewer in enumerate(others):
        room.previews.watch(viewer, range(64 * number, 64 * number + 64))
    counted = room.previews.statistics()
    assert counted["watched"] == MOST_STREAMS
    assert counted["too many streams"] == MOST_STREAMS + 64 + 1
    assert room.turn() == 1, "who was there before is served"


def test_nobody_is_waited_for_by_looking_all_the_time(room: Room) -> None:
    """As many turns as there are pictures, and none too late for one."""
    viewer = Viewer()
    assert room.previews.rest_ns() == LONGEST_NS
    room.watch(viewer, STREAM)
    turns = 0
    while len(viewer.shown) < 10:
        viewer.ready = True
        room.turn(room.previews.rest_ns())
        turns += 1
    assert turns == 10
    assert room.clock.monotonic_ns() <= NANOS_PER_SECOND + LATE_NS + 10 * PERIOD_NS
    viewer.ready = False
    room.turn(room.previews.rest_ns())
    assert room.previews.rest_ns() == LATE_NS, "it is due, and waits for who draws it"
    room.previews.leave(viewer)
    while not room.sources[STREAM].closed:
        room.turn(room.previews.rest_ns())
        turns += 1
    assert turns < 20
    assert room.clock.monotonic_ns() <= NANOS_PER_SECOND + LINGER_NS + 13 * PERIOD_NS


@pytest.mark.parametrize("event", ["a viewer", "a reader", "an end"])
def test_whoever_comes_ends_the_wait(room: Room, event: str) -> None:
    if event == "a reader":
        room.previews.watch(Viewer(), [STREAM])
        room.previews.idle(0)  # that was the viewer
    ended = threading.Event()
    waiting = threading.Thread(target=lambda: [room.previews.idle(0), ended.set()], daemon=True)
    room.previews.rest_ns = lambda: 3_600 * NANOS_PER_SECOND  # type: ignore[method-assign]
    waiting.start()
    match event:
        case "a viewer":
            room.previews.watch(Viewer(), [STREAM])
        case "a reader":
            room.previews.attach_due()
        case _:
            room.previews.rouse()
    assert ended.wait(60)
    waiting.join()
