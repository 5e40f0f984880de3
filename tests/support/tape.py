"""Frames for a recorder without Aeron: a ring in private memory, and what a reader would take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout

STREAM, EPOCH = 10_000, 2**40 + 1


@dataclass
class Framed:
    """A frame as a consumer hands it over."""

    slot: tuple[RingReader, CheckedSlot]
    stream_id: int = STREAM
    epoch: int = EPOCH
    publish_timestamp_ns: int | None = None
    trace_id: int | None = None

    @property
    def seq(self) -> int:
        return self.slot[1].seq


class Ring:
    """A writer and a reader of one ring."""

    def __init__(self, nslots: int = 8, strides: Sequence[int] = (1024, 65_536)) -> None:
        self.header = np.zeros(64 + 256 * nslots, np.uint8)
        self.pools = [
            Pool(number, stride, nslots, np.zeros(64 + stride * nslots, np.uint8))
            for number, stride in enumerate(strides, 1)
        ]
        self.writer = RingWriter(self.header, nslots, self.pools)
        self.reader = RingReader(self.header, nslots, self.pools)

    def publish(
        self, seq: int, array: npt.NDArray[Any], *, timestamp_ns: int = 0, meta_version: int = 0, **told: Any
    ) -> Framed:
        """Commits a frame and takes it, as its descriptor would let a reader do."""
        data = np.ascontiguousarray(array)
        layout = Layout(TensorLayout.of(data).header)
        self.writer.publish(seq, data, layout, timestamp_ns, meta_version)
        return self.take(seq, **told)

    def take(self, seq: int, **told: Any) -> Framed:
        checked = self.reader.check(seq)
        assert not isinstance(checked, DropReason), checked
        return Framed((self.reader, checked), **told)


def picture(seed: int, nbytes: int = 600) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
