"""The media driver as a program and as an object: alone on its directory, gone without a trace."""

from __future__ import annotations

import grp
import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from framepool.errors import ConfigurationError, MediaDriverRunning, TransportError
from framepool.transport import cnc
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from tests.support.processes import Process, Processes

CHANNEL = "aeron:ipc?term-length=64k"


def start(processes: Processes, directory: Path, *options: str) -> Process:
    process = processes.start("-m", "framepool.cli.media_driver", "--dir", str(directory), "--json", *options)
    ready = json.loads(process.line())
    assert ready == {"event": "ready", "dir": str(directory), "pid": process.pid}
    return process


def round_trip(directory: Path) -> bool:
    settings = AeronSettings(directory=str(directory))
    with Client.connect(settings) as client:
        subscription = client.add_subscription(CHANNEL, 1)
        publication = client.add_publication(CHANNEL, 1)
        deadline = time.monotonic() + 10
        while publication.offer(b"x") < 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        while not (messages := subscription.poll()):
            assert time.monotonic() < deadline
        return messages == [b"x"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_and_nothing_is_left(processes: Processes, base_dir: Path, number: int) -> None:
    process = start(processes, base_dir / "aeron")
    assert round_trip(base_dir / "aeron")
    process.signal(number)
    assert process.wait() == 0
    assert list(base_dir.iterdir()) == []


@pytest.mark.parametrize("threading", ["shared", "shared-network", "dedicated"])
def test_threading_modes(processes: Processes, base_dir: Path, threading: str) -> None:
    start(processes, base_dir / "aeron", "--threading", threading)
    assert round_trip(base_dir / "aeron")


def test_ready_line_for_people(processes: Processes, base_dir: Path) -> None:
    process = processes.start("-m", "framepool.cli.media_driver", "--dir", str(base_dir / "aeron"))
    assert process.line() == f"media driver ready in {base_dir / 'aeron'} (process {process.pid})"


def test_second_media_driver_is_refused_and_the_first_still_works(processes: Processes, base_dir: Path) -> None:
    first = start(processes, base_dir / "aeron")
    second = processes.start("-m", "framepool.cli.media_driver", "--dir", str(base_dir / "aeron"))
    assert second.wait() == 1
    (line,) = second.lines
    assert f"process {first.pid} runs a media driver in {base_dir / 'aeron'}" in line
    with pytest.raises(MediaDriverRunning, match=f"process {first.pid}"):
        MediaDriver(AeronSettings(directory=str(base_dir / "aeron")))
    assert round_trip(base_dir / "aeron")


def test_second_media_driver_in_one_process_is_refused(media_driver: MediaDriver, base_dir: Path) -> None:
    with pytest.raises(MediaDriverRunning, match=f"process {os.getpid()}"):
        MediaDriver(media_driver.settings)
    assert round_trip(base_dir / "aeron")


def test_media_driver_of_others_is_seen_by_its_heartbeat(media_driver: MediaDriver, base_dir: Path) -> None:
    """One that holds no lock of ours: here, because the lock was deleted under it."""
    os.unlink(media_driver.directory + ".lock")
    with pytest.raises(MediaDriverRunning, match=f"process {os.getpid()} runs"):
        MediaDriver(media_driver.settings)
    assert round_trip(base_dir / "aeron")


def test_who_sleeps_through_the_watch_looks_once_more(
    media_driver: MediaDriver, base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(media_driver.directory + ".lock")
    monkeypatch.setattr("framepool.transport.media_driver.time", SleepsLong(media_driver))
    with pytest.raises(MediaDriverRunning, match=f"process {os.getpid()} runs"):
        MediaDriver(media_driver.settings)


class SleepsLong:
    """A clock by which whoever sleeps has slept for a minute, and the heart of the media driver has beaten."""

    def __init__(self, media_driver: MediaDriver) -> None:
        self._driver = media_driver
        self._slept = 0.0

    def monotonic(self) -> float:
        self._slept += 60.0
        return self._slept

    def sleep(self, seconds: float) -> None:
        before = self._driver.status().heartbeat_ms
        while self._driver.status().heartbeat_ms == before:
            time.sleep(0.01)


def test_killed_media_driver_is_replaced_at_once(processes: Processes, base_dir: Path) -> None:
    first = start(processes, base_dir / "aeron")
    before = cnc.driver_status(str(base_dir / "aeron"))
    first.kill()
    assert (base_dir / "aeron" / "cnc.dat").exists()
    started = time.monotonic()
    start(processes, base_dir / "aeron")
    assert time.monotonic() - started < 20
    assert cnc.driver_status(str(base_dir / "aeron")).identity() != before.identity()
    assert round_trip(base_dir / "aeron")


def test_directory_that_holds_something_else_is_not_touched(base_dir: Path) -> None:
    precious = base_dir / "aeron" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"precious\.txt"):
        MediaDriver(AeronSettings(directory=str(base_dir / "aeron")))
    assert precious.read_text() == "mine"
    assert not (base_dir / "aeron.lock").exists()


def test_truncated_remains_are_replaced(base_dir: Path) -> None:
    (base_dir / "aeron").mkdir()
    (base_dir / "aeron" / "cnc.dat").write_bytes(b"\x00\x02")
    with MediaDriver(AeronSettings(directory=str(base_dir / "aeron"))):
        assert round_trip(base_dir / "aeron")


def test_directory_is_the_users_alone(media_driver: MediaDriver) -> None:
    assert stat.S_IMODE(os.stat(media_driver.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(os.path.join(media_driver.directory, "cnc.dat")).st_mode) & 0o077 == 0


def test_settings_that_aeron_refuses_leave_nothing(base_dir: Path) -> None:
    settings = AeronSettings(directory=str(base_dir / "aeron"), counters_length=1024 * 1024 * 1024)
    with pytest.raises(TransportError, match="counters_values_buffer_length"):
        MediaDriver(settings)
    assert list(base_dir.iterdir()) == []


def test_dropped_media_driver_ends_and_removes_its_directory(base_dir: Path) -> None:
    driver = MediaDriver(AeronSettings(directory=str(base_dir / "aeron"), ipc_term_length=64 * KIB))
    assert driver.running
    assert driver.statistics()["Errors"] == 0 if "Errors" in driver.statistics() else True
    del driver
    assert list(base_dir.iterdir()) == []


@pytest.mark.requires("root")
def test_group_may_use_it_and_nobody_else(processes: Processes, base_dir: Path) -> None:
    group = grp.getgrnam("games").gr_gid
    start(processes, base_dir / "aeron", "--group", "games")
    assert round_trip(base_dir / "aeron")
    for path in [base_dir / "aeron", *(base_dir / "aeron").rglob("*")]:
        info = path.stat()
        assert info.st_gid == group, path
        assert stat.S_IMODE(info.st_mode) == (0o2770 if path.is_dir() else 0o660), path


def test_group_that_does_not_exist_is_one_line(processes: Processes, base_dir: Path) -> None:
    process = processes.start(
        "-m", "framepool.cli.media_driver", "--dir", str(base_dir / "aeron"), "--group", "no such group"
    )
    assert process.line() == "framepool media-driver: --group 'no such group': no such group"
    assert process.wait() == 1
