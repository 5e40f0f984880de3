"""A driver from configuration to end: alone on its streams, its intervals, its shutdown, what a restart keeps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.errors import ConfigurationError
from framepool.shm.tree import effective_user
from framepool.transport import cnc
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import ClockDomain, ControlResponse, ShmPoolAnnounce, ShmRegionSuperblock
from framepool.wire._generated.control_900 import ResponseCode as ControlCode
from framepool.wire._generated.driver_901 import (
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from framepool.wire.constants import SUPERBLOCK_SIZE
from tests.support.driver_client import DriverClient
from tests.support.drivers import KINDS, Kind, RunningDriver, running_driver, table, write_toml
from tests.support.onlooker import wait_until
from tests.support.processes import Processes

STREAM = 10_000


def fixed(base_dir: Path, **driver: Any) -> dict[str, Any]:
    """The small configuration with one stream from the start."""
    return {**table(base_dir, **driver), "streams": [{"stream_id": STREAM}]}


def framepool(*args: object) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "framepool", *map(str, args)], capture_output=True, text=True, timeout=60, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def namespace(base_dir: Path) -> Path:
    return base_dir / f"tensorpool-{effective_user()}" / "default"


# One driver


@pytest.mark.clause("D-2.1-02")
@pytest.mark.parametrize("kind", KINDS)
def test_second_driver_of_the_same_streams_is_refused_while_the_first_lives(kind: Kind, base_dir: Path) -> None:
    values = fixed(base_dir)
    other_aeron = fixed(base_dir)
    other_aeron["aeron"]["directory"] = str(base_dir / "other")
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        epoch = client.announce_of(STREAM).epoch
        for name, config in {"same": values, "other": other_aeron}.items():
            path = write_toml(base_dir / f"{name}.toml", config)
            second = subprocess.run(
                [sys.executable, "-m", "framepool", "driver", "--config", str(path)],
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert second.returncode != 0
            assert f"process {driver.pid}" in second.stderr
        assert client.announces.image_count == 1, "one source of announces"
        assert client.announce_of(STREAM).epoch == epoch
        client.hold(STREAM)
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        assert client.hold(STREAM).epoch > epoch, "and takes over when the first is gone"


@pytest.mark.clause("D-2.1-02")
def test_second_driver_on_the_same_control_stream_is_refused_whatever_its_namespace(
    base_dir: Path, media_driver: MediaDriver
) -> None:
    values = fixed(base_dir, media_driver="external")
    with running_driver("embedded", base_dir, values, "one"):
        values["driver"]["namespace"] = "two"
        with pytest.raises(ConfigurationError, match="another driver serves control stream 1000"):
            with running_driver("embedded", base_dir, values, "two"):
                pass
        values["stream_ids"] = {"control": 2000, "announce": 2001}
        with running_driver("embedded", base_dir, values, "two") as other, DriverClient(other.config) as client:
            client.hold(STREAM)


@pytest.mark.clause("D-4.5-01", "D-4.11-01", "D-4.11-02")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moved", [False, True], ids=["default", "configured"])
def test_all_messages_travel_on_the_control_stream_that_the_configuration_names(
    kind: Kind, base_dir: Path, moved: bool
) -> None:
    values = fixed(base_dir)
    if moved:
        values["stream_ids"] = {"control": 2000}
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        assert client.control.stream_id == (2000 if moved else 1000)
        held = client.hold(STREAM)
        held.keepalive()
        held.detach()
        client.revoked(held.lease_id)
        five = {ShmAttachRequest, ShmAttachResponse, ShmDetachRequest, ShmDetachResponse, ShmLeaseKeepalive}
        heard = {type(message) for message in client.heard}
        assert heard - {ShmPoolAnnounce} == five | {ShmLeaseRevoked}
        # A tool of another process finds the endpoint in the same file.
        answer = framepool("attach", STREAM, "--config", driver.path, "--json", "--timeout", 20)
        assert answer["code"] == "OK"
        assert framepool("config", "show", driver.path)["stream_ids"]["control"] == client.control.stream_id
    if moved:
        silent = {**values, "stream_ids": {"control": 1000}}
        path = write_toml(base_dir / "elsewhere.toml", silent)
        with running_driver(kind, base_dir, values):
            command = [sys.executable, "-m", "framepool", "attach", str(STREAM), "--config", str(path), "--timeout=0.5"]
            assert subprocess.run(command, capture_output=True, timeout=30).returncode != 0, "nobody answers elsewhere"


@pytest.mark.clause("D-8-01", "W-10.1-08")
def test_announces_come_from_the_driver_alone(base_dir: Path, processes: Processes, media_driver: MediaDriver) -> None:
    values = fixed(base_dir, media_driver="external")
    with running_driver("external", base_dir, values) as driver, DriverClient(driver.config) as client:
        small = ("--width=4", "--height=4", "--json")
        producer = processes.start("-m", "framepool", "publish", str(STREAM), "--config", str(driver.path), *small)
        client.announce_of(STREAM, lambda it: it.producer_id != 0)
        producer.wait_line("{")
        (image,) = client.announces.images()
        assert {type(message) for message in client.heard} >= {ShmAttachRequest, ShmPoolAnnounce}
        driver.process.signal(signal.SIGSTOP)  # type: ignore[union-attr]
        time.sleep(0.2)  # it stops a moment later
        heard = len(client.of(ShmPoolAnnounce))
        time.sleep(0.5)
        assert len(client.of(ShmPoolAnnounce)) == heard, "the producer announces nothing"
        driver.process.signal(signal.SIGCONT)  # type: ignore[union-attr]
        client.announce_of(STREAM)
        assert [each.session_id for each in client.announces.images()] == [image.session_id]


# Intervals and limits


@pytest.mark.clause("D-4.4-05", "D-4.4-07", "D-4.4-10", "D-4.4-11")
@pytest.mark.parametrize("expiry_ms", [250, 1_000])
def test_intervals_are_configured_stated_and_kept(base_dir: Path, expiry_ms: int) -> None:
    values = fixed(base_dir, keepalive_interval_ms=100, lease_expiry_ms=expiry_ms)
    with running_driver("external", base_dir, values) as driver, DriverClient(driver.config) as client:
        before = time.monotonic_ns()
        held = client.hold(STREAM)
        granted = time.monotonic_ns()
        expiry = held.answer.lease_expiry_timestamp_ns
        assert expiry is not None
        assert before + expiry_ms * 10**6 <= expiry <= granted + expiry_ms * 10**6
        notice = client.revoked(held.lease_id)
        assert notice.timestamp_ns >= expiry, "not before its time"
        status = framepool("status", "--config", driver.path, "--json")
        assert (status["keepalive_interval_ms"], status["lease_expiry_ms"]) == (100, expiry_ms)
        shown = framepool("config", "show", driver.path)["driver"]
        assert (shown["keepalive_interval_ms"], shown["lease_expiry_ms"]) == (100, expiry_ms)


@pytest.mark.parametrize("kind", KINDS)
def test_limits_refuse_what_is_too_much(kind: Kind, base_dir: Path) -> None:
    values = fixed(base_dir)
    values["driver"]["limits"] = {"max_streams": 2, "max_leases": 3, "max_bytes": 50_000}
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        client.hold(20_000)
        too_many = client.attach(20_001)
        assert (too_many.code, too_many.error_message) == (ResponseCode.REJECTED, "all 2 streams are taken")
        too_large = client.attach(STREAM, Role.PRODUCER)
        assert too_large.code is ResponseCode.REJECTED
        assert "50000 bytes" in too_large.error_message
        client.hold(STREAM)
        third = client.hold(STREAM)
        full = client.attach(STREAM)
        assert (full.code, full.error_message) == (ResponseCode.REJECTED, "all 3 leases are taken")
        third.detach()
        client.hold(STREAM)


def test_no_stream_is_made_where_that_is_switched_off(base_dir: Path) -> None:
    values = fixed(base_dir, dynamic_streams=False)
    with running_driver("embedded", base_dir, values) as driver, DriverClient(driver.config) as client:
        assert client.attach(20_000).code is ResponseCode.REJECTED
        client.hold(STREAM)


@pytest.mark.clause("W-10.1.1-01")
@pytest.mark.parametrize("kind", KINDS)
def test_idle_stream_is_announced_each_period_whatever_is_asked_meanwhile(kind: Kind, base_dir: Path) -> None:
    with running_driver(kind, base_dir, fixed(base_dir)) as driver, DriverClient(driver.config) as client:
        stamps: list[int] = []
        while len(stamps) < 12:
            client.attach(STREAM, max_dims=9)
            stamps = [each.announce_timestamp_ns for each in client.of(ShmPoolAnnounce)]
        periods = [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(stamps)]
        assert statistics.median(periods) > 80
        assert min(periods) < 120, "a busy machine makes some of them late, not all"


def test_refused_requests_are_counted_by_code_for_whoever_reads_aerons_counters(base_dir: Path) -> None:
    values = fixed(base_dir)
    with running_driver("embedded", base_dir, values) as driver, DriverClient(driver.config) as client:
        for code, changes in (
            (ResponseCode.INVALID_PARAMS, {"max_dims": 9}),
            (ResponseCode.REJECTED, {"stream_id": 1}),
        ):
            for _ in range(code):
                assert client.attach(**{"stream_id": STREAM, **changes}).code is code
        expected = {code.name: code if code in {2, 3} else 0 for code in ResponseCode if code is not ResponseCode.OK}
        deadline = time.monotonic() + 20
        while True:
            labels = {record.label: record.value for record in cnc.counters(driver.config.aeron.directory)}
            found = {name: labels[f"framepool driver rejected {name}"] for name in expected}
            if found == expected:
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


# Clocks, places, modes


@pytest.mark.clause("W-10.1.1-02", "W-10.1.1-03")
@pytest.mark.parametrize("clock", ["monotonic", "realtime_synced"])
def test_announces_are_stamped_by_the_clock_that_they_declare(base_dir: Path, clock: str) -> None:
    budget = {"clock_error_budget_us": 100} if clock == "realtime_synced" else {}
    values = fixed(base_dir, clock=clock, **budget)
    with running_driver("external", base_dir, values) as driver, DriverClient(driver.config) as client:
        now = time.monotonic_ns if clock == "monotonic" else time.time_ns
        before = now()
        announce = client.announce_of(STREAM, lambda it: it.announce_timestamp_ns >= before)
        assert announce.announce_clock_domain is ClockDomain[clock.upper()]
        assert announce.announce_timestamp_ns <= now()
        with open(announce.header_region_uri.removeprefix("shm:file?path="), "rb") as file:
            block = ShmRegionSuperblock.decode_body(file.read(SUPERBLOCK_SIZE))
        assert before <= block.activity_timestamp_ns <= now(), "the same clock"


@pytest.mark.clause("W-15.16a-01", "W-15.21a.2-01")
@pytest.mark.parametrize("kind", KINDS)
def test_base_directory_may_lie_on_a_disk(kind: Kind, base_dir: Path, tmp_path: Path) -> None:
    values = fixed(base_dir, shm_base_dir=str(tmp_path))
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        held = client.hold(STREAM, Role.PRODUCER)
        assert held.answer.header_region_uri.startswith(f"shm:file?path={tmp_path}/")
        held.detach()


@pytest.mark.parametrize("access", ["private", "group"])
def test_files_are_for_the_user_or_for_the_group_as_configured(base_dir: Path, access: str) -> None:
    import grp

    name = grp.getgrgid(os.getegid()).gr_name
    values = fixed(base_dir, access=access, group=name if access == "group" else "")
    with running_driver("embedded", base_dir, values) as driver, DriverClient(driver.config) as client:
        held = client.hold(STREAM)
        path = Path(held.answer.header_region_uri.removeprefix("shm:file?path="))
        directories = [stat.S_IMODE(each.stat().st_mode) for each in path.parents[:4]]
        private = access == "private"
        assert directories == [0o700 if private else 0o2770] * 4
        status = path.parents[2] / ".driver.status.json"
        wait_until(status.exists)
        assert {stat.S_IMODE(each.stat().st_mode) for each in (path, status)} == {0o600 if private else 0o660}


def test_unknown_group_is_refused_by_name(base_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="no-such-group"):
        with running_driver("embedded", base_dir, fixed(base_dir, access="group", group="no-such-group")):
            pass


@pytest.mark.clause("D-9-03", "D-4.3-06")
def test_hugepages_are_taken_from_hugetlbfs_only(base_dir: Path) -> None:
    (base_dir / "huge").mkdir()
    values = fixed(base_dir, hugepages_dir=str(base_dir / "huge"))
    with pytest.raises(ConfigurationError, match="hugetlbfs"):
        with running_driver("embedded", base_dir, values):
            pass


HUGEPAGES = """
import os, subprocess, sys
from pathlib import Path
from framepool.wire._generated.driver_901 import Bool, ResponseCode, Role
from tests.support.driver_client import DriverClient
from tests.support.drivers import running_driver, table
base = Path(sys.argv[1])
os.unshare(os.CLONE_NEWNS)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
(base / "huge").mkdir()
subprocess.run(["mount", "-t", "hugetlbfs", "none", str(base / "huge")], check=True)
values = {**table(base, hugepages_dir=str(base / "huge")), "streams": [{"stream_id": 10_000}]}
values["profiles"]["default"]["pools"] = [{"pool_id": 1, "stride_bytes": 64}]
with running_driver("embedded", base, values) as driver, DriverClient(driver.config) as client:
    ordinary = client.hold(10_000)
    assert "/huge/" not in ordinary.answer.header_region_uri
    assert client.attach(10_000, require_hugepages=Bool.TRUE).code is ResponseCode.REJECTED
    producer = client.hold(10_000, Role.PRODUCER, require_hugepages=Bool.TRUE)
    uris = [producer.answer.header_region_uri, producer.answer.payload_pools[0].region_uri]
    assert all(f"path={base}/huge/" in uri and uri.endswith("|require_hugepages=true") for uri in uris), uris
    assert client.attach(10_000, require_hugepages=Bool.TRUE).code is ResponseCode.OK
    smaps = Path("/proc/self/smaps").read_text().split(str(base / "huge"))
    assert len(smaps) == 3 and all("KernelPageSize:     2048 kB" in part for part in smaps[1:]), len(smaps)
    producer.detach()
    after = client.hold(10_000)
    assert after.epoch > producer.epoch > ordinary.epoch
    assert "/huge/" in after.answer.header_region_uri, "who required them goes on having them"
