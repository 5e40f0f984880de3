"""The last minutes of some numbers, a row each second, for pages that are opened later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Row = Mapping[str, float | None]


class History:
    """A ring of rows of the same columns; what is not known in a row is None again when it is asked for."""

    def __init__(self, columns: Sequence[str], rows: int) -> None:
        self.columns = ("time", *columns)
        self._values: npt.NDArray[np.float64] = np.full((rows, len(self.columns)), np.nan)
        self._count = 0

    def add(self, time_s: float, row: Row) -> None:
        """One row more; the oldest goes."""
        values = [time_s, *(row.get(name) for name in self.columns[1:])]
        self._values[self._count % len(self._values)] = [np.nan if value is None else value for value in values]
        self._count += 1

    def read(self, columns: Sequence[str] | None = None, last: int | None = None) -> dict[str, list[float | None]]:
        """Columns by name, oldest row first."""
        kept = min(self._count, len(self._values))
        first = self._count - kept if last is None else max(self._count - kept, self._count - last)
        rows = self._values[np.arange(first, self._count) % len(self._values)]
        wanted = self.columns if columns is None else columns
        return {name: _plain(rows[:, self.columns.index(name)]) for name in wanted}

    def __len__(self) -> int:
        return min(self._count, len(self._values))


def _plain(column: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]
