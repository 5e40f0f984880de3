"""kill -9 of the driver with a producer and three consumers at work: all notice, none uses what is stale, all go on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from framepool.testing.history import check
from tests.support.driver_site import Site, attached, finish
from tests.support.processes import Processes


@pytest.mark.clause("D-10-01", "D-10-02", "D-10-03", "D-10-04", "D-4.12-07", "D-4.12-08", "D-4.8-03")
@pytest.mark.parametrize("media_driver", ["embedded", "external"])
def test_everybody_notices_and_carries_on(media_driver: str, base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir, media_driver=media_driver)
    if media_driver == "external":
        site.start_media_driver()
    driver = site.start_driver()
    producer = site.start_worker("producer", "produce")
    _, first_epoch = attached(producer)
    consumers = [site.start_worker(f"consumer{i}", "consume") for i in range(3)]
    workers = [producer, *consumers]
    for worker in workers:
        worker.wait_line("flowing")
    noted = site.wait_status(lambda status: len(status["leases"]) == 4)
    epoch = site.stream_status()["epoch"]
    assert epoch >= first_epoch

    driver.kill()
    killed_at = time.monotonic_ns()
    site.start_driver()
    for worker in workers:
        worker.wait_line("lost")
    for worker in workers:
        attached(worker)
    for worker in workers:
        worker.wait_line("flowing")
    site.wait_status(lambda status: len(status["leases"]) == 4)
    restarted = site.status()
    finish(*workers)

    assert {lease["lease_id"] for lease in restarted["leases"]}.isdisjoint(
        lease["lease_id"] for lease in noted["leases"]
    )
    events = site.events()
    assert check(events) == []
    for name in ("producer", "consumer0", "consumer1", "consumer2"):
        own = [event for event in events if event.process == name]
        lost_at = next(event.t for event in own if event.op == "lost" and event.t > killed_at)
        used = [event.epoch for event in own if event.op in {"published", "received"} and event.t > lost_at]
        assert used
        assert min(used) > epoch


@pytest.mark.clause("D-4.7-05")
def test_a_killed_media_driver_ends_leases_but_nobody_exits(base_dir: Path, processes: Processes) -> None:
    """The driver lives on: leases run out and epochs rise, and all of it is told when there is a media driver again."""
    site = Site(processes, base_dir, media_driver="external", announce_period_ms=1500, lease_expiry_ms=6000)
    media_driver = site.start_media_driver()
    driver = site.start_driver()
    producer = site.start_worker("producer", "produce")
    _, epoch = attached(producer)
    consumer = site.start_worker("consumer", "consume")
    consumer.wait_line("flowing")
    site.wait_status(lambda now: len(now["leases"]) == 2)
    media_driver.kill()
    status = site.wait_status(lambda now: now["leases"] == [])
    assert status["counts"]["leases EXPIRED"] >= 2
    between = site.stream_status()["epoch"]
    assert between > epoch, "also while nobody can be told"
    site.start_media_driver()
    assert attached(producer)[1] > between
    for worker in (producer, consumer):
        worker.wait_line("flowing")
    status = site.wait_status(lambda now: len(now["leases"]) == 2)
    assert status["counts"]["reconnects"] >= 1
    assert status["pid"] == driver.pid
    finish(producer, consumer)
    assert check(site.events()) == []
