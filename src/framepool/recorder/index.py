"""The index beside each sealed segment: Parquet, one row a frame, one a loss, one a message (`docs/recording.md`).

Names and types are stable. Spark has no unsigned numbers, so numbers of 64 bits without sign are stored as the signed
ones of the same bits; sequences are below 2^63 anyway. pyarrow is an optional library: a recorder without it leaves
the index for later (`framepool recordings index`), and readers of this package do without, from the segments alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from framepool.errors import IndexDamaged, LibraryMissing, RecordingDamaged
from framepool.recorder.contents import Contents, LossRow, MessageRow
from framepool.recorder.format import FRAME_HEADER, FRAME_HEADER_BYTES, NO_TIMESTAMP, Codec
from framepool.recorder.manifest import open_file
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout, decode_tensor
from framepool.wire._generated.control_900 import Dtype, MajorOrder

if TYPE_CHECKING:
    import pyarrow as pa

FRAMES: Final = ".frames.parquet"
LOSSES: Final = ".losses.parquet"
MESSAGES: Final = ".messages.parquet"
ALL: Final = (FRAMES, LOSSES, MESSAGES)


def arrow() -> Any:
    """pyarrow, or `LibraryMissing`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise LibraryMissing("Parquet needs pyarrow: pip install 'framepool[record]'") from None
    return pa


def has_arrow() -> bool:
    try:
        arrow()
    except LibraryMissing:
        return False
    return True


