"""`framepool doctor` as a person runs it: on this machine, on one with little room, on one with a wrong set-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Process, Processes


def run(processes: Processes, *args: str, env: dict[str, str] | None = None) -> tuple[Process, dict[str, Any]]:
    process = processes.start("-m", "framepool", "doctor", "--json", *args, env=env)
    process.wait(60)
    return process, json.loads(process.lines[-1])


def of(report: dict[str, Any], name: str) -> list[dict[str, str]]:
    return [finding for finding in report["findings"] if finding["name"] == name]


def test_a_machine_that_runs_these_tests_has_nothing_in_the_way(processes: Processes) -> None:
    process, report = run(processes)
    assert process.popen.returncode == 0, report
    assert report["ok"]
    assert sum(report["counts"].values()) == len(report["findings"])
    (library,) = of(report, "aeron library")
    assert "version=" in library["found"]


def test_a_person_sees_a_line_each_and_the_sum(processes: Processes) -> None:
    process = processes.start("-m", "framepool", "doctor")
    assert process.wait(60) == 0
    assert any("shared memory" in line for line in process.lines)
    assert process.lines[-1].endswith("in the way")


def test_without_an_aeron_library_the_rest_is_still_looked_at(processes: Processes) -> None:
    process, report = run(processes, env={"FRAMEPOOL_AERON_LIBRARY": "/nowhere/libaeron.so"})
    assert process.popen.returncode == 1
    (library,) = of(report, "aeron library")
    assert library["state"] == "failure"
    assert "/nowhere/libaeron.so" in library["found"]
    assert of(report, "shared memory")[0]["state"] == "ok"


def test_a_broken_configuration_is_a_finding(processes: Processes, tmp_path: Path) -> None:
    file = tmp_path / "framepool.toml"
    file.write_text("[driver]\nnamespaze = 1\n")
    process, report = run(processes, "--config", str(file))
    assert process.popen.returncode == 1
    assert "namespaze" in of(report, "configuration")[0]["found"]


def test_the_directory_of_a_killed_media_driver_is_found_and_that_of_a_running_one_is_not(
    processes: Processes, base_dir: Path
) -> None:
    directory = base_dir / "aeron"
    driver = processes.start("-m", "framepool", "media-driver", "--dir", str(directory))
    driver.wait_line("media driver ready")
    env = {"AERON_DIR": str(directory)}
    _, report = run(processes, env=env)
    assert not any(str(directory) in finding["found"] for finding in of(report, "leftover Aeron directory"))
    driver.kill()
    script = (
        "import sys, time; from framepool.transport import cnc\nwhile cnc.is_active(sys.argv[1], 2.6): time.sleep(.1)"
    )
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True, timeout=30)
    process, report = run(processes, "--strict", env=env)
    (left,) = [each for each in of(report, "leftover Aeron directory") if str(directory) in each["found"]]
    assert left["remedy"] == f"rm -r {directory}"
    assert process.popen.returncode == 1  # a warning fails where that was asked for


@pytest.mark.requires("root")
@pytest.mark.parametrize(("size", "state"), [("64m", "warning"), ("64k", "failure")])
def test_little_room_is_told_with_what_to_do(processes: Processes, base_dir: Path, size: str, state: str) -> None:
    mount = f'mount --make-rprivate / && mount -t tmpfs -o size={size} none {base_dir} && exec "$@"'
    process = processes.start(
        "-m", "framepool", "doctor", "--json",
        env={"FRAMEPOOL_DRIVER_SHM_BASE_DIR": str(base_dir)},
        prefix=("unshare", "-m", "sh", "-c", mount, "sh"),
    )  # fmt: skip
    assert process.wait(60) == (1 if state == "failure" else 0)
    (memory,) = of(json.loads(process.lines[-1]), "shared memory")
    assert memory["state"] == state
    assert "--shm-size" in memory["remedy"]
