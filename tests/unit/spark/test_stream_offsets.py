"""The streaming reader without Spark: offsets, limits, what is removed, and ranges that stay the same."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from framepool.errors import ConfigurationError, FramesRemoved, RecordingDamaged
from framepool.recorder.manifest import Activity, Manifest, OpenEntry, Watermark
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.spark.options import Options, moment
from framepool.spark.rows import columns_of
from framepool.spark.stream import FramepoolStreamReader

STREAM = 10_000
KINDS: dict[str, Any] = {
    "bigint": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "array<bigint>": ArrayType(LongType()),
}


def reader(path: Path, **options: object) -> FramepoolStreamReader:
    parsed = Options.of({"path": str(path), **{name: str(value) for name, value in options.items()}})
    pairs = [each.replace("`", "").split(" ") for each in columns_of(parsed).split(", ")]
    return FramepoolStreamReader(parsed, StructType([StructField(name, KINDS[kind]) for name, kind in pairs]))


def at(source: FramepoolStreamReader, ordinal: int) -> dict[str, object]:
    return {"recording": source.initialOffset()["recording"], "ordinal": ordinal}


def seqs(source: FramepoolStreamReader, start: int, end: int) -> list[int]:
    """What a batch gives, read as an executor reads it."""
    elsewhere: FramepoolStreamReader = pickle.loads(pickle.dumps(source))
    found: list[int] = []
    for partition in source.partitions(at(source, start), at(source, end)):
        for batch in elsewhere.read(pickle.loads(pickle.dumps(partition))):
            found += batch.column("seq").to_pylist()
    return found


class Growing:
    """A recording that a test writes, segment by segment; the last may be left open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest(path)
        self.info = self.manifest.create(time.time_ns())
        self.frames = self.number = 0
        self._open: SegmentFile | None = None

    def add(self, count: int, *, sealed: bool = True) -> None:
        path = self.manifest.segments / f"{self.number:08}.seg"
        with SegmentFile(path, self.info.recording_id, number=self.number, first_ordinal=self.frames) as file:
            for seq in range(self.frames, self.frames + count):
                file.add(np.full(16, seq, np.uint16), stream_id=STREAM + seq % 2, epoch=1, seq=seq)
        self.frames += count
        self.number += 1
        self._open = file
        if sealed:
            self.seal()
        else:
            self.tell()

    def seal(self) -> None:
        assert self._open is not None
        seal(self.manifest, self._open.contents)

    def tell(self) -> None:
        """The watermark of a recorder that has not sealed the last segment."""
        assert self._open is not None
        contents = self._open.contents
        entry = OpenEntry(
            number=contents.number,
            file=contents.file,
            segment_id=f"{contents.segment_id:016x}",
            bytes=contents.bytes,
            first_ordinal=contents.first_ordinal,
            end_ordinal=contents.end_ordinal,
        )
        self.manifest.advance(
            Watermark(
                ordinal=self.frames,
                recorded_ns=time.time_ns(),
                activity=Activity.RECORDING,
                open=(entry,),
                pid=1,
                boot_id="",
                frames=self.frames,
                lost={},
            )
        )

    def remove_first(self) -> None:
        self.manifest.remove(next(self.manifest.entries()))


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "recording")


def test_newest_offset_is_what_is_durable_and_moves_with_it(growing: Growing) -> None:
    source = reader(growing.path)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == at(source, 0)
    growing.add(5)
    assert source.latestOffset(start, ReadAllAvailable()) == at(source, 5)
    growing.add(3, sealed=False)
    assert source.reportLatestOffset() == source.latestOffset(start, ReadAllAvailable()) == at(source, 8)
    assert seqs(source, 2, 8) == [2, 3, 4, 5, 6, 7]


def test_beginning_is_the_same_whenever_it_is_asked_for(growing: Growing) -> None:
    source = reader(growing.path)
    before = source.initialOffset()
    growing.add(9)
    assert source.initialOffset() == before == reader(growing.path).initialOffset() == at(source, 0)
    assert reader(growing.path, startingOffsets=4).initialOffset() == at(source, 4)


