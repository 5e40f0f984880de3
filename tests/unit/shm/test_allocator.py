"""Making and removing epochs: names, modes, atomicity, and links that are never followed."""

from __future__ import annotations

import errno
import mmap
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framepool.errors import AllocationError, ConfigurationError
from framepool.shm import allocator as allocator_module
from framepool.shm import paths
from framepool.shm.allocator import Allocator
from framepool.shm.nofollow import Filesystem
from framepool.shm.region import map_stream
from framepool.shm.tree import effective_user
from tests.support.processes import Processes
from tests.support.regions import allow, announce, leaves_no_trace

STRANGER = 54321


def make(allocator: Allocator, stream_id: int = 7, epoch: int = 3, **changes: object) -> Path:
    """Creates a small epoch and gives its directory."""
    numbers = {"nslots": 4, "strides": {1: 64, 2: 4096}, "timestamp_ns": 1, **changes}
    layout = allocator.create(stream_id, epoch, **numbers)  # type: ignore[arg-type]
    return Path(layout.header_uri.path).parent


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.clause("W-15.21a.3-01", "W-15.16-02")
def test_an_epoch_is_a_header_ring_and_its_pools_in_the_canonical_place(base_dir: Path) -> None:
    make(Allocator(base_dir, "lab1", user="alice"), stream_id=7, epoch=3)
    assert tree(base_dir) == [
        "tensorpool-alice",
        "tensorpool-alice/lab1",
        "tensorpool-alice/lab1/7",
        "tensorpool-alice/lab1/7/3",
        "tensorpool-alice/lab1/7/3/1.pool",
        "tensorpool-alice/lab1/7/3/2.pool",
        "tensorpool-alice/lab1/7/3/header.ring",
    ]


