"""One figure of a benchmark: always a ratio against something measured in the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """`value` against `baseline_value`; `limit` is the ratio that the project promises, if it promises one."""

    name: str
    value: float
    baseline: str
    baseline_value: float
    limit: float | None = None
    unit: str = "ns"

    @property
    def ratio(self) -> float:
        return self.value / self.baseline_value

    @property
    def ok(self) -> bool:
        return self.limit is None or self.ratio <= self.limit

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}
