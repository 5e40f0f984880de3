"""The next epoch: always above everything on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from framepool.errors import AllocationError
from framepool.shm.allocator import Allocator
from framepool.shm.epochs import HIGHEST_EPOCH, finished_epoch, next_epoch, unfinished_epoch
from tests.support.regions import leaves_no_trace, make_stream

NOON = 1_700_000_000.75


def following(directory: Path | None, stream_id: int = 7) -> int:
    if directory is None:
        return next_epoch(None, stream_id, lambda: NOON)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return next_epoch(fd, stream_id, lambda: NOON)
    finally:
        os.close(fd)


def test_with_nothing_on_disk_the_first_epoch_is_the_wall_clock_second(base_dir: Path) -> None:
    assert following(None) == 1_700_000_000
    assert following(base_dir) == 1_700_000_000
    assert Allocator(base_dir, "lab1").next_epoch(7, lambda: NOON) == 1_700_000_000


def test_names_are_compared_as_numbers(base_dir: Path) -> None:
    for name in ("9", "10", "2"):
        (base_dir / name).mkdir()
    assert following(base_dir) == 11


def test_an_empty_epoch_directory_keeps_the_count(base_dir: Path) -> None:
    (base_dir / "41").mkdir()
    assert following(base_dir) == 42


def test_an_unfinished_epoch_counts(base_dir: Path) -> None:
    (base_dir / "4").mkdir()
    (base_dir / ".5.tmp").mkdir()
    assert following(base_dir) == 6


def test_a_superblock_counts_more_than_the_name_of_its_directory(base_dir: Path) -> None:
    layout = make_stream(base_dir, epoch=90)
    epoch = Path(layout.header_uri.path).parent
    epoch.rename(epoch.with_name("5"))
    assert following(epoch.parent) == 91
    (epoch.parent / "5").rename(epoch.with_name("an operator put this aside"))
    assert following(epoch.parent) == 91


def test_superblocks_of_other_streams_and_of_other_files_do_not_count(base_dir: Path) -> None:
    layout = make_stream(base_dir, stream_id=8, epoch=90)
    epoch = Path(layout.header_uri.path).parent
    (base_dir / "7" / "3").mkdir(parents=True)
    epoch.rename(base_dir / "7" / "2")
    (base_dir / "7" / "3" / "short").write_bytes(b"1")
    (base_dir / "7" / "3" / "zeros").write_bytes(bytes(4096))
    (base_dir / "7" / "3" / "ones").write_bytes(b"\xff" * 4096)
    other = make_stream(base_dir, stream_id=7, epoch=95)
    (base_dir / "7" / "3" / "other-magic").write_bytes(b"x" + Path(other.header_uri.path).read_bytes()[1:])
    assert following(base_dir / "7") == 4


JUNK = ["x", "1x", "-5", "+5", "007", " 8", "8 ", "1_000", "٣", "5.tmp", ".x.tmp", ".tmp", str(2**64), "9" * 20, "1e9"]


def test_junk_is_ignored(base_dir: Path) -> None:
    for name in JUNK:
        assert finished_epoch(name) is None
        assert unfinished_epoch(name) is None
        (base_dir / name).mkdir()
    assert following(base_dir) == 1_700_000_000
    (base_dir / "3").mkdir()
    assert following(base_dir) == 4


def test_no_link_is_followed_and_no_fifo_opened_but_a_taken_name_counts(base_dir: Path) -> None:
    outside = make_stream(base_dir, epoch=90)
    stream = base_dir / "stream"
    (stream / "3").mkdir(parents=True)
    (stream / "aside").symlink_to(Path(outside.header_uri.path).parent)
    (stream / "3" / "header.ring").symlink_to(outside.header_uri.path)
    os.mkfifo(stream / "3" / "1.pool")
    with leaves_no_trace(base_dir):
        assert following(stream) == 4
    (stream / "20").symlink_to(stream / "3")
    assert following(stream) == 21


def test_there_is_no_epoch_after_the_last(base_dir: Path) -> None:
    (base_dir / str(HIGHEST_EPOCH - 1)).mkdir()
    assert following(base_dir) == HIGHEST_EPOCH
    (base_dir / str(HIGHEST_EPOCH)).mkdir()
    with pytest.raises(AllocationError, match="is the last one"):
        following(base_dir)


def test_what_cannot_be_read_is_an_error_and_no_guess(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(AllocationError, match="cannot be read"):
        following(base_dir)


def test_each_epoch_made_is_above_the_one_before(base_dir: Path) -> None:
    made: list[int] = []
    for _ in range(4):
        allocator = Allocator(base_dir, "lab1")
        epoch = allocator.next_epoch(7, lambda: NOON)
        allocator.create(7, epoch, nslots=2, strides={1: 64}, timestamp_ns=1)
        if made:
            allocator.remove_epoch(7, made[-1])
        made.append(epoch)
    assert made == [1_700_000_000, 1_700_000_001, 1_700_000_002, 1_700_000_003]
