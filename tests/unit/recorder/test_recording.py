"""A recording as a sequence: slices, streams, ordinals, and what retention leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framepool as fp
from framepool.errors import FramesRemoved, IndexDamaged, RecordingDamaged, RecordingError
from framepool.recorder import recorded
from framepool.recorder import recording as recordings
from framepool.recorder.index import FRAMES
from framepool.recorder.manifest import LARGEST_FILE, Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.segment_file import SegmentFile
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import Dtype
from tests.support.tape import EPOCH, STREAM, Workshop, picture

OTHER = STREAM + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two streams in turn, in segments of four frames."""
    shop = Workshop(tmp_path / "rec", segment_frames=4)
    for _ in range(5):
        shop.record(1)
        shop.record(1, 100, stream_id=OTHER)
    shop.close()
    return tmp_path / "rec"


def test_slices_and_streams_are_sequences_of_frames(path: Path) -> None:
    recording = fp.Recording(path)
    assert (len(recording), recording.streams) == (10, {STREAM: 5, OTHER: 5})
    assert [frame.ordinal for frame in recording] == list(range(10))
    assert [frame.ordinal for frame in recording[2:9:3]] == [2, 5, 8]
    assert [frame.ordinal for frame in recording[::-1][:2]] == [9, 8]
    assert recording[-1].ordinal == 9
    other = recording.stream(OTHER)
    assert [(frame.ordinal, frame.seq) for frame in other[1:][1:]] == [(5, 2), (7, 3), (9, 4)]
    assert (len(other), other[-1].ordinal, len(recording.only([STREAM, OTHER]))) == (5, 9, 10)
    with pytest.raises(IndexError):
        recording[10]
    with pytest.raises(RecordingError, match="no stream 7, but 10000, 10001"):
        recording.stream(7)
    assert repr(recording).endswith("5 of stream 10000, 5 of stream 10001>")


def test_ordinals_lead_to_frames(path: Path) -> None:
    recording = Recording(path)
    assert [frame.ordinal for frame in recording.between(3, 9)] == list(range(3, 9))
    assert [frame.ordinal for frame in recording.between(8, 99)] == [8, 9]
    assert len(recording.between(5, 5)) == len(recording.between(20, 30)) == 0


def test_parts_are_rows_of_segments(path: Path) -> None:
    recording = Recording(path)
    parts = [(segment.number, rows.tolist()) for segment, rows in recording.stream(OTHER)[1:4].parts()]
    assert parts == [(0, [3]), (1, [1, 3])]
    seqs = [segment.headers["seq"][rows].tolist() for segment, rows in recording.stream(OTHER)[1:4].parts()]
    assert seqs == [[1], [2, 3]]


def test_frame_tells_what_it_is(path: Path) -> None:
    frame = Recording(path)[3]
    assert (frame.stream_id, frame.epoch, frame.seq, frame.timestamp_ns) == (OTHER, EPOCH, 1, 1001)
    assert (frame.shape, frame.dtype, frame.order, frame.nbytes) == ((100,), np.uint8, "C", 100)
    assert (frame.publish_timestamp_ns, frame.trace_id, frame.meta_version, frame.metadata) == (None, None, 0, None)
    assert frame.recorded_ns == 1_700_000_000 * 10**9
    assert np.array_equal(np.asarray(frame), picture(1, 100))
    assert np.asarray(frame, dtype=np.float32).dtype == np.float32
    copied = frame.copy()
    copied[0] ^= 1
    frame.check()
    assert repr(frame) == "<RecordedFrame 3: 1 of stream 10001, uint8 100>"


def test_frames_of_one_kind_stack(path: Path) -> None:
    recording = Recording(path)
    assert np.array_equal(recording.stream(OTHER).stack(), [picture(seq, 100) for seq in range(5)])
    with pytest.raises(ValueError, match="is not like"):
        recording.stack()
    with pytest.raises(ValueError, match="no frames"):
        recording[:0].stack()


