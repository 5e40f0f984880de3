"""Recordings in Spark: `format("framepool")` for tables, batch and streaming, and functions on frames where they lie.

>>> spark.read.format("framepool").load("flight-7")                                    # doctest: +SKIP
>>> map_frames(frames, lambda image: image.mean(), "mean double")                       # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framepool.spark.frames import SparkFrame, frames_in, map_frames
    from framepool.spark.publishing import Origin, origin_of
    from framepool.spark.session import session
    from framepool.spark.source import FramepoolSource
    from framepool.spark.tensors import TENSOR, tensor

__all__ = [
    "TENSOR",
    "FramepoolSource",
    "Origin",
    "SparkFrame",
    "frames_in",
    "map_frames",
    "origin_of",
    "session",
    "tensor",
]

HOMES = {
    "TENSOR": "framepool.spark.tensors",
    "FramepoolSource": "framepool.spark.source",
    "Origin": "framepool.spark.publishing",
    "SparkFrame": "framepool.spark.frames",
    "frames_in": "framepool.spark.frames",
    "map_frames": "framepool.spark.frames",
    "origin_of": "framepool.spark.publishing",
    "session": "framepool.spark.session",
    "tensor": "framepool.spark.tensors",
}


def __getattr__(name: str) -> Any:
    """Loads PySpark when it is first needed."""
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module 'framepool.spark' has no attribute {name!r}")
