"""Which files may be opened: every way around the allowed directories, both ways of opening, and races."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from framepool.errors import (
    ConfigurationError,
    HugepagesRequired,
    NotARegularFile,
    PathNotAllowed,
    RegionError,
    RegionOwnerError,
    RegionSizeError,
)
from framepool.shm import nofollow, paths
from framepool.shm.paths import AllowedDirectories, OwnerPolicy, open_region_file
from tests.support.processes import Processes
from tests.support.regions import leaves_no_trace

SIZE = 4096
STRANGER = 54321


@pytest.fixture(autouse=True, params=[nofollow.open_by_openat2, nofollow.open_stepwise], ids=["openat2", "stepwise"])
def way_of_opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with both implementations."""
    if request.param is nofollow.open_by_openat2 and not nofollow.openat2_works():
        pytest.skip("this kernel or sandbox has no openat2")
    monkeypatch.setattr(nofollow, "opener", lambda: request.param)


@pytest.fixture
def base(base_dir: Path) -> Path:
    """An allowed directory with room beside it for what is not allowed."""
    path = base_dir / "tp"
    path.mkdir()
    return path


def region(path: Path, size: int = SIZE, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    path.chmod(mode)
    return path


def opens(path: Path | str, allowed: AllowedDirectories, *, owners: OwnerPolicy = paths.OWN_FILES) -> os.stat_result:
    fd = open_region_file(str(path), allowed, expected_size=SIZE, owners=owners)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("writable", [False, True])
def test_a_regular_file_below_the_base_is_opened(base: Path, writable: bool) -> None:
    path = region(base / "7" / "3" / "header.ring")
    with leaves_no_trace(base):
        fd = open_region_file(str(path), AllowedDirectories([base]), expected_size=SIZE, writable=writable)
        assert os.path.samestat(os.fstat(fd), path.stat())
        assert not os.get_inheritable(fd)
        if writable:
            assert os.write(fd, b"x") == 1
        else:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
        os.close(fd)


def last_component_is_a_link(base: Path) -> str:
    (base / "link").symlink_to(region(base / "file"))
    return str(base / "link")


def last_component_is_a_link_out(base: Path) -> str:
    (base / "link").symlink_to(region(base.parent / "outside"))
    return str(base / "link")


def middle_component_is_a_link(base: Path) -> str:
    region(base / "a" / "file")
    (base / "link").symlink_to(base / "a")
    return str(base / "link" / "file")


def middle_component_is_a_link_out(base: Path) -> str:
    region(base.parent / "outside" / "file")
    (base / "link").symlink_to(base.parent / "outside")
    return str(base / "link" / "file")


def link_leads_to_a_directory_of_its_own_name(base: Path) -> str:
    region(base / base.name / "link" / "file")
    (base / "link").symlink_to(base / base.name / "link")
    return str(base / "link" / "file")


def link_to_itself(base: Path) -> str:
    (base / "loop").symlink_to("loop")
    return str(base / "loop")


def dangling_link_out(base: Path) -> str:
    (base / "link").symlink_to(base.parent / "nothing")
    return str(base / "link")


def dots_that_stay_inside(base: Path) -> str:
    region(base / "file")
    (base / "a").mkdir()
    return f"{base}/a/../file"


def dots_that_leave(base: Path) -> str:
    region(base.parent / "outside")
    return f"{base}/../outside"


def a_single_dot(base: Path) -> str:
    region(base / "file")
    return f"{base}/./file"


def an_empty_component(base: Path) -> str:
    region(base / "file")
    return f"{base}//file"


def a_slash_at_the_end(base: Path) -> str:
    region(base / "file")
    return f"{base}/file/"


def a_sibling_with_the_same_prefix(base: Path) -> str:
    return str(region(base.with_name(base.name + "-evil") / "file"))


def the_base_itself(base: Path) -> str:
    return str(base)


def above_the_base(base: Path) -> str:
    return str(region(base.parent / "file"))


def a_nul(base: Path) -> str:
    region(base / "file")
    return f"{base}/file\0"


def a_second_hard_link(base: Path) -> str:
    os.link(region(base.parent / "outside"), base / "file")
    return str(base / "file")


NOT_ALLOWED = [
    last_component_is_a_link,
    last_component_is_a_link_out,
    middle_component_is_a_link,
    middle_component_is_a_link_out,
    link_leads_to_a_directory_of_its_own_name,
    link_to_itself,
    dangling_link_out,
    dots_that_stay_inside,
    dots_that_leave,
    a_single_dot,
    an_empty_component,
    a_slash_at_the_end,
    a_sibling_with_the_same_prefix,
    the_base_itself,
    above_the_base,
    a_nul,
    a_second_hard_link,
]


@pytest.mark.clause("W-15.21a.5-04", "W-15.21a.5-06", "W-15.21a.5-09")
@pytest.mark.parametrize("prepare", NOT_ALLOWED, ids=lambda prepare: prepare.__name__)
def test_a_path_that_leaves_the_base_or_passes_a_link_is_refused(base: Path, prepare: Callable[[Path], str]) -> None:
    path = prepare(base)
    with leaves_no_trace(base), pytest.raises(PathNotAllowed):
        opens(path, AllowedDirectories([base]))


@pytest.mark.clause("W-15.21a.5-01")
def test_a_relative_path_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region(base / "file")
    monkeypatch.chdir(base.parent)
    with leaves_no_trace(base), pytest.raises(PathNotAllowed, match="not an absolute path"):
        opens("tp/file", AllowedDirectories([base]))


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def directory(path: Path) -> None:
    path.mkdir()


def listening_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.clause("W-15.21a.5-05", "W-15.21a.5-09")
@pytest.mark.parametrize("make", [fifo, directory, listening_socket], ids=lambda make: make.__name__)
@pytest.mark.parametrize("writable", [False, True])
def test_what_is_no_regular_file_is_refused_without_blocking(
    base: Path, make: Callable[[Path], None], writable: bool
) -> None:
    make(base / "region")
    with leaves_no_trace(base), pytest.raises(NotARegularFile):
        open_region_file(str(base / "region"), AllowedDirectories([base]), expected_size=0, writable=writable)


@pytest.mark.clause("W-15.21a.5-05")
@pytest.mark.parametrize("make", [fifo, directory, listening_socket], ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_not_even_opened(
    base: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    make(base / "region")

    def refuse(*_: object) -> int:
        raise AssertionError("opening a device has effects of its own")

    monkeypatch.setattr(paths, "open_beneath", refuse)
    with pytest.raises(NotARegularFile):
        open_region_file(str(base / "region"), AllowedDirectories([base]), expected_size=0)


@pytest.mark.clause("W-15.21a.5-05")
@pytest.mark.requires("root")
@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK], ids=["character", "block"])
def test_a_device_below_the_base_is_refused(base: Path, kind: int) -> None:
    os.mknod(base / "region", kind | 0o600, os.makedev(1, 3) if kind == stat.S_IFCHR else os.makedev(7, 200))
    with leaves_no_trace(base), pytest.raises(NotARegularFile, match="device"):
        open_region_file(str(base / "region"), AllowedDirectories([base]), expected_size=0)


@pytest.mark.clause("W-15.21a.5-05")
def test_a_device_of_the_machine_is_refused() -> None:
    with pytest.raises(NotARegularFile, match="character device"):
        open_region_file("/dev/null", AllowedDirectories(["/dev"]), expected_size=0)


@pytest.mark.parametrize(("size", "word"), [(0, "truncated"), (SIZE - 1, "truncated"), (SIZE + 1, "too long")])
def test_a_file_of_another_size_is_refused(base: Path, size: int, word: str) -> None:
    path = region(base / "file", size)
    with leaves_no_trace(base), pytest.raises(RegionSizeError, match=f"{word}, {size} bytes instead of {SIZE}"):
        opens(path, AllowedDirectories([base]))


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o646])
def test_a_file_that_others_may_write_is_refused(base: Path, mode: int) -> None:
    path = region(base / "file", mode=mode)
    with leaves_no_trace(base), pytest.raises(RegionOwnerError, match="lets everybody write"):
        opens(path, AllowedDirectories([base]))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660, 0o664])
