"""A driver whose filesystem is full: a clear refusal, nothing half-made, existing streams go on, and it heals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import Processes

SCRIPT = str(Path(__file__).parent / "driver_full_disk.py")


@pytest.mark.requires("root")
@pytest.mark.clause("D-4.6-05")
def test_a_full_filesystem_refuses_new_streams_and_leaves_the_others_alone(
    base_dir: Path, processes: Processes
) -> None:
    process = processes.start(SCRIPT, str(base_dir))
    assert process.wait(90) == 0, process.lines
    report = json.loads(process.lines[-1])
    assert report["refusal"].startswith("INTERNAL_ERROR: stream 10002, epoch ")
    assert f"no space in {base_dir}/shm" in report["refusal"]
    assert "use fewer or smaller slots, or a larger filesystem" in report["refusal"]
    assert report["left"] == []
    assert report["flowed"]
    assert report["small_lost"] == 0
    assert report["flowed_again"]
    assert [Path(path).name for path in report["left_at_the_end"]] == [".driver.lock"]
