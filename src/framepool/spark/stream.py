"""A recording that is still being written, as a stream of Spark: offsets are ordinals, the newest is the watermark.

An offset is `{"ordinal": n}`: frames below n were read. A range of ordinals gives the same frames whenever it is read,
before and after its segment was sealed, recovered or reached by another recorder; so what Spark repeats after a crash
is what it had planned, and a sink that keeps a batch once has each frame once.

Spark never says goodbye to a source, so what a query needs is held for a time and renewed while it lives.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any, Final

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from framepool.errors import ConfigurationError, FramesRemoved, RecordingDamaged
from framepool.recorder.manifest import Hold
from framepool.recorder.recording import Recording
from framepool.spark.options import NANOS, Options
from framepool.spark.plan import Range, plan, read_range
from framepool.spark.source import PieceReader

log = logging.getLogger(__name__)

Offset = dict[str, Any]
ORDINAL: Final = "ordinal"


class FramepoolStreamReader(PieceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side lives as long as the query, in one process; a pickled copy of it reads in the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.table != "frames":
            raise ConfigurationError(f"the table {options.table} can be read, not streamed")
        self.strict = options.fail_on_data_loss if options.strict is None else options.strict
        self._recording: Recording | None = None
        self._until: int | None = None
        self._hold_name = f"spark-{secrets.token_hex(8)}"
        self._renew_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Without the recording, whose files are mapped here."""
        return self.__dict__ | {"_recording": None}

    # What Spark asks

    def initialOffset(self) -> Offset:  # noqa: N802 Spark's name
        """Asked for again when the first batch is repeated, and hence always the same."""
        return {ORDINAL: self.options.start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        if self.options.max_frames_per_trigger is not None:
            return ReadMaxRows(self.options.max_frames_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        self._until = durable(self._look())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 Spark's name
        recording = self._look()
        first = int(start[ORDINAL])
        self._hold(recording, first)
        last = durable(recording)
        if self._until is not None:
            last = min(last, self._until)
        last = max(first, last)
        if isinstance(limit, ReadAllAvailable):
            return {ORDINAL: last}
        rows, size = self.options.max_frames_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return {ORDINAL: self._limited(recording, first, last, rows, size)}

    def reportLatestOffset(self) -> Offset:  # noqa: N802 Spark's name
        return {ORDINAL: durable(self._look())}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = int(start[ORDINAL]), int(end[ORDINAL])
        recording = self._look()
        oldest = recording.retained.first_ordinal
        # A query that begins with the earliest frames begins with those that are there.
        if first < oldest and first < last and first > 0:
            said = (
                f"{recording.path} begins with frame {oldest} by now: {first} to {min(oldest, last) - 1} were removed"
            )
            if self.options.fail_on_data_loss:
                raise FramesRemoved(f"{said} before the query read them; failOnDataLoss=false goes on without them")
            log.error("%s", said)
        pieces = plan(recording, self.selection, self.options.partition_bytes, first, last)
        return [InputPartition(piece) for piece in pieces]

    def commit(self, end: Offset) -> None:
        self._hold(self._look(), int(end[ORDINAL]), now=True)

    def stop(self) -> None:
        if self._recording is not None and self.options.hold_seconds:
            self._recording.manifest.release(self._hold_name)

    def _look(self) -> Recording:
        if self._recording is None:
            self._recording = Recording(self.options.path)
        else:
            self._recording.refresh()
        return self._recording

    def _limited(self, recording: Recording, first: int, last: int, frames: int | None, size: int | None) -> int:
        """Where a batch of so many wanted frames and bytes ends; one frame always fits."""
        taken_frames = taken_bytes = 0
        for segment in recording.segments:
            entry = segment.entry
            low, high = max(first, entry.first_ordinal), min(last, entry.end_ordinal)
            if low >= high or not self.selection.may_be_in(entry):
                continue
            try:
                rows, _ = read_range(recording, Range(segment.number, segment.segment_id, low, high), self.selection)
            except RecordingDamaged:
                continue  # whoever reads it says so, or fails
            count = np.arange(1, len(rows.headers) + 1) + taken_frames
            total = np.cumsum(rows.headers["raw_bytes"].astype(np.int64)) + taken_bytes
            over = (count > frames if frames is not None else False) | (total > size if size is not None else False)
            beyond = np.flatnonzero(over & (count > 1))
            if len(beyond):
                return segment.first_ordinal + int(rows.headers["number"][beyond[0]])
            if len(count):
                taken_frames, taken_bytes = int(count[-1]), int(total[-1])
        return last

    def _hold(self, recording: Recording, ordinal: int, *, now: bool = False) -> None:
        """Keeps retention from what the query has not read, as long as it lives and a while longer."""
        seconds = self.options.hold_seconds
        if not seconds or (not now and time.monotonic() < self._renew_at):
            return
        self._renew_at = time.monotonic() + min(10.0, seconds / 4)
        try:
            recording.manifest.hold(self._hold_name, Hold(ordinal=ordinal, expires_ns=time.time_ns() + seconds * NANOS))
        except OSError as error:  # a recording that can only be read is one that nobody removes from here
            log.warning("%s: retention is not held back: %s", recording.path, error.strerror)


def durable(recording: Recording) -> int:
    """Frames below this ordinal are durable, by the watermark or because they are sealed."""
    told = recording.watermark.ordinal if recording.watermark is not None else 0
    return max([told, *(segment.entry.end_ordinal for segment in recording.segments)])
