"""cnc.dat: heartbeat and counters of a living driver, and a clear error for anything else."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.errors import TransportError, TransportTimeout
from framepool.transport import cnc
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from tests.unit.transport.conftest import Until


def test_living_driver_says_who_it_is(media_driver: MediaDriver, until: Until) -> None:
    time.sleep(0.05)
    until(lambda: media_driver.status().age() < 2.0 and cnc.is_active(media_driver.directory, 2.0))
    status = media_driver.status()
    assert status.pid == os.getpid()
    assert status.client_liveness_ns == 10_000_000_000


def test_ended_driver_has_no_age(media_driver: MediaDriver, base_dir: Path) -> None:
    kept = base_dir / "kept"
    kept.mkdir()
    os.link(os.path.join(media_driver.directory, "cnc.dat"), kept / "cnc.dat")
    media_driver.close()
    assert cnc.driver_status(str(kept)).heartbeat_ms == cnc.SHUT_DOWN
    assert not cnc.is_active(str(kept), 1e9)


def test_counters_of_driver_and_clients_are_read(client: Client) -> None:
    counter = client.add_counter(2001, "frames of camera 7", b"\x07\x00\x00\x00")
    counter.set(41)
    assert counter.increment() == 41
    assert counter.value == 42
    (record,) = [record for record in client.counters() if record.type_id == 2001]
    assert (record.id, record.label, record.value) == (counter.counter_id, "frames of camera 7", 42)
    assert record.key[:4] == b"\x07\x00\x00\x00"
    assert record.state == "allocated"
    assert record.owner_id == client.client_id
    counter.close()
    deadline = time.monotonic() + 10
    while any(r.type_id == 2001 and r.state == "allocated" for r in client.counters()):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_missing_file_is_no_media_driver(base_dir: Path) -> None:
    with pytest.raises(TransportError, match="no media driver in"):
        cnc.driver_status(str(base_dir))


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_regular_file_is_refused_without_hanging(base_dir: Path, kind: str) -> None:
    path = base_dir / "cnc.dat"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(TransportError):
        cnc.driver_status(str(base_dir))


@pytest.mark.parametrize("length", [0, 1, 51, 128, 4096, 1_000_000, 5_000_000])
def test_truncated_file_is_named_and_a_client_does_not_hang_on_it(
    media_driver: MediaDriver, base_dir: Path, length: int
) -> None:
    """Aeron itself waits without end for a truncated cnc.dat to grow."""
    copy = base_dir / "copy"
    copy.mkdir()
    shutil.copyfile(os.path.join(media_driver.directory, "cnc.dat"), copy / "cnc.dat")
    os.truncate(copy / "cnc.dat", length)
    with pytest.raises(TransportError, match="truncated"):
        cnc.counters(str(copy))
    with pytest.raises(TransportTimeout, match="no media driver"):
        Client.connect(AeronSettings(directory=str(copy)), timeout=0.1)


def test_file_of_another_version_is_named(base_dir: Path) -> None:
    (base_dir / "cnc.dat").write_bytes(struct.pack("<i", 7 << 16) + bytes(4096))
    with pytest.raises(TransportError, match="version"):
        cnc.driver_status(str(base_dir))


@settings(max_examples=200, deadline=None)
@given(header=st.binary(min_size=52, max_size=52), version=st.booleans())
def test_hostile_header_gives_nothing_but_an_error(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, version: bool
) -> None:
    directory = tmp_path_factory.mktemp("cnc")
    start = struct.pack("<i", 512) if version else header[:4]
    (directory / "cnc.dat").write_bytes(start + header[4:] + bytes(2000))
    with contextlib.suppress(TransportError):
        cnc.counters(str(directory))
