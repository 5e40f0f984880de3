"""Cleaning up: a running driver keeps its streams to two epochs, and `framepool gc` removes what dead drivers left."""

from __future__ import annotations

import grp
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.clock import MonotonicClock
from framepool.driver.janitor import abandoned, process_lives, sweep_own
from framepool.shm.allocator import Allocator
from framepool.wire._generated.driver_901 import Role
from tests.support.driver_client import DriverClient
from tests.support.driver_site import STREAM, Site, attached, finish
from tests.support.processes import Processes

NANOS = 1_000_000_000


def epochs_of(site: Site, stream: int = STREAM) -> list[int]:
    return sorted(int(path.name) for path in (site.directory / str(stream)).iterdir() if path.name.isdigit())


def tree_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(directory.rglob("*"))}


def gc(site: Site, *args: str) -> list[tuple[int, int]]:
    """The streams and epochs that `framepool gc` removed, or would."""
    process = site.framepool("gc", "--json", *args)
    assert process.wait() == 0, process.lines
    report = json.loads(process.lines[-1])
    assert report["dry_run"] == ("--dry-run" in args)
    return [(removal["stream_id"], removal["epoch"]) for removal in report["removed"]]


@pytest.mark.clause("W-15.21a.7-01")
def test_superseded_epochs_go_but_for_the_previous_one(base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=9000)
    site.start_driver()
    for i in range(4):
        producer = site.start_worker(f"producer{i}", "produce")
        _, epoch = attached(producer)
        finish(producer)

    def swept(now: dict[str, Any]) -> bool:
        current = now["streams"][0]["epoch"] if now["streams"] else 0
        return current > epoch and epochs_of(site) == [current - 1, current]

    site.wait_status(swept)


def test_a_consumer_that_keeps_alive_holds_on_to_no_old_epoch(base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir, lease_expiry_ms=600_000)
    site.start_driver()
    with DriverClient(site.config) as client:
        client.hold(STREAM, Role.PRODUCER).detach()
        silent, lively = client.hold(STREAM), client.hold(STREAM)
        assert silent.epoch == lively.epoch
        for _ in range(3):
            client.hold(STREAM, Role.PRODUCER).detach()
        current = client.announce_of(STREAM).epoch
        wait_for_epochs(site, [silent.epoch, current - 1, current])
        lively.keepalive()
        silent.detach()
        wait_for_epochs(site, [current - 1, current])


def wait_for_epochs(site: Site, wanted: list[int]) -> None:
    deadline = time.monotonic() + 30
    while epochs_of(site) != wanted:
        assert time.monotonic() < deadline, epochs_of(site)
        time.sleep(0.05)


