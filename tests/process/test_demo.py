"""`framepool demo` as a person runs it: live figures, a clean end, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.processes import Process, Processes

SMALL = ("--width=256", "--height=128", "--rate=200", "--json")


def start(processes: Processes, *args: str) -> Process:
    return processes.start("-m", "framepool", "demo", *args)


def leftovers(process: Process) -> list[Path]:
    return list(Path("/dev/shm").glob(f"framepool-demo-{process.pid}-*"))


def objects(lines: list[str]) -> list[dict[str, float]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_demo_reads_what_the_camera_publishes_and_accounts_for_every_frame(processes: Processes) -> None:
    demo = start(processes, *SMALL, "--seconds=3")
    assert demo.wait(60) == 0, demo.lines
    *seconds, total = objects(demo.lines)
    assert len(seconds) >= 3
    assert max(second["gigabytes_per_s"] for second in seconds) > 0
    assert all(second["latency_p99_us"] >= second["latency_p50_us"] for second in seconds)
    assert total["published"] > 100
    assert total["read"] > 0
    dropped = {name: count for name, count in total.items() if name.startswith("dropped_")}
    assert total["read"] + sum(dropped.values()) == total["published"]
    assert not any(name.startswith("dropped_invalid") for name in dropped)
    assert leftovers(demo) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_stops_both_processes_and_leaves_no_file(processes: Processes, number: int) -> None:
    demo = start(processes, *SMALL)
    camera = int(demo.wait_line("camera   pid ").split()[2].rstrip(":"))
    demo.wait_line("{")
    assert leftovers(demo) != []
    demo.signal(number)
    assert demo.wait(30) == 0, demo.lines
    assert demo.lines[-1].startswith("stopped")
    assert leftovers(demo) == []
    with pytest.raises(ProcessLookupError):
        os.kill(camera, 0)


def test_killed_demo_takes_its_camera_along_and_the_next_one_cleans_up(processes: Processes) -> None:
    demo = start(processes, *SMALL)
    camera = int(demo.wait_line("camera   pid ").split()[2].rstrip(":"))
    demo.wait_line("{")
    demo.kill()
    assert leftovers(demo) != []
    deadline = time.monotonic() + 20
    while Path(f"/proc/{camera}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{camera}").exists()
    assert start(processes, *SMALL, "--seconds=1").wait(60) == 0
    assert leftovers(demo) == []


def test_bad_numbers_are_refused_in_one_line(processes: Processes) -> None:
    demo = start(processes, "--width=0")
    assert demo.wait(30) == 2
    assert len(demo.lines) == 1
    assert "width" in demo.lines[0]
