"""The columns that Spark sees, and Arrow batches of them. Names and types are stable (`docs/spark.md`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from framepool._native.crc32c import crc32c
from framepool.errors import FramesRemoved, RecordingDamaged
from framepool.recorder.codecs import decompress
from framepool.recorder.format import FRAME_HEADER_BYTES, Codec
from framepool.recorder.index import LOSSES as LOSSES_INDEX
from framepool.recorder.index import frames_table, losses_table
from framepool.spark.options import Options, Payload
from framepool.spark.plan import Piece, Rows, open_recording, read_piece, read_range
from framepool.spark.selection import Selection

log = logging.getLogger(__name__)

FRAME: Final = (
    "ordinal bigint, stream_id bigint, epoch bigint, seq bigint, timestamp_ns bigint, publish_timestamp_ns bigint, "
    "recorded_ns bigint, monotonic_ns bigint, dtype string, shape array<bigint>, strides array<bigint>, "
    "`order` string, meta_version bigint, trace_id bigint, raw_length bigint, crc bigint"
)
COLUMNS: Final[dict[Payload, str]] = {
    "none": FRAME,
    "reference": f"{FRAME}, path string, offset bigint, length bigint, codec string, host string, boot_id string",
    "inline": f"{FRAME}, payload binary",
}
LOSSES: Final = (
    "ordinal bigint, stream_id bigint, epoch bigint, first_seq bigint, last_seq bigint, frames bigint, "
    "reason string, detail string, recorded_ns bigint, segment string"
)
PROBLEMS: Final = "segment string, ordinal bigint, stream_id bigint, epoch bigint, seq bigint, detail string"

ROWS_A_BATCH: Final = 8_192
BYTES_A_BATCH: Final = 8 * 2**20
"""Of payload; measured to be best with Spark's transport."""
LONGEST_INLINE: Final = 2**31 - 2**20


def columns_of(options: Options) -> str:
    """The schema of a table, as Spark writes it."""
    match options.table:
        case "losses":
            return LOSSES
        case "problems":
            return PROBLEMS
    return COLUMNS[options.payload]


def names_in(columns: str) -> list[str]:
    """The names of a list of columns."""
    return [each.split(" ")[0].strip("`") for each in columns.split(", ")]


def batches(
    piece: Piece,
    options: Options,
    selection: Selection,
    schema: pa.Schema,
    *,
    strict: bool,
    without_removed: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, as Arrow batches of exactly this schema."""
    if options.table == "problems":
        rows = list(_problems(piece, selection))
        yield from pa.Table.from_pylist(rows, schema).to_batches()
        return
    for part in read_piece(piece, selection, strict=strict, without_removed=without_removed):
        if options.table == "losses":
            yield from _losses(part, selection).select(schema.names).cast(schema).to_batches()
        elif options.payload == "inline":
            yield from _inline(part, schema, strict=strict)
        else:
            for first in range(0, len(part.headers), ROWS_A_BATCH):
                some = slice(first, first + ROWS_A_BATCH)
                yield from _table(Rows(part.segment, part.offsets[some], part.headers[some]), schema).to_batches()


def payload_of(rows: Rows, row: int) -> memoryview:
    """The payload of a frame as it was in shared memory; `RecordingDamaged` if it is not that any more."""
    header = rows.headers[row]
    start = int(rows.offsets[row]) + FRAME_HEADER_BYTES
    stored = rows.segment.buffer[start : start + int(header["stored_bytes"])]
    raw = memoryview(decompress(Codec(int(header["codec"])), stored, int(header["raw_bytes"])))
    if len(raw) != header["raw_bytes"] or crc32c(raw) != header["raw_crc"]:
        number = rows.segment.first_ordinal + int(header["number"])
        raise RecordingDamaged(f"{rows.segment.path}: frame {number} is not what was recorded")
    return raw


def _table(rows: Rows, schema: pa.Schema, **more: pa.Array) -> pa.Table:
    segment = rows.segment
    table = frames_table(segment.path.name, segment.first_ordinal, rows.offsets, rows.headers)
    info = segment.recording.info
    for name, value in (("path", str(segment.path)), ("host", info.host), ("boot_id", info.boot_id)):
        if name in schema.names:
            table = table.append_column(name, pa.repeat(pa.scalar(value), len(table)))
    for name, column in more.items():
        table = table.append_column(name, column)
    return table.select(schema.names).cast(schema)


def _inline(rows: Rows, schema: pa.Schema, *, strict: bool) -> Iterator[pa.RecordBatch]:
    """Batches with payloads, each checked after it was copied out of the file."""
    gathered: list[bytes] = []
    which: list[int] = []
    size = 0
    for row in range(len(rows.headers)):
        try:
            if rows.headers[row]["raw_bytes"] > LONGEST_INLINE:
                raise ValueError("a frame of over 2 GiB does not fit a binary column: use payload=reference")
            payload = bytes(payload_of(rows, row))
        except RecordingDamaged as error:
            if strict:
                raise
            log.error("passed over: %s", error)
            continue
        if which and size + len(payload) > BYTES_A_BATCH:
            yield _payload_batch(rows, which, gathered, schema)
            gathered, which, size = [], [], 0
        gathered.append(payload)
        which.append(row)
        size += len(payload)
    if which:
        yield _payload_batch(rows, which, gathered, schema)


def _payload_batch(rows: Rows, which: list[int], payloads: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    ends = np.cumsum([0, *map(len, payloads)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(payloads))]
    column = pa.Array.from_buffers(pa.binary(), len(payloads), buffers)
    some = Rows(rows.segment, rows.offsets[which], rows.headers[which])
    return _table(some, schema, payload=column).combine_chunks().to_batches()[0]


def _losses(rows: Rows, selection: Selection) -> pa.Table:
    """The loss rows of a segment: from its index, or from the segment where it has none."""
    segment = rows.segment
    index = segment.path.with_suffix(LOSSES_INDEX)
    if segment.sealed and index.exists():
        table = pa.parquet.read_table(index)
    else:
        table = losses_table(segment.path.name, segment.first_ordinal, segment.losses)
    if selection.streams is not None:
        table = table.filter(np.isin(table["stream_id"].to_numpy(), sorted(selection.streams)))
    return table


def _problems(piece: Piece, selection: Selection) -> Iterator[dict[str, Any]]:
    """What is wrong with a piece: every payload is read."""
    recording = open_recording(piece.path, piece.recording_id)
    for each in piece.ranges:
        name = f"{each.number:08}.seg"
        try:
            rows, problem = read_range(recording, each, selection)
        except FramesRemoved:
            raise
        except RecordingDamaged as error:
            yield {"segment": name, "detail": str(error)}
            continue
        if problem:
            yield {"segment": name, "detail": problem}
        for row, header in enumerate(rows.headers):
            try:
                payload_of(rows, row)
            except RecordingDamaged as error:
                yield {
                    "segment": name,
                    "ordinal": rows.segment.first_ordinal + int(header["number"]),
                    "stream_id": int(header["stream_id"]),
                    "epoch": int(header["epoch"].astype(np.int64)),
                    "seq": int(header["seq"]),
                    "detail": str(error),
                }
