"""Signs of life are read from the files that announces name, with every check, and from no others."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from framepool.clock import ManualClock
from framepool.shm.allocator import Allocator
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import map_stream
from framepool.supervisor import activity
from framepool.supervisor.activity import ActivityReader
from framepool.supervisor.streams import Activity, StreamView
from framepool.wire._generated.control_900 import ClockDomain
from tests.support.regions import open_descriptors

STREAM = 7


class Desk:
    """A stream on disk, its announces, and a reader."""

    def __init__(self, base_dir: Path) -> None:
        self.clock = ManualClock(start_ns=1_000)
        self.allocator = Allocator(base_dir, "test", sync=False)
        self.allowed = AllowedDirectories([base_dir])
        self.reader = ActivityReader(self.allowed, self.clock)

    def make(self, stream_id: int = STREAM, epoch: int = 1) -> StreamLayout:
        now = self.clock.monotonic_ns()
        return self.allocator.create(stream_id, epoch, nslots=4, strides={1: 64}, timestamp_ns=now)

    def view(self, layout: StreamLayout, *, producer_id: int = 5) -> StreamView:
        domain = ClockDomain.MONOTONIC
        announce = layout.announce(producer_id=producer_id, timestamp_ns=1, clock_domain=domain)
        view = StreamView(announce, 0)
        view.on_announce(announce, 0)
        return view

    def read(self, *views: StreamView) -> list[Activity]:
        self.reader.begin(views)
        return list(self.reader.read())

    def open_files(self) -> int:
        base = self.allowed.bases[0]
        return sum(path.startswith(base) for path in open_descriptors().values())


@pytest.fixture
def desk(base_dir: Path) -> Desk:
    return Desk(base_dir)


def test_the_age_is_told_by_the_clock_of_the_announce(desk: Desk) -> None:
    layout = desk.make()
    desk.clock.advance(50)
    (reading,) = desk.read(desk.view(layout))
    assert reading == Activity(stream_id=STREAM, epoch=1, timestamp_ns=1_000, age_ns=50)
    with map_stream(layout, desk.allowed, writable=True) as stream:
        stream.refresh_activity(1_040)
    assert desk.read(desk.view(layout))[0].age_ns == 10


def test_a_stream_without_a_producer_is_not_read(desk: Desk) -> None:
    assert desk.read(desk.view(desk.make(), producer_id=0)) == []


@pytest.mark.parametrize(("field", "value"), [("epoch", 2), ("stream_id", 8), ("header_nslots", 8)])
def test_a_file_that_is_not_what_was_announced_is_no_sign_of_life(desk: Desk, field: str, value: int) -> None:
    view = desk.view(desk.make())
    view.announce = msgspec.structs.replace(view.announce, **{field: value})
    before = desk.open_files()
    assert desk.read(view) == []
    assert desk.reader.counts["unreadable"] == 1
    assert desk.open_files() == before


def test_a_file_outside_of_the_allowed_directories_is_not_opened(desk: Desk, tmp_path: Path) -> None:
    elsewhere = Allocator(tmp_path, "test", sync=False)
    layout = elsewhere.create(STREAM, 1, nslots=4, strides={1: 64}, timestamp_ns=1_000)
    assert desk.read(desk.view(layout)) == []
    assert desk.reader.counts["unreadable"] == 1


def test_a_file_that_was_cut_off_is_an_error_and_no_signal(desk: Desk) -> None:
    view = desk.view(layout := desk.make())
    assert len(desk.read(view)) == 1
    os.truncate(layout.header_uri.path, 10)
    assert desk.read(view) == []


def test_of_each_stream_one_file_is_open_and_of_all_together_so_many(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MOST_OPEN", 3)
    before = desk.open_files()
    for epoch in (1, 2, 3):
        desk.read(desk.view(desk.make(STREAM, epoch)))
    assert desk.open_files() == before + 1
    views = [desk.view(desk.make(stream_id)) for stream_id in range(10, 16)]
    assert len(desk.read(*views)) == 6
    assert desk.open_files() == before + 3
    desk.reader.close()
    assert desk.open_files() == before


def test_a_turn_is_read_in_pieces_and_none_begins_before_it_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "READ_PER_CYCLE", 2)
    views = [desk.view(desk.make(stream_id)) for stream_id in range(10, 15)]
    desk.reader.begin(views)
    assert len(list(desk.reader.read())) == 2
    desk.reader.begin(views)
    assert [len(list(desk.reader.read())) for _ in range(3)] == [2, 1, 0]
