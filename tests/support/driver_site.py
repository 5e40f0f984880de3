"""A driver with its clients, each in a process of its own, on one configuration: for tests of faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from framepool.config import Config, load
from framepool.driver.driver import make_allocator
from framepool.driver.status import StatusUnavailable, read_status
from framepool.testing import history
from tests.support.processes import Process, Processes

FAULTS = Path(__file__).parents[1] / "faults"
STREAM = 10_001

TEMPLATE = """
[aeron]
directory = "{base}/aeron"
driver_timeout = 6.0
keepalive_interval = 0.2
{aeron}

[driver]
media_driver = "{media_driver}"
shm_base_dir = "{base}"
namespace = "{namespace}"
announce_period_ms = {announce_period_ms}
keepalive_interval_ms = {keepalive_interval_ms}
lease_expiry_ms = {lease_expiry_ms}
{more}

[profiles.default]
nslots = 16
pools = [{{pool_id = 1, stride_bytes = 4096}}]
"""


class Site:
    """One namespace, its configuration file, and the processes that live on it."""

    def __init__(
        self,
        processes: Processes,
        base_dir: Path,
        *,
        media_driver: str = "embedded",
        namespace: str = "site",
        announce_period_ms: int = 500,
        lease_expiry_ms: int = 1500,
        more: str = "",
        aeron: str = "",
    ) -> None:
        self._processes = processes
        self.base_dir = base_dir
        self.path = base_dir / f"{namespace}.toml"
        values = {
            "media_driver": media_driver,
            "namespace": namespace,
            "announce_period_ms": announce_period_ms,
            "keepalive_interval_ms": min(lease_expiry_ms // 3, 2000),
            "lease_expiry_ms": lease_expiry_ms,
            "more": more,
            "aeron": aeron,
        }
        self.path.write_text(TEMPLATE.format(base=base_dir, **values))
        self.config: Config = load(self.path, {})
        self.journals: list[Path] = []

    @property
    def directory(self) -> Path:
        """The directory of the namespace."""
        return Path(make_allocator(self.config.driver).directory)

    def framepool(self, *args: str) -> Process:
        """A command of framepool on this configuration."""
        return self._processes.start("-m", "framepool", *args, "--config", str(self.path))

    def start_media_driver(self) -> Process:
        process = self._processes.start("-m", "framepool", "media-driver", "--dir", self.config.aeron.directory)
        process.wait_line("media driver ready")
        return process

    def start_driver(self) -> Process:
        """A driver that has said that it serves, and written its status."""
        process = self.framepool("driver", "--json")
        process.wait_line('{"event": "ready"')
        self.wait_status(lambda status: status["pid"] == process.pid)
        return process

    def start_worker(self, name: str, role: str, stream: int = STREAM) -> Process:
        journal = self.base_dir / f"{name}.journal"
        self.journals.append(journal)
        return self._processes.start(
            str(FAULTS / "driver_worker.py"), str(self.path), str(stream), str(journal), name, role
        )

    def status(self) -> dict[str, Any]:
        """What the driver last said of itself."""
        return read_status(make_allocator(self.config.driver))

    def wait_status(self, holds: Callable[[dict[str, Any]], object], timeout: float = 30.0) -> dict[str, Any]:
        """The first status for which `holds`."""
        deadline = time.monotonic() + timeout
        last: object = None
        while time.monotonic() < deadline:
            try:
                last = self.status()
                if holds(last):
                    return last
            except StatusUnavailable as error:
                last = error
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout} s; the last status was {last}")

    def stream_status(self, stream: int = STREAM) -> dict[str, Any]:
        (found,) = [each for each in self.status()["streams"] if each["stream_id"] == stream]
        return found

    def events(self) -> list[history.Event]:
        return history.read(self.journals)


def finish(*workers: Process) -> list[dict[str, Any]]:
    """Ends workers in good order; their statistics."""
    for worker in workers:
        worker.say("end")
    said = [json.loads(worker.wait_line("end").removeprefix("end ")) for worker in workers]
    assert [worker.wait() for worker in workers] == [0] * len(workers)
    return said


def attached(worker: Process, timeout: float = 30.0) -> tuple[int, int]:
    """Waits until a worker has a lease: its id and epoch."""
    _, lease_id, epoch = worker.wait_line("attached", timeout).split()
    return int(lease_id), int(epoch)
