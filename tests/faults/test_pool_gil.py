"""A program that keeps the interpreter to itself, or is stopped, and its lease."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.driver.driver import ShmDriver
from framepool.transport.settings import AeronSettings
from tests.support.processes import Processes

STREAM = 10_000
HELD = 10
"""Seconds that the interpreter's lock is held: longer than the lease lives."""
STOPPED = 4
"""Seconds that a process is stopped: longer than the lease lives, and no more."""

WORKER = """
import ctypes, json, sys, time
import numpy as np
import framepool as fp
from framepool.config import load

with fp.connect(load()) as pool, pool.producer(int(sys.argv[1])) as camera:
    before = camera.publish(np.zeros(4, np.uint8)), camera._place.identity()
    print("ready", flush=True)
    sys.stdin.readline()
    ctypes.PyDLL(None).sleep(int(sys.argv[2]))
    after = camera.publish(np.zeros(4, np.uint8)), camera._place.identity()
    print(json.dumps({"before": before, "after": after, "lost": camera._place.attachment.counts["lost"]}), flush=True)
"""


def configuration(base_dir: Path, **driver: int) -> Config:
    return Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), **driver),
        profiles={"default": ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=1024),))},
    )


def run(processes: Processes, base_dir: Path, hold: int, *, stop: bool, **driver: int) -> dict[str, object]:
    environment = {
        "FRAMEPOOL_AERON_DIRECTORY": str(base_dir / "aeron"),
        "FRAMEPOOL_DRIVER_SHM_BASE_DIR": str(base_dir),
        "PYTHONPATH": ":".join(sys.path),
    }
    with ShmDriver(configuration(base_dir, **driver)).start():
        worker = processes.start("-c", WORKER, str(STREAM), str(hold), env=environment)
        worker.wait_line("ready")
        if stop:
            worker.signal(signal.SIGSTOP)
            time.sleep(STOPPED)
            worker.signal(signal.SIGCONT)
        worker.say("go")
        told: dict[str, object] = json.loads(worker.wait_line("{", 60))
        assert worker.wait(60) == 0
    return told


def test_producer_that_holds_the_interpreter_keeps_lease_and_epoch(processes: Processes, base_dir: Path) -> None:
    told = run(processes, base_dir, HELD, stop=False, lease_expiry_ms=8_000, announce_period_ms=200)
    assert told["lost"] == 0
    seq, identity = told["before"]  # type: ignore[misc]
    assert told["after"] == [seq + 1, identity]


def test_producer_that_was_stopped_past_its_lease_does_not_write_under_it(processes: Processes, base_dir: Path) -> None:
    told = run(processes, base_dir, 0, stop=True)
    _, identity = told["before"]  # type: ignore[misc]
    _, identity_after = told["after"]  # type: ignore[misc]
    assert identity_after is None or identity_after[1] > identity[1], "no frame under the old epoch"
