"""`join`, `events` and `dataset` against plain computations on the same awkward frames."""

from __future__ import annotations

import hashlib
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import framepool as fp
from framepool.config import load
from framepool.recorder.recording import Recording
from framepool.service.commander import Ear
from framepool.service.events import Event, Ref
from framepool.spark.jobs import dataset, events, join
from framepool.transport.aeron import Client
from tests.support.awkward import OTHER, STREAM, Awkward, Harmed
from tests.support.drivers import table, write_toml
from tests.support.plain import plain_measures, plain_outliers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.requires("java"), pytest.mark.timeout(900)]
PARTITIONS = [("stream_id", "int"), ("date", "date")]
NUMBERS = ("ordinal", "epoch", "seq", "timestamp_ns", "recorded_ns")


@pytest.mark.parametrize("by", ["seq", "time"])
def test_join_finds_the_partner_that_a_plain_search_finds(
    spark: SparkSession, awkward: Awkward, tmp_path: Path, by: join.By
) -> None:
    config = join.JoinConfig(
        recording=str(awkward.path), out=str(tmp_path), stream=f"{STREAM},{OTHER}", by=by, tolerance_ms=12.0
    )
    told = join.run(spark, config)
    made = spark.read.parquet(config.table("join"))
    names = ("ordinal", "epoch", "seq", "timestamp_ns", "recorded_ns", "trace_id")
    other = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns", "trace_id")
    expected_types = [(name, "bigint") for name in (*names, *(f"other_{name}" for name in other), "apart_ns")]
    assert made.dtypes == [*expected_types, *PARTITIONS]
    recorded = list(Recording(awkward.path))
    theirs = [frame for frame in recorded if frame.stream_id == OTHER]
    found = {row["ordinal"]: row for row in made.collect()}
    assert found.keys() == {frame.ordinal for frame in recorded if frame.stream_id == STREAM}
    matched = 0
    for frame in recorded:
        if frame.stream_id != STREAM:
            continue
        row = found[frame.ordinal]
        if by == "seq":
            fits = [each for each in theirs if each.seq == frame.seq]
            best = min(fits, key=lambda each: (abs(each.recorded_ns - frame.recorded_ns), each.ordinal), default=None)
        else:
            fits = [each for each in theirs if abs(each.timestamp_ns - frame.timestamp_ns) <= 12_000_000]
            best = min(fits, key=lambda each: (abs(each.timestamp_ns - frame.timestamp_ns), each.ordinal), default=None)
        assert row["other_stream_id"] == OTHER
        assert row["other_ordinal"] == (best.ordinal if best else None)
        assert row["apart_ns"] == (best.timestamp_ns - frame.timestamp_ns if best else None)
        matched += best is not None
    assert 0 < matched < len(found)
    assert told == {"rows": len(found), "matched": matched, "problems": 0, "table": config.table("join")}


def test_join_by_trace_follows_ids_and_links_and_counts_what_is_damaged(
    spark: SparkSession, harmed: Harmed, base_dir: Path, tmp_path: Path
) -> None:
    file = write_toml(base_dir / "framepool.toml", table(base_dir))
    image = np.zeros((4, 4), np.uint16)
    with fp.serve(load(file, {})) as pool, pool.producer(STREAM) as camera, pool.producer(OTHER) as derived:
        with fp.Recorder(pool, tmp_path / "traced", [STREAM, OTHER]) as recorder, pool.consumer(STREAM) as eye:
            for trace in (11, None, 2**63 + 5, 14):
                camera.publish(image, trace_id=trace)
                frame = next(eye)
                if trace == 14:
                    derived.publish(image, trace_id=14)
                else:
                    derived.publish(image, parents=[frame])
            deadline = time.monotonic() + 60
            while recorder.progress().frames < 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            while recorder.statistics()["recorder"]["messages"].get("TraceLinkSet", 0) < 2:  # beside the frames
                assert time.monotonic() < deadline
                time.sleep(0.01)
    common: dict[str, Any] = {"out": str(tmp_path / "out"), "stream": f"{STREAM},{OTHER}", "by": "trace"}
    told = join.run(spark, join.JoinConfig(recording=str(tmp_path / "traced"), **common))
    rows = sorted(spark.read.parquet(told["table"]).collect(), key=lambda row: row["seq"])
    assert [(row["seq"], row["other_seq"]) for row in rows] == [(0, 0), (1, None), (2, 2), (3, 3)]
    hurt = join.run(spark, join.JoinConfig(recording=str(harmed.path), **common))
    assert (hurt["rows"], hurt["matched"]) == (len(harmed.indexed), 0)
    assert hurt["problems"] == spark.read.parquet(str(tmp_path / "out" / "problems")).count() > 0


