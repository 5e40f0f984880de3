"""Recordings in formats of others: `.npy`, Parquet, Zarr, HDF5, MCAP.

Every format gets one file or group a stream, with the frames and beside them what tells them apart: ordinal, epoch,
sequence, times. Zarr is written here, uncompressed, one chunk a frame, because that much of the format is a few lines;
Parquet, HDF5 and MCAP need their libraries.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from framepool.errors import LibraryMissing, RecordingError
from framepool.recorder.index import arrow, frames_schema, frames_table
from framepool.recorder.recording import Frames, RecordedFrame, Recording, Segment

INDEX: Final = np.dtype(
    [("ordinal", "<i8"), ("epoch", "<u8"), ("seq", "<u8"), ("timestamp_ns", "<u8"), ("recorded_ns", "<u8")]
)
"""What is exported beside the frames of a stream."""
BATCH_BYTES: Final = 32 * 2**20
"""Of payloads in one row group of Parquet."""


class Format(StrEnum):
    """What recordings can be exported to."""

    NPY = "npy"
    PARQUET = "parquet"
    ZARR = "zarr"
    HDF5 = "hdf5"
    MCAP = "mcap"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a stream."""

    stream_id: int
    path: str
    frames: int
    bytes: int


Progress = Callable[[int], object]
"""Called with the bytes of the frames that were just done."""


def export(
    recording: Recording,
    out: Path,
    form: Format,
    *,
    streams: list[int] | None = None,
    on_frame: Progress = lambda nbytes: None,
) -> list[Exported]:
    """Writes streams of a recording, all of them unless some are named, below a directory that is made.

    Raises `LibraryMissing`, and `RecordingError` where a format has no place for what was recorded.
    """
    write = {
        Format.NPY: _npy,
        Format.PARQUET: _parquet,
        Format.ZARR: _zarr,
        Format.HDF5: _hdf5,
        Format.MCAP: _mcap,
    }[form]
    chosen = list(recording.streams) if streams is None else streams
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [write(stream_id, recording.stream(stream_id), out, on_frame) for stream_id in chosen]
    except OSError as error:
        raise RecordingError(f"{error.filename or out}: {error.strerror}") from error


def index_of(frames: Frames) -> npt.NDArray[np.void]:
    """What tells the frames apart."""
    rows = [(each.ordinal, each.epoch, each.seq, each.timestamp_ns, each.recorded_ns) for each in frames]
    return np.array(rows, INDEX)


def uniform(frames: Frames) -> RecordedFrame | None:
    """The first frame, if all are of its shape and type."""
    first = frames[0]
    alike = (first.shape, first.dtype)
    return first if all((frame.shape, frame.dtype) == alike for frame in frames) else None


def _npy(stream_id: int, frames: Frames, out: Path, on_frame: Progress) -> Exported:
    """One array of all frames, or one file a frame if they are not alike."""
    np.save(out / f"{stream_id}.index.npy", index_of(frames))
    like = uniform(frames)
    if like is None:
        path = out / str(stream_id)
        path.mkdir(exist_ok=True)
        for frame in frames:
            np.save(path / f"{frame.ordinal:012}.npy", frame.array)
            on_frame(frame.nbytes)
    else:
        path = out / f"{stream_id}.npy"
        shape = (len(frames), *like.array.shape)
        stacked = np.lib.format.open_memmap(path, mode="w+", dtype=like.dtype, shape=shape)
        for number, frame in enumerate(frames):
            stacked[number] = frame.array
            on_frame(frame.nbytes)
        stacked.flush()
    return _exported(stream_id, path, frames)


def _parquet(stream_id: int, frames: Frames, out: Path, on_frame: Progress) -> Exported:
    """The index with the payloads as they were in shared memory, row by row."""
    pa = arrow()
    path = out / f"{stream_id}.parquet"
    kept = [field for field in frames_schema() if field.name not in ("segment", "offset", "length", "codec", "header")]
    schema = pa.schema([*kept, pa.field("payload", pa.binary(), nullable=False)])
    with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for segment, rows in _batches(frames):
            table = frames_table(segment.path.name, segment.first_ordinal, segment.offsets[rows], segment.headers[rows])
            payloads = [bytes(RecordedFrame(segment, int(row)).payload) for row in rows]
            columns = [*table.select([field.name for field in kept]).columns, pa.array(payloads, pa.binary())]
            writer.write_table(pa.table(columns, schema=schema))
            on_frame(sum(map(len, payloads)))
    return _exported(stream_id, path, frames)


