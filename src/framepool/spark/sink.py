"""`df.write` and `writeStream.format("framepool")`: tensors into a live stream, or into a new recording.

Tasks write segments, which cost one sequential write wherever a task runs. What becomes of them is decided in the
process of Spark's driver, once all tasks of a batch are done: frames are published in the order of partitions and of
rows within them (`publishing`), or the segments become a recording that appears as a whole (`writing`).
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from framepool.errors import ConfigurationError
from framepool.recorder.contents import Contents
from framepool.recorder.manifest import SEGMENT_SUFFIX
from framepool.recorder.segment_file import SegmentFile
from framepool.spark.options import absolute
from framepool.spark.publishing import SEATS, Ledger, publish
from framepool.spark.staging import remove_staging
from framepool.spark.tensors import check_columns, tensors_in
from framepool.spark.writing import NewRecording, unsigned

Seconds = Annotated[float, msgspec.Meta(ge=0)]
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's names for the id of a query, which stays the same over restarts from its checkpoint, and for its batch."""


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a writer was asked for."""

    stream: int | None = None
    """The id of the stream that is published; in a recording, of all frames, in place of the column `stream_id`."""
    name: str = "spark"
    """Of the stream."""
    config: str = ""
    """The TOML file that the framepool driver runs with."""
    recording: str = ""
    """A directory that is made: write a recording instead."""
    staging: str = ""
    """Where tasks put frames until their batch is complete: a directory that driver and executors share. In the
    checkpoint of a streaming query, or in the directory for temporary files, unless given."""
    frames_per_second: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """The pace of publishing; 0 is as fast as it goes, and readers lose what their ring does not hold."""
    settle_seconds: Seconds = 0.5
    """How long readers get to see the new epoch before the first frame."""
    linger_seconds: Seconds = 1.0
    """How long readers get to take the last frames before the stream ends."""
    keep_seconds: Seconds = 30.0
    """How long a streaming query keeps the stream without a batch."""
    timeout_seconds: Seconds = 30.0
    """How long to wait for a lease."""
    strict: bool = False
    """Whether a reference to damaged bytes fails the query instead of being passed over."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """From Spark's dictionary; `ConfigurationError` says what is wrong."""
        names = {name.lower(): name for name in cls.__struct_encode_fields__}
        words: dict[str, Any] = {}
        checkpoint = ""
        for name, value in given.items():
            if name.lower() in names:
                words[names[name.lower()]] = value
            elif name.lower() == "checkpointlocation":
                checkpoint = value
            else:
                raise ConfigurationError(f"unknown option {name!r} of framepool: known are {', '.join(names.values())}")
        if checkpoint and "staging" not in words and (checkpoint.startswith("file:") or "://" not in checkpoint):
            words["staging"] = os.path.join(absolute(checkpoint), "framepool")
        for name in ("staging", "recording", "config"):
            if words.get(name):
                words[name] = absolute(words[name])
        try:
            return msgspec.convert(words, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"option of framepool: {error}") from None


@dataclass
class Part(WriterCommitMessage):
    """What a task has written; empty tasks have no file."""

    partition: int
    query: str
    file: str = ""
    contents: Contents | None = None


