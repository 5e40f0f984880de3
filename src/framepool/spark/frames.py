"""Functions on frames in executors: arrays on mapped segments, so that no pixel crosses the JVM.

A row in reference mode says where its payload is. The task maps that file and hands out a view; on another host the
same path must lead to the same file, on shared storage, or the job fails and says so. A row with a
`payload` column brings its bytes along, and nothing is mapped.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from framepool._native.crc32c import crc32c
from framepool.discovery.host import this_host
from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder.codecs import decompress
from framepool.recorder.contents import head_of
from framepool.recorder.format import Codec
from framepool.recorder.manifest import Manifest
from framepool.shm.tensor import TensorLayout, unpack_bits, view
from framepool.wire._generated.control_900 import Dtype, MajorOrder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

KEPT_MAPPINGS: Final = 16
KEYS: Final = ("ordinal", "stream_id", "epoch", "seq")
NEEDED: Final = ("ordinal", "stream_id", "epoch", "seq", "dtype", "shape", "strides", "order", "raw_length", "crc")
REFERENCE: Final = ("path", "offset", "length", "codec", "host", "boot_id")
ROWS_A_BATCH: Final = 1_024
DTYPES: Final = {each.name.lower().replace("boolean", "bool"): each for each in Dtype}


class SparkFrame:
    """A frame in a task: its row, and its array."""

    __slots__ = ("_raw", "layout", "row")

    def __init__(self, row: dict[str, Any], layout: TensorLayout, raw: memoryview) -> None:
        self.row = row
        """The columns, by name."""
        self.layout = layout
        self._raw = raw

    @property
    def array(self) -> npt.NDArray[Any]:
        """The frame, read-only; BIT as booleans of its shape."""
        found = view(self._raw, 0, self.layout)
        return unpack_bits(found, self.layout) if self.layout.dtype is Dtype.BIT else found

    @property
    def payload(self) -> memoryview:
        """The bytes as they were in shared memory."""
        return self._raw


def map_frames(
    frames: DataFrame,
    fn: Callable[..., Any],
    schema: str | StructType,
    *,
    keys: Sequence[str] = KEYS,
    batch: int | None = None,
    verify: bool = True,
    strict: bool = False,
) -> DataFrame:
    """Runs `fn` on the array of each frame, in executors; the result has the columns `keys` and those of `schema`.

    `fn` returns a value, if `schema` has one column, or a tuple or dictionary of them, or None to leave the frame out.
    With `batch`, it is given a list of up to so many arrays and returns a list with as many results. Arrays are
    read-only and lie in the files themselves: whoever keeps one copies it. Frames whose bytes are not what was
    recorded are logged and left out, or with `strict` fail the job; without `verify` nobody looks.

    >>> frames = spark.read.format("framepool").load("flight-7")                        # doctest: +SKIP
    >>> map_frames(frames, lambda image: image.mean(), "mean double").show()            # doctest: +SKIP
    """
    from pyspark.sql.types import StructType

    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(wanted, StructType), "columns, not a single type"
    taken = needed_columns(frames.columns)
    out = StructType([*(frames.schema[name] for name in keys), *wanted.fields])
    columns = [*dict.fromkeys([*keys, *taken])]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(out, timezone="UTC")
        rows: list[dict[str, Any]] = []
        for group in _groups(frames_in(batches, verify=verify, strict=strict), batch or 1):
            arrays = [frame.array for frame in group]
            results = fn(arrays) if batch else [fn(arrays[0])]
            if len(results) != len(group):
                raise ValueError(f"{fn} was given {len(group)} frames and returned {len(results)} results")
            for frame, result in zip(group, results, strict=True):
                if result is not None:
                    row = {name: frame.row[name] for name in keys}
                    rows.append(row | _named(result, wanted.names))
            if len(rows) >= ROWS_A_BATCH:
                yield pa.RecordBatch.from_pylist(rows, arrow)
                rows = []
        yield pa.RecordBatch.from_pylist(rows, arrow)

    return frames.select(*columns).mapInArrow(run, out)


def needed_columns(names: Sequence[str]) -> tuple[str, ...]:
    """What a table must have for its frames to be read; `RecordingError` if it has not."""
    taken = (*NEEDED, "payload") if "payload" in names else (*NEEDED, *REFERENCE)
    missing = [name for name in taken if name not in names]
    if missing:
        raise RecordingError(
            f"the table has no column {missing[0]}: read the recording with payload=reference or payload=inline"
        )
    return taken


def frames_in(batches: Iterable[pa.RecordBatch], *, verify: bool = True, strict: bool = False) -> Iterator[SparkFrame]:
    """The frames of Arrow batches of the source: for a `mapInArrow` of your own."""
    files = Files()
    for batch in batches:
        payloads = batch.column("payload") if "payload" in batch.schema.names else None
        rows = batch.drop_columns(["payload"]) if payloads is not None else batch
        for number, row in enumerate(rows.to_pylist()):
            layout = layout_of(row)
            try:
                raw = files.payload(row) if payloads is None else memoryview(payloads[number].as_buffer())
                if len(raw) != row["raw_length"] or (verify and crc32c(raw) != row["crc"]):
                    where = row.get("path") or "a table"
                    raise RecordingDamaged(f"{where}: frame {row['ordinal']} is not what was recorded")
            except RecordingDamaged as error:
                if strict:
                    raise
                log.error("passed over: %s", error)
                continue
            yield SparkFrame(row, layout, raw)


class Files:
    """The segments that a task has mapped, the last ones used."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[str, memoryview] = OrderedDict()

    def payload(self, row: dict[str, Any]) -> memoryview:
        """The payload of a reference."""
        segment = self._map(row)
        stored = segment[row["offset"] : row["offset"] + row["length"]]
        if len(stored) != row["length"]:
            raise RecordingDamaged(f"{row['path']} has {len(segment)} bytes, and frame {row['ordinal']} ends beyond")
        return memoryview(decompress(Codec[row["codec"].upper()], stored, row["raw_length"]))

    def _map(self, row: dict[str, Any]) -> memoryview:
        path = row["path"]
        found = self._mapped.get(path)
        if found is None:
            try:
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    found = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")
            except FileNotFoundError:
                raise missing(row) from None
            if row["boot_id"] != this_host():
                check_same(row, found)
            self._mapped[path] = found
            if len(self._mapped) > KEPT_MAPPINGS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(path)
        return found


