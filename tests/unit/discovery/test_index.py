"""The index of discovery: what is shown of what was heard, for how long, and what it costs to ask (Discovery 6)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from framepool.clock import NANOS_PER_SECOND
from framepool.config import DiscoveryLimits
from framepool.discovery import index as index_module
from framepool.discovery.entry import Entry, Filters, Origin
from framepool.discovery.index import Feed, Index, TooMany
from framepool.wire._generated.control_900 import QosProducer
from framepool.wire._generated.discovery_910 import Result
from framepool.wire.cursor import Cursor
from tests.support.discovery_rig import WINDOW, announce, meta, origin, source

CAMERA = 10_000

A, B = origin("driver-a"), origin("driver-b", host="host-b")


def ids(found: list[Entry]) -> list[int]:
    return [entry.announce.stream_id for entry in found]


def find(index: Index, now_ns: int = 0, **filters: Any) -> list[Entry]:
    if "tags" in filters:
        filters["tags"] = frozenset(filters["tags"])
    return index.find(Filters(**filters), now_ns)


@pytest.fixture
def index() -> Index:
    return Index()


# What is shown


def test_same_stream_of_two_drivers_is_two_streams(index: Index) -> None:
    index.on_announce(A, announce(CAMERA, 4), 0)
    index.on_announce(B, announce(CAMERA, 9), 0)
    assert [(entry.key, entry.announce.epoch) for entry in find(index)] == [
        (("driver-a", CAMERA), 4),
        (("driver-b", CAMERA), 9),
    ]


def test_an_announce_that_is_said_again_keeps_its_stream_and_no_other(index: Index) -> None:
    first, second = announce(CAMERA), announce(CAMERA + 1)
    for said in (first, second):
        index.on_same_announce(A, said, 0)
    index.on_same_announce(A, first, WINDOW)
    assert index.expire(WINDOW + 1) == 1
    assert ids(find(index, WINDOW + 1)) == [CAMERA]
    index.on_same_announce(A, announce(CAMERA, 9), WINDOW + 1)
    assert [entry.announce.epoch for entry in find(index, WINDOW + 1)] == [9]
    index.on_same_announce(A, first, WINDOW + 2)
    assert [entry.announce.epoch for entry in find(index, WINDOW + 2)] == [9], "an older epoch"
    assert find(index, 2 * WINDOW + 2) == []


def test_stream_is_found_by_everything_that_is_known_of_it(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_announce(A, announce(CAMERA + 1, producer_id=8), 0)
    index.on_source(A, source(CAMERA, "camera"), 0)
    index.on_meta(A, meta(CAMERA, tags=["lab:3", "raw"], data_source_id=12), 0)
    for wanted in (
        {"stream_id": CAMERA},
        {"producer_id": 7},
        {"data_source_id": 12},
        {"name": "camera"},
        {"tags": ["raw"]},
        {"tags": ["raw", "lab:3", "host:host-a"]},
        {"stream_id": CAMERA, "name": "camera", "producer_id": 7, "data_source_id": 12, "tags": ["raw"]},
    ):
        assert ids(find(index, **wanted)) == [CAMERA], wanted
    for unwanted in (
        {"stream_id": CAMERA, "producer_id": 8},
        {"name": "Camera"},
        {"tags": ["RAW"]},
        {"tags": ["raw", "host:host-b"]},
    ):
        assert find(index, **unwanted) == [], unwanted


def test_what_changes_is_found_by_the_new_and_not_by_the_old(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_source(A, source(CAMERA, "old"), 0)
    index.on_meta(A, meta(CAMERA, tags=["old"], data_source_id=1), 0)
    before = find(index)[0].encode()
    index.on_announce(A, announce(CAMERA, producer_id=9, epoch=2), 0)
    index.on_source(A, source(CAMERA, "new", meta_version=2, epoch=2), 0)
    index.on_meta(A, meta(CAMERA, 2, tags=["new"], data_source_id=2), 0)
    for gone in ({"name": "old"}, {"tags": ["old"]}, {"data_source_id": 1}, {"producer_id": 7}):
        assert find(index, **gone) == [], gone
    for there in ({"name": "new"}, {"tags": ["new"]}, {"data_source_id": 2}, {"producer_id": 9}):
        assert ids(find(index, **there)) == [CAMERA], there
    after = find(index)[0].encode()
    assert before != after
    assert Result.read(Cursor(after)) == find(index)[0].result()


def test_metadata_that_comes_before_the_first_announce_is_kept(index: Index) -> None:
    index.on_source(A, source(CAMERA, "camera"), 0)
    index.on_meta(A, meta(CAMERA, tags=["raw"]), 0)
    assert find(index) == []
    index.on_announce(A, announce(CAMERA), WINDOW)
    assert ids(find(index, WINDOW, name="camera", tags=["raw"])) == [CAMERA]


def test_metadata_that_came_too_long_before_is_not(index: Index) -> None:
    index.on_source(A, source(CAMERA, "camera"), 0)
    index.on_announce(A, announce(CAMERA), WINDOW + 1)
    assert find(index, WINDOW + 1, name="camera") == []
    assert ids(find(index, WINDOW + 1)) == [CAMERA]


def test_metadata_is_of_the_driver_it_came_from(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_announce(B, announce(CAMERA), 0)
    index.on_source(B, source(CAMERA, "camera"), 0)
    assert [entry.key for entry in find(index, name="camera")] == [("driver-b", CAMERA)]


def test_another_producer_does_not_inherit_tags(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_source(A, source(CAMERA, "camera", epoch=1), 0)
    index.on_meta(A, meta(CAMERA, tags=["raw"], data_source_id=3), 0)
    index.on_source(A, source(CAMERA, "camera", producer_id=8, epoch=2), 0)
    (entry,) = find(index)
    assert entry.told.tags == ()
    assert entry.told.data_source_id is None
    index.on_meta(A, meta(CAMERA, tags=["dark"]), 0)
    assert ids(find(index, tags=["dark"])) == [CAMERA]


def test_tags_of_the_announced_version_stay_when_an_older_version_comes_late(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_source(A, source(CAMERA, "camera", meta_version=2), 0)
    index.on_meta(A, meta(CAMERA, 2, tags=["new"]), 0)
    index.on_meta(A, meta(CAMERA, 1, tags=["old"]), 0)
    assert find(index)[0].told.tags == ("new",)
    index.on_source(A, source(CAMERA, "camera", meta_version=3), 0)
    assert find(index)[0].told.tags == ("new",)
    index.on_meta(A, meta(CAMERA, 3, tags=["newer"]), 0)
    assert find(index)[0].told.tags == ("newer",)


def test_name_of_an_older_epoch_counts_only_after_the_newer_one_fell_silent(index: Index) -> None:
    index.on_announce(A, announce(CAMERA, 5), 0)
    index.on_source(A, source(CAMERA, "new", epoch=5), 0)
    for now in (1, WINDOW):
        index.on_source(A, source(CAMERA, "zombie", epoch=4), now)
        assert find(index)[0].told.name == "new"
    index.on_announce(A, announce(CAMERA, 5), WINDOW)
    index.on_source(A, source(CAMERA, "zombie", epoch=4), WINDOW + 1)
    assert find(index, WINDOW + 1)[0].told.name == "zombie"


def test_producers_do_not_say_which_host_they_are_on(index: Index) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_meta(A, meta(CAMERA, tags=["raw", "host:host-b"]), 0)
    assert find(index, tags=["host:host-b"]) == []
    (entry,) = find(index, tags=["host:host-a"])
    assert entry.tags == {"raw", "host:host-a"}
    assert index.counts["host tags in metadata"] == 1


@pytest.mark.clause("N-6.4-04")
def test_other_messages_change_nothing(index: Index) -> None:
    feed = Feed(index, A)
    feed(announce(CAMERA).encode(), 0)
    before = [entry.encode() for entry in find(index)]
    feed(QosProducer(stream_id=CAMERA, producer_id=99, epoch=77, current_seq=5).encode(), WINDOW)
    feed(b"\x00" * 7, WINDOW)
    feed(announce(CAMERA).encode()[:-1], WINDOW)
    assert [entry.encode() for entry in find(index)] == before
    assert find(index, WINDOW + 1) == []
    assert feed.statistics()["unhandled"] == 1
    assert feed.statistics()["malformed"] == 2


# For how long


def test_stream_is_shown_for_a_window_after_its_last_announce_whatever_the_stamps_say(index: Index) -> None:
    for now, stamp in ((0, 10**18), (WINDOW, 0)):
        index.on_announce(A, announce(CAMERA, announce_timestamp_ns=stamp), now)
    assert ids(find(index, 2 * WINDOW)) == [CAMERA]
    assert find(index, 2 * WINDOW + 1) == []
    assert index.expire(2 * WINDOW) == 0
    assert index.expire(2 * WINDOW + 1) == 1
    assert len(index) == 0
    assert index._found == {}


def test_each_driver_has_its_own_window(index: Index) -> None:
    slow = origin("slow", window_ns=10 * WINDOW)
    index.on_announce(slow, announce(1), 0)
    index.on_announce(A, announce(2), 0)
    assert index.expire(WINDOW + 1) == 1
    assert ids(find(index, WINDOW + 1)) == [1]


def test_lower_epoch_counts_once_the_higher_one_fell_silent(index: Index) -> None:
    index.on_announce(A, announce(CAMERA, 5), 0)
    index.on_announce(A, announce(CAMERA, 4), WINDOW)
    assert find(index, WINDOW)[0].announce.epoch == 5
    index.on_announce(A, announce(CAMERA, 4), WINDOW + 1)
    assert find(index, WINDOW + 1)[0].announce.epoch == 4


# How much


def test_streams_beyond_the_limit_are_dropped_until_others_expire() -> None:
    index = Index(DiscoveryLimits(max_streams=2))
    for stream_id in (1, 2, 3):
        index.on_announce(A, announce(stream_id), 0)
    assert ids(find(index)) == [1, 2]
    assert index.counts["too many streams"] == 1
    index.on_announce(A, announce(2), WINDOW)
    index.on_announce(A, announce(3), WINDOW + 1)
    assert ids(find(index, WINDOW + 1)) == [2, 3]


def test_metadata_of_unknown_streams_is_bounded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "EARLY_LIMIT", 3)
    for stream_id in range(5):
        index.on_source(A, source(stream_id, "x"), 0)
    assert index.statistics()["early metadata"] == 3
    assert index.counts["too much early metadata"] == 2
    for stream_id in range(5):
        index.on_announce(A, announce(stream_id), 0)
    assert ids(find(index, name="x")) == [2, 3, 4]
    index.on_source(A, source(9, "x"), 0)
    index.expire(WINDOW + 1)
    assert index.statistics()["early metadata"] == 0


@pytest.mark.parametrize(
    ("tags", "shown"),
    [
        ([f"t{i}" for i in range(64)], 64),
        ([f"t{i}" for i in range(65)], 0),
        (["x" * 256], 1),
        (["x" * 257, "y"], 0),
    ],
)
def test_tags_are_shown_all_or_none(index: Index, tags: list[str], shown: int) -> None:
    index.on_announce(A, announce(CAMERA), 0)
    index.on_meta(A, meta(CAMERA, tags=tags), 0)
    assert len(find(index)[0].told.tags) == shown
    assert index.counts["too many or too long tags"] == (shown == 0)


def test_oversized_announce_is_dropped(index: Index) -> None:
    feed = Feed(index, A)
    feed(announce(CAMERA, strides=(64,) * 400).encode(), 0)
    assert len(index) == 0
    assert index.counts["announces too large"] == 1


def test_more_matches_than_the_limit_are_too_many_but_hidden_ones_do_not_count(index: Index) -> None:
    for stream_id in range(5):
        index.on_announce(A, announce(stream_id), 0)
    assert len(index.find(Filters(), 0, limit=5)) == 5
    with pytest.raises(TooMany):
        index.find(Filters(), 0, limit=4)
    assert ids(index.find(Filters(), 0, limit=2, visible=lambda entry: entry.announce.stream_id < 2)) == [0, 1]


# What it costs


class Steps:
    """Counts the lines of framepool's own code that a call runs: what it costs, without a clock."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: Any, event: str, argument: object) -> Callable[..., object] | None:
        if "/framepool/discovery/" not in frame.f_code.co_filename:
            return None
        self.lines += event == "line"
        return self

    def of(self, call: Callable[[], object]) -> int:
        self.lines = 0
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(before)
        return self.lines


