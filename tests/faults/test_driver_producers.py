"""A producer that is killed, or stopped past its lease, in the middle of a frame; and producers that race."""

from __future__ import annotations

import hashlib
import itertools
import signal
from pathlib import Path

import pytest

from framepool.testing.history import check
from framepool.wire.constants import SUPERBLOCK_SIZE
from tests.support.driver_site import STREAM, Site, attached, finish
from tests.support.onlooker import wait_until
from tests.support.processes import Process, Processes


def start_flow(site: Site, consumers: int = 1) -> tuple[Process, list[Process], int]:
    """A driver, a producer and consumers that read its frames; and the producer's epoch."""
    site.start_driver()
    producer = site.start_worker("producer", "produce")
    _, epoch = attached(producer)
    readers = [site.start_worker(f"consumer{i}", "consume") for i in range(consumers)]
    for reader in readers:
        reader.wait_line("flowing")
    return producer, readers, epoch


@pytest.mark.clause("D-7-01", "D-7-02", "D-7-03", "D-4.7-05")
def test_a_frame_cut_by_a_kill_is_never_seen_and_the_next_producer_gets_a_later_epoch(
    base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=6000)
    producer, readers, epoch = start_flow(site, consumers=2)
    producer.say("half")
    cut = int(producer.wait_line("dying").split()[1])
    assert producer.wait() == -signal.SIGKILL

    status = site.wait_status(lambda now: any(stream["epoch"] > epoch for stream in now["streams"]))
    assert status["streams"][0]["producer"] is None
    assert status["counts"]["leases EXPIRED"] >= 1
    spare = site.start_worker("spare", "produce")
    _, later = attached(spare)
    assert later > epoch
    spare.wait_line("flowing")
    for number in range(len(readers)):
        name = f"consumer{number}"
        wait_until(lambda name=name: (name, later) in frames_of(site))
    *seen, _ = finish(*readers, spare)

    events = site.events()
    assert check(events) == []
    received = [(event.process, event.epoch, event.seq) for event in events if event.op == "received"]
    for i, statistics in enumerate(seen):
        name = f"consumer{i}"
        assert (name, epoch, cut) not in received
        assert (name, epoch, cut - 1) in received, "it was at work right up to the kill"
        assert statistics["frames"]["late"] >= 1, "its descriptor did come"
        assert any(process == name and at == later for process, at, _ in received)


def frames_of(site: Site) -> set[tuple[str, int]]:
    """Who has read frames of which epochs."""
    return {(event.process, event.epoch) for event in site.events() if event.op == "received"}


@pytest.mark.clause("D-4.7-03", "D-4.7-04", "D-5-02", "D-7-03")
def test_a_stopped_producer_that_wakes_beside_its_successor_writes_nothing(
    base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=6000)
    zombie, (reader,), epoch = start_flow(site)
    zombie.say("stop")
    zombie.wait_line("stopping")
    spare = site.start_worker("spare", "produce")
    _, later = attached(spare)
    assert later > epoch
    spare.wait_line("flowing")

    spare.pause()  # so that nobody but the zombie could write now
    before = slots_of(site, later)
    zombie.signal(signal.SIGCONT)
    assert zombie.wait_line("woke") == "woke without a lease", "it looks before it commits"
    zombie.wait_line("lost")
    assert slots_of(site, later) == before
    spare.signal(signal.SIGCONT)
    zombie.wait_line("refused REJECTED")
    (said,) = finish(zombie)
    finish(spare, reader)

    assert said["frames"]["lease lost while writing"] == 1
    assert said["attachment"]["last_refusal"].startswith("REJECTED: stream 10001 has a producer already")
    events = site.events()
    assert check(events) == [], "every frame of the new epoch is its own producer's"
    assert {event.epoch for event in events if event.process == "producer" and event.op == "published"} == {epoch}


def slots_of(site: Site, epoch: int) -> dict[str, str]:
    """The digests of all slots of an epoch; the driver stamps the superblocks meanwhile."""
    directory = site.directory / str(STREAM) / str(epoch)
    return {path.name: hashlib.sha256(path.read_bytes()[SUPERBLOCK_SIZE:]).hexdigest() for path in directory.iterdir()}


@pytest.mark.clause("D-5-01", "D-4.8-01", "D-4.8-04")
def test_of_racing_producers_one_has_the_stream_at_a_time(base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir)
    site.start_driver()
    racers = [site.start_worker(f"racer{i}", "produce") for i in range(4)]
    waiting = list(racers)
    while waiting:
        holder = next(racer for racer in itertools.cycle(waiting) if has_attached(racer))
        finish(holder)
        waiting.remove(holder)
    events = site.events()
    assert check(events) == []
    grants = [event for event in events if event.op == "attached"]
    assert {event.process for event in grants} == {"racer0", "racer1", "racer2", "racer3"}
    assert len({event.client_id for event in grants}) == 4


def has_attached(racer: Process) -> bool:
    try:
        attached(racer, 0.1)
    except AssertionError:
        assert racer.popen.poll() is None, racer.lines
        return False
    return True
