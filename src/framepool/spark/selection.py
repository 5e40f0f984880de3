"""Which frames of a recording are wanted: bounds on columns, from options or from filters that Spark pushes down."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from framepool.recorder.manifest import OpenEntry, SegmentEntry, StreamSpan

COLUMNS: Final = frozenset({"stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns"})
"""Those that can be bounded."""
LOWEST: Final = -(2**63)
BEYOND: Final = 2**63


@dataclass(frozen=True)
class Selection:
    """Frames of some streams, with columns from a lower bound to before an upper one."""

    streams: frozenset[int] | None = None
    """None is all."""
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def within(self, column: str, low: int = LOWEST, high: int = BEYOND) -> Selection:
        """The same, and `low <= column < high` too."""
        before = self.bounds.get(column, (LOWEST, BEYOND))
        return replace(self, bounds={**self.bounds, column: (max(before[0], low), min(before[1], high))})

    def among(self, streams: frozenset[int]) -> Selection:
        """The same, and of these streams only."""
        return replace(self, streams=streams if self.streams is None else self.streams & streams)

    def rows(self, headers: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
        """Which of these frames are wanted."""
        wanted = np.ones(len(headers), np.bool_)
        if self.streams is not None:
            wanted &= np.isin(headers["stream_id"], sorted(self.streams))
        for column, (low, high) in self.bounds.items():
            values = headers[column].astype(np.uint64).view(np.int64)  # as Spark sees them
            if low > LOWEST:
                wanted &= values >= low
            if high < BEYOND:
                wanted &= values < high
        return np.flatnonzero(wanted)

    def may_be_in(self, entry: SegmentEntry | OpenEntry) -> bool:
        """Whether a segment can have wanted frames, as far as the manifest tells."""
        if isinstance(entry, OpenEntry):
            return True
        low, high = self.bounds.get("recorded_ns", (LOWEST, BEYOND))
        first, last = entry.first_recorded_ns, entry.last_recorded_ns
        if first is not None and last is not None and (last < low or first >= high):
            return False
        return any(
            (self.streams is None or stream_id in self.streams) and self._may_be_among(stream_id, span)
            for stream_id, span in entry.streams.items()
        )

    def _may_be_among(self, stream_id: int, span: StreamSpan) -> bool:
        known = {"stream_id": (stream_id, stream_id), "epoch": (span.first_epoch, span.last_epoch)}
        if span.first_epoch == span.last_epoch:
            known["seq"] = (span.first_seq, span.last_seq)
        for column, (first, last) in known.items():
            low, high = self.bounds.get(column, (LOWEST, BEYOND))
            if last < BEYOND and (last < low or first >= high):  # beyond it, Spark sees another sign
                return False
        return True
