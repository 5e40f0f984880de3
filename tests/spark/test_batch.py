"""`spark.read.format("framepool")` on an unmodified session: every frame, chosen ones, and what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from framepool.discovery.host import this_host
from framepool.recorder.recording import Recording
from framepool.spark.frames import map_frames
from tests.support.awkward import OTHER, STREAM, Awkward

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requires("java"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def read(spark: SparkSession, recording: Awkward, **options: Any) -> DataFrame:
    return spark.read.format("framepool").options(**options).load(str(recording.path))


def ordinals(frame: DataFrame) -> list[int]:
    return sorted(row["ordinal"] for row in frame.select("ordinal").collect())


def test_every_frame_is_a_row_with_its_payload(spark: SparkSession, awkward: Awkward) -> None:
    rows = {row["ordinal"]: row for row in read(spark, awkward, payload="inline").collect()}
    recorded = {frame.ordinal: frame for frame in Recording(awkward.path)}
    assert rows.keys() == recorded.keys() == awkward.arrays().keys()
    for ordinal, frame in recorded.items():
        row = rows[ordinal]
        assert bytes(row["payload"]) == bytes(frame.payload)
        assert (row["stream_id"], row["epoch"], row["seq"]) == (frame.stream_id, frame.epoch, frame.seq)
        assert (tuple(row["shape"]), row["order"], row["crc"]) == (frame.shape, frame.order, frame.crc)
        assert (row["timestamp_ns"], row["trace_id"]) == (frame.timestamp_ns, None)


def test_a_reference_says_file_place_host_and_boot(spark: SparkSession, awkward: Awkward) -> None:
    frames = {frame.ordinal: frame for frame in Recording(awkward.path)}
    rows = read(spark, awkward).collect()
    assert len(rows) == len(frames)
    for row in rows:
        found = frames[row["ordinal"]].reference
        assert (row["path"], row["offset"], row["length"], row["host"], row["boot_id"]) == found
        assert row["boot_id"] == this_host()


@pytest.mark.parametrize("payload", ["reference", "inline"])
def test_map_frames_sees_each_array_as_it_was_published(spark: SparkSession, awkward: Awkward, payload: str) -> None:
    from pyspark.sql.functions import col

    def described(array: Any) -> tuple[str, list[int], bytes]:
        return str(array.dtype), list(array.shape), array.tobytes()

    frames = read(spark, awkward, payload=payload)
    found = map_frames(frames, described, "kind string, dims array<bigint>, data binary").filter(col("seq") >= 0)
    rows = {row["ordinal"]: row for row in found.collect()}
    assert rows.keys() == awkward.arrays().keys()
    for ordinal, array in awkward.arrays().items():
        row = rows[ordinal]
        assert (row["kind"], tuple(row["dims"])) == (str(array.dtype), array.shape)
        assert bytes(row["data"]) == array.tobytes()


def test_options_choose_frames(spark: SparkSession, awkward: Awkward) -> None:
    frames = awkward.frames
    for options, wanted in (
        ({"stream": OTHER}, lambda each: each.stream_id == OTHER),
        ({"stream": f"{STREAM},{OTHER}", "epoch": 1, "endSeq": 3}, lambda each: each.epoch == 1 and each.seq < 3),
        ({"epoch": 2, "startSeq": 2, "endSeq": 7}, lambda each: each.epoch == 2 and 2 <= each.seq < 7),
    ):
        expected = [each.ordinal for each in frames if wanted(each)]
        assert expected
        assert ordinals(read(spark, awkward, payload="none", **options)) == expected
    middle = Recording(awkward.path)[10].recorded_ns
    early = ordinals(read(spark, awkward, payload="none", endTime=middle))
    late = ordinals(read(spark, awkward, payload="none", startTime=middle))
    assert early + late == [each.ordinal for each in frames]
    assert early


def test_large_segments_are_cut_and_small_ones_put_together(spark: SparkSession, awkward: Awkward) -> None:
    whole = read(spark, awkward, payload="none")
    cut = read(spark, awkward, payload="none", partitionBytes=4_000)
    assert whole.rdd.getNumPartitions() == 1
    assert cut.rdd.getNumPartitions() > 3
    assert ordinals(cut) == ordinals(whole)


def test_losses_are_a_table(spark: SparkSession, awkward: Awkward) -> None:
    (row,) = read(spark, awkward, table="losses").collect()
    assert (row["stream_id"], row["epoch"], row["first_seq"], row["last_seq"]) == (STREAM, 2, 3, 5)
    assert (row["frames"], row["reason"], row["ordinal"]) == (3, "lapped", 29)


def test_filters_are_pushed_down_where_the_session_allows_it(spark: SparkSession, awkward: Awkward) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frames = read(spark, awkward, payload="none", pushdown="true", partitionBytes=1_000)
        everything = read(spark, awkward, payload="none", partitionBytes=1_000).rdd.getNumPartitions()
        found = frames.filter("epoch = 2 and seq > 1 and seq <= 6")
        assert ordinals(found) == [each.ordinal for each in awkward.frames if each.epoch == 2 and 1 < each.seq <= 6]
        assert found.rdd.getNumPartitions() < everything
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_damage_is_reported_and_passed_over_unless_strict(spark: SparkSession, damaged: Awkward) -> None:
    from pyspark.errors import PySparkException

    flipped = next(each for each in awkward_frames(damaged, STREAM) if each.array.nbytes > 100)
    place = Recording(damaged.path)[flipped.ordinal].reference
    with open(place.path, "r+b") as file:
        file.seek(place.offset + 5)
        byte = file.read(1)
        file.seek(place.offset + 5)
        file.write(bytes([byte[0] ^ 0x40]))
    damaged.segment(2).unlink()
    left = [each.ordinal for each in damaged.frames if each.stream_id == STREAM and each.ordinal != flipped.ordinal]
    assert ordinals(read(spark, damaged, payload="inline")) == left
    assert ordinals(map_frames(read(spark, damaged), np.size, "size bigint")) == left
    problems = read(spark, damaged, table="problems").collect()
    assert {(row["segment"], row["seq"]) for row in problems if row["segment"] != "00000002.seg"} == {
        ("00000000.seg", flipped.seq)
    }
    assert any(row["segment"] == "00000002.seg" and "missing" in row["detail"] for row in problems)
    for strict in (
        read(spark, damaged, payload="inline", strict="true"),
        map_frames(read(spark, damaged), np.size, "size bigint", strict=True),
    ):
        with pytest.raises(PySparkException, match=r"not what was recorded|is missing"):
            strict.collect()


def awkward_frames(recording: Awkward, stream: int) -> list[Any]:
    return [each for each in recording.frames if each.stream_id == stream]


def test_segment_without_a_readable_index_is_scanned(spark: SparkSession, damaged: Awkward) -> None:
    damaged.segment(0).with_suffix(".frames.parquet").write_bytes(b"no Parquet at all")
    assert ordinals(read(spark, damaged)) == [each.ordinal for each in damaged.frames]


def test_references_of_another_host_fail_with_what_to_do(spark: SparkSession, damaged: Awkward) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import lit

    elsewhere = read(spark, damaged).withColumn("boot_id", lit("another")).withColumn("path", lit("/nowhere/0.seg"))
    with pytest.raises(PySparkException, match=r"recorded on host .* storage that every executor mounts"):
        map_frames(elsewhere, np.size, "size bigint").collect()


def test_wrong_options_are_named(spark: SparkSession, awkward: Awkward) -> None:
    from pyspark.errors import PySparkException

    for options, said in (({"steam": "1"}, "steam"), ({"payload": "all"}, "payload"), ({"startTime": "noon"}, "noon")):
        with pytest.raises(PySparkException, match=said):
            read(spark, awkward, **options).collect()