def test_a_file_that_only_we_and_our_group_may_write_is_opened(base: Path, mode: int) -> None:
    opens(region(base / "file", mode=mode), AllowedDirectories([base]))


@pytest.mark.requires("root")
def test_a_strangers_file_is_refused_unless_that_user_or_group_is_allowed(base: Path) -> None:
    path = region(base / "file")
    os.chown(path, STRANGER, STRANGER)
    allowed = AllowedDirectories([base])
    with leaves_no_trace(base), pytest.raises(RegionOwnerError, match=f"owned by uid {STRANGER}"):
        opens(path, allowed)
    opens(path, allowed, owners=OwnerPolicy(uids=frozenset({STRANGER})))
    opens(path, allowed, owners=OwnerPolicy(gids=frozenset({STRANGER})))


@pytest.mark.requires("root")
def test_a_file_that_a_strange_group_may_write_is_refused_unless_it_is_allowed(base: Path) -> None:
    path = region(base / "file", mode=0o660)
    os.chown(path, 0, STRANGER)
    path.chmod(0o660)
    allowed = AllowedDirectories([base])
    with leaves_no_trace(base), pytest.raises(RegionOwnerError, match=f"lets gid {STRANGER} write"):
        opens(path, allowed)
    opens(path, allowed, owners=OwnerPolicy(gids=frozenset({STRANGER})))


