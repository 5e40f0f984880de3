"""`framepool spark`: jobs on recordings, on this machine or on a cluster."""

from __future__ import annotations

import json as jsonlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
import msgspec
from cyclopts import Parameter

from framepool.cli.recordings import progressing as bar
from framepool.cli.stream import refuse
from framepool.errors import RecordingError
from framepool.recorder.manifest import Manifest
from framepool.spark.session import check, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

spark = cyclopts.App(name="spark")

Source = Annotated[Path, Parameter(help="The recording.")]
Out = Annotated[Path, Parameter(help="A directory for the tables.")]
Master = Annotated[str, Parameter(help="Where it runs: local[N], local[*], spark://HOST:PORT.")]
Stream = Annotated[str, Parameter(help="Ids of streams, with commas between; all unless given.")]
Start = Annotated[str, Parameter(help="Frames recorded from then on: ISO 8601 (UTC) or nanoseconds.")]
End = Annotated[str, Parameter(help="Frames recorded before then.")]
Strict = Annotated[bool, Parameter(negative="", help="Fail on damage instead of passing over it.")]
Json = Annotated[bool, Parameter(negative="", help="One JSON document.")]


@spark.command
def stats(
    recording: Source,
    out: Out,
    /,
    *,
    bins: Annotated[int, Parameter(help="Of each histogram.")] = 32,
    saturation: Annotated[float | None, Parameter(help="Saturated from this value on.")] = None,
    stream: Stream = "",
    start_time: Start = "",
    end_time: End = "",
    strict: Strict = False,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Statistics of each frame: OUT/stats."""
    from framepool.spark.jobs import stats as job

    config = _config(
        "stats",
        job.StatsConfig,
        bins=bins,
        saturation=saturation,
        **_chosen(recording, out, stream, start_time, end_time, strict),
    )
    _run("stats", master, json, lambda session: job.run(session, config))


@spark.command
def qos(
    recording: Source,
    out: Out,
    /,
    *,
    window_seconds: Annotated[float, Parameter(help="The length of a window.")] = 10.0,
    clock: Annotated[Literal["monotonic", "realtime"], Parameter(help="With which producers stamp.")] = "monotonic",
    stream: Stream = "",
    start_time: Start = "",
    end_time: End = "",
    strict: Strict = False,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Drops, gaps, latency and jitter per stream, epoch and window: OUT/qos."""
    from framepool.spark.jobs import qos as job

    config = _config(
        "qos",
        job.QosConfig,
        window_seconds=window_seconds,
        clock=clock,
        **_chosen(recording, out, stream, start_time, end_time, strict),
    )
    _run("qos", master, json, lambda session: job.run(session, config))


@spark.command
def calibrate(
    recording: Source,
    out: Out,
    /,
    *,
    dark: Annotated[Path, Parameter(help="A recording of frames without light.")],
    flat: Annotated[Path | None, Parameter(help="A recording of evenly lit frames.")] = None,
    sigma: Annotated[float, Parameter(help="Further from the mean is left out, in standard deviations.")] = 3.0,
    rounds: Annotated[int, Parameter(help="Of leaving out, at the most.")] = 5,
    bad_sigma: Annotated[float, Parameter(help="Pixels further from the median of the dark are bad.")] = 6.0,
    stream: Stream = "",
    start_time: Start = "",
    end_time: End = "",
    strict: Strict = False,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """Master dark and flat, bad pixels, and the recording corrected by them: OUT/calibrated."""
    from framepool.spark.jobs import calibrate as job

    for other in (dark, *([flat] if flat else [])):
        Manifest(other).info()
    config = _config(
        "calibrate",
        job.CalibrateConfig,
        dark=str(dark.absolute()),
        flat=str(flat.absolute()) if flat else "",
        sigma=sigma,
        rounds=rounds,
        bad_sigma=bad_sigma,
        **_chosen(recording, out, stream, start_time, end_time, strict),
    )
    _run("calibrate", master, json, lambda session: job.run(session, config))


@spark.command
def report(
    tables: Annotated[Path, Parameter(help="The directory with tables: the OUT of other jobs.")],
    /,
    *,
    page: Annotated[Path | None, Parameter(help="The file to write; TABLES/report.html unless given.")] = None,
    title: Annotated[str, Parameter(help="Of the page.")] = "framepool report",
    points: Annotated[int, Parameter(help="Steps of a plot, at the most.")] = 400,
    master: Master = "local[*]",
    json: Json = False,
) -> None:
    """One HTML page with plots from the tables."""
    from framepool.spark.jobs import report as job

    config = _config("report", job.ReportConfig, tables=str(tables), page=str(page or ""), title=title, points=points)
    _run("report", master, json, lambda session: job.run(session, config))


def _chosen(recording: Path, out: Path, stream: str, start: str, end: str, strict: bool) -> dict[str, Any]:
    Manifest(recording).info()  # before Spark takes its seconds to start
    path = str(recording.absolute())
    return {
        "recording": path, "out": str(out), "stream": stream, "start_time": start, "end_time": end, "strict": strict
    }  # fmt: skip


def _config[C: msgspec.Struct](command: str, kind: type[C], **values: Any) -> C:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        refuse(f"spark {command}", str(error))


def _run(name: str, master: str, json: bool, job: Callable[[SparkSession], dict[str, Any]]) -> None:
    check()
    from pyspark.errors import PySparkException

    from framepool.spark.jobs.job import progressing

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with bar(name, json) as show:
        started = session(master, name=f"framepool {name}")
        try:
            with progressing(started, show):
                made = job(started)
        except PySparkException as error:
            raise RecordingError(f"spark {name}: {reason(str(error))}") from None
        except FileNotFoundError as error:
            raise RecordingError(f"spark {name}: {error}") from None
        finally:
            started.stop()
    print(jsonlib.dumps(made) if json else ", ".join(f"{key} {value}" for key, value in made.items()))


def reason(text: str) -> str:
    """The line of a traceback that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if "framepool.errors." in line]
    return lines[0].partition("framepool.errors.")[2] if lines else text.splitlines()[0]