print("shown")
"""


@pytest.fixture
def hugepages() -> Iterator[None]:
    """Some free hugepages for the length of a test; the number is put back."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    try:
        before = setting.read_text()
        setting.write_text(str(int(before) + 16))
    except OSError as error:
        pytest.skip(f"needs hugepages: {error}")
    try:
        if int(setting.read_text()) < int(before) + 16:
            pytest.skip("needs hugepages: the kernel has not enough memory in one piece")
        yield
    finally:
        setting.write_text(before)


@pytest.mark.clause("D-9-03", "D-4.3-06")
@pytest.mark.requires("root")
@pytest.mark.usefixtures("hugepages")
def test_hugepages_are_given_to_who_requires_them_and_stay_with_the_stream(
    base_dir: Path, processes: Processes
) -> None:
    process = processes.start("-c", HUGEPAGES, str(base_dir))
    assert process.wait(60) == 0, process.lines
    assert process.lines[-1] == "shown"


# Ends


def shutdown_request(token: str, **changes: Any) -> ShmDriverShutdownRequest:
    fields: dict[str, Any] = {
        "correlation_id": 4711,
        "reason": ShutdownReason.ADMIN,
        "token": token,
        "error_message": "maintenance",
    }
    return ShmDriverShutdownRequest(**{**fields, **changes})