UNPRIVILEGED = """
import json, os, sys
from framepool.shm import nofollow
from framepool.shm.paths import AllowedDirectories, open_region_file
base, way, *files = sys.argv[1:]
chosen = getattr(nofollow, way)
nofollow.opener = lambda: chosen
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
outcome = {}
for file in files:
    try:
        fd = open_region_file(f"{base}/{file}", AllowedDirectories([base]), expected_size=4096)
        os.close(fd)
        outcome[file] = "opened"
    except Exception as error:
        outcome[file] = type(error).__name__
print(json.dumps(outcome))
"""


@pytest.mark.requires("root")
def test_an_unprivileged_reader_is_refused_by_owner_and_by_mode(base: Path, processes: Processes) -> None:
    for parent in (base.parent, base):
        parent.chmod(0o755)
    owners = {"own": 65534, "roots": 0, "secret": 0, "strangers": STRANGER, "closed/file": 65534}
    for name, uid in owners.items():
        path = region(base / name, mode=0o600 if name == "secret" else 0o644)
        os.chown(path, uid, uid)
    (base / "closed").chmod(0o700)
    process = processes.start("-c", UNPRIVILEGED, str(base), nofollow.opener().__name__, *owners)
    assert json.loads(process.line()) == {
        "own": "opened",
        "roots": "opened",
        "secret": "RegionOwnerError",
        "strangers": "RegionOwnerError",
        "closed/file": "RegionOwnerError",
    }


@pytest.mark.parametrize("name", ["missing", "missing/file", "file/below", "n" * 300], ids=len)
def test_a_file_that_is_not_there_is_a_plain_region_error(base: Path, name: str) -> None:
    region(base / "file")
    with leaves_no_trace(base), pytest.raises(RegionError) as refusal:
        opens(base / name, AllowedDirectories([base]))
    assert type(refusal.value) is RegionError


@pytest.mark.clause("W-15.21a.5-03")
def test_a_base_that_is_a_link_is_made_canonical_once(base_dir: Path) -> None:
    for name in ("old", "new"):
        region(base_dir / name / "file")
    link = base_dir / "base"
    link.symlink_to(base_dir / "old")
    allowed = AllowedDirectories([link])
    assert os.path.samestat(opens(link / "file", allowed), (base_dir / "old" / "file").stat())
    link.unlink()
    link.symlink_to(base_dir / "new")
    with leaves_no_trace(base_dir), pytest.raises(PathNotAllowed):
        opens(link / "file", allowed)
    opens(base_dir / "old" / "file", allowed)


@pytest.mark.clause("W-15.21a.5-02")
def test_a_path_through_a_link_above_the_base_is_judged_by_its_real_path(base_dir: Path) -> None:
    region(base_dir / "real" / "tp" / "file")
    (base_dir / "short").symlink_to("real")
    allowed = AllowedDirectories([base_dir / "real" / "tp"])
    opens(base_dir / "short" / "tp" / "file", allowed)


@pytest.mark.clause("W-15.21a.5-02")
def test_a_path_that_only_looks_contained_is_judged_by_its_real_path(base_dir: Path) -> None:
    region(base_dir / "elsewhere" / "tp" / "file")
    (base_dir / "real" / "tp").mkdir(parents=True)
    allowed = AllowedDirectories([base_dir / "real" / "tp"])
    (base_dir / "real").rename(base_dir / "moved")
    (base_dir / "real").symlink_to("elsewhere")
    with pytest.raises(PathNotAllowed):
        opens(base_dir / "real" / "tp" / "file", allowed)


