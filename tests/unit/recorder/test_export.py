"""Exports: the frames come out of other formats as they went in."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from framepool.errors import LibraryMissing, RecordingError
from framepool.recorder import export as exports
from framepool.recorder.export import Format, export
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.segment_file import SegmentFile

CAMERA, MIXED, FLAGS = 10_000, 10_001, 10_002
IMAGES = [np.random.default_rng(seed).integers(0, 4096, (6, 7)).astype("<u2") for seed in range(5)]
ODD = [np.arange(4, dtype=np.float32), np.arange(6, dtype=np.int64).reshape(2, 3)]
BITS = [np.arange(5) % 2 == seed for seed in range(2)]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    manifest = Manifest(tmp_path / "rec")
    info = manifest.create(1)
    with SegmentFile(manifest.segments / "00000000.seg", info.recording_id) as file:
        for stream_id, arrays in ((CAMERA, IMAGES), (MIXED, ODD), (FLAGS, BITS)):
            for seq, array in enumerate(arrays):
                file.add(array, stream_id=stream_id, epoch=3, seq=seq, timestamp_ns=100 + seq)
    manifest.publish(file.contents.entry(indexed=False))
    return Recording(tmp_path / "rec")


def test_npy_is_one_array_or_a_file_a_frame(recording: Recording, tmp_path: Path) -> None:
    done: list[int] = []
    made = export(recording, tmp_path / "out", Format.NPY, on_frame=done.append)
    assert [(each.stream_id, each.frames) for each in made] == [(CAMERA, 5), (MIXED, 2), (FLAGS, 2)]
    assert np.array_equal(np.load(tmp_path / "out" / "10000.npy"), IMAGES)
    assert np.array_equal(np.load(tmp_path / "out" / "10002.npy"), BITS)
    files = sorted((tmp_path / "out" / "10001").iterdir())
    assert [np.load(file).tolist() for file in files] == [array.tolist() for array in ODD]
    told = np.load(tmp_path / "out" / "10000.index.npy")
    assert (told["seq"].tolist(), told["timestamp_ns"].tolist()) == (list(range(5)), list(range(100, 105)))
    assert sum(done) == sum(frame.nbytes for frame in recording)


def test_parquet_has_a_row_a_frame_with_its_payload(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(exports, "BATCH_BYTES", 100)
    done: list[int] = []
    export(recording, tmp_path / "out", Format.PARQUET, streams=[CAMERA, MIXED], on_frame=done.append)
    rows = pq.read_table(tmp_path / "out" / "10000.parquet").to_pylist()
    assert [row["seq"] for row in rows] == list(range(5))
    for row, image in zip(rows, IMAGES, strict=True):
        assert np.array_equal(np.frombuffer(row["payload"], row["dtype"]).reshape(row["shape"]), image)
    assert not (tmp_path / "out" / "10002.parquet").exists()
    assert len(done) > 2, "in batches"
    shapes = pq.read_table(tmp_path / "out" / "10001.parquet")["shape"].to_pylist()
    assert shapes == [[4], [2, 3]]


def test_zarr_is_a_group_with_frames_and_index(recording: Recording, tmp_path: Path) -> None:
    export(recording, tmp_path / "out", Format.ZARR, streams=[CAMERA, FLAGS])
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "out" / "10000.zarr", mode="r")
    assert np.array_equal(group["frames"][:], IMAGES)
    assert group["frames"].chunks == (1, 6, 7)
    assert group["seq"][:].tolist() == list(range(5))
    assert group.attrs["stream_id"] == CAMERA
    assert np.array_equal(zarr.open_group(tmp_path / "out" / "10002.zarr", mode="r")["frames"][:], BITS)


def test_hdf5_is_a_dataset_with_an_index(recording: Recording, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    export(recording, tmp_path / "out", Format.HDF5, streams=[CAMERA])
    with h5py.File(tmp_path / "out" / "10000.h5") as file:
        assert np.array_equal(file["frames"][:], IMAGES)
        assert file["index"]["timestamp_ns"].tolist() == list(range(100, 105))
        assert file.attrs["stream_id"] == CAMERA


def test_mcap_has_a_message_a_frame(recording: Recording, tmp_path: Path) -> None:
    reader = pytest.importorskip("mcap.reader")
    export(recording, tmp_path / "out", Format.MCAP, streams=[MIXED])
    with (tmp_path / "out" / "10001.mcap").open("rb") as file:
        messages = [message for _, _, message in reader.make_reader(file).iter_messages(topics=["/stream/10001"])]
    assert [message.publish_time for message in messages] == [100, 101]
    assert [message.data[192:] for message in messages] == [array.tobytes() for array in ODD]
    assert [message.data[:192] for message in messages] == [each.tensor_header for each in recording.stream(MIXED)]


@pytest.mark.parametrize("form", [Format.ZARR, Format.HDF5])
def test_format_of_one_shape_refuses_several(recording: Recording, tmp_path: Path, form: Format) -> None:
    if form is Format.HDF5:
        pytest.importorskip("h5py")
    with pytest.raises(RecordingError, match="several shapes"):
        export(recording, tmp_path / "out", form, streams=[MIXED])


@pytest.mark.parametrize(("form", "package"), [(Format.HDF5, "h5py"), (Format.MCAP, "mcap")])
def test_missing_library_is_named(
    recording: Recording, tmp_path: Path, form: Format, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, "mcap.writer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LibraryMissing, match=f"pip install {package}"):
        export(recording, tmp_path / "out", form)


def test_unknown_stream_and_place_that_cannot_be_made_are_refused(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no stream 7"):
        export(recording, tmp_path / "out", Format.NPY, streams=[7])
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="file"):
        export(recording, tmp_path / "file", Format.NPY)
