"""A client that stops: the driver and all others go on, and it comes back when it is woken."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from framepool.testing.history import check
from framepool.wire._generated.driver_901 import ResponseCode
from tests.support.driver_client import DriverClient
from tests.support.driver_site import STREAM, Site, attached, finish
from tests.support.processes import Processes

PATIENT = "client_liveness_timeout = 60.0\npublication_unblock_timeout = 61.0"
"""Aeron itself does not give the stopped client up before it wakes."""
NOISE = b"\xff" * 60_000


@pytest.mark.clause("D-4.7-03", "D-4.7-04")
def test_a_stopped_client_holds_up_nobody_and_comes_back(base_dir: Path, processes: Processes) -> None:
    # Patient enough for a busy machine; a stream that waits for the sleeper stands still for 10 s.
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=6500, aeron=PATIENT)
    site.start_driver()
    producer = site.start_worker("producer", "produce")
    attached(producer)
    sleeper, reader = (site.start_worker(name, "consume") for name in ("sleeper", "reader"))
    for consumer in (sleeper, reader):
        consumer.wait_line("flowing")

    sleeper.signal(signal.SIGSTOP)
    with DriverClient(site.config) as client:
        # Six times what the control stream holds: a reader that is waited for would stop it for all.
        for _ in range(100):
            client.send(NOISE)
            client.poll()
            time.sleep(0.005)  # so that keepalives find a gap
        assert client.attach(STREAM).code is ResponseCode.OK
    site.wait_status(lambda now: now["counts"].get("leases EXPIRED", 0) >= 1)
    for other in (producer, reader):
        other.wait_line("flowing")

    sleeper.signal(signal.SIGCONT)
    sleeper.wait_line("lost")
    attached(sleeper)
    sleeper.wait_line("flowing")
    others, said = finish(producer, reader), finish(sleeper)[0]
    assert [each["attachment"].get("lost", 0) for each in others] == [0, 0]
    assert said["plane"]["left_behind"] >= 1
    assert check(site.events()) == []