@pytest.mark.clause("W-15.21a.2-02")
def test_files_of_each_allowed_directory_are_opened_and_no_others(base_dir: Path) -> None:
    files = [region(base_dir / name / "file") for name in ("a", "b", "c")]
    allowed = AllowedDirectories([base_dir / "a", base_dir / "b"])
    opens(files[0], allowed)
    opens(files[1], allowed)
    with pytest.raises(PathNotAllowed):
        opens(files[2], allowed)


@pytest.mark.parametrize("directory", ["relative", "", "/nonexistent/framepool", "/dev/null"])
def test_a_base_that_is_no_absolute_existing_directory_is_refused(directory: str) -> None:
    with pytest.raises(ConfigurationError):
        AllowedDirectories([directory])


def test_no_base_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        AllowedDirectories([])


def swapped_for_a_link(path: Path) -> None:
    target = region(path.with_name("target"))
    path.unlink()
    path.symlink_to(target)


def swapped_for_another_file(path: Path) -> None:
    region(path.with_name("other")).rename(path)


def swapped_for_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def directory_swapped_for_a_link(path: Path) -> None:
    region(path.parent.with_name("elsewhere") / path.name)
    path.parent.rename(path.parent.with_name("aside"))
    path.parent.symlink_to(path.parent.with_name("elsewhere"))


def base_swapped_for_a_link(path: Path) -> None:
    base = path.parent.parent
    base.rename(base.with_name("aside"))
    base.symlink_to(base.with_name("aside"))