def test_a_range_is_the_same_before_and_after_its_segment_is_sealed(growing: Growing) -> None:
    growing.add(4)
    growing.add(6, sealed=False)
    source = reader(growing.path)
    before = seqs(source, 2, 9)
    growing.seal()
    growing.add(5)
    assert seqs(source, 2, 9) == before == seqs(reader(growing.path), 2, 9) == [2, 3, 4, 5, 6, 7, 8]


def test_limits_by_frames_and_bytes_count_what_is_wanted(growing: Growing) -> None:
    growing.add(6)
    growing.add(6)
    every = reader(growing.path, maxFramesPerTrigger=4)
    limit = every.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    assert every.latestOffset(at(every, 0), limit) == at(every, 4)
    assert every.latestOffset(at(every, 4), limit) == at(every, 8)
    assert every.latestOffset(at(every, 8), limit) == at(every, 12)
    assert every.latestOffset(at(every, 0), ReadAllAvailable()) == at(every, 12)
    odd = reader(growing.path, stream=STREAM + 1, maxFramesPerTrigger=4)
    end = odd.latestOffset(at(odd, 0), limit)["ordinal"]
    assert seqs(odd, 0, end) == [1, 3, 5, 7]
    assert seqs(odd, end, 12) == [9, 11]
    small = reader(growing.path, maxBytesPerTrigger=100)  # a frame has 32
    assert small.getDefaultReadLimit() == ReadMaxBytes(100)
    assert small.latestOffset(at(small, 5), ReadMaxBytes(100)) == at(small, 8)
    assert small.latestOffset(at(small, 5), ReadMaxBytes(1)) == at(small, 6)


def test_available_now_ends_where_it_began_to_look(growing: Growing) -> None:
    growing.add(5)
    source = reader(growing.path)
    source.prepareForTriggerAvailableNow()
    growing.add(5)
    assert source.latestOffset(at(source, 0), ReadAllAvailable()) == at(source, 5)


def test_frames_removed_before_they_were_read_fail_the_query_unless_told_otherwise(growing: Growing) -> None:
    growing.add(5)
    growing.add(5)
    growing.remove_first()
    with pytest.raises(FramesRemoved, match=r"3 to 4 were removed.*failOnDataLoss=false"):
        seqs(reader(growing.path), 3, 10)
    assert seqs(reader(growing.path, failOnDataLoss="false"), 3, 10) == [5, 6, 7, 8, 9]
    assert seqs(reader(growing.path), 0, 10) == [5, 6, 7, 8, 9]  # the earliest that there are


def test_frames_removed_between_plan_and_read_fail_the_query_unless_told_otherwise(growing: Growing) -> None:
    growing.add(5)
    growing.add(5)
    kept = {}
    for fail in ("true", "false"):
        source = reader(growing.path, failOnDataLoss=fail, partitionBytes=1)
        kept[fail] = source, source.partitions(at(source, 0), at(source, 10))
    growing.remove_first()
    for source, partitions in kept.values():
        read = [pickle.loads(pickle.dumps(source)).read(each) for each in partitions]
        if source.options.fail_on_data_loss:
            with pytest.raises(FramesRemoved, match="begins with frame 5 by now"):
                list(read[0])
        else:
            assert [list(each) for each in read[:5]] == [[]] * 5
            assert [batch["seq"].to_pylist() for each in read[5:] for batch in each] == [[seq] for seq in range(5, 10)]


def test_a_recording_that_ends_before_what_was_planned_fails_the_query_unless_told_otherwise(growing: Growing) -> None:
    growing.add(5)
    with pytest.raises(FramesRemoved, match=r"ends before frame 5.*planned up to 8.*recorder once more"):
        seqs(reader(growing.path), 2, 9)
    assert seqs(reader(growing.path, failOnDataLoss="false"), 2, 9) == [2, 3, 4]