def frames_schema() -> pa.Schema:
    """One row a frame."""
    pa = arrow()
    return pa.schema(
        [
            pa.field("ordinal", pa.int64(), nullable=False),
            pa.field("stream_id", pa.int64(), nullable=False),
            pa.field("epoch", pa.int64(), nullable=False),
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("timestamp_ns", pa.int64(), nullable=False),
            pa.field("publish_timestamp_ns", pa.int64()),
            pa.field("recorded_ns", pa.int64(), nullable=False),
            pa.field("monotonic_ns", pa.int64(), nullable=False),
            pa.field("dtype", pa.string(), nullable=False),
            pa.field("shape", pa.list_(pa.int64()), nullable=False),
            pa.field("strides", pa.list_(pa.int64()), nullable=False),
            pa.field("order", pa.string(), nullable=False),
            pa.field("meta_version", pa.int64(), nullable=False),
            pa.field("trace_id", pa.int64()),
            pa.field("segment", pa.string(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("length", pa.int64(), nullable=False),
            pa.field("codec", pa.string(), nullable=False),
            pa.field("raw_length", pa.int64(), nullable=False),
            pa.field("crc", pa.int64(), nullable=False),
            pa.field("header", pa.binary(FRAME_HEADER_BYTES), nullable=False),
        ]
    )


def losses_schema() -> pa.Schema:
    """One row for frames that follow each other and are not there for one reason."""
    pa = arrow()
    return pa.schema(
        [
            pa.field("ordinal", pa.int64(), nullable=False),
            pa.field("stream_id", pa.int64(), nullable=False),
            pa.field("epoch", pa.int64(), nullable=False),
            pa.field("first_seq", pa.int64(), nullable=False),
            pa.field("last_seq", pa.int64()),
            pa.field("frames", pa.int64()),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
            pa.field("recorded_ns", pa.int64(), nullable=False),
            pa.field("segment", pa.string(), nullable=False),
        ]
    )


def messages_schema() -> pa.Schema:
    """One row a message of the control plane."""
    pa = arrow()
    return pa.schema(
        [
            pa.field("ordinal", pa.int64(), nullable=False),
            pa.field("aeron_stream_id", pa.int64(), nullable=False),
            pa.field("stream_id", pa.int64()),
            pa.field("schema_id", pa.int64(), nullable=False),
            pa.field("template_id", pa.int64(), nullable=False),
            pa.field("recorded_ns", pa.int64(), nullable=False),
            pa.field("monotonic_ns", pa.int64(), nullable=False),
            pa.field("segment", pa.string(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("length", pa.int64(), nullable=False),
        ]
    )


def layouts(headers: npt.NDArray[np.void]) -> tuple[list[TensorLayout], npt.NDArray[np.intp]]:
    """The layouts of these frames, each once, and which one each frame has."""
    raw, which = np.unique(headers["tensor"], return_inverse=True)
    found = []
    for each in raw:
        layout = decode_tensor(each.tobytes(), 2**32 - 1)
        if isinstance(layout, DropReason):
            raise RecordingDamaged(f"a frame has a header that breaks a rule: {layout.name}")
        found.append(layout)
    return found, which.reshape(-1)


def dtype_name(dtype: Dtype) -> str:
    """The name of an element type, as numpy has it; `bytes` and `bit` are the wire's own."""
    return dtype.name.lower().replace("boolean", "bool")


def frames_table(
    file: str, first_ordinal: int, offsets: npt.NDArray[np.int64], headers: npt.NDArray[np.void]
) -> pa.Table:
    """The rows of frames, given where their records are and what their headers say."""
    pa = arrow()
    found, which = layouts(headers)
    count = len(headers)

    def signed(name: str) -> npt.NDArray[np.int64]:
        return headers[name].astype(np.uint64).view(np.int64)

    def chosen(values: list[Any], kind: Any) -> Any:
        return pa.array(values, kind).take(pa.array(which))

    publish, trace = headers["publish_timestamp_ns"], headers["trace_id"]
    codecs = np.array([each.name.lower() for each in Codec])
    columns = {
        "ordinal": headers["number"].astype(np.int64) + first_ordinal,
        "stream_id": signed("stream_id"),
        "epoch": signed("epoch"),
        "seq": signed("seq"),
        "timestamp_ns": signed("timestamp_ns"),
        "publish_timestamp_ns": pa.array(signed("publish_timestamp_ns"), mask=publish == NO_TIMESTAMP),
        "recorded_ns": signed("recorded_ns"),
        "monotonic_ns": signed("monotonic_ns"),
        "dtype": chosen([dtype_name(each.dtype) for each in found], pa.string()),
        "shape": chosen([list(each.shape) for each in found], pa.list_(pa.int64())),
        "strides": chosen([list(each.strides) for each in found], pa.list_(pa.int64())),
        "order": chosen(["F" if each.order is MajorOrder.COLUMN else "C" for each in found], pa.string()),
        "meta_version": signed("meta_version"),
        "trace_id": pa.array(signed("trace_id"), mask=trace == 0),
        "segment": pa.array([file] * count, pa.string()),
        "offset": offsets + FRAME_HEADER_BYTES,
        "length": signed("stored_bytes"),
        "codec": pa.array(codecs[headers["codec"]], pa.string()),
        "raw_length": signed("raw_bytes"),
        "crc": signed("raw_crc"),
        "header": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(FRAME_HEADER_BYTES), count, [None, pa.py_buffer(np.ascontiguousarray(headers).tobytes())]
        ),
    }
    schema = frames_schema()
    return pa.table([pa.array(columns[name]) for name in schema.names], schema=schema)


def losses_table(file: str, first_ordinal: int, rows: Iterable[LossRow]) -> pa.Table:
    pa = arrow()
    records = [
        {
            "ordinal": first_ordinal + row.number,
            "stream_id": row.loss.stream_id,
            "epoch": _signed(row.loss.epoch),
            "first_seq": row.loss.first_seq,
            "last_seq": row.loss.last_seq,
            "frames": row.loss.frames,
            "reason": row.loss.reason.value,
            "detail": row.loss.detail,
            "recorded_ns": _signed(row.recorded_ns),
            "segment": file,
        }
        for row in rows
    ]
    return pa.Table.from_pylist(records, losses_schema())


def messages_table(file: str, first_ordinal: int, rows: Iterable[MessageRow]) -> pa.Table:
    pa = arrow()
    records = [
        {
            "ordinal": first_ordinal + row.number,
            "aeron_stream_id": row.aeron_stream_id,
            "stream_id": row.stream_id or None,
            "schema_id": row.schema_id,
            "template_id": row.template_id,
            "recorded_ns": _signed(row.recorded_ns),
            "monotonic_ns": _signed(row.monotonic_ns),
            "segment": file,
            "offset": row.offset,
            "length": row.length,
        }
        for row in rows
    ]
    return pa.Table.from_pylist(records, messages_schema())


def write_index(directory: Path, contents: Contents) -> None:
    """Writes the three tables of a segment beside it, durably."""
    file, ordinal = contents.file, contents.first_ordinal
    stem = directory / file.rpartition(".")[0]
    _write(f"{stem}{FRAMES}", frames_table(file, ordinal, contents.offsets, contents.headers))
    _write(f"{stem}{LOSSES}", losses_table(file, ordinal, contents.losses))
    _write(f"{stem}{MESSAGES}", messages_table(file, ordinal, contents.messages))


def read_frames(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Offsets of the records and headers of the frames, as they are in the segment, from its index."""
    pa = arrow()
    try:
        with open(open_file(path), "rb") as file:
            # Without threads: they would outlive a command that ends at once, and abort it.
            table = pa.parquet.ParquetFile(file, pre_buffer=False).read(["offset", "header"], use_threads=False)
        if table.schema.types != [pa.int64(), pa.binary(FRAME_HEADER_BYTES)]:
            raise TypeError(f"columns of {table.schema.types}")
        offsets = table["offset"].to_numpy() - FRAME_HEADER_BYTES
        if table["offset"].null_count or table["header"].null_count:
            raise ValueError("it has holes")
    except Exception as error:  # pyarrow has many
        raise IndexDamaged(f"{path.name} cannot be read: {type(error).__name__}: {error}") from None
    raw = b"".join(
        memoryview(chunk.buffers()[1])[chunk.offset * FRAME_HEADER_BYTES :][: len(chunk) * FRAME_HEADER_BYTES]
        for chunk in table["header"].chunks
    )
    return offsets, np.frombuffer(raw, FRAME_HEADER)


def _write(path: str, table: Any) -> None:
    arrow().parquet.write_table(table, path, compression="zstd", row_group_size=65_536)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _signed(value: int) -> int:
    """The signed number of the same 64 bits."""
    return value - 2**64 if value >= 2**63 else value
