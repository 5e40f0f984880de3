"""Allocation on a full filesystem, and allocation killed at every step."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from framepool.shm.allocator import Allocator
from framepool.shm.epochs import finished_epoch, unfinished_epoch
from framepool.shm.region import map_stream
from tests.support.processes import Processes
from tests.support.regions import allow

FULL = """
import json, os, subprocess, sys
from framepool.errors import AllocationError
from framepool.shm.allocator import Allocator
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import map_stream

base = sys.argv[1]
os.unshare(os.CLONE_NEWNS)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", *sys.argv[2:], "none", base], check=True)
allocator = Allocator(base, "lab1", user="alice")
free = os.statvfs(base).f_bavail * os.statvfs(base).f_frsize
try:
    allocator.create(7, 3, nslots=4, strides={1: 1 << 16, 2: 1 << 20}, timestamp_ns=1)
    message = "made"
except AllocationError as error:
    message = str(error)
report = {"message": message, "left": sorted(os.listdir(base)), "free": free,
          "free_after": os.statvfs(base).f_bavail * os.statvfs(base).f_frsize}
if "tmpfs" in sys.argv:
    layout = allocator.create(7, 3, nslots=4, strides={1: 1 << 16}, timestamp_ns=1)
    with map_stream(layout, AllowedDirectories([base]), writable=True) as stream:
        for region in stream.regions:
            region.buffer[64:] = b"x" * (region.nbytes - 64)
    report["smaller"] = "written"
print(json.dumps(report))
"""


@pytest.mark.requires("root")
def test_a_full_filesystem_is_a_clear_error_and_nothing_is_left(base_dir: Path, processes: Processes) -> None:
    process = processes.start("-c", FULL, str(base_dir), "tmpfs", "-o", "size=1m")
    report = json.loads(process.line())
    needed = 3 * 64 + 4 * (256 + (1 << 16) + (1 << 20))
    assert f"no space in {base_dir}" in report["message"]
    assert f"{needed} bytes needed, {1 << 20} free" in report["message"]
    assert report["left"] == []
    assert report["free_after"] == report["free"] == 1 << 20
    assert report["smaller"] == "written"


@pytest.mark.requires("root")
def test_a_hugetlbfs_without_pages_is_a_clear_error_and_nothing_is_left(base_dir: Path, processes: Processes) -> None:
    process = processes.start("-c", FULL, str(base_dir), "hugetlbfs", "-o", "size=0")
    report = json.loads(process.line())
    assert "no space in" in report["message"]
    assert report["left"] == []


KILLED = """
import os, signal, sys
from framepool.shm.allocator import Allocator

base, wanted = sys.argv[1], int(sys.argv[2])
step = 0

def killed_before(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global step
        step += 1
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(os, name, call)
    if real in os.supports_dir_fd:
        os.supports_dir_fd.add(call)

allocator = Allocator(base, "lab1", user="alice")
epoch = allocator.next_epoch(7, lambda: 1000)
for name in ("mkdir", "open", "close", "fchmod", "posix_fallocate", "fsync", "rename"):
    killed_before(name)
allocator.create(7, epoch, nslots=4, strides={1: 64, 2: 4096}, timestamp_ns=1)
print(step)
"""


def test_an_allocation_killed_at_any_step_shows_no_half_made_epoch_and_the_next_epoch_rises(
    base_dir: Path, processes: Processes
) -> None:
    allocator = Allocator(base_dir, "lab1", user="alice")
    stream = base_dir / "tensorpool-alice" / "lab1" / "7"
    before = 0
    for step in range(1, 200):
        process = processes.start("-c", KILLED, str(base_dir), str(step))
        code = process.wait()
        names = os.listdir(stream) if stream.exists() else []
        finished = [epoch for name in names if (epoch := finished_epoch(name)) is not None]
        unfinished = [epoch for name in names if (epoch := unfinished_epoch(name)) is not None]
        assert len(names) == len(finished) + len(unfinished)
        for epoch in finished:
            _require_whole(base_dir, stream / str(epoch))
        following = allocator.next_epoch(7, lambda: 1000)
        assert following > max(finished + unfinished, default=0)
        assert following >= before
        before = following
        if code == 0:
            break
        assert code == -signal.SIGKILL, process.lines
    assert code == 0
    assert step > 20
    assert sorted(allocator.remove_unfinished(7)) == sorted(unfinished)
    assert sorted(os.listdir(stream)) == sorted(map(str, finished))


def _require_whole(base: Path, epoch: Path) -> None:
    """Maps an epoch found on disk with every check a consumer makes."""
    layout = Allocator(base, "lab1", user="alice")._layout(7, int(epoch.name), 4, {1: 64, 2: 4096})
    map_stream(layout, allow(base)).close()
