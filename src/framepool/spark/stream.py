"""A recording that is still being written, as a stream of Spark: offsets are ordinals, the newest is the watermark.

An offset is `{"recording": id, "ordinal": n}`: frames of that recording below n were read. A range of ordinals gives
the same frames whenever it is read, before and after its segment was sealed, recovered or reached by another recorder;
so what Spark repeats after a crash is what it had planned, and a sink that keeps a batch once has each frame once.
Live streams are read in the same way, from the log that `live` has made of them.

Spark never says goodbye to a source, so what a query needs is held for a time, and renewed while its process lives.
"""

from __future__ import annotations

import logging
import secrets
import threading
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
from framepool.recorder.manifest import Hold, Manifest
from framepool.recorder.recording import Recording
from framepool.spark.live import LiveLog
from framepool.spark.options import NANOS, Options
from framepool.spark.plan import Range, plan, read_range
from framepool.spark.source import PieceReader

log = logging.getLogger(__name__)

Offset = dict[str, Any]
ORDINAL: Final = "ordinal"
RECORDING: Final = "recording"


class FramepoolStreamReader(PieceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side lives as long as the query, in one process; a pickled copy of it reads in the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.table != "frames":
            raise ConfigurationError(f"the table {options.table} can be read, not streamed")
        self.strict = options.fail_on_data_loss if options.strict is None else options.strict
        self.without_removed = not options.fail_on_data_loss
        self._recording: Recording | None = None
        self._live: LiveLog | None = None
        self._holding: Holding | None = None
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to the driver's process: mapped files, a recorder, a thread."""
        return self.__dict__ | {"_recording": None, "_live": None, "_holding": None}

    # What Spark asks

    def initialOffset(self) -> Offset:  # noqa: N802 Spark's name
        """Asked for again when the first batch is repeated, and hence always the same."""
        return self._offset(self._look(), self.options.start)

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
        first = self._place(recording, start)
        self._hold(recording).at_least(first)
        last = durable(recording)
        if self._until is not None:
            last = min(last, self._until)
        last = max(first, last)
        if isinstance(limit, ReadAllAvailable):
            return self._offset(recording, last)
        rows, size = self.options.max_frames_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return self._offset(recording, self._limited(recording, first, last, rows, size))

    def reportLatestOffset(self) -> Offset:  # noqa: N802 Spark's name
        recording = self._look()
        return self._offset(recording, durable(recording))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        recording = self._look()
        first, last = self._place(recording, start), self._place(recording, end)
        self._hold(recording).at_least(first)
        oldest, newest = recording.retained.first_ordinal, durable(recording)
        # A query that begins with the earliest frames begins with those that are there.
        if first < oldest and first < last and first > 0:
            self._lost(
                f"{recording.path} begins with frame {oldest} by now: {first} to {min(oldest, last) - 1} were removed "
                "before the query read them"
            )
        if newest < last:
            self._lost(
                f"{recording.path} ends before frame {newest}, and the query had planned up to {last - 1}: if its host "
                "crashed, start its recorder once more to recover the rest"
            )
        pieces = plan(recording, self.selection, self.options.partition_bytes, first, last)
        return [InputPartition(piece) for piece in pieces]

    def commit(self, end: Offset) -> None:
        recording = self._look()
        self._hold(recording).move(self._place(recording, end))

    def stop(self) -> None:
        """Called when Spark's driver is gone, killed or not, and not when a query ends: what is held stays held for its
        time, for the query that comes back."""
        if self._holding is not None:
            self._holding.end()

    def _offset(self, recording: Recording, ordinal: int) -> Offset:
        return {RECORDING: recording.info.recording_id, ORDINAL: ordinal}

    def _place(self, recording: Recording, offset: Offset) -> int:
        if offset[RECORDING] != recording.info.recording_id:
            raise FramesRemoved(
                f"{recording.path} is not the recording that the checkpoint of this query is about: begin with a new "
                "checkpoint"
            )
        return int(offset[ORDINAL])

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise FramesRemoved(f"{what}; failOnDataLoss=false goes on without them")
        log.error("%s", what)

    def _look(self) -> Recording:
        options = self.options
        if options.live:
            if self._live is None:
                self._live = LiveLog(
                    options.path, options.stream, options.config, options.retain_bytes, options.hold_seconds
                )
            self._live.ensure()
        if self._recording is None:
            self._recording = Recording(options.path)
        else:
            self._recording.refresh()
        return self._recording

    def _hold(self, recording: Recording) -> Holding:
        if self._holding is None:
            self._holding = Holding(recording.manifest, self.options.hold_seconds)
        return self._holding

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
            except (FramesRemoved, RecordingDamaged):
                continue  # whoever plans or reads it says so, or fails
            count = np.arange(1, len(rows.headers) + 1) + taken_frames
            total = np.cumsum(rows.headers["raw_bytes"].astype(np.int64)) + taken_bytes
            over = (count > frames if frames is not None else False) | (total > size if size is not None else False)
            beyond = np.flatnonzero(over & (count > 1))
            if len(beyond):
                return segment.first_ordinal + int(rows.headers["number"][beyond[0]])
            if len(count):
                taken_frames, taken_bytes = int(count[-1]), int(total[-1])
        return last


class Holding:
    """Keeps retention from what a query has not read, as long as its process lives and a while longer."""

    def __init__(self, manifest: Manifest, seconds: int) -> None:
        self._manifest = manifest
        self._seconds = seconds
        self._name = f"spark-{secrets.token_hex(8)}"
        self._ordinal: int | None = None
        self._refused: str | None = ""
        self._turn = threading.Lock()
        self._ended = threading.Event()

    def at_least(self, ordinal: int) -> None:
        """From here on, unless it is known already where the query is."""
        if self._ordinal is None:
            self.move(ordinal)
            if self._seconds:  # a batch may take longer than a hold lasts
                threading.Thread(target=self._renew, name="framepool hold", daemon=True).start()

    def move(self, ordinal: int) -> None:
        """Frames before it are not needed any more."""
        self._ordinal = ordinal
        self._put()

    def end(self) -> None:
        """Renews it no more."""
        self._ended.set()

    def _renew(self) -> None:
        while not self._ended.wait(min(10.0, self._seconds / 4)):
            self._put()

    def _put(self) -> None:
        with self._turn:
            if not self._seconds or self._ordinal is None or self._ended.is_set():
                return
            expires_ns = time.time_ns() + self._seconds * NANOS
            try:
                self._manifest.hold(self._name, Hold(ordinal=self._ordinal, expires_ns=expires_ns))
                self._refused = ""
            except OSError as error:  # a recording that can only be read is one that nobody removes from here
                if error.strerror != self._refused:
                    log.warning("%s: retention is not held back: %s", self._manifest.path, error.strerror)
                self._refused = error.strerror


def durable(recording: Recording) -> int:
    """Frames below this ordinal are durable, by the watermark or because they are sealed."""
    told = recording.watermark.ordinal if recording.watermark is not None else 0
    return max([told, *(segment.entry.end_ordinal for segment in recording.segments)])
