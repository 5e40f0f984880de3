"""`framepool spark report`: one HTML page with plots, from the tables that other jobs left in a directory.

The page needs nothing but a browser: plots are SVG within it. Long tables are thinned by Spark to what a plot can
show, as the lowest, mean and highest value of each step, so that no outlier is lost on the way.
"""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 180, 70, 22
STATS_PLOTS: Final = ("mean", "std", "maximum", "saturated", "sharpness")
QOS_PLOTS: Final = ("frames", "gaps", "lost", "latency_p50_ns", "latency_p99_ns", "jitter_p99_ns")
STYLE: Final = (
    "body{font:15px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}"
    "svg{width:100%;height:auto}text{font-size:11px;fill:#555}.band{fill:#9ec5e8}.line{fill:none;stroke:#1f5f99}"
    ".axis{stroke:#bbb}"
)


class ReportConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `report` is asked for."""

    tables: str
    """The directory with the tables: the OUT of other jobs."""
    page: str = ""
    """The file that is written; `TABLES/report.html` unless given."""
    title: str = "framepool report"
    points: Annotated[int, msgspec.Meta(ge=2, le=5_000)] = 400
    """Steps of a plot, at the most."""

    @property
    def file(self) -> str:
        return self.page or os.path.join(self.tables, "report.html")


class Step(msgspec.Struct, frozen=True):
    """What a plot shows at one place."""

    at: float
    low: float
    mean: float
    high: float


def run(spark: SparkSession, config: ReportConfig) -> dict[str, Any]:
    """Writes the page, and says what is on it."""
    parts: list[str] = []
    plots = 0
    for table, time_column, columns in (("stats", "recorded_ns", STATS_PLOTS), ("qos", "window_ns", QOS_PLOTS)):
        path = os.path.join(os.path.abspath(config.tables), table)
        if not os.path.isdir(path):
            continue
        rows = spark.read.parquet(path)
        streams = [row[0] for row in rows.select("stream_id").distinct().orderBy("stream_id").collect()]
        for stream in streams:
            mine = rows.where(rows.stream_id == stream)
            parts.append(f"<h2>{table}: stream {stream}</h2>{summary(mine, columns)}")
            for column, steps in thinned(mine, time_column, columns, config.points).items():
                parts.append(f"<h3>{html.escape(column)}</h3>{plot(steps)}")
                plots += 1
    if not parts:
        raise FileNotFoundError(f"{config.tables} has no table stats or qos: run these jobs first")
    title = html.escape(config.title)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    )
    os.makedirs(os.path.dirname(os.path.abspath(config.file)), exist_ok=True)
    with open(config.file, "w", encoding="utf-8") as file:
        file.write(page + "".join(parts) + "</html>\n")
    return {"page": config.file, "plots": plots}


def thinned(rows: DataFrame, time_column: str, columns: tuple[str, ...], points: int) -> dict[str, list[Step]]:
    """Each column over time, in so many steps at the most; columns without a value are left out."""
    from pyspark.sql import functions as fn

    first, last = rows.agg(fn.min(time_column), fn.max(time_column)).collect()[0]
    width = max(1, (last - first) // points + 1)
    step = fn.expr(f"({time_column} - {first}) div {width}").alias("step")
    figures = [how(column).alias(f"{column}_{how.__name__}") for column in columns for how in (fn.min, fn.avg, fn.max)]
    found: dict[str, list[Step]] = {column: [] for column in columns}
    for row in rows.groupBy(step).agg(*figures).orderBy("step").collect():
        for column in columns:
            if row[f"{column}_avg"] is not None:
                values = (float(row[f"{column}_{how}"]) for how in ("min", "avg", "max"))
                found[column].append(Step(row["step"] * width / 1e9, *values))
    return {column: steps for column, steps in found.items() if steps}


def summary(rows: DataFrame, columns: tuple[str, ...]) -> str:
    """The columns as numbers."""
    from pyspark.sql import functions as fn

    figures = [how(column) for column in columns for how in (fn.min, fn.avg, fn.max)]
    told = rows.agg(fn.count("*"), *figures).collect()[0]
    lines = "".join(
        f"<tr><th>{html.escape(column)}</th>"
        + "".join(f"<td>{number(told[1 + 3 * at + which])}</td>" for which in range(3))
        for at, column in enumerate(columns)
    )
    return f"<table><tr><th>{told[0]} rows</th><th>lowest</th><th>mean</th><th>highest</th></tr>{lines}</table>"


def plot(steps: list[Step]) -> str:
    """A line of means in a band from lowest to highest."""
    first, last = steps[0].at, steps[-1].at
    low, high = min(step.low for step in steps), max(step.high for step in steps)

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT) * ((at - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - ((value - low) / (high - low) if high > low else 0.5)) + 4

    upper = [f"{x(step.at):.1f},{y(step.high):.1f}" for step in steps]
    lower = [f"{x(step.at):.1f},{y(step.low):.1f}" for step in reversed(steps)]
    line = " ".join(f"{x(step.at):.1f},{y(step.mean):.1f}" for step in steps)
    floor = HEIGHT - BOTTOM + 4
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 6}" role="img">'
        f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{WIDTH}" y2="{floor}"/>'
        f'<polygon class="band" points="{" ".join(upper + lower)}"/><polyline class="line" points="{line}"/>'
        f'<text x="0" y="12">{number(high)}</text><text x="0" y="{floor}">{number(low)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT}">0 s</text>'
        f'<text x="{WIDTH}" y="{HEIGHT}" text-anchor="end">{number(last - first)} s</text></svg>'
    )


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
