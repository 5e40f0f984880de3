"""Jobs against plain computations on the same awkward frames."""

from __future__ import annotations

import shutil
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.recorder.verify import verify
from framepool.spark.jobs import calibrate, dataset, events, join, qos, report, stats
from framepool.spark.rows import PROBLEMS
from tests.support.awkward import DTYPES, OTHER, STREAM, Awkward, Harmed, some_array
from tests.support.plain import plain_measures, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = "stream_id int, date date"
"""Spark reads them from the names of directories."""
pytestmark = [pytest.mark.requires("java"), pytest.mark.timeout(900)]


def test_stats_and_report_equal_plain_arithmetic_and_damage_is_told(
    spark: SparkSession, harmed: Harmed, tmp_path: Path
) -> None:
    left = {each.ordinal: each for each in harmed.left}
    config = stats.StatsConfig(recording=str(harmed.path), out=str(tmp_path / "out"), bins=8)
    made = stats.run(spark, config)
    assert made["frames"] == len(left)
    problems = spark.read.parquet(config.table("problems"))
    assert types(problems) == types_of(f"recording string, {PROBLEMS}, job string")
    assert made["problems"] == problems.count()
    assert {row["segment"] for row in problems.collect()} == {"00000000.seg", "00000002.seg"}
    table = spark.read.parquet(config.table("stats"))
    assert types(table) == types_of(
        "ordinal bigint, epoch bigint, seq bigint, timestamp_ns bigint, recorded_ns bigint, dtype string, "
        "shape array<bigint>, elements bigint, not_finite bigint, minimum double, maximum double, mean double, "
        "std double, saturated bigint, centroid array<double>, sharpness double, histogram array<bigint>, "
        f"histogram_low double, histogram_high double, {PARTITIONS}"
    )
    rows = {row["ordinal"]: row for row in table.collect()}
    assert rows.keys() == left.keys()
    for ordinal, frame in left.items():
        expected = plain_measures(frame.array, 8)
        for name, value in expected.items():
            assert name == "histogram" or same(rows[ordinal][name], value), (ordinal, name)
        assert (rows[ordinal]["epoch"], rows[ordinal]["seq"]) == (frame.epoch, frame.seq)
    quiet = qos.run(spark, qos.QosConfig(recording=str(harmed.path), out=str(tmp_path / "out"), stream=str(STREAM)))
    assert quiet["problems"] == 0
    assert spark.read.parquet(config.table("problems")).count() == made["problems"], "those of another job"
    shutil.rmtree(config.table("qos"))
    told = report.run(spark, report.ReportConfig(tables=str(tmp_path / "out"), title="A & B", points=10))
    assert told["plots"] == 5
    page = Path(told["page"]).read_text()
    assert "A &amp; B" in page
    drawn = [ET.fromstring("<svg" + each.partition("</svg>")[0] + "</svg>") for each in page.split("<svg")[1:]]
    assert len(drawn) == 5
    assert all(len(svg.find("polyline").get("points").split()) <= 10 for svg in drawn)  # type: ignore[union-attr]


def test_strict_jobs_fail_on_damage(spark: SparkSession, harmed: Harmed, tmp_path: Path) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    common: dict[str, Any] = {"recording": str(harmed.path), "out": str(tmp_path), "strict": True}
    for run in (
        lambda: stats.run(spark, stats.StatsConfig(**common)),
        lambda: qos.run(spark, qos.QosConfig(**common)),
        lambda: join.run(spark, join.JoinConfig(**common, stream=f"{STREAM},{OTHER}")),
        lambda: events.run(spark, events.EventsConfig(**common)),
        lambda: dataset.run(spark, dataset.DatasetConfig(**common)),
        lambda: calibrate.run(spark, calibrate.CalibrateConfig(**common, dark=str(harmed.path))),
    ):
        with pytest.raises((PySparkException, Py4JError), match=r"not what was recorded|were written"):
            run()
    assert not (tmp_path / "dataset").exists()


