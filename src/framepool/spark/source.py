"""`spark.read.format("framepool")` and `spark.readStream.format("framepool")`: recordings as tables.

Everything here runs in processes that Spark starts; a reader is made in one, pickled, and reads in others. What is
read is decided by `options`, `plan` and `rows`, which know nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from framepool.errors import ConfigurationError
from framepool.recorder.recording import Recording
from framepool.spark import selection as selecting
from framepool.spark.options import Options
from framepool.spark.plan import Piece, plan, plan_segments
from framepool.spark.rows import batches, columns_of, names_in
from framepool.spark.selection import Selection

if TYPE_CHECKING:
    from framepool.spark.sink import LiveStreamWriter, LiveWriter, RecordingWriter
    from framepool.spark.stream import FramepoolStreamReader


class FramepoolSource(DataSource):
    """A recording as a table, as Spark's registry knows it."""

    @classmethod
    def name(cls) -> str:
        return "framepool"

    def schema(self) -> str:
        return columns_of(Options.of(self.options))

    def reader(self, schema: StructType) -> FramepoolReader:
        options = Options.of(self.options)
        if options.live:
            raise ConfigurationError("live streams are for readStream; what was recorded of them is read by load(path)")
        return FramepoolFilteredReader(options, schema) if options.pushdown else FramepoolReader(options, schema)

    def streamReader(self, schema: StructType) -> FramepoolStreamReader:  # noqa: N802 Spark's name
        from framepool.spark.stream import FramepoolStreamReader

        return FramepoolStreamReader(Options.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LiveWriter | RecordingWriter:
        from framepool.spark.sink import LiveWriter, RecordingWriter, WriteOptions

        options = WriteOptions.of(self.options)
        return RecordingWriter(options, schema) if options.recording else LiveWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LiveStreamWriter:  # noqa: N802 Spark's name
        from framepool.spark.sink import LiveStreamWriter, WriteOptions

        return LiveStreamWriter(WriteOptions.of(self.options), schema)


class PieceReader:
    """Reads pieces in executors: what batch and streaming readers share."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if schema.names != (names := names_in(columns_of(options))):
            raise ConfigurationError(
                f"framepool gives the columns {', '.join(names)}: select from them, name no others"
            )
        self.options = options
        self.selection: Selection = options.selection()
        self.schema = schema
        self.strict = options.is_strict
        self.without_removed = False
        """Whether frames that retention removed after the plan are passed over."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece: Piece | None = partition.value
        if piece is None:  # an empty recording: Spark makes one task of nothing
            return iter(())
        schema = to_arrow_schema(self.schema, timezone="UTC")
        return batches(
            piece, self.options, self.selection, schema, strict=self.strict, without_removed=self.without_removed
        )


class FramepoolReader(PieceReader, DataSourceReader):
    """A recording as far as it is durable now."""

    def partitions(self) -> list[InputPartition]:
        recording, options = Recording(self.options.path), self.options
        if options.table == "losses":  # they belong to segments, those without frames too
            pieces = plan_segments(recording)
        else:
            pieces = plan(recording, self.selection, options.partition_bytes)
        return [InputPartition(piece) for piece in pieces]


class FramepoolFilteredReader(FramepoolReader):
    """The same with Spark's filters, which a session must allow."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Takes what bounds a column, and leaves all of it for Spark to look at again: bounds are never wrong."""
        for each in filters:
            self.selection = narrowed(self.selection, each)
        return filters


def narrowed(selection: Selection, wanted: Filter) -> Selection:
    """A selection that a filter makes smaller, if it is one that bounds a column."""
    column: Any = getattr(wanted, "attribute", ())
    if len(column) != 1 or column[0] not in selecting.COLUMNS:
        return selection
    match wanted:
        case EqualTo(_, int(value)):
            return selection.within(column[0], value, value + 1)
        case GreaterThan(_, int(value)):
            return selection.within(column[0], low=value + 1)
        case GreaterThanOrEqual(_, int(value)):
            return selection.within(column[0], low=value)
        case LessThan(_, int(value)):
            return selection.within(column[0], high=value)
        case LessThanOrEqual(_, int(value)):
            return selection.within(column[0], high=value + 1)
        case In(("stream_id",), values):
            return selection.among(frozenset(values))
    return selection
