"""Ten thousand attaches and detaches, and a thousand leases at once: the beacon keeps time and nothing piles up."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest

from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import Role
from tests.support.driver_client import DriverClient
from tests.support.driver_site import STREAM, Site, finish
from tests.support.processes import Processes

QUIET = 10_002
"""A stream that nobody touches: all its announces are periodic."""
LEAK = 3 * 2**20
"""Bytes that a driver may grow by after the warm-up, for the rounding of allocators."""
STREAMS = """
[[streams]]
stream_id = 10001
profile = "tiny"

[[streams]]
stream_id = 10002
profile = "tiny"

[profiles.tiny]
nslots = 4
pools = [{pool_id = 1, stride_bytes = 4096}]
"""


class Footprint:
    """What a driver holds, in memory and on disk."""

    def __init__(self, pid: int, site: Site) -> None:
        self.files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        self.maps = Path(f"/proc/{pid}/maps").read_text().count("\n")
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.resident = int(fields["RssAnon"].split()[0]) * 1024
        self.on_disk = sum(1 for _ in site.directory.rglob("*"))

    def __str__(self) -> str:
        return (
            f"{self.files} descriptors, {self.maps} maps, {self.resident / 2**20:.1f} MiB, {self.on_disk} files on disk"
        )

    def require_no_more_than(self, before: Footprint) -> None:
        """Descriptors, maps and files come and go with the current two epochs; memory may not follow the cycles."""
        assert self.files <= before.files + 4
        assert self.maps <= before.maps + 8
        assert self.on_disk <= before.on_disk + 12
        assert self.resident - before.resident < LEAK


class Beacon:
    """The stamps of the periodic announces of the quiet stream, collected on the side."""

    def __init__(self, period_ms: int) -> None:
        self._period_ns = period_ms * 1_000_000
        self.stamps: list[int] = []

    def take(self, client: DriverClient) -> None:
        """Takes the stamps out of what a client heard, and lets it forget the rest."""
        for message in client.heard:
            if isinstance(message, ShmPoolAnnounce) and message.stream_id == QUIET:
                self.stamps.append(message.announce_timestamp_ns)
        client.heard.clear()

    def intervals(self) -> list[float]:
        """Seconds between announces, in periods."""
        return sorted((after - before) / self._period_ns for before, after in itertools.pairwise(self.stamps))

    def require(self, cadence: float | None) -> None:
        """All announces within that part of their period; without one, only that they kept coming."""
        intervals = self.intervals()
        assert intervals
        if cadence is not None:
            assert 1 - cadence <= intervals[0]
            assert intervals[-1] <= 1 + cadence

    def __str__(self) -> str:
        intervals = self.intervals()
        return f"{len(intervals)} announces, {intervals[0]:.3f} to {intervals[-1]:.3f} periods apart"


def cycle(client: DriverClient, beacon: Beacon, lease_ids: set[int]) -> None:
    held = client.hold(STREAM, Role.PRODUCER)
    assert held.lease_id not in lease_ids
    lease_ids.add(held.lease_id)
    held.detach()
    beacon.take(client)


@pytest.mark.clause("D-4.8-02")
@pytest.mark.parametrize(
    ("warm_up", "cycles", "cadence"),
    [
        pytest.param(100, 1000, None, id="1000"),
        pytest.param(1000, 10_000, 0.2, id="10000", marks=pytest.mark.soak),
    ],
)
def test_attach_and_detach_cycles_leave_nothing_behind(
    warm_up: int, cycles: int, cadence: float | None, base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, more=STREAMS, announce_period_ms=1000)
    driver = site.start_driver()
    beacon = Beacon(1000)
    lease_ids: set[int] = set()
    with DriverClient(site.config) as client:
        for _ in range(warm_up):
            cycle(client, beacon, lease_ids)
        before = Footprint(driver.pid, site)
        started = time.monotonic()
        for _ in range(cycles - warm_up):
            cycle(client, beacon, lease_ids)
        took = time.monotonic() - started
        after = Footprint(driver.pid, site)
    assert len(lease_ids) == cycles
    print(f"\n{(cycles - warm_up) / took:.0f} cycles/s\nbefore: {before}\nafter:  {after}\n{beacon}")
    after.require_no_more_than(before)
    beacon.require(cadence)


@pytest.mark.clause("D-5-03")
@pytest.mark.parametrize(
    ("count", "seconds", "period_ms", "cadence"),
    [
        pytest.param(50, 1.0, 2000, None, id="200"),
        pytest.param(250, 30.0, 1000, 0.2, id="1000", marks=pytest.mark.soak),
    ],
)
def test_many_leases_from_four_processes_of_which_one_is_stopped(
    count: int, seconds: float, period_ms: int, cadence: float | None, base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, more=STREAMS, announce_period_ms=period_ms, lease_expiry_ms=3 * period_ms)
    driver = site.start_driver()
    beacon = Beacon(period_ms)
    script = str(Path(__file__).parent / "driver_lease_holder.py")
    holders = [processes.start(script, str(site.path), str(STREAM), str(count)) for _ in range(4)]
    with DriverClient(site.config) as client:
        for holder in holders:
            while not holder.has_line("held"):
                listen(client, beacon, 0.1)
        site.wait_status(lambda now: len(now["leases"]) == 4 * count)
        before = Footprint(driver.pid, site)
        listen(client, beacon, seconds)
        after = Footprint(driver.pid, site)
        holders[0].signal(signal.SIGSTOP)
        client.hold(STREAM, Role.PRODUCER).detach()  # two epochs that all the others follow
        while "leases EXPIRED" not in site.status()["counts"]:
            listen(client, beacon, 0.1)
        holders[0].signal(signal.SIGCONT)
        site.wait_status(lambda now: len(now["leases"]) == 4 * count)
    print(f"\nbefore: {before}\nafter:  {after}\n{beacon}")
    said = finish(*holders)
    assert [each["held"] for each in said] == [count] * 4
    assert [each.get("lost", 0) for each in said[1:]] == [0] * 3, "those that go on do not notice the one that stopped"
    after.require_no_more_than(before)
    beacon.require(cadence)


def listen(client: DriverClient, beacon: Beacon, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        client.poll()
        beacon.take(client)
        time.sleep(0.002)
