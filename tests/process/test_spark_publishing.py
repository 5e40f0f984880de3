"""The stream that a Spark query publishes on, as it goes from one of Spark's processes to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StructType

import framepool as fp
from framepool.config import load
from framepool.errors import AttachRefused, NotAttached
from framepool.recorder.segment_file import SegmentFile
from framepool.spark import tensor
from framepool.spark.publishing import SEATS, Origin, Seat, Seats, origin_of, publish
from framepool.spark.sink import LiveStreamWriter, WriteOptions
from tests.support.drivers import table, write_toml
from tests.support.onlooker import wait_until

TARGET = 20_000
SHORT = {"name": "spark", "timeout": 30.0, "settle": 0.0}


@pytest.fixture
def file(base_dir: Path) -> Path:
    return write_toml(base_dir / "framepool.toml", table(base_dir))


def stage(path: Path, count: int) -> Path:
    with SegmentFile(path, "") as segment:
        for number in range(count):
            segment.add(np.full(4, number, np.uint16), stream_id=TARGET, epoch=1, seq=number)
    return path


def test_another_process_gets_the_stream_when_it_asks_and_not_while_a_batch_is_published(
    file: Path, tmp_path: Path
) -> None:
    with fp.serve(load(file, {})):
        mine, theirs = Seats(), Seats()
        where = (TARGET, str(file), tmp_path)
        with mine.using(*where, keep=60.0, **SHORT) as producer:
            with pytest.raises(AttachRefused, match="another process"):
                with theirs.using(*where, keep=60.0, **(SHORT | {"timeout": 0.3})):
                    pass
        with theirs.using(*where, keep=60.0, **SHORT) as other:
            assert other.publish(np.zeros(4, np.uint8)) == 0
            assert producer.closed
        with theirs.using(*where, keep=60.0, **SHORT) as again:
            assert again is other, "kept from batch to batch"
        with mine.using(*where, keep=0.0, **SHORT) as last:
            assert other.closed
        assert last.closed


def test_an_idle_stream_is_given_up(file: Path, tmp_path: Path) -> None:
    with fp.serve(load(file, {})):
        seat = Seat(TARGET, str(file), tmp_path, **SHORT)
        assert not seat.give_up_if(60.0)
        assert seat.give_up_if(0.0)
        assert seat.producer.closed


def test_rows_are_counted_over_a_batch_and_anew_in_the_next(file: Path, tmp_path: Path) -> None:
    first, second = stage(tmp_path / "a.seg", 2), stage(tmp_path / "b.seg", 1)
    with fp.serve(load(file, {})) as pool, pool.producer(TARGET) as producer, pool.consumer(TARGET) as eye:
        assert publish(producer, [first, second], "q", 7, rate=0, patience=5) == 3
        rows = []
        for frame in eye:
            while (origin := origin_of(frame)) is None:
                pass
            rows.append((origin, int(frame.copy()[0])))
            if len(rows) == 3:
                break
        assert rows == [(Origin("q", 7, 0), 0), (Origin("q", 7, 1), 1), (Origin("q", 7, 2), 0)]
        assert publish(producer, [second], "q", 8, rate=0, patience=5) == 1
        frame = next(eye)
        while (origin := origin_of(frame)) is None:
            pass
        assert origin == Origin("q", 8, 0)
        producer.close()
        with pytest.raises(NotAttached):
            publish(producer, [second], "q", 9, rate=0, patience=0.1)


def test_a_batch_is_published_in_order_once_and_again_if_that_was_not_written_down(file: Path, tmp_path: Path) -> None:
    """The writer of a query by hand, as Spark calls it: tasks, then the commit, in any order of messages."""
    schema = StructType().add("payload", "binary").add("dtype", "string").add("shape", ArrayType(LongType()))
    given = {"stream": str(TARGET), "config": str(file), "settleSeconds": "0.3", "keepSeconds": "20"}
    options = WriteOptions.of({**given, "checkpointLocation": str(tmp_path)})
    staging = tmp_path / "framepool"

    def batch(first: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([tensor(np.full(4, first + row, np.uint16)) for row in range(2)])

    def commit(number: int) -> None:
        writer = LiveStreamWriter(options, schema)
        parts = [writer.write(iter([batch(10 * number + 2 * task)])) for task in range(2)]
        for task, part in enumerate(parts):
            part.partition = task
        writer.commit([parts[1], None, parts[0]], number)

    values = table(file.parent)
    values["streams"] = [{"stream_id": TARGET, "profile": "default"}]
    values["profiles"]["default"]["nslots"] = 64
    write_toml(file, values)
    with fp.serve(load(file, {})) as pool:
        eye = pool.consumer(TARGET, timeout=0)
        commit(0)
        (staging / f"part--{0:012}-x.seg").write_bytes(b"of a task that was killed")
        commit(1)
        commit(1)
        assert not list(staging.glob("part-*"))
        (staging / "query.json").write_text('{"batch": 0}')
        commit(1)
        seen = []
        while eye.wait(0.3) or len(seen) < 12:
            for frame in eye.poll():
                while (origin := origin_of(frame)) is None:
                    pass
                seen.append((origin.batch, origin.row, int(frame.copy()[0])))
        eye.close()
    first, second = ([(number, row, 10 * number + row) for row in range(4)] for number in range(2))
    assert seen == first + second + second
    for seat in list(SEATS._seats.values()):  # what Spark's process keeps for the next batch is given up now
        seat._wanted.touch()
    wait_until(lambda: not SEATS._seats)
