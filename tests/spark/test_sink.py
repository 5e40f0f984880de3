"""`df.write` and `writeStream.format("framepool")`: what Spark computed, in a live stream or in a recording."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import framepool as fp
from framepool.config import load
from framepool.recorder.recording import Recording
from framepool.recorder.verify import verify
from framepool.spark import TENSOR, origin_of, tensor
from framepool.spark.publishing import Origin
from tests.support.awkward import OTHER, STREAM, Awkward
from tests.support.drivers import table, write_toml

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.requires("java"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TARGET = 20_000


class Site(NamedTuple):
    pool: fp.Pool
    config: str


@pytest.fixture
def site(base_dir: Path) -> Iterator[Site]:
    """A driver, and the file with which Spark's processes find it."""
    values = table(base_dir, lease_expiry_ms=60_000)
    values["profiles"]["default"] = {"nslots": 256, "pools": [{"pool_id": 1, "stride_bytes": 4096}]}
    values["streams"] = [{"stream_id": TARGET, "profile": "default"}]
    file = write_toml(base_dir / "framepool.toml", values)
    with fp.serve(load(file, {})) as pool:
        yield Site(pool, str(file))


class Seen(NamedTuple):
    origin: Origin | None
    epoch: int
    timestamp_ns: int
    array: Any


class Reader:
    """Takes whatever is published on the target, beside the test."""

    def __init__(self, pool: fp.Pool) -> None:
        self.seen: list[Seen] = []
        self._over = threading.Event()
        self._consumer = pool.consumer(TARGET, timeout=0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._consumer.wait(0.02)
            for frame in self._consumer.poll():
                deadline = time.monotonic() + 30
                while (origin := origin_of(frame)) is None and time.monotonic() < deadline:
                    time.sleep(0.001)
                self.seen.append(Seen(origin, frame.epoch, frame.timestamp_ns, frame.copy()))

    def wait(self, count: int) -> list[Seen]:
        deadline = time.monotonic() + 60
        while len(self.seen) < count:
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.01)
        return self.seen

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture
def reader(site: Site) -> Iterator[Reader]:
    reader = Reader(site.pool)
    yield reader
    reader.close()


def frames_of(spark: SparkSession, recording: Awkward, **options: Any) -> DataFrame:
    return spark.read.format("framepool").options(**options).load(str(recording.path))


def test_a_table_is_published_in_order_under_one_lease_with_ids(
    spark: SparkSession, awkward: Awkward, site: Site, reader: Reader
) -> None:
    frames = frames_of(spark, awkward, stream=STREAM, partitionBytes=4_000)
    assert frames.rdd.getNumPartitions() > 2
    writer = frames.write.format("framepool").mode("append").option("stream", TARGET).option("config", site.config)
    writer.option("settleSeconds", 4).save()
    expected = [each for each in awkward.frames if each.stream_id == STREAM]
    seen = reader.wait(len(expected))
    assert len(seen) == len(expected)
    for row, (got, sent) in enumerate(zip(seen, expected, strict=True)):
        assert got.origin is not None
        assert (got.origin.batch, got.origin.row) == (0, row)
        assert np.array_equal(got.array, sent.array, equal_nan=sent.array.dtype.kind == "f")
        assert (got.array.dtype, got.timestamp_ns) == (sent.array.dtype, sent.timestamp_ns or got.timestamp_ns)
    assert len({(each.epoch, each.origin.query) for each in seen if each.origin}) == 1


def test_a_query_publishes_each_batch_once_and_after_a_crash_repeats_it_with_the_same_ids(
    spark: SparkSession, awkward: Awkward, site: Site, reader: Reader, tmp_path: Path
) -> None:
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "files"
    files.mkdir()
    rows = [tensor(np.float32(2) * each.array) for each in awkward.frames if each.stream_id == OTHER]
    for number in range(3):  # a batch each, in this order
        pq.write_table(pa.Table.from_pylist(rows[2 * number : 2 * number + 2]), files / f"{number}.parquet")
        os.utime(files / f"{number}.parquet", (1_000_000 + number, 1_000_000 + number))

    def run() -> None:
        source = spark.readStream.schema(TENSOR).option("maxFilesPerTrigger", 1).parquet(str(files))
        writer = source.writeStream.format("framepool").option("stream", TARGET).option("config", site.config)
        patient = writer.option("keepSeconds", 600).option("timeoutSeconds", 120).option("settleSeconds", 4)
        query = patient.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    expected = [np.float32(2) * each.array for each in awkward.frames if each.stream_id == OTHER]
    seen = list(reader.wait(len(expected)))
    assert [(each.origin.batch, each.origin.row) for each in seen if each.origin] == [(n // 2, n % 2) for n in range(6)]
    assert all(np.array_equal(got.array, sent, equal_nan=True) for got, sent in zip(seen, expected, strict=True))
    assert len({each.epoch for each in seen}) == 1, "the lease is kept from batch to batch"
    assert not list((checkpoint / "framepool").glob("part-*"))
    # Spark forgets that the last batch was committed, as after a crash; the sink does not.
    left = checkpoint / "framepool" / f"part-{seen[0].origin.query if seen[0].origin else ''}-{1:012}-x.seg"
    left.write_bytes(b"of a task that was killed")
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "commits" / ".2.crc").unlink()
    run()
    assert not left.exists()
    # A crash before the sink wrote it down.
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "commits" / ".2.crc").unlink()
    (ledger,) = (checkpoint / "framepool").glob("*.json")
    ledger.write_text('{"batch": 1}')
    run()
    again = reader.wait(len(expected) + 2)
    assert [each.origin for each in again[6:]] == [each.origin for each in seen[4:]]


