"""Bridges between hosts: each host with its driver and media driver in one process, its bridge, and its programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.bridges import SOURCE
from tests.support.drivers import write_toml
from tests.support.hosts import Host
from tests.support.processes import Process

WORKER = str(Path(__file__).parents[1] / "process" / "bridge_worker.py")
PATIENCE = 90.0
PERIOD = 0.004


class Site:
    """What runs on one host, in one process: files in shared memory of its own, its configuration in `directory`."""

    def __init__(self, host: Host, directory: Path, bridge: dict[str, Any], *mappings: dict[str, Any]) -> None:
        self.host = host
        self._path = write_toml(
            directory / f"{host.name}.toml",
            {
                "aeron": {"directory": "/dev/shm/aeron"},
                "driver": {"shm_base_dir": "/dev/shm", "announce_period_ms": 200, "lease_expiry_ms": 60_000},
                "discovery": {"host": host.name},
                "profiles": {"default": {"nslots": 32, "pools": [{"pool_id": 1, "stride_bytes": 65_536}]}},
                "bridge": {"instance_id": f"bridge-{host.name}", **bridge},
                "mappings": list(mappings),
            },
        )

    def start(self, role: str, stream: int, size: int) -> Process:
        """A camera or an eye, with the driver and the bridge of the host."""
        self.process = self.host.start(WORKER, str(self._path), role, str(stream), str(PERIOD), str(size), "host")
        self.process.wait_line("attached", PATIENCE)
        return self.process

    def mapping(self, name: str = str(SOURCE)) -> dict[str, Any]:
        """What the bridge says of a mapping."""
        self.process.say("status")
        status = json.loads(self.process.wait_line("status", PATIENCE).removeprefix("status "))
        (found,) = [each for each in status["mappings"] if each["mapping"] == name]
        return dict(found)

    def quiet(self) -> None:
        """Ends the camera or the eye, and leaves driver and bridge running."""
        self.process.say("quiet")
        self.process.wait_line("quiet", PATIENCE)

    def resident_bytes(self) -> int:
        """What the process occupies beside its files."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise AssertionError("it ended")


def unicast(target: Host, first_stream_id: int = 3000, first_port: int = 40_100, more: str = "") -> dict[str, Any]:
    """A link to one host; `more` is for its receiving end."""
    ways = {"payload": first_port, "control": first_port + 1, "metadata": first_port + 2}
    return _link(
        {name: f"aeron:udp?endpoint={target.address}:{port}{more}" for name, port in ways.items()}, first_stream_id
    )


def _link(channels: dict[str, str], first_stream_id: int) -> dict[str, Any]:
    numbered = {f"{name}_stream_id": first_stream_id + number for number, name in enumerate(channels)}
    return {**{f"{name}_channel": where for name, where in channels.items()}, **numbered}


def dynamic(source: Host, *, at: Host | None = None) -> dict[str, Any]:
    """A link from one host to any that join it (MDC); `at` is a receiver's end."""
    ends = "" if at is None else f"endpoint={at.address}:{{}}|"
    ways = {"payload": 40_200, "control": 40_210, "metadata": 40_220}
    return _link(
        {
            name: f"aeron:udp?{ends.format(port + 1)}control={source.address}:{port}|control-mode=dynamic"
            for name, port in ways.items()
        },
        3000,
    )


def multicast(host: Host) -> dict[str, Any]:
    """A link of one to many, by groups that every host names in the same way."""
    groups = {"payload": "239.255.77.1:40300", "control": "239.255.77.3:40310", "metadata": "239.255.77.5:40320"}
    return _link({name: f"aeron:udp?endpoint={group}|interface={host.address}" for name, group in groups.items()}, 3000)


def flows(*workers: Process, lines: int = 2) -> None:
    """Frames come from now on, not only before."""
    for worker in workers:
        while worker.has_line("flowing"):
            pass
    for worker in workers:
        for _ in range(lines):
            worker.wait_line("flowing", PATIENCE)


def told(*workers: Process) -> None:
    """Waits until metadata has come to all of these."""
    for worker in workers:
        if "told SN-1" not in worker.lines:
            worker.wait_line("told SN-1", PATIENCE)


def end(*workers: Process) -> list[dict[str, Any]]:
    """Ends all of them; what the eyes counted. No frame was ever wrong."""
    for worker in workers:
        worker.say("end")
    for worker in workers:
        assert worker.wait() == 0, worker.lines[-5:]
        assert not list(wrong(worker.lines)), list(wrong(worker.lines))[:5]
    eyes = [worker for worker in workers if "consume" in worker.popen.args]
    return [
        msgspec.json.decode(line.removeprefix("end ")) for eye in eyes for line in eye.lines if line.startswith("end")
    ]


def wrong(lines: Sequence[str]) -> Iterator[str]:
    return (line for line in lines if line.startswith("wrong"))