def wait_until_ended(driver: RunningDriver) -> None:
    deadline = time.monotonic() + 30
    if driver.process is not None:
        assert driver.process.wait() == 0
    while driver.embedded is not None and driver.embedded.running:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.clause("D-4.12-01", "D-4.12-02", "D-4.12-04", "W-15.17-01")
@pytest.mark.parametrize("kind", KINDS)
def test_authorised_request_ends_the_driver_with_its_reason(
    kind: Kind, base_dir: Path, media_driver: MediaDriver
) -> None:
    values = fixed(base_dir, shutdown_token="sesame", media_driver="external")
    with running_driver(kind, base_dir, values) as driver:
        client = DriverClient(driver.config)
        client.hold(STREAM)
        client.send(shutdown_request("sesame"))
        answer = client.wait_for(ControlResponse)
        assert (answer.correlation_id, answer.code) == (4711, ControlCode.OK)
        notice = client.wait_for(ShmDriverShutdown)
        assert (notice.reason, notice.error_message) == (ShutdownReason.ADMIN, "maintenance")
        wait_until_ended(driver)
        client.leave()


@pytest.mark.clause("D-4.12-02", "D-4.12-03", "W-15.17-04")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("configured", "sent"), [("sesame", "open"), ("sesame", ""), ("", ""), ("", "sesame")])
def test_request_without_the_right_token_is_refused_and_changes_nothing(
    kind: Kind, base_dir: Path, configured: str, sent: str
) -> None:
    values = fixed(base_dir, shutdown_token=configured)
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        held = client.hold(STREAM)
        client.send(shutdown_request(sent))
        answer = client.wait_for(ControlResponse)
        assert (answer.correlation_id, answer.code) == (4711, ControlCode.REJECTED)
        assert answer.error_message
        assert held.detach().code is ResponseCode.OK, "it goes on serving"
        assert client.of(ShmDriverShutdown) == []
    if driver.process is not None:
        assert any("wrong token" in line for line in driver.process.lines), "and is logged"


