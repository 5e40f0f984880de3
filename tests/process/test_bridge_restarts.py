"""Sender, receiver, drivers and media drivers are killed under load, and frames flow again without anybody's help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.bridges import DEST, SOURCE, link, mapping
from tests.support.drivers import write_toml
from tests.support.processes import Process, Processes

WORKER = str(Path(__file__).with_name("bridge_worker.py"))
PATIENCE = 90.0
BYTES = 20_000


class Site:
    """One host in processes of its own: media driver, driver, bridge, and a program."""

    def __init__(self, processes: Processes, base_dir: Path, name: str, between: dict[str, Any], role: str) -> None:
        directory = base_dir / name
        directory.mkdir()
        self._processes = processes
        self._aeron = str(directory / "aeron")
        self._path = write_toml(
            directory / "host.toml",
            {
                "aeron": {"directory": self._aeron, "driver_timeout": 6.0, "keepalive_interval": 0.2},
                "driver": {"shm_base_dir": str(directory), "announce_period_ms": 200, "media_driver": "external"},
                "discovery": {"host": name},
                "profiles": {"default": {"nslots": 32, "pools": [{"pool_id": 1, "stride_bytes": 32_768}]}},
                "bridge": {"instance_id": f"bridge-{name}", "role": role, **between},
                "mappings": [mapping()],
            },
        )
        self._running: dict[str, Process] = {}
        for part in ("media driver", "driver", "bridge"):
            self.start(part)

    def start(self, part: str) -> None:
        """Starts a part of the host; it says when it is ready."""
        if part == "media driver":
            process = self._processes.start("-m", "framepool", "media-driver", "--dir", self._aeron)
            process.wait_line("media driver ready", PATIENCE)
        else:
            process = self._processes.start("-m", "framepool", part, "--config", str(self._path), "--json")
            process.wait_line('{"event": "ready"', PATIENCE)
        self._running[part] = process

    def kill(self, part: str) -> None:
        self._running.pop(part).kill()

    def worker(self, role: str, stream: int) -> Process:
        process = self._processes.start(WORKER, str(self._path), role, str(stream), "0.003", str(BYTES))
        process.wait_line("attached", PATIENCE)
        return process


def flows(worker: Process) -> None:
    """Frames come from now on, not only before."""
    while worker.has_line("flowing"):
        pass
    worker.wait_line("flowing", PATIENCE)
    worker.wait_line("flowing", PATIENCE)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.soak)])
@pytest.mark.parametrize("part", ["bridge", "driver", "media driver"])
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_part_that_is_killed_under_load_comes_back_and_frames_flow(
    processes: Processes, base_dir: Path, part: str, side: str, rounds: int
) -> None:
    between = link()
    sender = Site(processes, base_dir, "a", between, "sender")
    receiver = Site(processes, base_dir, "b", between, "receiver")
    camera, eye = sender.worker("produce", SOURCE), receiver.worker("consume", DEST)
    flows(eye)
    victim = sender if side == "sender" else receiver
    for _ in range(rounds):
        victim.kill(part)
        victim.start(part)
        flows(eye)
    if "told SN-1" not in eye.lines:
        eye.wait_line("told SN-1", PATIENCE)
    camera.say("end")
    eye.say("end")
    assert eye.wait() == 0
    assert camera.wait() == 0
    assert not [line for line in eye.lines if line.startswith("wrong")]