def test_a_checkpoint_of_another_recording_is_refused(growing: Growing, tmp_path: Path) -> None:
    growing.add(5)
    before = at(reader(growing.path), 3)
    growing.path.rename(tmp_path / "away")
    Growing(growing.path).add(5)
    source = reader(growing.path)
    with pytest.raises(FramesRemoved, match="new checkpoint"):
        source.latestOffset(before, ReadAllAvailable())
    with pytest.raises(FramesRemoved, match="new checkpoint"):
        source.partitions(before, at(source, 5))


def test_a_hold_is_renewed_while_spark_asks_nothing(growing: Growing) -> None:
    growing.add(5)
    source = reader(growing.path, holdSeconds=1)
    source.latestOffset(at(source, 2), ReadAllAvailable())
    (first,) = growing.manifest.holds().values()
    deadline = time.monotonic() + 60
    while next(iter(growing.manifest.holds().values())).expires_ns == first.expires_ns:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    source.stop()


def test_what_a_query_needs_is_held_until_it_is_read_or_the_query_is_long_gone(growing: Growing) -> None:
    growing.add(5)
    source = reader(growing.path, holdSeconds=60)
    source.latestOffset(at(source, 2), ReadAllAvailable())
    (hold,) = growing.manifest.holds().values()
    assert hold.ordinal == 2
    assert 50e9 < hold.expires_ns - time.time_ns() <= 60e9
    source.commit(at(source, 5))
    assert [each.ordinal for each in growing.manifest.holds().values()] == [5]
    source.stop()  # as Spark does when its driver was killed, and the query may come back
    (left,) = growing.manifest.holds().values()
    source.commit(at(source, 5))
    assert list(growing.manifest.holds().values()) == [left], "and is not renewed"


def test_damage_fails_a_streaming_query_unless_loss_is_accepted(growing: Growing) -> None:
    growing.add(5)
    growing.add(5)
    (growing.manifest.segments / "00000000.seg").write_bytes(b"")
    (growing.manifest.segments / "00000000.frames.parquet").unlink()
    with pytest.raises(RecordingDamaged):
        seqs(reader(growing.path), 0, 10)
    assert seqs(reader(growing.path, failOnDataLoss="false"), 0, 10) == [5, 6, 7, 8, 9]


def test_a_recording_that_was_replaced_is_noticed(growing: Growing, tmp_path: Path) -> None:
    growing.add(5)
    source = reader(growing.path)
    partitions = source.partitions(at(source, 0), at(source, 5))
    growing.path.rename(tmp_path / "away")
    Growing(growing.path).add(5)
    with pytest.raises(RecordingDamaged, match="replaced by another recording"):
        list(pickle.loads(pickle.dumps(source)).read(partitions[0]))


def test_options_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    for given, said in (
        ({}, "load"),
        ({"stream": "camera", "holdSeconds": "0"}, "holdSeconds"),
        ({"stream": "camera", "live": "true"}, "live"),
        ({"path": "x", "payload": "pixels"}, "payload"),
        ({"path": "x", "startseq": "-1"}, "startSeq"),
        ({"path": "x", "stream": "camera"}, "camera"),
        ({"path": "x", "startingOffsets": "latest"}, "latest"),
        ({"path": "x", "endTime": "soon"}, "soon"),
        ({"path": "x", "sttrict": "true"}, "sttrict"),
        ({"path": "~\0x"}, "null byte"),
        ({"path": "file:///a%00b"}, "null byte"),
        ({"path": "file://["}, "IPv6"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Options.of(given)
    with pytest.raises(ConfigurationError, match="streamed"):
        reader(tmp_path, table="losses")


def test_moments_are_dates_or_nanoseconds() -> None:
    assert moment("17") == 17
    assert moment("1970-01-01T00:00:01.5") == moment("1970-01-01T01:00:01.5+01:00") == 1_500_000_000
    assert moment("1970-01-02") == 86_400 * 10**9