def test_a_new_recording_is_written_in_parallel_and_is_whole(
    spark: SparkSession, awkward: Awkward, tmp_path: Path
) -> None:
    target = tmp_path / "made"
    frames = frames_of(spark, awkward, payload="inline", partitionBytes=4_000).where("seq != 4")
    assert frames.rdd.getNumPartitions() > 3
    frames.write.format("framepool").mode("append").option("recording", str(target)).save()
    made = {(each.stream_id, each.epoch, each.seq): each for each in Recording(target)}
    kept = [each for each in awkward.frames if each.seq != 4]
    assert made.keys() == {(each.stream_id, each.epoch, each.seq) for each in kept}
    before = Recording(awkward.path)
    for each in kept:
        found = made[each.stream_id, each.epoch, each.seq]
        assert bytes(found.payload) == bytes(before[each.ordinal].payload)
        assert (found.shape, found.dtype, found.timestamp_ns) == (
            before[each.ordinal].shape,
            before[each.ordinal].dtype,
            each.timestamp_ns,
        )
    verdict = verify(str(target))
    assert verdict.ok, verdict.problems
    gaps = sorted(
        (row.loss.stream_id, row.loss.epoch, row.loss.first_seq, row.loss.last_seq)
        for row in Recording(target).losses()
    )
    assert gaps == [(STREAM, 1, 4, 4), (STREAM, 2, 3, 5), (OTHER, 1, 4, 4)]


def test_a_recording_that_fails_leaves_nothing(spark: SparkSession, awkward: Awkward, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    frames = frames_of(spark, awkward, payload="inline")
    twice = frames.unionAll(frames)
    for wrong, said in (
        (twice, "more than once"),
        (frames.drop("seq"), "needs the column seq"),
        (frames.drop("dtype"), "dtype is missing"),
    ):
        with pytest.raises(PySparkException, match=said):
            wrong.write.format("framepool").mode("append").option("recording", str(tmp_path / "made")).save()
    with pytest.raises(PySparkException, match="there already"):
        frames.write.format("framepool").mode("append").option("recording", str(awkward.path)).save()
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_comes_after_the_abort_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    from framepool.spark.sink import LiveWriter, RecordingWriter, WriteOptions

    schema = spark.createDataFrame([], f"{TENSOR}, seq bigint").schema
    writers: list[Callable[[], LiveWriter | RecordingWriter]] = [
        lambda: LiveWriter(WriteOptions(stream=TARGET, staging=str(tmp_path)), schema),
        lambda: RecordingWriter(WriteOptions(stream=TARGET, recording=str(tmp_path / "made")), schema),
    ]
    for make in writers:
        writer = make()
        writer.write(iter(()))
        assert len(list(tmp_path.iterdir())) == 1
        writer.abort([])
        with pytest.raises(FileNotFoundError):
            writer.write(iter(()))
        assert list(tmp_path.iterdir()) == []


def test_wrong_tensors_and_options_are_named(spark: SparkSession, awkward: Awkward, site: Site, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    small = spark.createDataFrame([(bytearray(3), "uint16", [2])], TENSOR)
    large = spark.createDataFrame([(bytearray(8_000), "uint8", [8_000])], TENSOR)
    for frame, options, said in (
        (small, {"stream": TARGET}, "has 4 bytes, its payload 3"),
        (large, {"stream": TARGET, "config": site.config}, "8000 bytes, more than its largest pool"),
        (large, {}, "needs the id of a stream"),
        (large, {"steam": TARGET}, "steam"),
    ):
        with pytest.raises(PySparkException, match=said):
            frame.write.format("framepool").mode("append").options(staging=str(tmp_path), **options).save()
    assert list(tmp_path.iterdir()) == []
