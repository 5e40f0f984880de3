"""A fleet: a driver with many streams on each host, two registries on the first two, and a client on the last one."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.drivers import write_toml
from tests.support.hosts import Host, Hosts
from tests.support.processes import Process

STREAMS = 1_000
FIRST = 10_000
PERIOD_MS = 1_000
HEARD_MS = 2 * PERIOD_MS
"""What registries take for the period: a driver that gets no processor for a while keeps its streams."""
NAMED = (FIRST + 1, FIRST + 2)
"""Streams of each host that have a producer, a name and tags."""
PATIENCE = 120.0
CONTROL, REGISTRY, SOURCE = 40_200, 40_123, 40_210


class Fleet:
    """What runs on hosts that hear each other; all configuration lies in `directory`."""

    def __init__(self, hosts: Hosts, directory: Path, *, streams: int = STREAMS) -> None:
        self.hosts = hosts
        self.registry_hosts = (hosts[0], hosts[1])
        self.streams = streams
        self._directory = directory
        self._started: list[Process] = []
        self.drivers: dict[str, Process] = {}
        self.registries: dict[str, Process] = {}

    def start(self) -> None:
        for host in self.hosts:
            self._begin_driver(host)
        for host in self.registry_hosts:
            self._begin_registry(host)
        for process in (*self.drivers.values(), *self.registries.values()):
            process.wait_line('{"event": "ready"', PATIENCE)
        for host in self.hosts:
            self._begin_producer(host)
        for process in self._started:
            process.wait_line("producing", PATIENCE)
        self.client = self.start_client(self.hosts[len(self.hosts) - 1])

    @functools.cached_property
    def other_client(self) -> Asker:
        """Somebody who asks the second registry only."""
        return self.start_client(self.hosts[len(self.hosts) - 1], self.registry_hosts[1:])

    @functools.cached_property
    def first_client(self) -> Asker:
        """Somebody who asks the first registry only."""
        return self.start_client(self.hosts[len(self.hosts) - 1], self.registry_hosts[:1])

    def restart_driver(self, host: Host) -> None:
        self._begin_driver(host).wait_line('{"event": "ready"', PATIENCE)

    def start_client(self, host: Host, registries: Sequence[Host] | None = None) -> Asker:
        """Somebody on a host who asks: a client of the driver there, and of both registries or some."""
        path = self._driver_file(host, self.registry_hosts if registries is None else registries)
        return Asker(host.start("-m", "tests.network.registry_client", str(path), "ask"))

    def _begin_driver(self, host: Host) -> Process:
        path = self._driver_file(host)
        self.drivers[host.name] = host.start("-m", "framepool", "driver", "--config", str(path), "--json")
        return self.drivers[host.name]

    def _begin_registry(self, host: Host) -> None:
        path = self._registry_file(host)
        self.registries[host.name] = host.start("-m", "framepool", "registry", "--config", str(path), "--json")

    def _begin_producer(self, host: Host) -> None:
        named = ",".join(map(str, NAMED))
        arguments = (str(self._driver_file(host)), "produce", named)
        self._started.append(host.start("-m", "tests.network.registry_client", *arguments))

    def _driver_file(self, host: Host, registries: Sequence[Host] = ()) -> Path:
        values: dict[str, Any] = {
            "aeron": {"directory": "/dev/shm/aeron", "driver_timeout": 10.0},
            "driver": {
                "shm_base_dir": "/dev/shm",
                "announce_period_ms": PERIOD_MS,
                "lease_expiry_ms": 30_000,
                "limits": {"max_streams": self.streams + 100},
            },
            "discovery": {
                "embedded": False,  # whoever asks gets what registries know, and not what the nearest driver says first
                "host": host.name,
                "driver_instance_id": f"{host.name}/driver",
                "announce_channels": [f"aeron:udp?control={host.address}:{CONTROL}|control-mode=dynamic"],
                "registries": [f"aeron:udp?endpoint={each.address}:{REGISTRY}" for each in registries],
            },
            "profiles": {"default": {"nslots": 4, "pools": [{"pool_id": 1, "stride_bytes": 64}]}},
            "streams": [{"stream_id": FIRST + number} for number in range(self.streams)],
        }
        asked = "".join(f"-{each.name}" for each in registries)
        return write_toml(self._directory / f"{host.name}-driver{asked}.toml", values)

    def _registry_file(self, host: Host) -> Path:
        sources = [
            {
                "driver_instance_id": f"{each.name}/driver",
                "host": each.name,
                "channel": f"aeron:udp?endpoint={host.address}:{SOURCE + number}|control={each.address}:{CONTROL}",
                "announce_period_ms": HEARD_MS,
            }
            for number, each in enumerate(self.hosts)
        ]
        values = {
            "aeron": {"directory": "/dev/shm/registry-aeron"},
            "discovery": {"channel": f"aeron:udp?endpoint={host.address}:{REGISTRY}"},
            "registry": {"instance": host.name, "sources": sources},
        }
        return write_toml(self._directory / f"{host.name}-registry.toml", values)


class Asker:
    """A client process that asks when it is told to."""

    def __init__(self, process: Process) -> None:
        self._process = process
        process.wait_line("asking", PATIENCE)

    def find(self, **query: Any) -> list[dict[str, Any]]:
        """What `Pool.discover` gives for a query: driver, stream, epoch, host, name and tags of each result."""
        said = self._ask({"discover": query})
        assert "error" not in said, said
        return list(said["found"])

    def consume(self, name: str) -> str:
        """The kind of error that `Pool.consumer(name)` raises."""
        return str(self._ask({"consume": name})["error"])

    def wait_until(self, holds: Any, **query: Any) -> tuple[list[dict[str, Any]], float]:
        """Asks until the answer is so; the answer, and how many seconds that took."""
        started = time.monotonic()
        while not holds(found := self.find(**query)):
            assert time.monotonic() - started < PATIENCE, found
            time.sleep(0.05)
        return found, time.monotonic() - started

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._process.say(json.dumps(question))
        said: dict[str, Any] = json.loads(self._process.wait_line("{", PATIENCE))
        return said


def hosts_of(found: list[dict[str, Any]]) -> set[str]:
    return {each["host"] for each in found}
