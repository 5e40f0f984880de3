"""One figure of a benchmark: always a ratio against something measured in the same run."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """`value_ns` against `baseline_ns`; `limit` is the ratio that the project promises, if it promises one."""

    name: str
    value_ns: float
    baseline: str
    baseline_ns: float
    limit: float | None = None

    @property
    def ratio(self) -> float:
        return self.value_ns / self.baseline_ns

    @property
    def ok(self) -> bool:
        return self.limit is None or self.ratio <= self.limit

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}
