"""A new recording written in parallel by executors, which is there as a whole or not at all.

Each task writes a segment of its own under a name that nobody else has. The driver gives those of the tasks that
succeeded their places, seals them, and renames the whole directory: what failed tasks left is never part of it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt
import pyarrow as pa

from framepool.errors import RecordingError
from framepool.recorder.contents import Contents
from framepool.recorder.manifest import SEGMENT_SUFFIX, Manifest, sync_directory
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.spark.frames import SparkFrame, frames_in, needed_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART: Final = pa.schema([("ordinal", pa.int64()), ("contents", pa.binary())])
MORE: Final = ("timestamp_ns", "meta_version", "trace_id")


def write_recording(
    frames: DataFrame, path: str, fn: Callable[[SparkFrame], npt.NDArray[Any] | None], *, strict: bool = False
) -> int:
    """Makes a recording at `path` with what `fn` makes of each frame, or without those of which it makes None.

    Stream, epoch, sequence, timestamp, metadata version and trace id stay. Says how many frames it has.
    """
    target = Path(path).absolute()
    if target.exists():
        raise RecordingError(f"{target} is there already: name a new directory")
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    manifest = Manifest(staging)
    recording_id = manifest.create(time.time_ns()).recording_id
    where = str(manifest.segments)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ordinal: int | None = None
        part = Path(where) / f"part-{uuid.uuid4().hex}{SEGMENT_SUFFIX}"
        with SegmentFile(part, recording_id) as file:
            for frame in frames_in(batches, strict=strict):
                made = fn(frame)
                if made is None:
                    continue
                row = frame.row
                ordinal = row["ordinal"] if ordinal is None else ordinal
                file.add(
                    made,
                    stream_id=row["stream_id"],
                    epoch=row["epoch"],
                    seq=row["seq"],
                    timestamp_ns=row["timestamp_ns"],
                    meta_version=row["meta_version"],
                    trace_id=row["trace_id"] or 0,
                )
        if ordinal is None:
            part.unlink()
        else:
            yield pa.RecordBatch.from_pylist([{"ordinal": ordinal, "contents": pickle.dumps(file.contents)}], PART)

    columns = dict.fromkeys((*needed_columns(frames.columns), *MORE))
    try:
        rows = frames.select(*columns).mapInArrow(write, "ordinal bigint, contents binary").collect()
        total = _place(
            manifest, [pickle.loads(row["contents"]) for row in sorted(rows, key=lambda row: row["ordinal"])]
        )
        os.rename(staging, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return total


def _place(manifest: Manifest, parts: list[Contents]) -> int:
    """Gives segments their numbers and ordinals; says how many frames there are."""
    total = 0
    for number, contents in enumerate(parts):
        written = manifest.segments / contents.file
        contents.number, contents.file = number, f"{number:08}{SEGMENT_SUFFIX}"
        contents.first_ordinal, contents.end_ordinal = total, total + len(contents.headers)
        os.rename(written, manifest.segments / contents.file)
        seal(manifest, contents)
        total = contents.end_ordinal
    for left in manifest.segments.glob(f"part-*{SEGMENT_SUFFIX}"):
        left.unlink()
    sync_directory(manifest.segments)
    return total