@pytest.mark.clause("W-15.21a.3-05")
def test_names_are_the_same_in_every_epoch(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab1")
    assert tree(make(allocator, epoch=3)) == tree(make(allocator, epoch=4)) == ["1.pool", "2.pool", "header.ring"]


@pytest.mark.clause("W-15.21a.3-02")
def test_the_directory_bears_the_name_of_the_effective_user(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "somebody-else")
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert Allocator(base_dir, "lab1").directory == f"{base_dir}/tensorpool-{name}/lab1"


@pytest.mark.clause("W-15.21a.3-03")
@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", "a b", "", "a?b", "a|b", "ä"])
def test_a_user_name_that_cannot_stand_in_a_path_is_replaced_by_the_uid(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    entry = pwd.struct_passwd((name, "x", 1000, 1000, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    assert effective_user() == str(os.geteuid())


def test_a_user_without_a_name_is_called_by_the_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert effective_user() == str(os.geteuid())


@pytest.mark.clause("W-15.21a.3-03")
@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", "/", ".", "..", ".hidden", "", "a b", "a?b", "a|b", "ä", "a\0", "a\n"]
)
def test_a_user_or_namespace_that_is_no_plain_name_is_refused(base_dir: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="user"):
        Allocator(base_dir, "lab1", user=name)
    with pytest.raises(ConfigurationError, match="namespace"):
        Allocator(base_dir, name)
    assert tree(base_dir) == []


def test_a_base_that_no_uri_can_name_is_refused(base_dir: Path) -> None:
    (base_dir / "with space").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be announced"):
        Allocator(base_dir / "with space", "lab1")


@pytest.mark.parametrize("base", ["relative", "/nonexistent/framepool"])
def test_a_base_that_is_no_absolute_existing_directory_is_refused(base: str) -> None:
    with pytest.raises(ConfigurationError):
        Allocator(base, "lab1")


def test_hugepages_are_refused_on_a_base_without_them(base_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="hugetlbfs"):
        Allocator(base_dir, "lab1", require_hugepages=True)


@pytest.mark.clause("W-15.10-01", "W-15.21a.6-01")
@pytest.mark.usefixtures("umask")
def test_private_files_are_for_their_owner_alone_whatever_the_umask(base_dir: Path) -> None:
    make(Allocator(base_dir, "lab1", user="alice"))
    for path in (base_dir / "tensorpool-alice").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600)
        assert path.stat().st_uid == os.geteuid()
    assert stat.S_IMODE((base_dir / "tensorpool-alice").stat().st_mode) == 0o700


@pytest.mark.clause("W-15.10-01", "W-15.21a.6-01")
@pytest.mark.requires("root")
@pytest.mark.usefixtures("umask")
def test_shared_files_are_for_their_group_and_nobody_else_whatever_the_umask(base_dir: Path) -> None:
    make(Allocator(base_dir, "lab1", user="alice", group=STRANGER))
    for path in ((base_dir / "tensorpool-alice"), *(base_dir / "tensorpool-alice").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o2770 if path.is_dir() else 0o660)
        assert path.stat().st_gid == STRANGER


@pytest.mark.clause("D-3-07")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    nslots=st.integers(0, 7).map(lambda power: 1 << power),
    strides=st.dictionaries(
        st.integers(0, 2**16 - 1), st.integers(0, 8).map(lambda power: 64 << power), min_size=1, max_size=4
    ),
    stream_id=st.integers(0, 2**32 - 1),
    prefault=st.booleans(),
)
def test_whatever_is_made_passes_every_check_of_a_consumer(
    base_dir: Path, nslots: int, strides: dict[int, int], stream_id: int, prefault: bool
) -> None:
    allocator = Allocator(base_dir, "lab1", prefault=prefault)
    epoch = allocator.next_epoch(stream_id)
    layout = allocator.create(stream_id, epoch, nslots=nslots, strides=strides, timestamp_ns=5)
    announced = type(layout).from_announce(announce(layout))
    with leaves_no_trace(base_dir), map_stream(announced, allow(base_dir)) as stream:
        stream.recheck()
        block = stream.superblock()
        assert (block.pid, block.start_timestamp_ns, block.activity_timestamp_ns) == (os.getpid(), 5, 5)
        assert {id: region.nbytes for id, region in stream.pools.items()} == {
            id: 64 + nslots * stride for id, stride in strides.items()
        }
        assert not any(any(region.buffer[64:]) for region in stream.regions)
    allocator.remove_namespace()


@pytest.mark.clause("W-3-01", "W-15.22-12")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nslots": 6}, "power of two"),
        ({"nslots": 0}, "power of two"),
        ({"strides": {1: 96}}, "64 times a power of two"),
        ({"strides": {1: 0}}, "64 times a power of two"),
        ({"strides": {}}, "no payload pool"),
        ({"strides": {70_000: 64}}, "pool_id"),
        ({"stream_id": -1}, "stream_id"),
        ({"epoch": 2**64}, "epoch"),
    ],
)
def test_a_layout_that_no_consumer_would_map_is_not_made(
    base_dir: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(AllocationError, match=reason):
        make(Allocator(base_dir, "lab1"), **changes)  # type: ignore[arg-type]
    assert tree(base_dir) == []


def test_space_is_reserved_and_not_only_promised(base_dir: Path) -> None:
    directory = make(Allocator(base_dir, "lab1"), nslots=4, strides={1: 1 << 20})
    info = (directory / "1.pool").stat()
    assert info.st_blocks * 512 >= info.st_size


def everything_that_exists(stream: Path) -> Iterator[Path]:
    (stream / "3").mkdir()
    yield stream / "3"
    (stream / "3").rmdir()
    (stream / "3").symlink_to("/nonexistent")
    yield stream / "3"
    (stream / "3").unlink()
    (stream / "3").write_bytes(b"")
    yield stream / "3"
    (stream / "3").unlink()
    (stream / ".3.tmp").mkdir()
    yield stream / ".3.tmp"


def test_an_epoch_that_exists_in_any_form_is_never_made_again(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab1")
    stream = make(allocator, epoch=2).parent
    for obstacle in everything_that_exists(stream):
        before = obstacle.lstat()
        with pytest.raises(AllocationError, match="exists already"):
            make(allocator, epoch=3)
        assert obstacle.lstat().st_ino == before.st_ino
        assert {path.name for path in stream.iterdir()} == {"2", obstacle.name}


@pytest.mark.parametrize("step", ["posix_fallocate", "fsync", "rename", "fchmod"])
def test_a_failure_at_any_step_leaves_nothing(base_dir: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    allocator = Allocator(base_dir, "lab1")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with leaves_no_trace(base_dir), pytest.raises(AllocationError, match="Input/output error"):
            make(allocator)
    assert tree(base_dir) == []
    make(allocator)


def test_no_consumer_sees_an_epoch_before_it_is_whole(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for step in ("posix_fallocate", "fsync", "rename"):
        real = getattr(os, step)

        def look(*args: object, real: object = real, **kwargs: object) -> object:
            stream = base_dir / "tensorpool-alice" / "lab1" / "7"
            seen.append(sorted(path.name for path in stream.iterdir()))
            return real(*args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(os, step, look)
    make(Allocator(base_dir, "lab1", user="alice"))
    assert len(seen) > 6
    assert {tuple(names) for names in seen[:-1]} == {(".3.tmp",)}
    assert seen[-1] == ["3"]  # the last fsync, of the stream's directory


@pytest.mark.parametrize("name", ["tensorpool-alice", "tensorpool-alice/lab1", "tensorpool-alice/lab1/7"])
def test_a_link_in_the_way_is_neither_followed_nor_removed(base_dir: Path, name: str) -> None:
    victim = base_dir / "victim"
    victim.mkdir()
    base = base_dir / "base"
    link = base / name
    for parent in reversed(link.parents):
        if parent.is_relative_to(base):
            parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(victim)
    allocator = Allocator(base, "lab1", user="alice")
    with pytest.raises(AllocationError):
        make(allocator)
    with pytest.raises(AllocationError):
        allocator.next_epoch(7)
    with pytest.raises(AllocationError):
        allocator.remove_epoch(7, 3)
    assert tree(victim) == []
    assert link.is_symlink()


@pytest.mark.requires("root")
def test_a_directory_that_somebody_else_made_is_refused(base_dir: Path) -> None:
    squatted = base_dir / "tensorpool-alice"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, STRANGER, STRANGER)
    with pytest.raises(AllocationError, match=f"belongs to uid {STRANGER}"):
        make(Allocator(base_dir, "lab1", user="alice"))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o500])
def test_a_directory_of_another_mode_is_refused(base_dir: Path, mode: int) -> None:
    (base_dir / "tensorpool-alice").mkdir()
    (base_dir / "tensorpool-alice").chmod(mode)
    with pytest.raises(AllocationError, match=f"has mode {mode:04o}"):
        make(Allocator(base_dir, "lab1", user="alice"))


@pytest.mark.requires("root")
def test_a_shared_directory_of_another_group_is_refused(base_dir: Path) -> None:
    make(Allocator(base_dir, "lab1", user="alice", group=STRANGER))
    with pytest.raises(AllocationError, match=f"gid {STRANGER}"):
        make(Allocator(base_dir, "lab1", user="alice", group=STRANGER + 1), epoch=4)


@pytest.mark.parametrize("prefault", [False, True])
def test_pages_are_touched_at_once_on_request(base_dir: Path, monkeypatch: pytest.MonkeyPatch, prefault: bool) -> None:
    real, populated = mmap.mmap, []

    def watch(fd: int, length: int, *, flags: int, prot: int) -> mmap.mmap:
        populated.append(bool(flags & mmap.MAP_POPULATE))
        return real(fd, length, flags=flags, prot=prot)

    monkeypatch.setattr(mmap, "mmap", watch)
    make(Allocator(base_dir, "lab1", prefault=prefault))
    assert populated == [prefault] * 3


def test_where_files_are_whole_pages_a_region_still_ends_with_its_last_slot(
    base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (allocator_module, paths):
        monkeypatch.setattr(module, "filesystem", lambda fd: Filesystem(hugepages=True, block_bytes=1 << 16))
    layout = Allocator(base_dir, "lab1", require_hugepages=True).create(
        7, 3, nslots=4, strides={1: 64, 2: 1 << 14}, timestamp_ns=1
    )
    assert [Path(pool.uri.path).stat().st_size for pool in layout.pools] == [1 << 16, 2 << 16]
    assert str(layout.header_uri).endswith("|require_hugepages=true")
    with map_stream(layout, allow(base_dir)) as stream:
        assert [len(region.buffer) for region in stream.regions] == [64 + 4 * 256, 64 + 4 * 64, 64 + 4 * (1 << 14)]
        stream.recheck()


def test_an_old_epoch_is_removed_whole_and_the_newest_leaves_its_directory(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab1")
    stream = make(allocator, epoch=3).parent
    make(allocator, epoch=4)
    allocator.remove_epoch(7, 3)
    assert tree(stream) == ["4", "4/1.pool", "4/2.pool", "4/header.ring"]
    allocator.remove_epoch(7, 4)
    allocator.remove_epoch(7, 4)
    assert tree(stream) == ["4"]
    assert allocator.next_epoch(7) == 5


def test_removing_what_is_not_there_is_no_error(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab1")
    allocator.remove_epoch(7, 3)
    allocator.remove_namespace()
    assert allocator.remove_unfinished(7) == []
    make(allocator)
    allocator.remove_epoch(7, 2)
    allocator.remove_epoch(7, 9)
    assert allocator.next_epoch(7) == 4


def test_removal_follows_no_link_inside_or_instead_of_an_epoch(base_dir: Path) -> None:
    victim = base_dir / "victim"
    victim.mkdir()
    (victim / "precious").write_text("kept")
    allocator = Allocator(base_dir, "lab1")
    directory = make(allocator, epoch=4)
    (directory / "link").symlink_to(victim)
    (directory / "below").mkdir()
    (directory / "below" / "link").symlink_to(victim / "precious")
    (directory.parent / "2").symlink_to(victim)
    with pytest.raises(AllocationError):
        allocator.remove_epoch(7, 2)
    allocator.remove_epoch(7, 4)
    assert tree(directory) == []
    allocator.remove_namespace()
    assert tree(base_dir) == ["victim", "victim/precious"]


def test_a_mapped_epoch_can_be_removed_and_its_maps_stay_good(base_dir: Path) -> None:
    allocator = Allocator(base_dir, "lab1")
    layout = allocator.create(7, 3, nslots=4, strides={1: 64}, timestamp_ns=1)
    with map_stream(layout, allow(base_dir), writable=True) as stream:
        allocator.remove_epoch(7, 3)
        stream.pools[1].buffer[64] = 1
        assert stream.pools[1].buffer[64] == 1


def test_only_its_own_namespace_is_removed(base_dir: Path) -> None:
    kept, removed = Allocator(base_dir, "kept", user="alice"), Allocator(base_dir, "removed", user="alice")
    make(kept)
    make(removed)
    removed.remove_namespace()
    assert [path.name for path in (base_dir / "tensorpool-alice").iterdir()] == ["kept"]
    kept.remove_namespace()
    assert tree(base_dir) == []


def test_an_epoch_that_is_being_made_is_not_removed_as_unfinished(
    base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator(base_dir, "lab1")
    removed = []
    real = os.posix_fallocate

    def clean_up_meanwhile(fd: int, offset: int, length: int) -> None:
        removed.append(Allocator(base_dir, "lab1").remove_unfinished(7))
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", clean_up_meanwhile)
    make(allocator)
    assert removed == [[], [], []]


UNPRIVILEGED = """
import os, sys
from framepool.errors import AllocationError
from framepool.shm import allocator as allocator_module
from framepool.shm import paths
from framepool.shm.allocator import Allocator
from framepool.shm.nofollow import Filesystem
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    Allocator(sys.argv[1], "lab1", user="alice").create(7, 3, nslots=4, strides={1: 64}, timestamp_ns=1)
except AllocationError as error:
    print(error)
"""


@pytest.mark.requires("root")
def test_a_base_that_may_not_be_written_is_a_clear_error(base_dir: Path, processes: Processes) -> None:
    base_dir.chmod(0o755)
    process = processes.start("-c", UNPRIVILEGED, str(base_dir))
    line = process.line()
    assert line.startswith("stream 7, epoch 3: cannot be made in")
    assert "Permission denied" in line