def test_qos_counts_gaps_and_losses_and_its_percentiles_are_numpys(
    spark: SparkSession, awkward: Awkward, tmp_path: Path
) -> None:
    config = qos.QosConfig(recording=str(awkward.path), out=str(tmp_path), window_seconds=1e6)
    told = qos.run(spark, config)
    assert (told["frames"], told["lost"]) == (len(awkward.frames), 3)
    table = spark.read.parquet(config.table("qos"))
    figures = ", ".join(
        f"{what}_p{share}_ns double" for what in ("latency", "interval", "jitter") for share in (50, 95, 99)
    )
    assert types(table) == types_of(
        "epoch bigint, window_ns bigint, frames bigint, bytes bigint, first_seq bigint, last_seq bigint, gaps bigint, "
        f"{figures}, lost bigint, {PARTITIONS}"
    )
    rows = {(row["stream_id"], row["epoch"]): row for row in table.collect()}
    assert rows.keys() == {(STREAM, 1), (STREAM, 2), (OTHER, 1)}
    assert (rows[STREAM, 2]["gaps"], rows[STREAM, 2]["lost"], rows[STREAM, 1]["gaps"]) == (3, 3, 0)
    for (stream, epoch), row in rows.items():
        frames = [each for each in Recording(awkward.path) if (each.stream_id, each.epoch) == (stream, epoch)]
        latency = np.array([each.monotonic_ns - each.timestamp_ns for each in frames], np.float64)
        interval = np.diff([each.timestamp_ns for each in frames]).astype(np.float64)
        jitter = np.abs(interval - np.median(interval))
        assert (row["frames"], row["bytes"]) == (len(frames), sum(each.nbytes for each in frames))
        for name, values in (("latency", latency), ("interval", interval), ("jitter", jitter)):
            for share in (50, 95, 99):
                assert np.isclose(row[f"{name}_p{share}_ns"], np.percentile(values, share), rtol=1e-12), (name, share)


def test_qos_reports_what_not_even_the_index_tells_of(spark: SparkSession, harmed: Harmed, tmp_path: Path) -> None:
    told = qos.run(spark, qos.QosConfig(recording=str(harmed.path), out=str(tmp_path)))
    assert told["frames"] == len(harmed.indexed)
    assert told["problems"] == spark.read.parquet(str(tmp_path / "problems")).count() > 0