class _Writer:
    """The tasks' side of all writers."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema.names)
        self.options = options
        self.columns = frozenset(schema.names)

    def _write(self, batches: Iterator[pa.RecordBatch], file: SegmentFile) -> None:
        """One segment with the tensors of a task, in the order of their rows."""
        recorded = bool(self.options.recording)
        for number, each in enumerate(
            tensors_in(batches, inline="payload" in self.columns, strict=self.options.strict)
        ):
            row = each.row
            stream = self.options.stream if self.options.stream is not None else row.get("stream_id")
            file.add_raw(
                each.payload,
                each.layout.header,
                stream_id=stream or 0,
                epoch=unsigned(row.get("epoch", 1)),
                seq=unsigned(row["seq"]) if recorded else number,
                timestamp_ns=unsigned(row.get("timestamp_ns")),
                meta_version=row.get("meta_version") or 0,
                trace_id=unsigned(row.get("trace_id")),
            )


class RecordingWriter(_Writer, DataSourceArrowWriter):
    """`df.write` with the option `recording`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        missing = {"seq"} | ({"stream_id"} if options.stream is None else set())
        if missing := missing - self.columns:
            raise ConfigurationError(f"a recording needs the column {min(missing)} beside the tensors")
        self.new = NewRecording(options.recording)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        with self.new.part() as file:
            self._write(iterator, file)
        found = file.contents
        return Part(_partition(), "", contents=found if len(found.headers) else None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self.new.commit([part.contents for part in parts_of(messages) if part.contents is not None])
        except BaseException:
            self.new.abort()
            raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.new.abort()


class _LiveWriter(_Writer):
    """What batch and streaming writers of a live stream share."""

    def __init__(self, options: WriteOptions, schema: StructType, staging: Path) -> None:
        super().__init__(options, schema)
        if options.stream is None:
            raise ConfigurationError("framepool needs the id of a stream, or a recording: option('stream', 20000)")
        staging.mkdir(parents=True, exist_ok=True)
        self.staging = staging

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        query, batch = _property(QUERY_ID), _property(BATCH_ID)
        path = self.staging / f"part-{query}-{int(batch or 0):012}-{uuid.uuid4().hex}{SEGMENT_SUFFIX}"
        with SegmentFile(path, "") as file:
            self._write(iterator, file)
        return Part(_partition(), query, file=str(path))

    def discard(self, messages: list[WriterCommitMessage | None]) -> None:
        for part in parts_of(messages):
            Path(part.file).unlink(missing_ok=True)

    def publish(self, parts: list[Part], query: str, batch: int, *, keep: float) -> None:
        """All frames of a batch under one lease."""
        options = self.options
        assert options.stream is not None
        files = [Path(part.file) for part in parts]
        rate, patience = options.frames_per_second, options.timeout_seconds
        with SEATS.using(
            *(options.stream, options.config, self.staging),
            name=options.name,
            timeout=patience,
            settle=options.settle_seconds,
            keep=keep,
        ) as producer:
            publish(producer, files, query, batch, rate=rate, patience=patience)
            if not keep:
                time.sleep(options.linger_seconds)


class LiveWriter(_LiveWriter, DataSourceArrowWriter):
    """`df.write`: one batch, and the stream ends with it."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        base = Path(options.staging or tempfile.gettempdir())
        super().__init__(options, schema, base / f"framepool-write-{uuid.uuid4().hex}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self.publish(parts_of(messages), self.staging.name.removeprefix("framepool-write-"), 0, keep=0)
        finally:
            self.abort(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        remove_staging(self.staging)


class LiveStreamWriter(_LiveWriter, DataSourceStreamArrowWriter):
    """`writeStream`: batch after batch, each published once unless a crash comes between publishing and noting it."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.recording:
            raise ConfigurationError("a recording is written by df.write: in a stream, use foreachBatch")
        if not options.staging:
            raise ConfigurationError("framepool needs a checkpointLocation on local storage, or the option staging")
        super().__init__(options, schema, Path(options.staging))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        parts = parts_of(messages)
        query = next((part.query for part in parts), "")
        ledger = Ledger(self.staging, query or "query")
        if parts and not ledger.has(batchId):
            self.publish(parts, query, batchId, keep=self.options.keep_seconds)
            ledger.note(batchId)
        self.discard(messages)
        first = f"part-{query}-{batchId:012}-"
        for left in self.staging.glob(f"part-{query}-*{SEGMENT_SUFFIX}"):
            if left.name < first:  # of a task that failed, or of a query that was killed
                left.unlink(missing_ok=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        self.discard(messages)


def parts_of(messages: list[WriterCommitMessage | None]) -> list[Part]:
    """What tasks wrote, in the order of their partitions."""
    return sorted((each for each in messages if isinstance(each, Part)), key=lambda part: part.partition)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _property(name: str) -> str:
    """What Spark says about the task, if it does."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else None) or ""
