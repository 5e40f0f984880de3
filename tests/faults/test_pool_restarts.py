"""Driver, producer and consumer in any order of start, and each of them restarted in turn while frames flow."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest

from framepool.testing import history
from tests.support.driver_site import FAULTS, STREAM, Site
from tests.support.processes import Process, Processes

WORKER = str(FAULTS / "pool_worker.py")
PERIOD = 0.002
PATIENCE = 60.0


class PoolSite(Site):
    """A site whose workers are programs on the public API."""

    def start_pool_worker(self, name: str, role: str) -> Process:
        journal = self.base_dir / f"{name}.journal"
        self.journals.append(journal)
        return self._processes.start(WORKER, str(self.path), str(journal), name, role, str(PERIOD), str(STREAM))


def end(worker: Process) -> None:
    worker.say("end")
    worker.wait_line("end", PATIENCE)
    assert worker.wait() == 0


@pytest.mark.parametrize("order", list(itertools.permutations(("driver", "produce", "consume"))), ids="-".join)
def test_any_order_of_start_works(processes: Processes, base_dir: Path, order: tuple[str, ...]) -> None:
    site = PoolSite(processes, base_dir)
    started = {}
    for number, name in enumerate(order):
        if number:
            time.sleep(0.3)  # so that each is there, and waits, before the next one comes
        started[name] = site.start_driver() if name == "driver" else site.start_pool_worker(name, name)
    for name in ("produce", "consume"):
        started[name].wait_line("flowing", PATIENCE)
    for name in ("consume", "produce"):
        end(started[name])
    assert history.check(site.events()) == []


class Restarts:
    """A driver, a producer and two consumers, of which each in turn ends and comes back."""

    def __init__(self, site: PoolSite) -> None:
        self.site = site
        self.driver = site.start_driver()
        self.names = itertools.count()
        self.camera = self._start("produce")
        self.eyes = [self._start("consume") for _ in range(2)]
        self.all_flow()

    def _start(self, role: str) -> Process:
        return self.site.start_pool_worker(f"{role}-{next(self.names)}", role)

    def all_flow(self) -> None:
        """Everybody makes progress from now on, not only in what it said before."""
        workers = [self.camera, *self.eyes]
        for worker in workers:
            while worker.has_line("flowing"):
                pass
        for worker in workers:
            worker.wait_line("flowing", PATIENCE)
            worker.wait_line("flowing", PATIENCE)

    def round(self, kill: bool) -> None:
        """Ends each by `kill -9`, or in good order, and starts it again."""
        self._end(self.camera, kill)
        self.camera = self._start("produce")
        self.all_flow()
        self._end(self.eyes[0], kill)
        self.eyes[0] = self._start("consume")
        self.all_flow()
        if kill:
            self.driver.kill()
        else:
            self.driver.signal(signal.SIGTERM)
            self.driver.wait()
        self.driver = self.site.start_driver()
        self.all_flow()

    @staticmethod
    def _end(worker: Process, kill: bool) -> None:
        if kill:
            worker.kill()
        else:
            end(worker)

    def finish(self) -> None:
        for worker in (*self.eyes, self.camera):
            end(worker)


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="3"), pytest.param(10, id="10", marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_everybody_is_restarted_in_turn_and_every_frame_is_accounted_for(
    processes: Processes, base_dir: Path, rounds: int
) -> None:
    site = PoolSite(processes, base_dir)
    restarts = Restarts(site)
    for number in range(rounds):
        restarts.round(kill=number % 2 == 1)
    restarts.finish()
    events = site.events()
    assert history.check(events) == []
    counted = {op: sum(event.op == op for event in events) for op in ("attached", "mapped", "published", "received")}
    print(f"\n{rounds} rounds: {counted}")
    assert len({event.epoch for event in events if event.op == "published"}) > rounds
    for name in ("consume-2", "consume-1"):
        epochs = {event.epoch for event in events if event.op == "received" and event.process == name}
        assert epochs
    lasting = [event for event in events if event.process == "consume-2" and event.op == "received"]
    assert len({event.epoch for event in lasting}) > rounds, "the consumer that was never restarted saw all of it"