def missing(row: dict[str, Any]) -> RecordingError:
    """What is wrong where a reference leads to no file: damage if its recording is here, else the wrong host."""
    path = row["path"]
    if row["boot_id"] == this_host() or Manifest(os.path.dirname(os.path.dirname(path))).exists():
        return RecordingDamaged(f"{path} is missing")
    return _elsewhere(row, "is not here")


def check_same(row: dict[str, Any], segment: memoryview) -> None:
    """Raises `RecordingError` if the file at the path of a reference is not the one that another host wrote there."""
    head = head_of(segment)
    if head is not None and head[1].boot_id not in ("", row["boot_id"]):
        raise _elsewhere(row, f"another file is here, of host {head[1].host}")


def _elsewhere(row: dict[str, Any], found: str) -> RecordingError:
    return RecordingError(
        f"{row['path']} was recorded on host {row['host']} (boot id {row['boot_id']}), and on {socket.gethostname()} "
        f"{found}: put the recording on storage that every executor mounts at this path, or read it where it is with "
        "payload=inline"
    )


_layouts: dict[tuple[Any, ...], TensorLayout] = {}


def layout_of(row: dict[str, Any]) -> TensorLayout:
    """The layout that the columns of a row describe; made once for a steady camera."""
    key = (row["dtype"], tuple(row["shape"]), tuple(row["strides"]), row["order"])
    layout = _layouts.get(key)
    if layout is None:
        if len(_layouts) > 256:
            _layouts.clear()
        order = MajorOrder.COLUMN if row["order"] == "F" else MajorOrder.ROW
        strides = key[2] if key[2] and all(key[1]) else None
        layout = _layouts[key] = TensorLayout.build(DTYPES[row["dtype"]], key[1], strides=strides, order=order)
    return layout


def _groups(frames: Iterator[SparkFrame], size: int) -> Iterator[list[SparkFrame]]:
    group: list[SparkFrame] = []
    for frame in frames:
        group.append(frame)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _named(result: Any, names: list[str]) -> dict[str, Any]:
    if isinstance(result, dict):
        return {name: _plain(result[name]) for name in names}
    values = result if isinstance(result, tuple) else (result,)
    if len(values) != len(names):
        raise ValueError(f"a result has {len(values)} values, the schema {len(names)}: {', '.join(names)}")
    return {name: _plain(value) for name, value in zip(names, values, strict=True)}


def _plain(value: Any) -> Any:
    """What Arrow takes for any column."""
    return value.item() if isinstance(value, np.generic) else value.tolist() if isinstance(value, np.ndarray) else value
