"""What `framepool doctor` concludes from what it finds, with the files of another machine below a directory."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from framepool.cli import machine as checks
from framepool.cli.machine import Finding, Machine
from framepool.config import Config, ConsoleConfig, DriverConfig


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def ask(check: object, machine: Machine) -> dict[str, Finding]:
    assert callable(check)
    return {finding.name: finding for finding in check(machine)}


def test_cores_that_slow_down_are_named_with_the_command_that_mends_it(root: Path) -> None:
    for number, governor in enumerate(("performance", "powersave")):
        write(root, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    found = ask(checks.governor, Machine(config=Config(), root=root))["cpu governor"]
    assert found.state == "warning"
    assert found.found == "performance, powersave"
    assert "cpupower" in found.remedy
    write(root, "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance")
    assert ask(checks.governor, Machine(config=Config(), root=root))["cpu governor"].state == "ok"


def test_a_slow_clock_source_is_a_warning(root: Path) -> None:
    where = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    write(root, where, "hpet")
    assert ask(checks.clocks, Machine(config=Config(), root=root))["clock source"].state == "warning"
    write(root, where, "tsc")
    assert ask(checks.clocks, Machine(config=Config(), root=root))["clock source"].state == "ok"


def test_small_socket_buffers_are_a_warning(root: Path) -> None:
    write(root, "proc/sys/net/core/rmem_max", "212992")
    write(root, "proc/sys/net/core/wmem_max", str(4 * 2**20))
    found = ask(checks.network, Machine(config=Config(console=ConsoleConfig(port=0)), root=root))
    assert found["socket buffers (rmem_max)"].state == "warning"
    assert "sysctl net.core.rmem_max=" in found["socket buffers (rmem_max)"].remedy
    assert found["socket buffers (wmem_max)"].state == "ok"


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(console=ConsoleConfig(port=taken.getsockname()[1]))
        assert ask(checks.network, Machine(config=config))["console port"].state == "note"


def test_shared_memory_that_is_not_there_is_a_failure_with_the_mount_command(root: Path) -> None:
    found = ask(checks.shared_memory, Machine(config=Config(), root=root))["shared memory"]
    assert found.state == "failure"
    assert found.remedy.startswith("mount -t tmpfs")


def test_a_directory_in_which_anybody_may_replace_files_is_a_warning(base_dir: Path) -> None:
    config = Config(driver=DriverConfig(shm_base_dir=str(base_dir)))
    assert "shared memory mode" not in ask(checks.shared_memory, Machine(config=config))
    base_dir.chmod(0o777)
    assert ask(checks.shared_memory, Machine(config=config))["shared memory mode"].state == "warning"


def test_regions_on_a_disk_are_a_warning(root: Path) -> None:
    config = Config(driver=DriverConfig(shm_base_dir="/proc"))  # neither a tmpfs nor of any size
    found = ask(checks.shared_memory, Machine(config=config))["shared memory"]
    assert found.state == "failure"
    assert "on a disk" in next(iter(checks.shared_memory(Machine(config=config)))).found


def test_hugepages_are_looked_at_only_where_they_are_configured(root: Path) -> None:
    write(root, "proc/meminfo", "HugePages_Total:      16\nHugePages_Free:        4\nHugepagesize:       2048 kB")
    assert ask(checks.hugepages, Machine(config=Config(), root=root))["hugepages"].state == "ok"
    config = Config(driver=DriverConfig(hugepages_dir="/mnt/huge"))
    found = ask(checks.hugepages, Machine(config=config, root=root))["hugepages"]
    assert found.state == "failure"
    assert "mount -t hugetlbfs" in found.remedy


def test_synchronised_clocks_that_are_configured_must_be_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_clock_is_synchronised", lambda: False)
    assert ask(checks.clocks, Machine(config=Config()))["clock synchronisation"].state == "note"
    config = Config(driver=DriverConfig(clock="realtime_synced", clock_error_budget_us=50))
    assert ask(checks.clocks, Machine(config=config))["clock synchronisation"].state == "failure"


def test_an_old_kernel_is_told(root: Path) -> None:
    write(root, "proc/sys/kernel/osrelease", "4.19.0-27-amd64")
    assert ask(checks.kernel, Machine(config=Config(), root=root))["kernel"].state == "note"
    write(root, "proc/sys/kernel/osrelease", "6.1.0-27-amd64")
    assert ask(checks.kernel, Machine(config=Config(), root=root))["kernel"].state == "ok"


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(root: Path) -> None:
    write(root, "proc/sys/net/core/rmem_max", "many")
    found = list(checks.examine(Machine(config=Config(), root=root)))
    assert any(finding.name == "network" and "could not be looked at" in finding.found for finding in found)
    assert {"python", "kernel"} <= {finding.name for finding in found}
    assert any(finding.name.startswith("leftover") for finding in found), "there may be some, from whoever died here"
