"""Tensors in the columns of a table: what sinks take and functions on frames give back.

A tensor is `payload`, `dtype` and `shape`, and if need be `strides` and `order`, as the source has them; or it is a
reference to a segment, as the source makes them too, and then its pixels never cross the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from framepool.errors import ConfigurationError, RecordingError, TensorError
from framepool.shm.tensor import TensorLayout
from framepool.spark.frames import DTYPES, frames_in, layout_of, needed_columns
from framepool.wire.dtypes import from_numpy

TENSOR: Final = "payload binary, dtype string, shape array<bigint>"
"""The columns of `tensor`, for `map_frames`."""
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


class Tensor(NamedTuple):
    """A row that is to be published or recorded."""

    row: dict[str, Any]
    layout: TensorLayout
    payload: memoryview


def tensor(array: npt.ArrayLike) -> dict[str, Any]:
    """An array as columns, for `map_frames(…, TENSOR)`.

    >>> tensor(np.array([[1, 2]], np.uint16))
    {'payload': b'\\x01\\x00\\x02\\x00', 'dtype': 'uint16', 'shape': [1, 2]}
    """
    plain = np.ascontiguousarray(array)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return {"payload": plain.tobytes(), "dtype": NAMES[from_numpy(plain.dtype)], "shape": list(plain.shape)}


def check_columns(names: list[str]) -> None:
    """`ConfigurationError` if rows with these columns are no tensors."""
    if "payload" in names:
        missing = [name for name in ("dtype", "shape") if name not in names]
        if missing:
            raise ConfigurationError(f"framepool writes the columns {TENSOR}: {missing[0]} is missing")
        return
    try:
        needed_columns(names)
    except RecordingError:
        raise ConfigurationError(
            f"framepool writes the columns {TENSOR}, or frames that were read with payload=reference"
        ) from None


def tensors_in(batches: Iterable[pa.RecordBatch], *, inline: bool, strict: bool) -> Iterator[Tensor]:
    """The tensors of Arrow batches. References are checked as in `frames_in`; payloads are what they are."""
    if not inline:
        for frame in frames_in(batches, strict=strict):
            yield Tensor(frame.row, frame.layout, frame.payload)
        return
    for batch in batches:
        payloads = batch.column("payload")
        for number, row in enumerate(batch.drop_columns(["payload"]).to_pylist()):
            yield _tensor(row, payloads[number])


def _tensor(row: dict[str, Any], payload: pa.Scalar) -> Tensor:
    if not payload.is_valid or row["dtype"] not in DTYPES or row["shape"] is None:
        raise ConfigurationError(f"no tensor: {row['dtype']} of shape {row['shape']}")
    try:
        layout = layout_of({**row, "strides": row.get("strides") or (), "order": row.get("order") or "C"})
    except TensorError as error:
        raise ConfigurationError(f"no tensor: {error}") from None
    data = memoryview(payload.as_buffer())
    if len(data) != layout.extent:
        raise ConfigurationError(
            f"a tensor {row['dtype']} of shape {row['shape']} has {layout.extent} bytes, its payload {len(data)}"
        )
    return Tensor(row, layout, data)