def test_events_are_what_a_plain_search_finds_and_a_repeated_batch_changes_nothing(
    spark: SparkSession, harmed: Harmed, base_dir: Path, tmp_path: Path
) -> None:
    file = write_toml(base_dir / "framepool.toml", table(base_dir))
    watched = ["mean", "std", "saturated"]
    config = events.EventsConfig(
        recording=str(harmed.path), out=str(tmp_path), measures=",".join(watched), window=8, least=4, threshold=4.0,
        max_frames=10, publish=True, config=str(file),
    )  # fmt: skip
    expected: list[tuple[Any, ...]] = []
    series: dict[str, list[float]] = {name: [] for name in watched}
    for frame in harmed.left:
        figures = plain_measures(frame.array, 1)
        for name in watched:
            if figures[name] is None:
                continue
            outlier = plain_outliers(series[name][-8:], figures[name], least=4, threshold=4.0)
            if outlier is not None:
                expected.append((frame.ordinal, frame.seq, name, figures[name], *outlier))
            series[name].append(figures[name])
    assert len(expected) >= 3
    with fp.serve(load(file, {})) as pool, Client.connect(pool.config.aeron, name="test") as client:
        ear = Ear(client, pool.config.channels.service_status, pool.config.stream_ids.service_status)
        told = events.run(spark, config)
        heard: list[Event] = []
        deadline = time.monotonic() + 10
        while len(heard) < len(expected) and time.monotonic() < deadline:
            heard += [each for each in ear.hear() if each.key == events.OUTLIER]
    assert (told["frames"], told["events"]) == (len(harmed.left), len(expected))
    assert told["problems"] > 0
    made = spark.read.parquet(config.table("events"))
    doubles = ("value", "median", "sigma", "score")
    assert made.dtypes == [
        *((name, "bigint") for name in NUMBERS), ("measure", "string"),
        *((name, "double") for name in doubles), ("batch", "bigint"), *PARTITIONS,
    ]  # fmt: skip
    rows = sorted((row["ordinal"], watched.index(row["measure"]), row) for row in made.collect())
    for (_, _, row), (ordinal, seq, name, *figures) in zip(rows, expected, strict=True):
        assert (row["ordinal"], row["seq"], row["measure"]) == (ordinal, seq, name)
        assert all(close(row[column], value) for column, value in zip(doubles, figures, strict=True))
    refs = [Ref(STREAM, row["epoch"], row["seq"]) for _, _, row in rows]
    assert [each.ref for each in heard] == refs
    assert {json.loads(str(each.value))["measure"] for each in heard} == {name for _, _, name, *_ in expected}
    # Spark forgets that the last batch was done, as after a crash.
    commits = sorted((tmp_path / ".events" / "checkpoint" / "commits").iterdir())
    last = max((each for each in commits if each.name.isdigit()), key=lambda each: int(each.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
    again = events.run(spark, events.EventsConfig(**{
        name: getattr(config, name) for name in config.__struct_fields__ if name != "publish"
    }))  # fmt: skip
    assert again == told
    assert spark.read.parquet(config.table("events")).count() == len(expected)


def close(told: float, expected: float) -> bool:
    return told == expected if math.isinf(expected) else bool(np.isclose(told, expected, rtol=1e-9))


def test_dataset_has_every_frame_once_in_the_split_that_its_identity_says(
    spark: SparkSession, harmed: Harmed, tmp_path: Path
) -> None:
    pa_parquet = pytest.importorskip("pyarrow.parquet")
    config = dataset.DatasetConfig(
        recording=str(harmed.path), out=str(tmp_path), splits="train=0.5,val=0.25,test=0.25", seed=3, block=2,
        shard_bytes=600, compression="zstd",
    )  # fmt: skip
    told = dataset.run(spark, config)
    assert told["frames"] == len(harmed.left)
    assert told["problems"] == spark.read.parquet(config.table("problems")).count() > 0
    where = Path(told["dataset"])
    manifest = json.loads((where / "manifest.json").read_text())
    assert (manifest["recording"], manifest["seed"], manifest["block"]) == (str(harmed.path), 3, 2)
    names = ("ordinal", "stream_id", "epoch", "seq", "timestamp_ns", "recorded_ns")
    assert manifest["columns"] == {
        **dict.fromkeys(names, "int64"), "dtype": "string", "shape": "list<item: int64>", "payload": "binary"
    }  # fmt: skip
    listed = {shard["file"] for split in manifest["splits"].values() for shard in split["shards"]}
    assert listed == {str(each.relative_to(where)) for each in where.rglob("*.parquet")}
    left = {each.ordinal: each for each in harmed.left}
    edges = {"train": (0, 0.5), "val": (0.5, 0.75), "test": (0.75, 1)}
    seen: list[int] = []
    for name, split in manifest["splits"].items():
        assert told[name] == split["frames"]
        for number, shard in enumerate(split["shards"]):
            assert shard["file"] == f"{name}/{name}-{number:05}-of-{len(split['shards']):05}.parquet"
            data = (where / shard["file"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == shard["sha256"]
            rows = pa_parquet.read_table(where / shard["file"]).to_pylist()
            assert len(rows) == shard["frames"]
            assert (rows[0]["ordinal"], rows[-1]["ordinal"]) == (shard["first_ordinal"], shard["last_ordinal"])
            for row in rows:
                frame = left[row["ordinal"]]
                array = np.frombuffer(row["payload"], row["dtype"]).reshape(row["shape"])
                assert array.dtype == frame.array.dtype
                assert np.array_equal(array, frame.array, equal_nan=array.dtype.kind == "f")
                words = np.array([3, STREAM, frame.epoch, frame.seq // 2], np.int64).tobytes()
                place = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") / 2**64
                assert edges[name][0] <= place < edges[name][1]
                seen.append(row["ordinal"])
    assert sorted(seen) == sorted(left)
    assert len(manifest["splits"]["train"]["shards"]) > 1
