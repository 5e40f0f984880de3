"""A new recording written in parallel by executors, which is there as a whole or not at all.

Each task writes a segment of its own under a name that nobody else has. The driver gives those of the tasks that
succeeded their places, seals them, and renames the whole directory: what failed tasks left is never part of it. Frames
of an epoch that are missing between others are accounted for in the loss table, as in any recording.
"""

from __future__ import annotations

import os
import pickle
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from framepool.errors import RecordingError
from framepool.recorder.account import Loss, Reason
from framepool.recorder.contents import Contents
from framepool.recorder.manifest import SEGMENT_SUFFIX, Manifest, sync_directory
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.spark.frames import SparkFrame, frames_in, needed_columns
from framepool.spark.staging import remove_staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART: Final = pa.schema([("ordinal", pa.int64()), ("contents", pa.binary())])
MORE: Final = ("timestamp_ns", "meta_version", "trace_id")


class NewRecording:
    """A recording in the making. Pickled, it goes to the tasks; `commit` and `abort` are for the driver."""

    def __init__(self, path: str) -> None:
        """`RecordingError` if there is something at that path already."""
        self.target = Path(path).absolute()
        self._staging = self.target.with_name(f".{self.target.name}.{uuid.uuid4().hex}")
        self._recording_id = secrets.token_hex(16)
        self.check()
        Manifest(self._staging).segments.mkdir(parents=True)

    def check(self) -> None:
        if self.target.exists():
            raise RecordingError(f"{self.target} is there already: name a new directory")

    def part(self) -> SegmentFile:
        """A segment for one task."""
        return SegmentFile(
            Manifest(self._staging).segments / f"part-{uuid.uuid4().hex}{SEGMENT_SUFFIX}", self._recording_id
        )

    def commit(self, parts: list[Contents]) -> int:
        """Makes it appear with these segments, in this order; says how many frames it has."""
        manifest = Manifest(self._staging)
        manifest.create(time.time_ns(), self._recording_id)
        missing = missing_frames(parts)
        if missing:
            with self.part() as file:
                for loss in missing:
                    file.add_loss(loss)
            parts = [*parts, file.contents]
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
        self.check()
        os.rename(self._staging, self.target)
        sync_directory(self.target.parent)
        return total

    def abort(self) -> None:
        """Leaves nothing."""
        remove_staging(self._staging)


def unsigned(value: int | None) -> int:
    """A number of 64 bits as it was before Spark saw it; 0 for none."""
    return (value or 0) & 0xFFFF_FFFF_FFFF_FFFF


def missing_frames(parts: list[Contents]) -> list[Loss]:
    """The gaps within each epoch of each stream; `RecordingError` if a frame is there twice."""
    headers = [part.headers[["stream_id", "epoch", "seq"]] for part in parts if len(part.headers)]
    if not headers:
        return []
    found = np.unique(np.concatenate(headers), return_counts=True)
    if (twice := found[0][found[1] > 1]).size:
        stream, epoch, seq = twice[0].tolist()
        raise RecordingError(f"frame {seq} of stream {stream}, epoch {epoch} would be in the recording more than once")
    missing = []
    for before, after in zip(found[0][:-1].tolist(), found[0][1:].tolist(), strict=True):
        if before[:2] == after[:2] and after[2] > before[2] + 1:
            span = {"first_seq": before[2] + 1, "last_seq": after[2] - 1}
            missing.append(Loss(stream_id=before[0], epoch=before[1], reason=Reason.NOT_CHOSEN, **span))
    return missing


def write_recording(
    frames: DataFrame, path: str, fn: Callable[[SparkFrame], npt.NDArray[Any] | None], *, strict: bool = False
) -> int:
    """Makes a recording at `path` with what `fn` makes of each frame, or without those of which it makes None.

    Stream, epoch, sequence, timestamp, metadata version and trace id stay. Says how many frames it has.
    """
    new = NewRecording(path)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ordinal: int | None = None
        with new.part() as file:
            for frame in frames_in(batches, strict=strict):
                made = fn(frame)
                if made is None:
                    continue
                row = frame.row
                ordinal = row["ordinal"] if ordinal is None else ordinal
                file.add(
                    made,
                    stream_id=row["stream_id"],
                    epoch=unsigned(row["epoch"]),
                    seq=unsigned(row["seq"]),
                    timestamp_ns=unsigned(row["timestamp_ns"]),
                    meta_version=row["meta_version"],
                    trace_id=unsigned(row["trace_id"]),
                )
        if ordinal is not None:
            yield pa.RecordBatch.from_pylist([{"ordinal": ordinal, "contents": pickle.dumps(file.contents)}], PART)

    columns = dict.fromkeys((*needed_columns(frames.columns), *MORE))
    try:
        rows = frames.select(*columns).mapInArrow(write, "ordinal bigint, contents binary").collect()
        return new.commit([pickle.loads(row["contents"]) for row in sorted(rows, key=lambda row: row["ordinal"])])
    except BaseException:
        new.abort()
        raise