@pytest.mark.clause("W-15.21a.5-07")
@pytest.mark.parametrize(
    ("step", "swap"),
    [
        ("examine", swapped_for_a_link),
        ("examine", swapped_for_another_file),
        ("examine", swapped_for_a_fifo),
        ("examine", directory_swapped_for_a_link),
        ("locate", swapped_for_a_link),
        ("locate", directory_swapped_for_a_link),
        ("locate", base_swapped_for_a_link),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_file_swapped_between_two_steps_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, step: str, swap: Callable[[Path], None]
) -> None:
    path = region(base / "epoch" / "file")
    owner = AllowedDirectories if step == "locate" else paths
    original = getattr(owner, step)

    def then_swap(*args: object) -> object:
        result = original(*args)
        swap(path)
        return result

    allowed = AllowedDirectories([base])
    monkeypatch.setattr(owner, step, then_swap)
    with leaves_no_trace(base), pytest.raises(PathNotAllowed):
        opens(path, allowed)


@pytest.mark.clause("W-15.21a.5-07")
def test_a_fifo_that_got_the_inode_of_the_checked_file_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = region(base / "file")
    original = paths.examine

    def then_swap(directory: int, below: tuple[str, ...]) -> os.stat_result:
        checked = list(original(directory, below))
        swapped_for_a_fifo(path)
        checked[stat.ST_INO] = path.lstat().st_ino
        return os.stat_result(checked)

    monkeypatch.setattr(paths, "examine", then_swap)
    with leaves_no_trace(base), pytest.raises(NotARegularFile, match="a FIFO"):
        opens(path, AllowedDirectories([base]))


def test_a_file_removed_while_it_is_opened_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = region(base / "file")
    original = nofollow.open_beneath

    def then_remove(directory: int, components: Sequence[str], flags: int) -> int:
        fd = original(directory, components, flags)
        path.unlink()
        return fd

    monkeypatch.setattr(paths, "open_beneath", then_remove)
    with leaves_no_trace(base), pytest.raises(RegionError, match="was removed"):
        opens(path, AllowedDirectories([base]))


@pytest.mark.clause("W-15.21a.5-08")
@pytest.mark.parametrize("missing", ["O_NOFOLLOW", "supports_dir_fd", "supports_follow_symlinks"])
def test_a_platform_that_cannot_open_safely_maps_nothing(
    base: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    path = region(base / "file")
    allowed = AllowedDirectories([base])
    if missing == "O_NOFOLLOW":
        monkeypatch.delattr(os, missing)
    else:
        monkeypatch.setattr(os, missing, set())
    with pytest.raises(PathNotAllowed, match="cannot open a file without following links"):
        open_region_file(str(path), allowed, expected_size=SIZE)


@pytest.mark.clause("W-15.22-09")
def test_hugepages_are_refused_on_a_filesystem_without_them(base: Path) -> None:
    path = region(base / "file")
    with leaves_no_trace(base), pytest.raises(HugepagesRequired, match="not on hugetlbfs"):
        open_region_file(str(path), AllowedDirectories([base]), expected_size=SIZE, require_hugepages=True)


@pytest.mark.clause("W-15.22-10")
def test_hugepages_are_refused_where_nobody_can_tell(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = region(base / "file")
    allowed = AllowedDirectories([base])
    monkeypatch.setattr(paths, "filesystem", lambda fd: None)
    with leaves_no_trace(base), pytest.raises(HugepagesRequired, match="cannot tell"):
        open_region_file(str(path), allowed, expected_size=SIZE, require_hugepages=True)
    opens(path, allowed)


def test_another_operating_system_cannot_tell_about_hugepages(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with region(base / "file").open("rb") as file:
        assert nofollow.filesystem(file.fileno()) is not None
        monkeypatch.setattr(sys, "platform", "darwin")
        assert nofollow.filesystem(file.fileno()) is None


HUGETLBFS = """
import os, subprocess, sys
from framepool.errors import RegionSizeError
from framepool.shm import nofollow
from framepool.shm.paths import AllowedDirectories, open_region_file
base, way = sys.argv[1:]
chosen = getattr(nofollow, way)
nofollow.opener = lambda: chosen
os.unshare(os.CLONE_NEWNS)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "hugetlbfs", "none", base], check=True)
page = os.statvfs(base).f_bsize
for name, size in (("one", page), ("two", 2 * page)):
    with open(f"{base}/{name}", "wb") as file:
        file.truncate(size)
    os.chmod(f"{base}/{name}", 0o600)
allowed = AllowedDirectories([base])
os.close(open_region_file(f"{base}/one", allowed, expected_size=4096, require_hugepages=True))
try:
    open_region_file(f"{base}/two", allowed, expected_size=4096, require_hugepages=True)
except RegionSizeError:
    print("whole pages only")
"""


@pytest.mark.clause("W-15.22-09", "W-15.21a.5-05")
@pytest.mark.requires("root")
def test_a_file_on_hugetlbfs_is_accepted_in_whole_pages(base: Path, processes: Processes) -> None:
    process = processes.start("-c", HUGETLBFS, str(base), nofollow.opener().__name__)
    assert process.line() == "whole pages only"
    assert process.wait() == 0


@pytest.mark.clause("W-15.21a.5-06")
@pytest.mark.parametrize("flags", [os.O_RDONLY, nofollow.DIRECTORY, nofollow.PASSAGE], ids=["file", "list", "pass"])
@pytest.mark.parametrize("components", [["link"], ["link", "sub"], ["a", "link"], ["out"], ["out", "sub"], ["loop"]])
def test_open_beneath_passes_no_link_wherever_it_stands(base: Path, flags: int, components: list[str]) -> None:
    for parent in (base / "a", base.parent / "outside"):
        (parent / "sub").mkdir(parents=True)
    (base / "link").symlink_to("a")
    (base / "a" / "link").symlink_to("sub")
    (base / "out").symlink_to(base.parent / "outside")
    (base / "loop").symlink_to("loop")
    with nofollow.closing_fd(nofollow.open_directory(os.path.realpath(base))) as directory_fd:
        with pytest.raises(OSError) as refusal:
            nofollow.open_beneath(directory_fd, components, flags)
        assert refusal.value.errno == errno.ELOOP


def test_open_beneath_gives_a_descriptor_that_no_child_inherits(base: Path) -> None:
    region(base / "a" / "file")
    with nofollow.closing_fd(nofollow.open_directory(os.path.realpath(base))) as directory_fd:
        with nofollow.closing_fd(nofollow.open_beneath(directory_fd, ["a", "file"], os.O_RDONLY)) as fd:
            assert not os.get_inheritable(fd)
            assert not os.get_inheritable(directory_fd)


@pytest.mark.parametrize("components", [[".."], ["a", ".."], ["."], [""], ["a/b"], ["/"]])
def test_open_beneath_takes_names_only(base: Path, components: list[str]) -> None:
    region(base / "a" / "b")
    with nofollow.closing_fd(nofollow.open_directory(os.path.realpath(base))) as directory_fd:
        with pytest.raises(PathNotAllowed):
            nofollow.open_beneath(directory_fd, components, os.O_RDONLY)