def test_calibration_is_the_clipped_mean_of_numpy_and_makes_a_whole_recording(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    darks = random.normal(100, 2, (9, 6, 5))
    darks[4, 2, 2] = 4_000  # a cosmic ray
    darks[:, 5, 4] += 900  # a hot pixel
    flats = 100 + random.normal(1_000, 5, (8, 6, 5)) * np.linspace(0.8, 1.2, 5)
    night = random.integers(200, 900, (7, 6, 5), np.uint16)
    for name, frames in (("dark", darks.astype(np.float32)), ("flat", flats.astype(np.float32)), ("night", night)):
        write_plain(tmp_path / name, frames)
    where = {name: str(tmp_path / name) for name in ("dark", "flat")}
    config = calibrate.CalibrateConfig(recording=str(tmp_path / "night"), out=str(tmp_path / "out"), sigma=2.0, **where)
    told = calibrate.run(spark, config)
    dark = clipped(darks.astype(np.float32))
    flat = clipped(flats.astype(np.float32)) - dark
    flat /= np.median(flat)
    assert 90 < dark[2, 2] < 110, "the ray is left out"
    assert np.allclose(np.load(config.table("master_dark.npy")), dark, rtol=1e-12)
    assert np.allclose(np.load(config.table("master_flat.npy")), flat, rtol=1e-12)
    bad = np.load(config.table("bad_pixels.npy"))
    assert bad[5, 4]
    expected_told = {"frames": 7, "bad_pixels": int(bad.sum()), "problems": 0, "recording": config.table("calibrated")}
    assert told == expected_told
    expected = np.where(bad, np.nan, (night - dark) / flat).astype(np.float32)
    made = Recording(config.table("calibrated"))
    assert np.allclose(made.stack(), expected, rtol=1e-6, equal_nan=True)
    assert [(each.seq, each.epoch, each.timestamp_ns) for each in made] == [(seq, 1, 50 + seq) for seq in range(7)]
    assert verify(str(made.path)).ok
    assert not list(tmp_path.rglob("part-*"))


def test_frames_of_every_type_and_epoch_are_calibrated_and_damaged_ones_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    shape = (2, 3, 7)
    lights = [some_array(random, dtype, shape) for dtype in DTYPES * 2]
    for name, arrays in (("dark", lights[:11]), ("night", lights)):
        write_plain(tmp_path / name, arrays, epochs=[1] * 5 + [2] * 20, seqs=[*range(5), 0, 1, 2, *range(7, 30)])
    place = Recording(tmp_path / "night")[3].reference
    with open(place.path, "r+b") as file:
        file.seek(place.offset)
        file.write(b"\x5a")
    common: dict[str, Any] = {"recording": str(tmp_path / "night"), "dark": str(tmp_path / "dark"), "rounds": 0}
    config = calibrate.CalibrateConfig(out=str(tmp_path / "out"), **common)
    told = calibrate.run(spark, config)
    assert told["frames"] == len(lights) - 1
    assert told["problems"] == spark.read.parquet(config.table("problems")).count() == 1
    values = np.array([each.astype(np.float64) for each in lights[:11]])
    dark = np.mean(values, 0, where=np.isfinite(values))
    assert np.allclose(np.load(config.table("master_dark.npy")), dark, rtol=1e-9)
    bad = np.load(config.table("bad_pixels.npy"))
    made = Recording(config.table("calibrated"))
    kept = [each for number, each in enumerate(lights) if number != 3]
    for frame, light in zip(made, kept, strict=True):
        expected = np.where(bad, np.nan, light - dark).astype(np.float32)
        assert np.allclose(frame.array, expected, rtol=1e-5, equal_nan=True)
    assert verify(str(made.path)).ok


def test_empty_frames_are_calibrated(spark: SparkSession, tmp_path: Path) -> None:
    write_plain(tmp_path / "empty", [np.zeros((4, 0), np.uint8)] * 5)
    where = str(tmp_path / "empty")
    config = calibrate.CalibrateConfig(recording=where, dark=where, out=str(tmp_path / "out"))
    assert calibrate.run(spark, config)["frames"] == 5
    assert [each.shape for each in Recording(config.table("calibrated"))] == [(4, 0)] * 5


def clipped(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sigma-clipped mean along the first axis, two sigma, five rounds."""
    values = stack.astype(np.float64)
    kept = np.ones(values.shape, np.bool_)
    for _ in range(5):
        mean, std = np.mean(values, 0, where=kept), np.std(values, 0, where=kept)
        kept = np.abs(values - mean) <= 2 * std
    return np.asarray(np.mean(values, 0, where=kept))


def write_plain(
    path: Path,
    frames: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
    epochs: Sequence[int] | None = None,
    seqs: Sequence[int] | None = None,
) -> None:
    """A recording of these frames in two segments."""
    manifest = Manifest(path)
    info = manifest.create(time.time_ns())
    for number, first, last in ((0, 0, 4), (1, 4, len(frames))):
        file = manifest.segments / f"{number:08}.seg"
        with SegmentFile(file, info.recording_id, number=number, first_ordinal=first) as segment:
            for at in range(first, last):
                seq, epoch = seqs[at] if seqs else at, epochs[at] if epochs else 1
                segment.add(frames[at], stream_id=STREAM, epoch=epoch, seq=seq, timestamp_ns=50 + at)
        seal(manifest, segment.contents)


def types(table: DataFrame) -> list[tuple[str, str]]:
    """Names and types, in this order."""
    return table.dtypes


def types_of(columns: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, _, kind in (each.partition(" ") for each in columns.split(", "))]