@pytest.mark.clause("D-4.12-03", "W-15.17-02", "W-15.17-03")
@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [(16, 9, ControlCode.INVALID_PARAMS), (6, 2, ControlCode.UNSUPPORTED)],
    ids=["unknown reason", "newer version"],
)
def test_shutdown_request_that_cannot_be_read_is_answered_too(
    base_dir: Path, offset: int, value: int, code: ControlCode
) -> None:
    values = fixed(base_dir, shutdown_token="sesame")
    with running_driver("embedded", base_dir, values) as driver, DriverClient(driver.config) as client:
        data = bytearray(shutdown_request("sesame").encode())
        data[offset] = value
        client.send(bytes(data))
        answer = client.wait_for(ControlResponse)
        assert (answer.correlation_id, answer.code) == (4711, code)
        client.hold(STREAM)


@pytest.mark.clause("D-4.12-04")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_driver_with_a_notice(base_dir: Path, media_driver: MediaDriver, number: int) -> None:
    with running_driver("external", base_dir, fixed(base_dir, media_driver="external")) as driver:
        client = DriverClient(driver.config)
        client.hold(STREAM)
        assert driver.process is not None
        driver.process.signal(number)
        assert client.wait_for(ShmDriverShutdown).reason is ShutdownReason.NORMAL
        wait_until_ended(driver)
        client.leave()
    epochs = list((namespace(base_dir) / str(STREAM)).iterdir())
    assert len(epochs) == 1, "only the newest directory stays"
    assert list(epochs[0].iterdir()) == []