def test_recording_is_read_the_same_with_and_without_its_index(path: Path) -> None:
    told = [(frame.ordinal, frame.seq, frame.crc, bytes(frame.payload)) for frame in Recording(path)]
    for file in path.glob("segments/*.parquet"):
        file.unlink()
    assert [(frame.ordinal, frame.seq, frame.crc, bytes(frame.payload)) for frame in Recording(path)] == told


def test_index_is_used_where_there_is_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")

    def scan(*_: object) -> None:
        raise AssertionError("the segment was walked through")

    monkeypatch.setattr(recorded, "scan", scan)
    assert [frame.seq for frame in Recording(path).stream(STREAM)] == list(range(5))


def test_few_indexes_are_kept_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "KEPT_TABLES", 1)
    recording = Recording(path)
    assert [frame.seq for frame in recording.stream(OTHER)] == list(range(5))
    assert sum(segment._table is not None for segment in recording.segments) == 1
    assert [frame.seq for frame in recording.stream(OTHER)] == list(range(5))


def test_missing_and_shortened_files_are_said_to_be(path: Path) -> None:
    (path / "segments" / "00000000.seg").unlink()
    recording = Recording(path)
    with pytest.raises(RecordingDamaged, match="is missing"):
        _ = recording[0].array
    recording[5].check()
    file = path / "segments" / "00000001.seg"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RecordingDamaged, match="100 bytes"):
        _ = Recording(path)[5].array


def test_what_retention_removed_is_said_to_be(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_frames=2)
    shop.record(6)
    shop.close()
    before = Recording(tmp_path / "rec")
    first = before[0].array
    entry = shop.manifest.entry(0)
    assert entry is not None
    shop.manifest.remove(entry)
    assert np.array_equal(first, picture(0)), "what is mapped stays"
    late = Recording(tmp_path / "rec")
    assert (len(late), late[0].ordinal, late.retained.first_ordinal) == (4, 2, 2)
    with pytest.raises(FramesRemoved, match="begins with frame 2"):
        late.between(1, 4)
    entry = shop.manifest.entry(1)
    assert entry is not None
    shop.manifest.remove(entry)
    with pytest.raises(FramesRemoved, match="refresh"):
        _ = late[0].array
    late.refresh()
    assert [frame.seq for frame in late] == [4, 5]


def test_recording_grows_as_it_is_flushed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_frames=4)
    recording = Recording(tmp_path / "rec")
    assert len(recording) == 0
    shop.record(3)
    shop.flush()
    shop.record(1)
    shop.turn()
    recording.refresh()
    assert [frame.seq for frame in recording] == [0, 1, 2], "the fourth is not durable"
    shop.record(3)
    shop.flush()
    shop.turn()
    recording.refresh()
    assert [frame.seq for frame in recording] == list(range(7))
    assert [segment.sealed for segment in recording.segments] == [True, False]
    assert recording.streams == {STREAM: 7}
    shop.kill()


def test_segments_made_of_arrays_are_read_like_recorded_ones(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "rec")
    info = manifest.create(1)
    arrays = [
        np.arange(24, dtype="<u2").reshape(4, 6),
        np.asfortranarray(np.arange(24, dtype="<f4").reshape(4, 6)),
        np.arange(24, dtype="<u2").reshape(4, 6)[:, ::2],
        np.empty((0, 3), np.int8),
    ]
    ordinal = 0
    for number in range(2):
        with SegmentFile(
            manifest.segments / f"part-{number}.seg", info.recording_id, number=number, first_ordinal=ordinal
        ) as file:
            for seq, array in enumerate(arrays):
                file.add(array, stream_id=STREAM, epoch=number + 1, seq=seq, timestamp_ns=seq, trace_id=9)
            file.add_raw(
                b"\xa5\x01", TensorLayout.build(Dtype.BIT, (3, 3)).header, stream_id=OTHER, epoch=1, seq=number
            )
        assert file.contents.state[STREAM].next_seq == {number + 1: 4}
        manifest.publish(file.contents.entry(indexed=False))
        ordinal = file.contents.end_ordinal
    recording = Recording(tmp_path / "rec")
    assert [frame.ordinal for frame in recording] == list(range(10))
    for frame, array in zip(recording.stream(STREAM)[:4], arrays, strict=True):
        frame.check()
        assert np.array_equal(frame.array, array)
        assert (frame.order, frame.trace_id) == ("F" if array is arrays[1] else "C", 9)
    assert recording.stream(OTHER)[1].array.tolist() == [0xA5, 1]


