"""Who may touch what of a running pool: its user, the members of its group, and everybody else (`SECURITY.md`)."""

from __future__ import annotations

import contextlib
import grp
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.config import load
from tests.support.directories import private_directory
from tests.support.processes import Process, Processes

OWNER, STRANGER = 65_501, 65_502
"""Users that nobody is."""

SITE = """
[aeron]
directory = "{base}/aeron"
driver_timeout = 5.0
keepalive_interval = 0.2

[driver]
shm_base_dir = "{base}"
{access}

[profiles.default]
nslots = 8
pools = [{{pool_id = 1, stride_bytes = 4096}}]
"""

SERVER = """
import os, sys, time
import numpy as np
import framepool as fp
from framepool.config import load
config = load(sys.argv[1], {})
with fp.serve(config) as warm:  # loads what is loaded when it is first needed
    warm.producer(10_000).publish(np.arange(2))
for path in sys.argv[1].replace("site.toml", "aeron.lock"), sys.argv[1].replace("site.toml", "aeron.control-1000.lock"):
    if os.path.exists(path):
        os.unlink(path)
os.setgroups([int(each) for each in sys.argv[4:]])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[2]))
with fp.serve(config) as pool:
    camera = pool.producer(10_000)
    print("ready", flush=True)
    while True:
        camera.publish(np.arange(4, dtype=np.uint16))
        time.sleep(0.01)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """Reachable by everybody, as /dev/shm is."""
    with private_directory() as path:
        path.chmod(0o777)
        yield path


def serve(processes: Processes, base: Path, access: str, *groups: int) -> None:
    """A driver and a producer of the user OWNER."""
    (base / "site.toml").write_text(SITE.format(base=base, access=access))
    (base / "site.toml").chmod(0o644)
    load(base / "site.toml", {})
    server = processes.start("-c", SERVER, str(base / "site.toml"), str(OWNER), str(OWNER), *map(str, groups))
    server.wait_line("ready", timeout=60)


def try_as(processes: Processes, base: Path, uid: int, gid: int, patience: float = 5.0) -> dict[str, Any]:
    """What a user can do; `patience` is for one to whom an answer is expected."""
    who = (str(uid), str(gid), str(patience))
    worker: Process = processes.start("-m", "tests.faults.trust_worker", str(base), *who)
    tried: dict[str, Any] = json.loads(worker.wait_line("{", timeout=200))
    return tried


def regions(base: Path) -> list[Path]:
    return [path for path in base.rglob("*") if path.is_file() and path.suffix not in {".toml", ".lock"}]


@pytest.mark.requires("root")
def test_others_see_nothing_of_a_private_pool_and_cannot_take_part(processes: Processes, base: Path) -> None:
    serve(processes, base, "")
    assert regions(base), "there is something to look for"
    tried = try_as(processes, base, STRANGER, STRANGER)
    assert tried["found"] == {}
    assert tried["counters"] == "TransportError"
    assert tried["published"] not in (0, 1)
    assert isinstance(tried["consumed"], str)


@pytest.mark.requires("root")
def test_members_of_the_group_take_part_and_nobody_else(processes: Processes, base: Path) -> None:
    group = grp.getgrnam("games")
    serve(processes, base, f'access = "group"\ngroup = "{group.gr_name}"', group.gr_gid)
    member = try_as(processes, base, STRANGER, group.gr_gid, 30)
    assert (member["published"], member["consumed"]) == (0, [0, 1, 2, 3])
    outsider = try_as(processes, base, STRANGER, STRANGER)
    assert outsider["found"] == {}
    assert isinstance(outsider["published"], str)
    assert isinstance(outsider["consumed"], str)
    for path in regions(base):
        with contextlib.suppress(FileNotFoundError):
            assert path.stat().st_mode & 0o007 == 0, path


@pytest.mark.requires("root")
def test_files_of_a_user_that_is_not_trusted_are_not_mapped_whoever_announces_them(
    processes: Processes, base: Path
) -> None:
    """A reader that is told of the regions of another user, outside of any group, maps none of them."""
    serve(processes, base, "")
    for mode, top in ((0o644, base), (0o666, base / "aeron")):
        for path in top.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the driver renews what it says of itself
                path.chmod(0o777 if path.is_dir() else mode)
    tried = try_as(processes, base, STRANGER, STRANGER, 10)
    assert tried["consumed"] == "AttachRefused"