# Restarts


def killed(driver: RunningDriver) -> None:
    assert driver.process is not None
    driver.process.kill()


@pytest.mark.clause("D-10-01", "D-10-04", "D-4.8-02")
def test_killed_driver_takes_its_leases_along_and_the_next_one_starts_higher(
    base_dir: Path, media_driver: MediaDriver
) -> None:
    values = fixed(base_dir, media_driver="external")
    with running_driver("external", base_dir, values) as driver:
        client = DriverClient(driver.config)
        old = client.hold(STREAM)
        producer = client.hold(STREAM, Role.PRODUCER)
        killed(driver)
    with running_driver("external", base_dir, values):
        announce = client.announce_of(STREAM, lambda it: it.epoch > producer.epoch)
        assert announce.producer_id == 0
        assert old.detach().code is ResponseCode.REJECTED
        old.keepalive()
        assert client.revoked(old.lease_id).error_message == "this driver knows no such lease"
        new = client.hold(STREAM, client_id=old.client_id)
        assert new.lease_id not in {old.lease_id, producer.lease_id}
        assert client.hold(STREAM, Role.PRODUCER, client_id=producer.client_id).epoch > producer.epoch
        client.close()


def test_request_to_a_dead_driver_is_not_granted_by_the_next_one(base_dir: Path, media_driver: MediaDriver) -> None:
    """Aeron lets a reader join where the slowest stands, and for some seconds that is the dead driver."""
    values = fixed(base_dir, media_driver="external")
    with running_driver("external", base_dir, values) as driver:
        client = DriverClient(driver.config)
        client.hold(STREAM).detach()
        killed(driver)
    stale = client.request(STREAM, Role.PRODUCER)
    client.send(stale)
    with running_driver("external", base_dir, values):
        client.hold(STREAM, Role.PRODUCER).detach()
        assert not client.of(ShmAttachResponse, lambda it: it.correlation_id == stale.correlation_id)
        client.close()