def test_cost_of_a_question_does_not_grow_with_the_number_of_streams() -> None:
    costs = []
    for number in (10, 10_000):
        index = Index()
        for stream_id in range(number):
            index.on_announce(A, announce(stream_id), 0)
            index.on_source(A, source(stream_id, f"camera {stream_id}"), 0)
        last = number - 1
        questions = [
            Filters(stream_id=last),
            Filters(name=f"camera {last}"),
            Filters(name=f"camera {last}", tags=frozenset({"host:host-a"})),
            Filters(name="nobody"),
        ]
        found = [len(index.find(filters, 1)) for filters in questions]
        assert found == [1, 1, 1, 0]
        costs.append([Steps().of(partial(index.find, filters, 1)) for filters in questions])
    assert costs[0] == costs[1]
    assert min(costs[0]) > 0


def test_cost_of_an_announce_does_not_grow_with_the_number_of_streams() -> None:
    costs = []
    for number in (10, 10_000):
        index = Index()
        for stream_id in range(number):
            index.on_announce(A, announce(stream_id), 0)
        again, changed = announce(0, producer_id=7), announce(0, 2, producer_id=8)
        costs.append([Steps().of(partial(index.on_announce, A, told, 1)) for told in (again, changed)])
    assert costs[0] == costs[1]
    assert min(costs[0]) > 0


# From a capture


def test_index_is_rebuilt_from_a_capture() -> None:
    capture: list[tuple[int, Origin, bytes]] = []

    def play(records: list[tuple[int, Origin, bytes]]) -> Index:
        index = Index()
        feeds = {driver: Feed(index, driver) for driver in (A, B)}
        for now, driver, message in records:
            feeds[driver](message, now)
        return index

    for second in range(5):
        now = second * NANOS_PER_SECOND
        for driver in (A, B)[: 2 if second < 2 else 1]:
            for stream_id in (1, 2, 3):
                capture.append((now, driver, announce(stream_id, 1 + second // 2).encode()))
                capture.append((now, driver, source(stream_id, f"camera {stream_id}").encode()))
                capture.append((now, driver, meta(stream_id, tags=[f"second {second}"]).encode()))
    end = capture[-1][0]
    first, second = play(capture), play(capture)
    shown = [entry.encode() for entry in find(first, end)]
    assert shown == [entry.encode() for entry in find(second, end)]
    assert ids(find(first, end)) == [1, 2, 3, 1, 2, 3]
    assert ids(find(first, end + NANOS_PER_SECOND)) == [1, 2, 3]
    assert first.statistics() == second.statistics()
