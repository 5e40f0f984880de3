"""Jobs against plain computations on the same awkward frames."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
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
from framepool.spark.jobs import calibrate, qos, report, stats
from tests.support.awkward import OTHER, STREAM, Awkward
from tests.support.plain import plain_measures, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requires("java"), pytest.mark.timeout(900)]


def test_stats_and_report_equal_plain_arithmetic_and_damage_is_told(
    spark: SparkSession, damaged: Awkward, tmp_path: Path
) -> None:
    damaged.segment(2).unlink()
    left = {each.ordinal: each for each in damaged.frames if each.stream_id == STREAM}
    config = stats.StatsConfig(recording=str(damaged.path), out=str(tmp_path / "out"), bins=8)
    made = stats.run(spark, config)
    assert made["frames"] == len(left)
    problems = spark.read.parquet(config.table("problems")).collect()
    assert made["problems"] == len(problems) > 0
    assert all(row["segment"] == "00000002.seg" for row in problems)
    table = spark.read.parquet(config.table("stats"))
    assert table.columns[-2:] == ["stream_id", "date"]
    rows = {row["ordinal"]: row for row in table.collect()}
    assert rows.keys() == left.keys()
    for ordinal, frame in left.items():
        expected = plain_measures(frame.array, 8)
        for name, value in expected.items():
            assert name == "histogram" or same(rows[ordinal][name], value), (ordinal, name)
        assert (rows[ordinal]["epoch"], rows[ordinal]["seq"]) == (frame.epoch, frame.seq)
    told = report.run(spark, report.ReportConfig(tables=str(tmp_path / "out"), title="A & B", points=10))
    assert told["plots"] == 5
    page = Path(told["page"]).read_text()
    assert "A &amp; B" in page
    drawn = [ET.fromstring("<svg" + each.partition("</svg>")[0] + "</svg>") for each in page.split("<svg")[1:]]
    assert len(drawn) == 5
    assert all(len(svg.find("polyline").get("points").split()) <= 10 for svg in drawn)  # type: ignore[union-attr]


def test_qos_counts_gaps_and_losses_and_its_percentiles_are_numpys(
    spark: SparkSession, awkward: Awkward, tmp_path: Path
) -> None:
    config = qos.QosConfig(recording=str(awkward.path), out=str(tmp_path), window_seconds=1e6)
    told = qos.run(spark, config)
    assert (told["frames"], told["lost"]) == (len(awkward.frames), 3)
    rows = {(row["stream_id"], row["epoch"]): row for row in spark.read.parquet(config.table("qos")).collect()}
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
    assert told == {"frames": 7, "bad_pixels": int(bad.sum()), "recording": config.table("calibrated")}
    expected = np.where(bad, np.nan, (night - dark) / flat).astype(np.float32)
    made = Recording(config.table("calibrated"))
    assert np.allclose(made.stack(), expected, rtol=1e-6, equal_nan=True)
    assert [(each.seq, each.epoch, each.timestamp_ns) for each in made] == [(seq, 1, 50 + seq) for seq in range(7)]
    assert verify(str(made.path)).ok
    assert not list(tmp_path.rglob("part-*"))


def clipped(stack: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Sigma-clipped mean along the first axis, two sigma, five rounds."""
    values = stack.astype(np.float64)
    kept = np.ones(values.shape, np.bool_)
    for _ in range(5):
        mean, std = np.mean(values, 0, where=kept), np.std(values, 0, where=kept)
        kept = np.abs(values - mean) <= 2 * std
    return np.asarray(np.mean(values, 0, where=kept))


def write_plain(path: Path, frames: npt.NDArray[Any]) -> None:
    """A recording of these frames in two segments."""
    manifest = Manifest(path)
    info = manifest.create(time.time_ns())
    for number, first, last in ((0, 0, 4), (1, 4, len(frames))):
        file = manifest.segments / f"{number:08}.seg"
        with SegmentFile(file, info.recording_id, number=number, first_ordinal=first) as segment:
            for seq in range(first, last):
                segment.add(frames[seq], stream_id=STREAM, epoch=1, seq=seq, timestamp_ns=50 + seq)
        seal(manifest, segment.contents)