def test_an_epoch_that_a_lease_names_stays(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab", sync=False)
    for epoch in range(1, 6):
        allocator.create(7, epoch, nslots=4, strides={1: 64}, timestamp_ns=1)
    removed = sweep_own(allocator, 7, 5, leased={2})
    assert [removal.epoch for removal in removed] == [1, 3]
    assert allocator.epochs(7) == [2, 4, 5]
    assert [removal.epoch for removal in sweep_own(allocator, 7, 5, leased=())] == [2]


@pytest.mark.clause("W-15.21a.7-02")
def test_gc_removes_what_a_killed_driver_left_once_it_is_stale(base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=9000)
    driver = site.start_driver()
    producer = site.start_worker("producer", "produce")
    _, used = attached(producer)
    finish(producer)
    site.wait_status(lambda now: now["streams"] and now["streams"][0]["epoch"] > used)  # the driver has heard of it
    there = [(STREAM, epoch) for epoch in epochs_of(site)]
    assert gc(site, "--dry-run") == gc(site) == [], "its driver lives"
    driver.kill()
    deadline = time.monotonic() + 30
    while gc(site, "--dry-run") != there:
        assert time.monotonic() < deadline
    before = tree_of(site.directory)
    assert gc(site, "--dry-run") == there
    assert tree_of(site.directory) == before, "a dry run changes nothing"
    assert gc(site) == there
    newest = site.directory / str(STREAM) / str(there[-1][1])
    assert list((site.directory / str(STREAM)).iterdir()) == [newest], "it keeps the count of epochs"
    assert list(newest.iterdir()) == []
    assert gc(site) == []
    site.start_driver()
    again = site.start_worker("again", "produce")
    assert attached(again)[1] > there[-1][1]


def test_looking_takes_no_lock_and_makes_no_file(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab", sync=False)
    allocator.create(7, 1, nslots=4, strides={1: 64}, timestamp_ns=1)
    before = tree_of(base_dir)
    clock = MonotonicClock()
    assert list(abandoned(str(base_dir), clock, 3 * NANOS)) == [], "this process made it, and lives"
    assert tree_of(base_dir) == before
    allocator.lock().release()
    with allocator.unused() as unused:
        assert unused
    allocator.lock().release()


@pytest.fixture
def dead_pid(processes: Processes) -> int:
    process = processes.start("-c", "pass")
    process.wait()
    return process.pid


def made_by(allocator: Allocator, stream_id: int, epoch: int, pid: int, timestamp_ns: int = 1) -> None:
    """An epoch whose superblocks name another process."""
    real = os.getpid
    os.getpid = lambda: pid
    try:
        allocator.create(stream_id, epoch, nslots=4, strides={1: 64}, timestamp_ns=timestamp_ns)
    finally:
        os.getpid = real


@pytest.mark.clause("W-15.21a.7-02")
def test_only_stale_epochs_of_dead_processes_in_namespaces_without_a_driver_go(base_dir: Path, dead_pid: int) -> None:
    clock = MonotonicClock()
    lab, busy = Allocator(base_dir, "lab", sync=False), Allocator(base_dir, "busy", sync=False)
    made_by(lab, 7, 1, dead_pid)
    made_by(lab, 7, 2, dead_pid, timestamp_ns=clock.monotonic_ns())
    made_by(lab, 7, 3, dead_pid, timestamp_ns=time.time_ns())
    made_by(lab, 7, 4, os.getppid())
    made_by(busy, 8, 1, dead_pid)
    lock = busy.lock()
    found = [(removal.stream_id, removal.epoch) for _, removal in abandoned(str(base_dir), clock, 60 * NANOS)]
    assert found == [(7, 1)]
    lock.release()
    found = [(removal.stream_id, removal.epoch) for _, removal in abandoned(str(base_dir), clock, 60 * NANOS)]
    assert found == [(8, 1), (7, 1)]


def test_a_driver_cannot_start_where_somebody_cleans_up(base_dir: Path, dead_pid: int) -> None:
    allocator = Allocator(base_dir, "lab", sync=False)
    made_by(allocator, 7, 1, dead_pid)
    allocator.lock().release()
    removals = abandoned(str(base_dir), MonotonicClock(), NANOS)
    next(removals)
    with allocator.unused() as unused:
        assert not unused
    removals.close()
    with allocator.unused() as unused:
        assert unused


@pytest.fixture
def outside(base_dir: Path) -> Iterator[Path]:
    path = base_dir.with_name(base_dir.name + "-outside")
    path.mkdir()
    (path / "header.ring").write_bytes(b"precious")
    yield path
    shutil.rmtree(path)


def test_no_link_leads_out_of_the_namespace(base_dir: Path, dead_pid: int, outside: Path) -> None:
    allocator = Allocator(base_dir, "lab", sync=False)
    made_by(allocator, 7, 1, dead_pid)
    made_by(allocator, 7, 2, dead_pid)
    made_by(allocator, 7, 9, dead_pid)
    directory = Path(allocator.directory)
    shutil.rmtree(directory / "7" / "2")
    (directory / "7" / "2").symlink_to(outside)
    (directory / "7" / "1" / "link").symlink_to(outside)
    (directory / "8").symlink_to(outside)
    (directory.parent / "linked").symlink_to(outside)
    for found, removal in abandoned(str(base_dir), MonotonicClock(), NANOS):
        found.remove_epoch(removal.stream_id, removal.epoch)
    assert [path.name for path in outside.iterdir()] == ["header.ring"]
    assert (outside / "header.ring").read_bytes() == b"precious"
    assert not (directory / "7" / "1").exists()
    assert list((directory / "7" / "9").iterdir()) == []


@pytest.mark.requires("root")
def test_namespaces_shared_with_a_group_are_looked_at_too(base_dir: Path, dead_pid: int) -> None:
    group = next(entry.gr_gid for entry in grp.getgrall() if entry.gr_gid not in {0, os.getegid()})
    allocator = Allocator(base_dir, "lab", group=group, sync=False)
    made_by(allocator, 7, 1, dead_pid)
    found = [(removal.stream_id, removal.epoch) for _, removal in abandoned(str(base_dir), MonotonicClock(), NANOS)]
    assert found == [(7, 1)]


def test_a_process_that_we_may_not_signal_lives() -> None:
    assert process_lives(1)
    assert process_lives(os.getpid())
    assert not process_lives(0)
    assert not process_lives(2**40)
