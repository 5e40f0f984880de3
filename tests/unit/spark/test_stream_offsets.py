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


def seqs(source: FramepoolStreamReader, start: int, end: int) -> list[int]:
    """What a batch gives, read as an executor reads it."""
    elsewhere: FramepoolStreamReader = pickle.loads(pickle.dumps(source))
    found: list[int] = []
    for partition in source.partitions({"ordinal": start}, {"ordinal": end}):
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
    assert source.latestOffset(start, ReadAllAvailable()) == {"ordinal": 0}
    growing.add(5)
    assert source.latestOffset(start, ReadAllAvailable()) == {"ordinal": 5}
    growing.add(3, sealed=False)
    assert source.reportLatestOffset() == source.latestOffset(start, ReadAllAvailable()) == {"ordinal": 8}
    assert seqs(source, 2, 8) == [2, 3, 4, 5, 6, 7]


def test_beginning_is_the_same_whenever_it_is_asked_for(growing: Growing) -> None:
    source = reader(growing.path)
    before = source.initialOffset()
    growing.add(9)
    assert source.initialOffset() == before == reader(growing.path).initialOffset() == {"ordinal": 0}
    assert reader(growing.path, startingOffsets=4).initialOffset() == {"ordinal": 4}


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
    assert every.latestOffset({"ordinal": 0}, limit) == {"ordinal": 4}
    assert every.latestOffset({"ordinal": 4}, limit) == {"ordinal": 8}
    assert every.latestOffset({"ordinal": 8}, limit) == {"ordinal": 12}
    assert every.latestOffset({"ordinal": 0}, ReadAllAvailable()) == {"ordinal": 12}
    odd = reader(growing.path, stream=STREAM + 1, maxFramesPerTrigger=4)
    end = odd.latestOffset({"ordinal": 0}, limit)["ordinal"]
    assert seqs(odd, 0, end) == [1, 3, 5, 7]
    assert seqs(odd, end, 12) == [9, 11]
    small = reader(growing.path, maxBytesPerTrigger=100)  # a frame has 32
    assert small.getDefaultReadLimit() == ReadMaxBytes(100)
    assert small.latestOffset({"ordinal": 5}, ReadMaxBytes(100)) == {"ordinal": 8}
    assert small.latestOffset({"ordinal": 5}, ReadMaxBytes(1)) == {"ordinal": 6}


def test_available_now_ends_where_it_began_to_look(growing: Growing) -> None:
    growing.add(5)
    source = reader(growing.path)
    source.prepareForTriggerAvailableNow()
    growing.add(5)
    assert source.latestOffset({"ordinal": 0}, ReadAllAvailable()) == {"ordinal": 5}


def test_frames_removed_before_they_were_read_fail_the_query_unless_told_otherwise(growing: Growing) -> None:
    growing.add(5)
    growing.add(5)
    growing.remove_first()
    with pytest.raises(FramesRemoved, match=r"3 to 4 were removed.*failOnDataLoss=false"):
        reader(growing.path).partitions({"ordinal": 3}, {"ordinal": 10})
    assert seqs(reader(growing.path, failOnDataLoss="false"), 3, 10) == [5, 6, 7, 8, 9]
    assert seqs(reader(growing.path), 0, 10) == [5, 6, 7, 8, 9]  # the earliest that there are


def test_what_a_query_needs_is_held_until_it_is_read_or_the_query_is_long_gone(growing: Growing) -> None:
    growing.add(5)
    source = reader(growing.path, holdSeconds=60)
    source.latestOffset({"ordinal": 2}, ReadAllAvailable())
    (hold,) = growing.manifest.holds().values()
    assert hold.ordinal == 2
    assert 50e9 < hold.expires_ns - time.time_ns() <= 60e9
    source.commit({"ordinal": 5})
    assert [each.ordinal for each in growing.manifest.holds().values()] == [5]
    source.stop()
    assert not growing.manifest.holds()


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
    partitions = source.partitions({"ordinal": 0}, {"ordinal": 5})
    growing.path.rename(tmp_path / "away")
    Growing(growing.path).add(5)
    with pytest.raises(RecordingDamaged, match="replaced by another recording"):
        list(pickle.loads(pickle.dumps(source)).read(partitions[0]))


def test_options_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    for given, said in (
        ({}, "load"),
        ({"path": "x", "payload": "pixels"}, "payload"),
        ({"path": "x", "startseq": "-1"}, "startSeq"),
        ({"path": "x", "stream": "camera"}, "camera"),
        ({"path": "x", "startingOffsets": "latest"}, "latest"),
        ({"path": "x", "endTime": "soon"}, "soon"),
        ({"path": "x", "sttrict": "true"}, "sttrict"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            Options.of(given)
    with pytest.raises(ConfigurationError, match="streamed"):
        reader(tmp_path, table="losses")


def test_moments_are_dates_or_nanoseconds() -> None:
    assert moment("17") == 17
    assert moment("1970-01-01T00:00:01.5") == moment("1970-01-01T01:00:01.5+01:00") == 1_500_000_000
    assert moment("1970-01-02") == 86_400 * 10**9
