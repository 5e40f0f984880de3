"""`framepool spark events`: frames whose statistics are unusual, found while they are recorded.

A streaming job: each batch of frames is measured in executors as `stats` does it, and judged here, frame after frame,
against those before it (`outliers`). What is unusual becomes a row of the table `events` and, if wanted, an
EventMessage of the service `service:spark-events` that refers to the frame. What the judge knows after each batch is
kept beside the checkpoint: a batch that is repeated after a crash gives the same rows in the same files. Messages may
be said again; their `batch` and `ordinal` tell.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from framepool.agent import Runner, Sleeping
from framepool.config import Config, load
from framepool.errors import ConfigurationError
from framepool.recorder.manifest import write_whole
from framepool.service import Service
from framepool.service.events import Ref
from framepool.spark.jobs.job import account, read
from framepool.spark.jobs.outliers import Detector
from framepool.spark.jobs.stats import StatsConfig, measured
from framepool.transport.aeron import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SERVICE: Final = "spark-events"
OUTLIER: Final = "outlier"
MEASURES: Final = frozenset({"minimum", "maximum", "mean", "std", "saturated", "sharpness", "not_finite"})
SCHEMA: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("ordinal", "epoch", "seq", "timestamp_ns", "recorded_ns")),
        ("measure", pa.string()),
        *((name, pa.float64()) for name in ("value", "median", "sigma", "score")),
        ("batch", pa.int64()),
    ]
)
"""Of a file of `events`; `stream_id` and `date` are in its path."""
AT_ONCE: Final = 64
PATIENCE: Final = 5.0


class EventsConfig(StatsConfig, frozen=True, kw_only=True):
    """What `events` is asked for."""

    measures: str = "mean,std,maximum,sharpness"
    """Which columns of `stats` are watched, with commas between."""
    window: Annotated[int, msgspec.Meta(ge=3, le=100_000)] = 200
    """How many frames of a stream a frame is compared with: those before it."""
    least: Annotated[int, msgspec.Meta(ge=3)] = 20
    """Nothing is unusual before there are so many."""
    threshold: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    """In robust standard deviations from the median."""
    follow: bool = False
    """Whether to wait for frames that are not recorded yet, instead of ending with the last one."""
    interval: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Seconds from one batch to the next, when following."""
    max_frames: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    """Of a batch."""
    publish: bool = False
    """Whether to say on the status stream what is found."""
    config: str = ""
    """The TOML file that the framepool driver runs with."""

    @property
    def watched(self) -> list[str]:
        names = [name.strip() for name in self.measures.split(",")]
        if unknown := sorted(set(names) - MEASURES):
            raise ConfigurationError(f"no measure {unknown[0]!r}: there are {', '.join(sorted(MEASURES))}")
        return names


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is known after a batch."""

    frames: int = 0
    events: int = 0
    history: dict[int, dict[str, list[float]]] = {}


def run(
    spark: SparkSession,
    config: EventsConfig,
    *,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Writes `OUT/events` until the frames end, or until it is stopped; says what it found since it first ran."""
    place = Path(config.table(".events"))
    place.mkdir(parents=True, exist_ok=True)
    with speaking(config) as say:
        judge = Judge(place, config, say, tell)
        limit = str(config.max_frames)
        frames = read(spark, config, streaming=True, maxFramesPerTrigger=limit)
        writer = measured(frames, config).writeStream.foreachBatch(judge.on_batch)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        if config.follow:
            query = writer.trigger(processingTime=f"{config.interval} seconds").start()
        else:
            query = writer.trigger(availableNow=True).start()
        try:
            while not query.awaitTermination(1) and not stopped():
                pass
        finally:
            query.stop()
    known = judge.last()
    problems = 0 if config.follow else account(spark, config, known.frames)
    return {"frames": known.frames, "events": known.events, "problems": problems, "table": config.table("events")}


