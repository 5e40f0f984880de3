"""`framepool demo` as a person runs it: live figures, a clean end, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framepool.cli.demo_site import fitting, plans
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.timeout(300)

SMALL = ("--width=256", "--height=128", "--rate=200", "--json")


def start(processes: Processes, *args: str) -> Process:
    return processes.start("-m", "framepool", "demo", *args)


def leftovers(process: Process) -> list[Path]:
    return list(Path("/dev/shm").glob(f"framepool-demo-{process.pid}-*"))


def objects(lines: list[str]) -> list[dict[str, float]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_demo_reads_what_the_camera_publishes_and_accounts_for_every_frame(processes: Processes) -> None:
    demo = start(processes, *SMALL, "--seconds=10")
    assert demo.wait(120) == 0, demo.lines
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
    camera = int(demo.wait_line("camera   pid ", 60).split()[2].rstrip(":"))
    demo.wait_line("{", 90)
    assert leftovers(demo) != []
    demo.signal(number)
    assert demo.wait(60) == 0, demo.lines
    assert demo.lines[-1].startswith("stopped")
    assert leftovers(demo) == []
    with pytest.raises(ProcessLookupError):
        os.kill(camera, 0)


def test_killed_demo_takes_its_camera_along_and_the_next_one_cleans_up(processes: Processes) -> None:
    demo = start(processes, *SMALL)
    camera = int(demo.wait_line("camera   pid ", 60).split()[2].rstrip(":"))
    demo.wait_line("{", 90)
    demo.kill()
    assert leftovers(demo) != []
    deadline = time.monotonic() + 20
    while Path(f"/proc/{camera}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{camera}").exists()
    assert start(processes, *SMALL, "--seconds=1").wait(120) == 0
    assert leftovers(demo) == []


def test_bad_numbers_are_refused_in_one_line(processes: Processes) -> None:
    demo = start(processes, "--width=0")
    assert demo.wait(60) == 2
    assert len(demo.lines) == 1
    assert "width" in demo.lines[0]


# All of it: sources, readers, console; in little room; beside another


def address_of(demo: Process) -> str:
    return demo.wait_line("console  ", 90).split()[1]


def state_of(address: str) -> dict[str, Any]:
    url = address.partition("#")[0]
    with urllib.request.urlopen(f"{url}api/state", timeout=20) as answer:
        state: dict[str, Any] = json.load(answer)
        return state


def wait_state(address: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not holds(state := state_of(address)):
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    return state


def all_live(state: dict[str, Any]) -> bool:
    streams = state["streams"]
    return [each["name"] for each in streams] == ["stars", "chart", "detector"] and all(
        each["state"] == "live" and each["frames_per_s"] for each in streams
    )


SERVICES = frozenset(
    f"service:{name}" for name in ("camera:stars", "camera:chart", "driver:demo", "supervisor", "recorder:detector")
)


def complete(state: dict[str, Any]) -> bool:
    """Sources, readers of every kind, and services: one reader sees the detector's rows as they come, the recorder is
    the other."""
    if not all_live(state):
        return False
    stars, chart, detector = state["streams"]
    return (
        sorted(each["mode"] or "" for each in stars["consumers"]) == ["RATE_LIMITED", "STREAM", "STREAM"]
        and (len(chart["consumers"]), len(detector["consumers"])) == (1, 2)
        and stars["metadata"].get("filter") == "R"
        and {each["tag"] for each in state["services"]} >= SERVICES
    )


def small_shm(size: str) -> tuple[str, ...]:
    """A command before the demo: its own /dev/shm of that size."""
    mount = f'mount --make-rprivate / && mount -t tmpfs -o size={size} none /dev/shm && exec "$@"'
    return ("unshare", "-m", "sh", "-c", mount, "sh")


def test_the_console_shows_three_sources_and_readers_of_every_kind(processes: Processes) -> None:
    demo = start(processes, *SMALL, "--headless")
    address = address_of(demo)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w.~-]{16,}", address)
    wait_state(address, complete)
    state = wait_state(address, lambda state: state["recordings"] and state["recordings"][0]["frames"] > 2)
    (recording,) = state["recordings"]
    assert (recording["name"], recording["state"]) == ("detector", "recording")
    assert recording["watermark"] >= recording["frames"]
    assert demo.wait_line("report ") == f"report   framepool spark report {recording['path']}"
    demo.signal(signal.SIGINT)
    assert demo.wait(60) == 0, demo.lines
    assert leftovers(demo) == []


def test_the_cameras_speed_is_a_command_away(processes: Processes) -> None:
    demo = start(processes, *SMALL, "--headless")
    address = address_of(demo)
    wait_state(address, all_live)
    url, _, token = address.partition("#token=")
    body = json.dumps({"tag": "service:camera:stars", "key": "set:rate", "value": 20}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}api/command", body, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["echo"]["key"] == "set:rate"
    wait_state(address, lambda state: (state["streams"][0]["frames_per_s"] or 1e9) < 40)


def test_two_demos_run_beside_each_other(processes: Processes) -> None:
    first, second = (start(processes, *SMALL, "--headless") for _ in range(2))
    addresses = [address_of(first), address_of(second)]
    assert addresses[0] != addresses[1]
    for address in addresses:
        wait_state(address, all_live)
    first.signal(signal.SIGINT)
    assert first.wait(60) == 0
    wait_state(addresses[1], all_live)


@pytest.mark.requires("root")
def test_in_64_mib_of_shared_memory_it_makes_smaller_rings(processes: Processes) -> None:
    demo = processes.start("-m", "framepool", "demo", "--headless", "--json", "--seconds=4", prefix=small_shm("64m"))
    assert "64 MiB are free in /dev/shm: rings are smaller" in demo.wait_line("framepool demo: ", 60)
    address_of(demo)
    assert demo.wait(90) == 0, demo.lines
    total = objects(demo.lines)[-1]
    assert total["published"] > 0
    assert total["read"] > 0


@pytest.mark.requires("root")
def test_without_shared_memory_to_speak_of_it_moves_and_warns(processes: Processes, tmp_path: Path) -> None:
    demo = processes.start(
        "-m", "framepool", "demo", "--headless", "--json", "--seconds=3", *SMALL[:2],
        env={"TMPDIR": str(tmp_path)},
        prefix=small_shm("8m"),
    )  # fmt: skip
    assert f"going to {tmp_path}" in demo.wait_line("framepool demo: ", 60)
    assert demo.wait(90) == 0, demo.lines
    assert objects(demo.lines)[-1]["read"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requires("root")
def test_where_there_is_no_room_at_all_it_says_so_in_one_line(processes: Processes, tmp_path: Path) -> None:
    mount = f'mount --make-rprivate / && mount -t tmpfs -o size=4m none {tmp_path} && exec "$@"'
    demo = processes.start(
        "-m", "framepool", "demo", "--headless",
        env={"TMPDIR": str(tmp_path)},
        prefix=(*small_shm("8m"), "unshare", "-m", "sh", "-c", mount, "sh"),
    )  # fmt: skip
    assert demo.wait(60) == 1
    assert len(demo.lines) == 1
    assert "too little" in demo.lines[0]


def test_the_largest_plan_that_fits_is_chosen() -> None:
    asked = next(iter(plans(1024, 768)))
    assert fitting(1024, 768, 10 * 2**30) == asked
    sizes = [plan.bytes for plan in plans(1024, 768)]
    assert sizes == sorted(sizes, reverse=True)
    for free in (2**30, 200 * 2**20, 64 * 2**20, 40 * 2**20):
        plan = fitting(1024, 768, free)
        assert plan is not None
        assert plan.bytes <= free
    assert fitting(1024, 768, 2**20) is None