def _zarr(stream_id: int, frames: Frames, out: Path, on_frame: Progress) -> Exported:
    """A group with one array of all frames, one chunk each, and one array a column of the index."""
    like = _alike(stream_id, frames, Format.ZARR)
    path = out / f"{stream_id}.zarr"
    path.mkdir(exist_ok=True)
    metadata = like.metadata
    about = {"stream_id": stream_id, "metadata": {} if metadata is None else _plain(metadata)}
    _zarr_node(path, {"node_type": "group", "attributes": about})
    shape = like.array.shape
    _zarr_array(path / "frames", (len(frames), *shape), (1, *shape), like.dtype)
    for number, frame in enumerate(frames):
        chunk = path / "frames" / "c" / str(number) / "/".join("0" for _ in shape)
        chunk.parent.mkdir(parents=True, exist_ok=True)
        chunk.write_bytes(np.ascontiguousarray(frame.array).tobytes())
        on_frame(frame.nbytes)
    index = index_of(frames)
    for name in INDEX.names or ():
        column = np.ascontiguousarray(index[name])
        _zarr_array(path / name, column.shape, column.shape, column.dtype)
        (path / name / "c").mkdir(exist_ok=True)
        (path / name / "c" / "0").write_bytes(column.tobytes())
    return _exported(stream_id, path, frames)


def _zarr_node(path: Path, content: dict[str, Any]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, **content}, indent=1))


def _zarr_array(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    order = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    _zarr_node(
        path,
        {
            "node_type": "array",
            "shape": shape,
            "data_type": dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, each) for each in chunks]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": False if dtype.kind == "b" else 0,
            "codecs": [{"name": "bytes", **order}],
            "attributes": {},
        },
    )


def _hdf5(stream_id: int, frames: Frames, out: Path, on_frame: Progress) -> Exported:
    """A dataset of all frames and one of the index; metadata as attributes."""
    h5py = _library("h5py")
    like = _alike(stream_id, frames, Format.HDF5)
    path = out / f"{stream_id}.h5"
    with h5py.File(path, "w") as file:
        shape = like.array.shape
        chunks = None if 0 in shape else (1, *shape)
        dataset = file.create_dataset("frames", (len(frames), *shape), like.dtype, chunks=chunks)
        for number, frame in enumerate(frames):
            dataset[number] = frame.array
            on_frame(frame.nbytes)
        file.create_dataset("index", data=index_of(frames))
        file.attrs["stream_id"] = stream_id
        for key, value in (_plain(like.metadata) if like.metadata else {}).items():
            file.attrs[key] = value if isinstance(value, str | int | float | bool) else json.dumps(value)
    return _exported(stream_id, path, frames)


def _mcap(stream_id: int, frames: Frames, out: Path, on_frame: Progress) -> Exported:
    """A channel of messages that are an encoded TensorHeader with the payload behind it."""
    writers = _library("mcap.writer")
    path = out / f"{stream_id}.mcap"
    with path.open("wb") as file:
        writer = writers.Writer(file)
        writer.start(profile="", library="framepool")
        about = "192 bytes: SBE message header and TensorHeader (schema 900, template 52); then the payload"
        schema = writer.register_schema(name="framepool.Frame", encoding="", data=about.encode())
        channel = writer.register_channel(
            topic=f"/stream/{stream_id}",
            message_encoding="application/x-framepool",
            schema_id=schema,
            metadata={"stream_id": str(stream_id)},
        )
        for frame in frames:
            writer.add_message(
                channel_id=channel,
                log_time=frame.recorded_ns,
                publish_time=frame.timestamp_ns,
                sequence=frame.seq % 2**32,
                data=frame.tensor_header + bytes(frame.payload),
            )
            on_frame(frame.nbytes)
        writer.finish()
    return _exported(stream_id, path, frames)


def _batches(frames: Frames) -> Iterator[tuple[Segment, npt.NDArray[np.intp]]]:
    """Rows of one segment whose payloads fit into memory together."""
    for segment, rows in frames.parts():
        ends = np.cumsum(segment.headers["raw_bytes"][rows])
        for batch in np.split(rows, np.flatnonzero(np.diff(ends // BATCH_BYTES)) + 1):
            yield segment, batch


def _alike(stream_id: int, frames: Frames, form: Format) -> RecordedFrame:
    like = uniform(frames)
    if like is None:
        raise RecordingError(
            f"stream {stream_id} has frames of several shapes or types, {form} takes one: use npy or parquet"
        )
    return like


def _plain(metadata: Any) -> dict[str, Any]:
    """Metadata as JSON can say it; what it cannot is left out."""
    kept = {}
    for key, value in metadata.items():
        with contextlib.suppress(TypeError, ValueError):
            kept[key] = json.loads(json.dumps(value))
    return kept


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise LibraryMissing(f"this format needs the package {package}: pip install {package}") from None


def _exported(stream_id: int, path: Path, frames: Frames) -> Exported:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(each.stat().st_size for each in files)
    return Exported(stream_id=stream_id, path=str(path), frames=len(frames), bytes=size)
