"""Mapped regions: all of a stream or nothing, read-only for readers, looked at again, closed in any order."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from framepool.errors import NotARegularFile, PathNotAllowed, RegionError, RegionSizeError, SuperblockError
from framepool.shm import region as region_module
from framepool.shm import require_little_endian
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import open_region_file
from framepool.shm.region import MappedStream, map_stream, read_payload
from framepool.shm.uri import RegionUri
from tests.support.processes import Processes
from tests.support.regions import EPOCH, allow, announce, leaves_no_trace, make_stream, maps_below


@pytest.mark.clause("W-4-01")
def test_every_region_is_a_map_of_the_file_its_uri_names(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    uris = [layout.header_uri, *(pool.uri for pool in layout.pools)]
    with leaves_no_trace(base_dir):
        with map_stream(layout, allow(base_dir), writable=True) as stream:
            assert [region.uri for region in stream.regions] == uris
            for number, region in enumerate(stream.regions):
                region.buffer[-1] = number + 1
                assert Path(region.uri.path).read_bytes() == bytes(region.buffer)
            assert sorted(line.split()[-1] for line in maps_below(base_dir)) == sorted(uri.path for uri in uris)


@pytest.mark.clause("W-6-03", "W-15.22-11")
def test_a_region_is_its_superblock_and_its_slots_without_rounding_to_pages(base_dir: Path) -> None:
    layout = make_stream(base_dir, nslots=2, strides={1: 64})
    assert Path(layout.header_uri.path).stat().st_size == 64 + 2 * 256
    assert Path(layout.pools[0].uri.path).stat().st_size == 64 + 2 * 64
    with map_stream(layout, allow(base_dir)) as stream:
        assert len(stream.header.buffer) == 64 + 2 * 256
        assert len(stream.pools[1].buffer) == 64 + 2 * 64


def test_readers_map_read_only_and_hold_no_writable_descriptor(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with map_stream(layout, allow(base_dir)) as stream:
        assert {line.split()[1] for line in maps_below(base_dir)} == {"r--s"}
        for region in stream.regions:
            assert region.buffer.readonly
            assert not np.frombuffer(region.buffer, np.uint8).flags.writeable
            assert fcntl.fcntl(region.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            with pytest.raises(TypeError):
                region.refresh_activity(1)


def test_what_a_writer_stores_a_reader_sees(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with map_stream(layout, allow(base_dir), writable=True) as writer, map_stream(layout, allow(base_dir)) as reader:
        writer.pools[2].buffer[64:68] = b"tens"
        assert bytes(reader.pools[2].buffer[64:68]) == b"tens"


@pytest.mark.clause("W-15.21a.4-01", "W-15.21a.3-05")
def test_only_announced_paths_are_used_and_no_directory_is_read(
    base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = make_stream(base_dir)
    directory = Path(layout.header_uri.path).parent
    for path in list(directory.iterdir()):
        odd = path.with_name(f"odd-{path.name}.bin")
        path.rename(odd)
        path.write_bytes(b"a decoy under the canonical name")
    announced = StreamLayout.from_announce(
        announce(
            layout,
            header_region_uri=f"shm:file?path={directory}/odd-header.ring.bin",
            payload_pools=tuple(
                msgspec.structs.replace(pool, region_uri=f"shm:file?path={directory}/odd-{pool.pool_id}.pool.bin")
                for pool in announce(layout).payload_pools
            ),
        )
    )

    def refuse(*_: object) -> None:
        raise AssertionError("a consumer read a directory")

    allowed = allow(base_dir)
    for name in ("listdir", "scandir", "walk"):
        monkeypatch.setattr(os, name, refuse)
    with map_stream(announced, allowed) as stream:
        assert stream.header.uri.path.endswith("odd-header.ring.bin")


def truncated(path: Path, base: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def oversized(path: Path, base: Path) -> None:
    os.truncate(path, path.stat().st_size + 1)


def linked(path: Path, base: Path) -> None:
    path.rename(base / "target")
    path.symlink_to(base / "target")


def replaced_by_a_fifo(path: Path, base: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def of_another_epoch(path: Path, base: Path) -> None:
    with path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<Q", EPOCH + 1))


def missing(path: Path, base: Path) -> None:
    path.unlink()


@pytest.mark.clause("W-15.22-14", "W-15.21a.5-09")
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (truncated, RegionSizeError),
        (oversized, RegionSizeError),
        (linked, PathNotAllowed),
        (replaced_by_a_fifo, NotARegularFile),
        (of_another_epoch, SuperblockError),
        (missing, RegionError),
    ],
    ids=lambda value: value.__name__,
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_bad_region_and_nothing_of_the_stream_is_mapped(
    base_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, Path], None],
    error: type[RegionError],
    which: int,
) -> None:
    layout = make_stream(base_dir)
    uri = [layout.header_uri, *(pool.uri for pool in layout.pools)][which]
    spoil(Path(uri.path), base_dir)
    mapped: list[object] = []
    monkeypatch.setattr(mmap, "mmap", lambda *args, **_: mapped.append(args))
    with leaves_no_trace(base_dir), pytest.raises(error, match=uri.path) as refusal:
        map_stream(layout, allow(base_dir))
    assert type(refusal.value) is error
    assert mapped == []


def test_a_failure_to_map_leaves_nothing_mapped(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_stream(base_dir)
    real, calls = mmap.mmap, []

    def fail_on_the_third(*args: int, **kwargs: int) -> mmap.mmap:
        calls.append(args)
        if len(calls) == 3:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return real(*args, **kwargs)

    monkeypatch.setattr(mmap, "mmap", fail_on_the_third)
    with leaves_no_trace(base_dir), pytest.raises(RegionError, match="cannot be mapped: Cannot allocate memory"):
        map_stream(layout, allow(base_dir))
    assert len(calls) == 3


def test_a_file_truncated_just_before_it_is_mapped_is_refused(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_stream(base_dir)
    real = mmap.mmap

    def cut_then_map(*args: int, **kwargs: int) -> mmap.mmap:
        os.truncate(layout.header_uri.path, 0)
        return real(*args, **kwargs)

    monkeypatch.setattr(mmap, "mmap", cut_then_map)
    with leaves_no_trace(base_dir), pytest.raises(RegionSizeError, match="truncated"):
        map_stream(layout, allow(base_dir))


@pytest.mark.parametrize("size", [64, 4096])
def test_a_file_cut_right_after_it_was_checked_is_refused(
    base_dir: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    layout = make_stream(base_dir)
    real = open_region_file

    def open_then_cut(path: str, *args: object, **kwargs: object) -> int:
        fd = real(path, *args, **kwargs)  # type: ignore[arg-type]
        if path == layout.pools[1].uri.path:
            os.truncate(path, size)
        return fd

    monkeypatch.setattr(region_module, "open_region_file", open_then_cut)
    with leaves_no_trace(base_dir), pytest.raises(RegionSizeError, match="truncated"):
        map_stream(layout, allow(base_dir))


def test_an_invalid_layout_is_refused_before_any_file_is_opened(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    for path in Path(layout.header_uri.path).parent.iterdir():
        path.unlink()
    with pytest.raises(RegionError, match="power of two"):
        map_stream(replace(layout, nslots=6), allow(base_dir))


def test_a_region_outside_the_allowed_directories_is_refused(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    (base_dir / "other").mkdir()
    with leaves_no_trace(base_dir), pytest.raises(PathNotAllowed):
        map_stream(layout, allow(base_dir / "other"))


def given_to_everybody(path: Path, base: Path) -> None:
    path.chmod(0o666)


def linked_once_more(path: Path, base: Path) -> None:
    os.link(path, base / "second-name")


def replaced_by_a_copy(path: Path, base: Path) -> None:
    copy = base / "copy"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    copy.rename(path)


def moved_and_replaced(path: Path, base: Path) -> None:
    content = path.read_bytes()
    path.rename(base / "moved")
    path.write_bytes(content)
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (truncated, RegionSizeError),
        (oversized, RegionSizeError),
        (given_to_everybody, RegionError),
        (linked_once_more, PathNotAllowed),
        (missing, RegionError),
        (linked, RegionError),
        (replaced_by_a_copy, RegionError),
        (moved_and_replaced, RegionError),
        (of_another_epoch, SuperblockError),
    ],
    ids=lambda value: value.__name__,
)
@pytest.mark.parametrize("which", [0, 2], ids=["ring", "pool"])
def test_a_recheck_finds_what_happened_to_a_mapped_file(
    base_dir: Path, spoil: Callable[[Path, Path], None], error: type[RegionError], which: int
) -> None:
    layout = make_stream(base_dir)
    with leaves_no_trace(base_dir), map_stream(layout, allow(base_dir)) as stream:
        stream.recheck()
        path = Path(stream.regions[which].uri.path)
        spoil(path, base_dir)
        with pytest.raises(error, match=str(path)):
            stream.recheck()
        assert stream.statistics().rechecks == 2


def test_activity_is_refreshed_in_every_region_and_nothing_else_changes(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with map_stream(layout, allow(base_dir), writable=True) as stream:
        before = [bytes(region.buffer) for region in stream.regions]
        stream.refresh_activity(0x0102030405060708)
        for region, content in zip(stream.regions, before, strict=True):
            assert bytes(region.buffer[56:64]) == bytes.fromhex("0807060504030201")
            assert bytes(region.buffer[:56]) == content[:56]
            assert bytes(region.buffer[64:]) == content[64:]
        assert stream.superblock().activity_timestamp_ns == 0x0102030405060708
        stream.recheck()


def test_a_guarded_read_copies_what_the_map_shows(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with map_stream(layout, allow(base_dir), writable=True) as stream:
        pool = stream.pools[2]
        pool.buffer[64:4160] = bytes(range(256)) * 16
        out = np.zeros(2048, np.uint16)
        pool.read_payload(64, 4096, out.data)
        assert out.tobytes() == bytes(range(256)) * 16
        small = bytearray(8)
        pool.read_payload(66, 4, small)
        assert small == b"\x02\x03\x04\x05\0\0\0\0"


def test_a_guarded_read_of_a_truncated_file_is_an_error_and_no_signal(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with map_stream(layout, allow(base_dir)) as stream:
        pool = stream.pools[2]
        os.truncate(pool.uri.path, 1064)
        with pytest.raises(RegionSizeError, match="ends after 1000 of 4096 bytes"):
            pool.read_payload(64, 4096, bytearray(4096))


def test_a_guarded_read_goes_on_after_a_short_one(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = base_dir / "file"
    path.write_bytes(bytes(range(200)))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: real(fd, [views[0][:7]], offset))
    out = bytearray(100)
    with path.open("rb") as file:
        read_payload(file.fileno(), 50, 100, out)
    assert out == bytes(range(50, 150))


def test_a_guarded_read_never_writes_past_the_buffer(base_dir: Path) -> None:
    path = base_dir / "file"
    path.write_bytes(bytes(200))
    with path.open("rb") as file, pytest.raises(ValueError, match="do not fit"):
        read_payload(file.fileno(), 0, 101, bytearray(100))


def test_closing_twice_is_fine_and_a_closed_region_gives_nothing_out(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    with leaves_no_trace(base_dir):
        stream = map_stream(layout, allow(base_dir))
        assert stream.statistics().mapped_bytes == layout.total_bytes
        stream.close()
        stream.close()
        assert all(region.closed for region in stream.regions)
        assert stream.statistics().regions == 0
        for give in (lambda: stream.header.buffer, lambda: stream.header.fd, stream.recheck, stream.superblock):
            with pytest.raises(RegionError):
                give()


def view_of_numpy(stream: MappedStream) -> object:
    return np.frombuffer(stream.pools[1].buffer, np.uint8, offset=64)


def view_of_memory(stream: MappedStream) -> object:
    return stream.pools[1].buffer[64:]


@pytest.mark.parametrize("view_of", [view_of_numpy, view_of_memory], ids=lambda function: function.__name__)
def test_a_view_outlives_its_region_and_unmaps_it_when_it_goes(
    base_dir: Path, view_of: Callable[[MappedStream], object]
) -> None:
    layout = make_stream(base_dir)
    with leaves_no_trace(base_dir):
        stream = map_stream(layout, allow(base_dir), writable=True)
        stream.pools[1].buffer[64] = 42
        view = view_of(stream)
        stream.close()
        stream.close()
        assert view[0] == 42  # type: ignore[index]
        assert [line.split()[-1] for line in maps_below(base_dir)] == [layout.pools[0].uri.path]
        del view


def test_a_region_that_demands_hugepages_is_refused_elsewhere(base_dir: Path) -> None:
    layout = make_stream(base_dir)
    demanding = replace(layout, header_uri=RegionUri(layout.header_uri.path, require_hugepages=True))
    with leaves_no_trace(base_dir), pytest.raises(RegionError, match="hugetlbfs"):
        map_stream(demanding, allow(base_dir))


@pytest.mark.clause("W-15.1-06")
def test_a_big_endian_host_is_refused(processes: Processes) -> None:
    require_little_endian("little")
    with pytest.raises(RegionError, match="big-endian host"):
        require_little_endian("big")
    process = processes.start("-c", "import sys; sys.byteorder = 'big'; import framepool.shm")
    assert process.wait() != 0
    assert "cannot run on a big-endian host" in process.lines[-1]


def faults_of_touching(region: region_module.Region) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.frombuffer(region.buffer, np.uint8)[:: mmap.PAGESIZE].sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_pages_that_are_mapped_ahead_are_there_at_the_first_touch(base_dir: Path) -> None:
    layout = make_stream(base_dir, nslots=1024, strides={1: 16 * 1024})
    with map_stream(layout, allow(base_dir)) as late:
        assert faults_of_touching(late.pools[1]) > 50
    with map_stream(layout, allow(base_dir), ahead=True) as stream:
        assert faults_of_touching(stream.pools[1]) < 50


def test_file_with_holes_is_not_filled_by_whoever_maps_it(base_dir: Path) -> None:
    layout = make_stream(base_dir, nslots=1024, strides={1: 16 * 1024})
    path = Path(layout.pools[0].uri.path)
    size, head = path.stat().st_size, path.read_bytes()[:64]
    os.truncate(path, 0)
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.write(head)
    map_stream(layout, allow(base_dir), ahead=True).close()
    assert path.stat().st_blocks * 512 < size / 2