class Judge:
    """Looks at batches one after the other, in the driver."""

    def __init__(
        self,
        place: Path,
        config: EventsConfig,
        say: Callable[[dict[str, Any]], None],
        tell: Callable[[int, int], object],
    ) -> None:
        self._place = place
        self._config = config
        self._say = say
        self._tell = tell

    def on_batch(self, batch: DataFrame, number: int) -> None:
        """What Spark calls for each batch, again after a crash."""
        config = self._config
        before = self._after(number - 1)
        judges = {
            stream: Detector(config.window, config.least, config.threshold, history)
            for stream, history in before.history.items()
        }
        keys = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns")
        rows = batch.select(*keys, *config.watched).orderBy("ordinal").collect()
        found: list[dict[str, Any]] = []
        for row in rows:
            judge = judges.setdefault(row["stream_id"], Detector(config.window, config.least, config.threshold))
            for outlier in judge.feed({name: row[name] for name in config.watched}):
                found.append({name: row[name] for name in keys} | msgspec.structs.asdict(outlier) | {"batch": number})
        write_events(Path(config.table("events")), found, number)
        for event in found:
            self._say(event)
        self._keep(
            number,
            State(
                frames=before.frames + len(rows),
                events=before.events + len(found),
                history={stream: judge.history for stream, judge in judges.items()},
            ),
        )
        self._tell(before.frames + len(rows), rows[-1]["ordinal"] + 1 if rows else 0)

    def last(self) -> State:
        """What is known after the last batch."""
        return self._after(max(self._kept(), default=-1))

    def _after(self, number: int) -> State:
        file = self._file(number)
        return msgspec.json.decode(file.read_bytes(), type=State) if file.exists() else State()

    def _keep(self, number: int, state: State) -> None:
        write_whole(self._file(number), msgspec.json.encode(state), durable=True)
        for old in self._kept():
            if old < number - 1:  # the one before this is needed if Spark repeats it
                self._file(old).unlink()

    def _kept(self) -> list[int]:
        return [int(each.stem.partition("-")[2]) for each in self._place.glob("state-*.json")]

    def _file(self, number: int) -> Path:
        return self._place / f"state-{number:08}.json"


def write_events(table: Path, rows: list[dict[str, Any]], batch: int) -> None:
    """A file for each stream and day, named for the batch: written again, it takes its own place."""
    parts: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        day = datetime.fromtimestamp(row["recorded_ns"] // 1_000_000_000, UTC).date().isoformat()
        parts.setdefault((row["stream_id"], day), []).append(row)
    for (stream, day), mine in parts.items():
        where = table / f"stream_id={stream}" / f"date={day}"
        where.mkdir(parents=True, exist_ok=True)
        part = where / f".batch-{batch:08}.parquet"
        pq.write_table(pa.Table.from_pylist(mine, SCHEMA), part)
        os.replace(part, where / f"batch-{batch:08}.parquet")


class Alarm(Service):
    """Says what was found."""

    def __init__(self, client: Client, config: Config) -> None:
        super().__init__(client, config, name=SERVICE, reconnect=True)
        self.waiting: deque[dict[str, Any]] = deque()

    def work(self) -> int:
        said = 0
        while self.waiting and said < AT_ONCE:
            event = self.waiting[0]
            self.tell(OUTLIER, event, ref=Ref(event["stream_id"], event["epoch"], event["seq"]))
            self.waiting.popleft()
            said += 1
        return said


@contextlib.contextmanager
def speaking(config: EventsConfig) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Where events go: on the status stream, or nowhere."""
    if not config.publish:
        yield lambda event: None
        return
    settings = load(config.config or None)
    with Client.connect(settings.aeron, name="framepool spark events") as client:
        alarm = Alarm(client, settings)
        with Runner(alarm, idle=Sleeping(0.005)).start():
            yield alarm.waiting.append
            deadline = time.monotonic() + PATIENCE
            while alarm.waiting and time.monotonic() < deadline:
                time.sleep(0.01)
