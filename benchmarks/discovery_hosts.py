"""A question to a registry from another host, against a bare round trip between the same two hosts.

Three hosts in network namespaces, each with a driver of a thousand streams, as in tests/network: the registry and the
echo are on the first one, whoever asks is on the last. Measures nothing where namespaces cannot be made.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.discovery import Site, rows_of
from benchmarks.row import Row
from tests.network.fleet import FIRST, NAMED, PATIENCE, REGISTRY, Fleet
from tests.support.hosts import make_hosts, missing
from tests.support.processes import Processes


def run() -> list[Row]:
    if missing():
        print(f"discovery_hosts: {missing()}", file=sys.stderr)
        return []
    processes = Processes(sys.executable)
    with tempfile.TemporaryDirectory(prefix="framepool-bench-") as root, make_hosts(3, processes) as hosts:
        try:
            return rows_of(times_of(Fleet(hosts, Path(root))), "from another host")
        finally:
            processes.stop_all()


def times_of(fleet: Fleet) -> dict[str, list[int]]:
    """Nanoseconds of each kind of round trip."""
    fleet.start()
    home, other = fleet.registry_hosts[0], fleet.hosts[2]
    site = Site(
        registry=f"aeron:udp?endpoint={home.address}:{REGISTRY}",
        answers=f"aeron:udp?endpoint={other.address}:40500",
        echo=f"aeron:udp?endpoint={home.address}:40501",
        echoes=f"aeron:udp?endpoint={other.address}:40502",
        first=FIRST,
        names=tuple(f"camera {stream_id} of {other.name}" for stream_id in NAMED),
        of_one_name=1,
    )
    module = ("-m", "benchmarks.discovery")
    home.start(*module, "echo", "/dev/shm/aeron", site.echo, site.echoes).wait_line("ready", PATIENCE)
    asker = other.start(*module, "measure", "/dev/shm/asker", json.dumps(dataclasses.asdict(site)))
    times: dict[str, list[int]] = json.loads(asker.wait_line('{"bare', 300))
    return times
