"""`framepool spark`: jobs on recordings, on this machine or on a cluster."""

from __future__ import annotations

import json as jsonlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
import msgspec
from cyclopts import Parameter

from framepool.cli.recordings import progressing as bar
from framepool.cli.stopping import stop_asked
from framepool.cli.stream import ConfigFile, refuse
from framepool.errors import RecordingError
from framepool.recorder.manifest import Manifest
from framepool.recorder.shelf import tables_of
from framepool.spark.session import check, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from framepool.spark.jobs.job import JobConfig

    Show = Callable[[int, int], object]

spark = cyclopts.App(name="spark")

Source = Annotated[Path, Parameter(help="The recording.")]
Out = Annotated[Path, Parameter(help="A directory for the tables.")]
Master = Annotated[str, Parameter(help="Where it runs: local[N], local[*], spark://HOST:PORT.")]
Json = Annotated[bool, Parameter(negative="", help="One JSON document.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choice:
    """What all jobs on frames are told."""

    stream: Annotated[str, Parameter(help="Ids of streams, with commas between; all unless given.")] = ""
    start_time: Annotated[str, Parameter(help="Frames recorded from then on: ISO 8601 (UTC) or nanoseconds.")] = ""
    end_time: Annotated[str, Parameter(help="Frames recorded before then.")] = ""
    strict: Annotated[bool, Parameter(negative="", help="Fail on damage instead of passing over it.")] = False
    master: Master = "local[*]"
    json: Json = False


EVERYTHING = Choice()


@spark.command
def stats(
    recording: Source,
    out: Out,
    /,
    *,
    bins: Annotated[int, Parameter(help="Of each histogram.")] = 32,
    saturation: Annotated[float | None, Parameter(help="Saturated from this value on.")] = None,
    choice: Choice = EVERYTHING,
) -> None:
    """Statistics of each frame: OUT/stats."""
    from framepool.spark.jobs import stats as job

    config = _config(job.StatsConfig, recording, out, choice, bins=bins, saturation=saturation)
    _run("stats", choice, lambda session, _: job.run(session, config), recording)


@spark.command
def qos(
    recording: Source,
    out: Out,
    /,
    *,
    window_seconds: Annotated[float, Parameter(help="The length of a window.")] = 10.0,
    clock: Annotated[Literal["monotonic", "realtime"], Parameter(help="With which producers stamp.")] = "monotonic",
    choice: Choice = EVERYTHING,
) -> None:
    """Drops, gaps, latency and jitter per stream, epoch and window: OUT/qos."""
    from framepool.spark.jobs import qos as job

    config = _config(job.QosConfig, recording, out, choice, window_seconds=window_seconds, clock=clock)
    _run("qos", choice, lambda session, _: job.run(session, config), recording)


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
    choice: Choice = EVERYTHING,
) -> None:
    """Master dark and flat, bad pixels, and the recording corrected by them: OUT/calibrated."""
    from framepool.spark.jobs import calibrate as job

    others = [dark, *([flat] if flat else [])]
    for other in others:
        Manifest(other).info()
    masters = {"dark": str(dark.absolute()), "flat": str(flat.absolute()) if flat else ""}
    limits = {"sigma": sigma, "rounds": rounds, "bad_sigma": bad_sigma}
    config = _config(job.CalibrateConfig, recording, out, choice, **masters, **limits)
    _run("calibrate", choice, lambda session, _: job.run(session, config), recording, *others)


@spark.command
def join(
    recording: Source,
    out: Out,
    /,
    *,
    by: Annotated[
        Literal["seq", "time", "trace"], Parameter(help="Equal sequence, nearest timestamp, or the same trace.")
    ] = "seq",
    tolerance_ms: Annotated[float, Parameter(help="Timestamps further apart do not belong together.")] = 5.0,
    choice: Choice = EVERYTHING,
) -> None:
    """Which frames of several streams belong together, the first of --stream leading: OUT/join."""
    from framepool.spark.jobs import join as job

    config = _config(job.JoinConfig, recording, out, choice, by=by, tolerance_ms=tolerance_ms)
    _run("join", choice, lambda session, _: job.run(session, config), recording)


@spark.command
def events(
    recording: Source,
    out: Out,
    /,
    *,
    measures: Annotated[str, Parameter(help="Columns of stats to watch.")] = "mean,std,maximum,sharpness",
    window: Annotated[int, Parameter(help="Frames of a stream that each is compared with.")] = 200,
    least: Annotated[int, Parameter(help="Nothing is unusual before there are so many.")] = 20,
    threshold: Annotated[float, Parameter(help="In robust standard deviations from the median.")] = 6.0,
    follow: Annotated[bool, Parameter(negative="", help="Wait for frames still to be recorded, until Ctrl-C.")] = False,
    publish: Annotated[bool, Parameter(negative="", help="Say it as events of service:spark-events.")] = False,
    config: ConfigFile = None,
    choice: Choice = EVERYTHING,
) -> None:
    """Frames with unusual statistics, as they are recorded: OUT/events. Goes on where it ended before."""
    from framepool.spark.jobs import events as job

    limits = {"measures": measures, "window": window, "least": least, "threshold": threshold}
    ways = {"follow": follow, "publish": publish, "config": str(config.absolute()) if config else ""}
    settings = _config(job.EventsConfig, recording, out, choice, **limits, **ways)
    settings.watched  # noqa: B018 says what is wrong before Spark starts
    with stop_asked() as asked:
        _run("events", choice, lambda session, show: job.run(session, settings, stopped=asked.is_set, tell=show))


@spark.command
def dataset(
    recording: Source,
    out: Out,
    /,
    *,
    splits: Annotated[str, Parameter(help="Names and shares.")] = "train=0.8,val=0.1,test=0.1",
    seed: Annotated[int, Parameter(help="Another seed, other splits.")] = 0,
    block: Annotated[int, Parameter(help="So many frames that follow each other stay together.")] = 1,
    shard_bytes: Annotated[int, Parameter(help="About so much payload in a shard.")] = 256 * 2**20,
    compression: Annotated[Literal["none", "zstd", "snappy"], Parameter(help="Of the shards.")] = "none",
    choice: Choice = EVERYTHING,
) -> None:
    """Shards for training in Parquet, with splits and a manifest: OUT/dataset."""
    from framepool.spark.jobs import dataset as job

    sizes = {"block": block, "shard_bytes": shard_bytes, "compression": compression}
    config = _config(job.DatasetConfig, recording, out, choice, splits=splits, seed=seed, **sizes)
    config.shares()
    _run("dataset", choice, lambda session, _: job.run(session, config), recording)


@spark.command
def report(
    source: Annotated[
        Path, Parameter(help="The directory with tables, the OUT of other jobs; or a recording, to make them first.")
    ],
    /,
    *,
    page: Annotated[
        Path | None, Parameter(help="The file to write; report.html beside the tables unless given.")
    ] = None,
    title: Annotated[str, Parameter(help="Of the page.")] = "framepool report",
    points: Annotated[int, Parameter(help="Steps of a plot, at the most.")] = 400,
    choice: Choice = EVERYTHING,
) -> None:
    """One HTML page with plots from tables. Of a recording, `stats` and `qos` go into RECORDING.tables first."""
    from framepool.spark.jobs import qos as qos_job
    from framepool.spark.jobs import report as job
    from framepool.spark.jobs import stats as stats_job

    recorded = Manifest(source).exists()
    tables = tables_of(source.absolute()) if recorded else source
    config = _converted(
        job.ReportConfig, {"tables": str(tables), "page": str(page or ""), "title": title, "points": points}
    )

    def make(session: SparkSession, _: Show) -> dict[str, Any]:
        if recorded:
            stats_job.run(session, _config(stats_job.StatsConfig, source, tables, choice))
            qos_job.run(session, _config(qos_job.QosConfig, source, tables, choice, window_seconds=1.0))
        return job.run(session, config)

    _run("report", choice, make, *([source] if recorded else []))


def _config[C: JobConfig](kind: type[C], recording: Path, out: Path, choice: Choice, **more: Any) -> C:
    Manifest(recording).info()  # before Spark takes its seconds to start
    chosen = {name: getattr(choice, name) for name in ("stream", "start_time", "end_time", "strict")}
    return _converted(kind, {"recording": str(recording.absolute()), "out": str(out), **chosen, **more})


def _converted[C: msgspec.Struct](kind: type[C], values: dict[str, Any]) -> C:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        refuse(f"spark {kind.__name__.removesuffix('Config').lower()}", str(error))


def _run(name: str, choice: Choice, job: Callable[[SparkSession, Show], dict[str, Any]], *recordings: Path) -> None:
    """Runs a job, while retention keeps what these recordings have."""
    check()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from framepool.spark.jobs.job import held, progressing

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with bar(name, choice.json, counted=True) as show:
        started = session(choice.master, name=f"framepool {name}")
        try:
            with progressing(started, show), held(*recordings):
                made = job(started, show)
        except (PySparkException, Py4JError) as error:
            raise RecordingError(f"spark {name}: {reason(str(error))}") from None
        except FileNotFoundError as error:
            raise RecordingError(f"spark {name}: {error}") from None
        finally:
            started.stop()
    print(jsonlib.dumps(made) if choice.json else ", ".join(f"{key} {value}" for key, value in made.items()))


def reason(text: str) -> str:
    """The line of a traceback that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if "framepool.errors." in line]
    return lines[0].partition("framepool.errors.")[2] if lines else text.splitlines()[0]
