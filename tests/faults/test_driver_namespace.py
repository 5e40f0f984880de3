"""One driver a namespace: a second one is refused while the first lives, and takes over when it is dead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.driver_site import STREAM, Site, attached, finish
from tests.support.processes import Processes


@pytest.mark.clause("D-2.1-02")
def test_a_second_driver_is_refused_in_one_line_and_takes_over_from_a_killed_one(
    base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, announce_period_ms=2000, lease_expiry_ms=8000)
    first = site.start_driver()
    producer = site.start_worker("producer", "produce")
    lease_id, epoch = attached(producer)
    files = sorted((site.directory / str(STREAM)).iterdir())

    second = site.framepool("driver")
    assert second.wait() == 1
    (line,) = second.lines
    assert line == (
        f"framepool: {site.directory}: belongs to a running driver, process {first.pid}; use it or another namespace"
    )
    producer.wait_line("flowing")
    assert sorted((site.directory / str(STREAM)).iterdir()) == files
    assert site.wait_status(lambda now: now["leases"])["leases"][0]["lease_id"] == lease_id

    first.kill()
    site.start_driver()
    producer.wait_line("lost")
    assert attached(producer)[1] > epoch
    finish(producer)


@pytest.mark.clause("D-10-04")
@pytest.mark.parametrize("recreate", ["true", "false"])
def test_epochs_rise_however_often_the_driver_is_killed(recreate: str, base_dir: Path, processes: Processes) -> None:
    site = Site(processes, base_dir, more=f"recreate_at_start = {recreate}\n[[streams]]\nstream_id = 10001")
    epochs = []
    for _ in range(4):
        driver = site.start_driver()
        epochs.append(site.wait_status(lambda now: now["streams"])["streams"][0]["epoch"])
        driver.kill()
    assert epochs == sorted(set(epochs))