def test_index_is_where_the_segment_is(path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert sorted(each.name for each in path.glob(f"segments/*{FRAMES}")) == [
        f"{number:08}{FRAMES}" for number in range(3)
    ]
    table = Recording(path).segments[1].table()
    assert table["ordinal"].to_pylist() == [4, 5, 6, 7]


# What a hostile recording cannot do


def test_no_name_in_a_recording_leads_out_of_it(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.seg"
    victim.write_bytes(b"mine")
    entry = path / "manifest" / "00000000.json"
    said = entry.read_text()
    for name in ("../../victim.seg", str(victim), "*.seg", ".seg", "..", "a/b.seg"):
        entry.write_text(said.replace("00000000.seg", name))
        with pytest.raises(RecordingDamaged, match="no name of a segment"):
            Recording(path)
    assert victim.read_bytes() == b"mine"


def test_links_and_fifos_are_not_followed(path: Path, tmp_path: Path) -> None:
    segment = path / "segments" / "00000000.seg"
    secret = tmp_path / "secret"
    segment.rename(secret)
    segment.symlink_to(secret)
    with pytest.raises(RecordingDamaged):
        Recording(path)[0].array
    segment.unlink()
    os.mkfifo(segment)
    with pytest.raises(RecordingDamaged, match="regular"):
        Recording(path)[0].array
    watermark = path / "watermark.json"
    watermark.unlink()
    watermark.symlink_to("/dev/zero")
    with pytest.raises(RecordingDamaged):
        Recording(path)
    watermark.unlink()
    os.mkfifo(watermark)
    with pytest.raises(RecordingDamaged, match="regular"):
        Recording(path)


def test_small_files_are_small(path: Path) -> None:
    with open(path / "watermark.json", "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(RecordingDamaged, match="too large"):
        Recording(path)


@pytest.mark.parametrize("wrong", ["offsets", "headers", "text", "null"])
def test_index_that_leads_out_of_its_segment_is_refused(path: Path, wrong: str) -> None:
    index = path / "segments" / "00000000.frames.parquet"
    table = pq.read_table(index)
    offsets, headers = table["offset"].to_numpy().copy(), table["header"].to_pylist()
    if wrong == "offsets":
        offsets[0] = 2**40
    elif wrong == "headers":
        headers[1] = headers[1][:32] + b"\xff" * 8 + headers[1][40:]
    columns = {"offset": pa.array(offsets), "header": pa.array(headers, pa.binary(512))}
    if wrong == "text":
        columns["offset"] = pa.array(["a"] * len(offsets))
    elif wrong == "null":
        columns["header"] = pa.array([None, *headers[1:]], pa.binary(512))
    pq.write_table(pa.table(columns), index)
    with pytest.raises(IndexDamaged):
        Recording(path)[0]


def test_manifest_that_promises_more_frames_than_there_are_is_found_out(path: Path) -> None:
    entry = path / "manifest" / "00000002.json"
    said = json.loads(entry.read_text())
    said |= {"frames": 3, "end_ordinal": 11, "indexed": False}
    entry.write_text(json.dumps(said))
    recording = Recording(path)
    with pytest.raises(RecordingDamaged, match="the manifest says more"):
        recording[10]
    said["frames"] = 10**9
    entry.write_text(json.dumps(said))
    with pytest.raises(RecordingDamaged, match="do not go into"):
        Recording(path)


def test_modes_are_those_of_the_umask(tmp_path: Path) -> None:
    """Who may read a recording is decided by whoever records it, as of any other file."""
    before = os.umask(0o077)
    try:
        shop = Workshop(tmp_path / "rec", segment_frames=4)
        shop.record(5)
        shop.close()
    finally:
        os.umask(before)
    files = [each for each in (tmp_path / "rec").rglob("*") if each.is_file()]
    assert len(files) > 5
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
