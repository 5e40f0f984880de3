"""A fleet for tests of discovery: a driver on each host, with many streams, and registries on the first one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.drivers import write_toml
from tests.support.hosts import Host, Hosts
from tests.support.processes import Process

STREAMS = 1_000
FIRST = 10_000
ANNOUNCE_PORT, REQUEST_PORT, HEARING_PORT = 40_200, 40_123, 40_300
PERIOD_MS = 2_000
"""Of announces: twice the usual one, for machines that are busy with other tests as well."""
PATIENCE = 60.0
PEER = str(Path(__file__).parents[1] / "network" / "discovery_peer.py")


def aeron(name: str) -> dict[str, Any]:
    """A media driver of its own, in the memory of its host."""
    return {"directory": f"/dev/shm/{name}", "driver_timeout": 5.0}


class Fleet:
    """Files and processes of all hosts."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.hosts = hosts
        self.home = hosts[0]
        self._directory = directory

    def registry_channel(self, number: int) -> str:
        return f"aeron:udp?endpoint={self.home.address}:{REQUEST_PORT + number}"

    def driver_file(self, host: Host) -> Path:
        values = {
            "aeron": aeron("driver"),
            "driver": {"shm_base_dir": "/dev/shm", "announce_period_ms": PERIOD_MS},
            "profiles": {"small": {"nslots": 4, "pools": [{"pool_id": 1, "stride_bytes": 64}]}},
            "streams": [{"stream_id": FIRST + i, "profile": "small"} for i in range(STREAMS)],
            "discovery": {
                "host": host.name,
                "driver_instance_id": f"{host.name}/streams",
                "announce_channels": [f"aeron:udp?control={host.address}:{ANNOUNCE_PORT}|control-mode=dynamic"],
            },
        }
        return write_toml(self._directory / f"{host.name}.toml", values)

    def registry_file(self, number: int) -> Path:
        sources = [
            {
                "driver_instance_id": f"{host.name}/streams",
                "host": host.name,
                "channel": f"aeron:udp?endpoint={self.home.address}:{HEARING_PORT + 10 * number + position}"
                f"|control={host.address}:{ANNOUNCE_PORT}",
                "announce_period_ms": PERIOD_MS,
            }
            for position, host in enumerate(self.hosts)
        ]
        values = {
            "aeron": aeron(f"registry-{number}"),
            "discovery": {"channel": self.registry_channel(number)},
            "registry": {"sources": sources},
        }
        return write_toml(self._directory / f"registry-{number}.toml", values)

    def start_driver(self, host: Host) -> Process:
        return host.start("-m", "framepool", "driver", "--config", str(self.driver_file(host)), "--json")

    def start_registry(self, number: int) -> Process:
        return self.home.start("-m", "framepool", "registry", "--config", str(self.registry_file(number)), "--json")

    def tell(self, host: Host) -> Process:
        """A name and tags for every stream of a host, as producers would tell them."""
        return host.start(PEER, "tell", "/dev/shm/driver", str(FIRST), str(STREAMS), host.name)

    def asker(self) -> Asker:
        registries = [self.registry_channel(number) for number in range(2)]
        return Asker(self.home.start(PEER, "ask", "/dev/shm/asker", *registries))


class Asker:
    """A client in a process of its own, told by lines what to ask."""

    def __init__(self, process: Process) -> None:
        self._process = process
        process.wait_line("ready")

    def ask(self, **filters: Any) -> list[dict[str, Any]]:
        self._process.say(json.dumps(filters))
        found: list[dict[str, Any]] = json.loads(self._process.wait_line("found", PATIENCE).removeprefix("found "))
        return found

    def until(self, holds: Callable[[list[dict[str, Any]]], object], **filters: Any) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE
        while not holds(found := self.ask(**filters)):
            assert time.monotonic() < deadline, found[:5]
            time.sleep(0.05)
        return found


def ready(*processes: Process) -> None:
    for process in processes:
        process.wait_line('{"event": "ready"', PATIENCE)


def drivers_of(found: list[dict[str, Any]]) -> list[str]:
    return [each["driver"] for each in found]
