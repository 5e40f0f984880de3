"""What Spark costs beside numpy: functions on frames where they lie, on one core and two, and how cost grows.

Frames of 512 x 512 uint16 in segments of 128 MiB below `build/`, in the page cache: every byte was read just before.
Bare numpy runs the same function on the same mapped files in as many processes as Spark has cores, in turn with it; the
best round of each counts, because whatever else the machine does makes one of the two slower. What is measured of
Spark is a whole job without a result, on a session that is warm. The memory bus is shared, so that twice the cores
are not twice as fast for numpy either: both are shown. Needs Java and about 5 GB of disk.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.row import Row
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = 10_000
SHAPE = (512, 512)
FRAME = SHAPE[0] * SHAPE[1] * 2
GIB = 2**30
SEGMENT = GIB // 8
GIBS = 4
ROUNDS = 4
CORES = 2
REQUIRED = 0.70
SPEEDUP = 1.7
LINEAR = 1.2
BUILD = Path(__file__).parents[1] / "build"


def four(image: npt.NDArray[Any]) -> tuple[float, float, float, float]:
    """What is computed of a frame."""
    return float(image.min()), float(image.max()), float(image.mean()), float(image.std())


FOUR = "low double, high double, mean double, std double"


def write(path: Path, gibs: int) -> None:
    """A recording of so many GiB, of noise as a camera has it."""
    random = np.random.default_rng(1)
    images = [random.poisson(900, SHAPE).astype(np.uint16) for _ in range(16)]
    manifest = Manifest(path)
    info = manifest.create(time.time_ns())
    seq = 0
    for number in range(gibs * GIB // SEGMENT):
        file = manifest.segments / f"{number:08}.seg"
        with SegmentFile(file, info.recording_id, number=number, first_ordinal=seq) as segment:
            for _ in range(SEGMENT // FRAME):
                segment.add(images[seq % len(images)], stream_id=STREAM, epoch=1, seq=seq, timestamp_ns=seq)
                seq += 1
        seal(manifest, segment.contents)


def some_frames(path: str, part: int, parts: int, count: int) -> float:
    """One process of bare numpy: its share of the frames."""
    frames = Recording(path)[:count]
    share = frames[part * count // parts : (part + 1) * count // parts]
    return sum(four(frame.array)[2] for frame in share)


class Numpy:
    """The same function in processes that are there already."""

    def __init__(self, path: str, cores: int) -> None:
        self._path = path
        self._cores = cores
        self._pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))

    def run(self, count: int) -> float:
        """Seconds for so many frames."""
        begun = time.perf_counter()
        tasks = [self._pool.submit(some_frames, self._path, part, self._cores, count) for part in range(self._cores)]
        for task in tasks:
            task.result()
        return time.perf_counter() - begun

    def close(self) -> None:
        self._pool.shutdown()


class Spark:
    """A session with as many cores as there are, and jobs on the frames."""

    def __init__(self, path: str, cores: int = CORES) -> None:
        from framepool.spark.session import session

        logging.getLogger("py4j").setLevel(logging.ERROR)
        self.path = path
        self.session: SparkSession = session(f"local[{cores}]", settings={"spark.ui.enabled": "false"})

    def frames(self, count: int, **options: Any) -> DataFrame:
        return self.session.read.format("framepool").options(endSeq=count, **options).load(self.path)

    def mapped(self, count: int, cores: int, payload: str = "reference") -> float:
        """Seconds for `map_frames` over so many frames, in as many tasks as cores."""
        from framepool.spark import map_frames

        size = count * FRAME // cores
        frames = self.frames(count, payload=payload, partitionBytes=size).coalesce(cores)
        return timed(lambda: map_frames(frames, four, FOUR).write.format("noop").mode("overwrite").save())

    def stats(self, count: int) -> float:
        """Seconds for the job `stats` over so many frames."""
        from framepool.spark.jobs.stats import StatsConfig, measured

        config = StatsConfig(recording=self.path, out="/nowhere")
        return timed(lambda: measured(self.frames(count), config).write.format("noop").mode("overwrite").save())

    def close(self) -> None:
        self.session.stop()


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextlib.contextmanager
def recording(gibs: int) -> Iterator[str]:
    """A recording in the page cache."""
    BUILD.mkdir(exist_ok=True)
    place = tempfile.mkdtemp(prefix="spark-", dir=BUILD)
    try:
        path = os.path.join(place, "recording")
        write(Path(path), gibs)
        yield path
    finally:
        shutil.rmtree(place)


def per_byte(seconds: float, count: int) -> float:
    return seconds * 1e9 / (count * FRAME)


def linear(spark: Spark, gibs: tuple[int, ...], rounds: int = 2) -> list[Row]:
    """What a byte of `stats` costs in much data, against little."""
    counts = [size * GIB // FRAME for size in gibs]
    for count in counts:
        touched(spark.path, count)
    best = [min(per_byte(spark.stats(count), count) for _ in range(rounds)) for count in counts]
    return [
        Row(f"spark: stats of {size} GiB, a byte", cost, f"of {gibs[0]} GiB", best[0], LINEAR)
        for size, cost in zip(gibs[1:], best[1:], strict=True)
    ]


def touched(path: str, count: int) -> None:
    """Reads these frames, so that they are in the page cache as far as it holds them."""
    for frame in Recording(path)[:count]:
        frame.array.max()


def stats_cost(path: str, cores: int) -> float:
    """What a byte of `stats` over 2 GiB costs in a session with so many cores, at the best."""
    count = 2 * GIB // FRAME
    spark = Spark(path, cores)
    try:
        spark.stats(count // 8)  # warm
        return min(per_byte(spark.stats(count), count) for _ in range(ROUNDS // 2))
    finally:
        spark.close()


def run() -> list[Row]:
    count = GIBS * GIB // FRAME
    with recording(GIBS) as path:
        spark = Spark(path)
        one, two = Numpy(path, 1), Numpy(path, CORES)
        try:
            touched(path, count)
            for warm in (spark.mapped, spark.mapped):
                warm(count // 8, CORES)
            costs: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name, work in (
                    ("numpy 2", lambda: two.run(count)),
                    ("reference 2", lambda: spark.mapped(count, CORES)),
                    ("reference 1", lambda: spark.mapped(count, 1)),
                    ("numpy 1", lambda: one.run(count)),
                    ("inline 2", lambda: spark.mapped(count, CORES, "inline")),
                ):
                    costs.setdefault(name, []).append(per_byte(work(), count))
            best = {name: min(values) for name, values in costs.items()}
            grown = linear(spark, (1, GIBS))
        finally:
            one.close()
            two.close()
            spark.close()
        alone, both = (stats_cost(path, cores) for cores in (1, CORES))
    return [
        Row(
            "spark: map_frames, references, a byte",
            best["reference 2"],
            "numpy, 2 processes",
            best["numpy 2"],
            1 / REQUIRED,
        ),
        Row("spark: map_frames, inline and tuned, a byte", best["inline 2"], "numpy, 2 processes", best["numpy 2"]),
        Row("spark: map_frames on 2 cores, a byte", best["reference 2"], "on 1 core", best["reference 1"]),
        Row("spark: numpy in 2 processes, a byte", best["numpy 2"], "in 1 process", best["numpy 1"]),
        *grown,
        Row("spark: stats on 2 cores, a byte", both, "on 1 core", alone, 1 / SPEEDUP),
    ]