@pytest.mark.clause("D-10-04", "D-13-01", "W-15.2-01")
@pytest.mark.parametrize("recreate", [False, True])
def test_files_of_a_killed_driver_are_replaced_if_configured_and_the_epoch_rises_anyway(
    base_dir: Path, recreate: bool
) -> None:
    with running_driver("external", base_dir, fixed(base_dir)) as driver:
        client = DriverClient(driver.config)
        old = client.hold(STREAM, Role.PRODUCER)
        dynamic = client.hold(20_000)
        client.leave()
        killed(driver)
    left = [Path(each.answer.header_region_uri.removeprefix("shm:file?path=")) for each in (old, dynamic)]
    assert all(path.is_file() for path in left)
    values = fixed(base_dir, recreate_at_start=recreate)
    with running_driver("external", base_dir, values) as driver, DriverClient(driver.config) as client:
        assert [path.exists() for path in left] == [not recreate] * 2
        assert client.hold(STREAM).epoch > old.epoch
        assert client.hold(20_000).epoch > dynamic.epoch


@pytest.mark.clause("D-6-02", "W-15.2-02")
@pytest.mark.parametrize("kind", KINDS)
def test_changed_layout_is_a_higher_epoch(kind: Kind, base_dir: Path) -> None:
    values = fixed(base_dir)
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        before = client.hold(STREAM)
    values["profiles"]["default"] = {"nslots": 8, "pools": [{"pool_id": 1, "stride_bytes": 256}]}
    with running_driver(kind, base_dir, values) as driver, DriverClient(driver.config) as client:
        after = client.hold(STREAM)
    assert after.epoch > before.epoch
    assert after.answer.header_nslots == 8
    assert [pool.stride_bytes for pool in after.answer.payload_pools] == [256]


def test_driver_that_cannot_start_says_so_and_leaves_nothing(base_dir: Path) -> None:
    values = fixed(base_dir, media_driver="external")
    values["aeron"]["driver_timeout"] = 0.5
    path = write_toml(base_dir / "driver.toml", values)
    done = subprocess.run(
        [sys.executable, "-m", "framepool", "driver", "--config", str(path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "no media driver in" in done.stderr
    assert "ready" not in done.stdout
