"""Drivers for tests, inside this process and outside of it, from one and the same configuration file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from framepool.config import load
from framepool.driver.driver import ShmDriver
from framepool.testing.toml import write_toml
from tests.support.processes import Process, Processes

__all__ = ["Kind", "RunningDriver", "running_driver", "table", "write_toml"]

Kind = Literal["embedded", "external"]
KINDS: tuple[Kind, ...] = ("embedded", "external")

NSLOTS = 4
STRIDES = {1: 64, 2: 1024, 3: 4096}


def table(base_dir: Path, **driver: Any) -> dict[str, Any]:
    """A small configuration below `base_dir`: short periods, small buffers, leases that outlive a slow test."""
    channel = "aeron:ipc?term-length=64k"
    return {
        "aeron": {
            "directory": str(base_dir / "aeron"),
            "ipc_term_length": 64 * 1024,
            "driver_timeout": 5.0,
            "keepalive_interval": 0.1,
        },
        "channels": {"control": channel, "announce": channel, "descriptor": channel},
        "driver": {
            "shm_base_dir": str(base_dir),
            "announce_period_ms": 100,
            "keepalive_interval_ms": 100,
            "lease_expiry_ms": 120_000,
            **driver,
        },
        "profiles": {
            "default": {
                "nslots": NSLOTS,
                "pools": [{"pool_id": id, "stride_bytes": stride} for id, stride in STRIDES.items()],
            }
        },
    }


class RunningDriver:
    """A driver of either kind that serves."""

    def __init__(self, kind: Kind, path: Path, processes: Processes) -> None:
        self.kind = kind
        self.path = path
        self.config = load(path, environ={})
        self.embedded: ShmDriver | None = None
        self.process: Process | None = None
        if kind == "embedded":
            self.embedded = ShmDriver(self.config).start()
            self.pid = os.getpid()
        else:
            self.process = processes.start("-m", "framepool", "driver", "--config", str(path), "--json")
            json.loads(self.process.wait_line("{"))
            self.pid = self.process.pid

    def stop(self) -> None:
        """Ends it in good order; may be called twice."""
        if self.embedded is not None:
            self.embedded.close()
        elif self.process is not None and self.process.popen.poll() is None:
            self.process.signal(signal.SIGTERM)
            assert (code := self.process.wait()) == 0, (code, self.process.lines)


@contextlib.contextmanager
def running_driver(
    kind: Kind, base_dir: Path, values: Mapping[str, Any], name: str = "driver"
) -> Iterator[RunningDriver]:
    """A driver for the length of a block, ended whatever happens."""
    processes = Processes(sys.executable)
    path = write_toml(base_dir / f"{name}.toml", values)
    try:
        driver = RunningDriver(kind, path, processes)
        try:
            yield driver
        finally:
            driver.stop()
    finally:
        processes.stop_all()
