"""Recorder and replay against a real driver: what is published is recorded or in the loss table, and comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import framepool as fp
from framepool._native.crc32c import crc32c
from framepool.agent import Runner
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.errors import AttachRefused, RecordingError, RecordingInUse
from framepool.recorder.manifest import Activity
from framepool.recorder.recorder import Recorder
from framepool.recorder.recording import RecordedFrame, Recording
from framepool.recorder.replay import Replay
from framepool.recorder.verify import verify
from framepool.service import Commander
from framepool.shm.tensor import TensorLayout
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    Dtype,
    MetaBlobComplete,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire._generated.trace_904 import TraceLinkSet

STREAM, OTHER, AGAIN = 10_000, 10_001, 10_002
NSLOTS = 64
PATIENCE = 30.0


def configuration(base: Path, nslots: int = NSLOTS) -> Config:
    profile = ProfileConfig(
        nslots=nslots,
        pools=(PoolConfig(pool_id=1, stride_bytes=1024), PoolConfig(pool_id=2, stride_bytes=262_144)),
    )
    return Config(
        aeron=AeronSettings(directory=str(base / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={"default": profile},
    )


@pytest.fixture
def pool(base_dir: Path) -> Iterator[fp.Pool]:
    with fp.serve(configuration(base_dir)) as pool:
        yield pool


def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def camera_for(pool: fp.Pool, recorder: Recorder, stream_id: int = STREAM, **options: Any) -> fp.Producer:
    """A producer that the recorder hears."""
    camera = pool.producer(stream_id, **options)
    until(lambda: camera.has_readers and stream_id in recorder.attached)
    return camera


def all_recorded(recorder: Recorder, frames: int) -> None:
    until(lambda: recorder.progress().frames + sum(recorder.progress().lost.values()) >= frames)


def picture(seed: int, nbytes: int = 2000) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_recorded_frames_are_what_was_published(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0) as recorder:
        camera = camera_for(pool, recorder)
        stamps = []
        for seed in range(50):
            stamps.append(1_000_000 + 7 * seed)
            camera.publish(picture(seed), timestamp_ns=stamps[-1], trace_id=seed + 1)
            time.sleep(0.001)
        all_recorded(recorder, 50)
    recording = Recording(tmp_path / "rec")
    lost = {seq for row in recording.losses() for seq in range(row.loss.first_seq, (row.loss.last_seq or 0) + 1)}
    assert [frame.seq for frame in recording] == sorted(set(range(50)) - lost)
    assert len(recording) >= 40, "most of it arrives, on any machine"
    for frame in recording:
        assert np.array_equal(frame.array, picture(frame.seq))
        assert (frame.timestamp_ns, frame.trace_id) == (stamps[frame.seq], frame.seq + 1)
        assert frame.stream_id == STREAM
        assert frame.crc == crc32c(picture(frame.seq))
        frame.check()
    assert recording.watermark is not None
    assert (recording.watermark.activity, recording.watermark.ordinal) == (Activity.STOPPED, len(recording))
    assert verify(str(tmp_path / "rec")).ok


KINDS: list[npt.NDArray[Any]] = [
    *(np.arange(24).reshape(2, 3, 4).astype(dtype) for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")),
    *(np.linspace(-1, 1, 24).reshape(2, 3, 4).astype(dtype) for dtype in ("f4", "f8")),
    np.arange(24).reshape(2, 3, 4) % 3 == 0,
    np.asfortranarray(np.arange(24, dtype="u2").reshape(4, 6)),
    np.arange(6, dtype="u1").reshape(1, 1, 1, 1, 1, 1, 2, 3),
    np.empty((0, 5), np.uint16),
    np.zeros(200_000, np.uint8),
]
RAW = [
    (TensorLayout.build(Dtype.BIT, (3, 5)), b"\xa5\x5a"),
    (TensorLayout.build(Dtype.BYTES, (7,)), b"payload"),
    (TensorLayout.build(np.uint16, (2, 3), strides=(16, 4)), bytes(range(26))),
]


def published(camera: fp.Producer) -> int:
    for array in KINDS:
        camera.publish(array, timestamp_ns=5, trace_id=3)
    for layout, payload in RAW:
        camera.publish_raw(payload, layout.header, timestamp_ns=6)
    return len(KINDS) + len(RAW)


def content(frame: RecordedFrame) -> tuple[Any, ...]:
    """All of a frame but its place."""
    return (
        frame.tensor_header,
        bytes(frame.payload),
        frame.crc,
        frame.timestamp_ns,
        frame.trace_id,
        frame.meta_version,
    )


@pytest.mark.parametrize("compression", ["none", "zstd", "blosc2"])
def test_every_kind_of_frame_is_recorded_and_replayed_bit_for_bit(
    pool: fp.Pool, tmp_path: Path, compression: str
) -> None:
    if compression != "none":
        pytest.importorskip({"zstd": "zstandard"}.get(compression, compression))
    with Recorder(pool, tmp_path / "first", [STREAM], timeout=0, compression=compression) as recorder:
        count = published(camera_for(pool, recorder, metadata={"exposure_ms": 2.5}))
        all_recorded(recorder, count)
        until(lambda: recorder.statistics()["recorder"]["messages"].get("DataSourceMeta"))  # type: ignore[index]
    first = Recording(tmp_path / "first")
    assert [frame.seq for frame in first] == list(range(count))
    for frame, array in zip(first, KINDS, strict=False):
        assert (frame.shape, frame.dtype, frame.order) == (array.shape, array.dtype, "F" if frame.seq == 11 else "C")
        assert np.array_equal(frame.array, array)
    for frame, (layout, payload) in zip(first[len(KINDS) :], RAW, strict=True):
        assert frame.layout == layout
        assert frame.payload == payload
    assert first[0].metadata is not None
    assert first[0].metadata["exposure_ms"] == 2.5

    with Recorder(pool, tmp_path / "second", [AGAIN], timeout=0) as recorder:
        producer = camera_for(pool, recorder, AGAIN)
        with Runner(Replay(first, {STREAM: producer}, speed=0)).start():
            all_recorded(recorder, count)
            until(lambda: recorder.statistics()["recorder"]["messages"].get("DataSourceMeta", 0) >= 1)  # type: ignore[index]
            assert producer.metadata["exposure_ms"] == 2.5
    second = Recording(tmp_path / "second")
    assert [content(frame) for frame in second] == [content(frame) for frame in first]
    assert verify(str(tmp_path / "first")).ok


def test_several_streams_are_in_one_recording_in_the_order_they_came(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM, OTHER], timeout=0) as recorder:
        one, two = camera_for(pool, recorder), camera_for(pool, recorder, OTHER)
        for number in range(10):
            one.publish(np.full(8, number, np.uint8))
            all_recorded(recorder, 2 * number + 1)
            two.publish(np.full(16, number, np.uint16))
            all_recorded(recorder, 2 * number + 2)
    recording = Recording(tmp_path / "rec")
    assert recording.streams == {STREAM: 10, OTHER: 10}
    assert [frame.stream_id for frame in recording] == [STREAM, OTHER] * 10
    assert [frame.ordinal for frame in recording] == list(range(20))
    assert [int(frame.array[0]) for frame in recording.stream(OTHER)] == list(range(10))
    assert [frame.seq for frame in recording.stream(STREAM)[2:8:3]] == [2, 5]


def test_epochs_follow_each_other_and_what_ended_with_one_is_lost(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0) as recorder:
        published_in: dict[int, int] = {}
        for _ in range(3):
            camera = camera_for(pool, recorder)
            for seed in range(10):
                slot = camera.claim(100)
                slot.array[:] = seed
                slot.commit()
                published_in[slot.epoch] = slot.seq + 1
            camera.close()
        all_recorded(recorder, 30)
    recording = Recording(tmp_path / "rec")
    accounted: dict[int, list[int]] = {epoch: [] for epoch in published_in}
    for frame in recording:
        accounted[frame.epoch].append(frame.seq)
    for row in recording.losses():
        assert row.loss.last_seq is not None
        accounted[row.loss.epoch] += range(row.loss.first_seq, row.loss.last_seq + 1)
    assert {epoch: sorted(seqs) for epoch, seqs in accounted.items()} == {
        epoch: list(range(count)) for epoch, count in published_in.items()
    }
    assert verify(str(tmp_path / "rec")).ok


def test_frames_that_nobody_told_of_and_lapped_ones_are_rows_of_the_loss_table(base_dir: Path, tmp_path: Path) -> None:
    with fp.serve(configuration(base_dir, nslots=4)) as pool:
        with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0) as recorder:
            camera = camera_for(pool, recorder)
            camera.publish(picture(0))
            all_recorded(recorder, 1)
            camera.claim(10).abandon()
            for seed in range(2, 3000):
                camera.publish(picture(seed))
            all_recorded(recorder, 3000)
    recording = Recording(tmp_path / "rec")
    rows = [row.loss for row in recording.losses()]
    assert any(loss.reason == "gap" and loss.first_seq == 1 for loss in rows)
    lost = sum(loss.frames or 0 for loss in rows)
    assert lost > 1, "nobody keeps up with that"
    assert len(recording) + lost == 3000
    assert verify(str(tmp_path / "rec")).ok
    for frame in recording:
        frame.check()
        assert np.array_equal(frame.array, picture(frame.seq))


def test_messages_of_the_control_plane_are_recorded_and_carried_into_every_segment(
    pool: fp.Pool, tmp_path: Path
) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0, segment_frames=5) as recorder:
        camera = camera_for(pool, recorder, name="camera", metadata={"gain": 1})
        camera.send_blob(7, bytes(100_000))

        def messages() -> Any:
            return recorder.statistics()["recorder"]["messages"]  # type: ignore[index]

        until(lambda: messages().get("MetaBlobComplete") and messages().get("QosConsumer"))
        first = camera.publish(picture(0), trace_id=5)
        all_recorded(recorder, 1)
        camera.publish(picture(1), parents=[_Traced(5)])
        camera.metadata["gain"] = 2
        until(lambda: messages().get("DataSourceMeta", 0) >= 2 and messages().get("TraceLinkSet"))
        for seed in range(2, 12):
            camera.publish(picture(seed))
        all_recorded(recorder, 12)
        assert first == 0
    recording = Recording(tmp_path / "rec")
    kinds = {type(each.message) for each in recording.messages()}
    assert {DataSourceAnnounce, DataSourceMeta, QosProducer, QosConsumer, ShmPoolAnnounce, TraceLinkSet} <= kinds
    assert {MetaBlobComplete, EventMessage} <= kinds
    assert len(recording.segments) == 3
    assert [frame.metadata["gain"] for frame in recording if frame.metadata] == [1, 1] + [2] * 10
    for segment in recording.segments[1:]:
        templates = {(row.schema_id, row.template_id) for row in segment.messages}
        needed = (DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce, MetaBlobComplete)
        assert {(kind.SCHEMA_ID, kind.TEMPLATE_ID) for kind in needed} <= templates
    (links,) = [each.message for each in recording.messages(TraceLinkSet)]
    assert isinstance(links, TraceLinkSet)
    assert (links.seq, [parent.trace_id for parent in links.parents]) == (1, [5])


class _Traced:
    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id


def test_recording_can_be_read_while_it_is_written_as_far_as_it_is_durable(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0, segment_frames=4, flush_interval_ms=60_000) as recorder:
        camera = camera_for(pool, recorder)
        for seed in range(6):
            camera.publish(picture(seed))
        all_recorded(recorder, 6)
        recording = Recording(tmp_path / "rec")
        assert len(recording) <= 4, "the rest was not flushed"
        assert recorder.flush() == 6
        recording.refresh()
        assert [frame.seq for frame in recording] == list(range(6))
        assert [segment.sealed for segment in recording.segments][-1] is False
        assert np.array_equal(recording[5].array, picture(5))
        camera.publish(picture(6))
        all_recorded(recorder, 7)
        assert len(recording.between(2, 5)) == 3
        assert [frame.seq for frame in recording.between(3, 100)] == [3, 4, 5]
    recording.refresh()
    assert len(recording) == 7


def test_recorder_goes_on_with_a_recording_and_accounts_for_the_time_between(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0) as recorder:
        camera = camera_for(pool, recorder)
        for seed in range(5):
            camera.publish(picture(seed))
        all_recorded(recorder, 5)
    for seed in range(5, 9):
        camera.publish(picture(seed))
    with Recorder(pool, tmp_path / "rec", [STREAM]) as recorder:
        assert recorder.continued.next_ordinal == 5
        until(lambda: camera.has_readers)
        camera.publish(picture(9))
        all_recorded(recorder, 5)
    recording = Recording(tmp_path / "rec")
    assert [(frame.ordinal, frame.seq) for frame in recording] == [*((seq, seq) for seq in range(5)), (5, 9)]
    (row,) = recording.losses()
    assert (row.loss.first_seq, row.loss.last_seq, row.loss.reason) == (5, 8, "not recording")
    assert verify(str(tmp_path / "rec")).ok


def test_stream_is_recorded_by_its_name_once(pool: fp.Pool, tmp_path: Path) -> None:
    camera = pool.producer(STREAM, name="camera")
    with Recorder(pool, tmp_path / "rec", ["camera", STREAM, *pool.discover("camera")]) as recorder:
        assert recorder.streams == (STREAM,)
        until(lambda: camera.has_readers)
        camera.publish(picture(0))
        all_recorded(recorder, 1)
    assert [frame.seq for frame in Recording(tmp_path / "rec")] == [0]


def test_only_one_recorder_writes_a_recording(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0):
        with pytest.raises(RecordingInUse, match="written by process"):
            Recorder(pool, tmp_path / "rec", [STREAM], timeout=0)
    with pytest.raises(RecordingError, match="other things"):
        Recorder(pool, tmp_path, [STREAM], timeout=0)


def test_stream_that_is_not_there_is_refused_and_leaves_nothing_behind(pool: fp.Pool, tmp_path: Path) -> None:
    with pytest.raises(AttachRefused):
        Recorder(pool, tmp_path / "rec", [12_345], timeout=0.2)
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0):
        pass
    assert len(Recording(tmp_path / "rec")) == 0


def test_recorder_is_a_service_that_can_be_told_things(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0, instance="lab", flush_interval_ms=60_000) as recorder:
        camera = camera_for(pool, recorder)
        with Commander(pool.client, pool.config) as boss:
            tag = "service:recorder:lab"
            camera.publish(picture(0))
            all_recorded(recorder, 1)
            boss.command(tag, "flush", timeout=PATIENCE)
            until(lambda: recorder.progress().ordinal == 1)
            boss.command(tag, "roll", timeout=PATIENCE)
            until(lambda: recorder.progress().segments == 1)
            boss.command(tag, "pause", timeout=PATIENCE)
            camera.publish(picture(1))
            until(lambda: recorder.progress().lost == {"not recording": 1})
            boss.command(tag, "resume", timeout=PATIENCE)
            camera.publish(picture(2))
            until(lambda: recorder.progress().frames == 2)
            state = json.loads(str(boss.command(tag, "state", timeout=PATIENCE).result))
            assert state["streams"] == [STREAM]
            assert state["frames"] == 2
            boss.command(tag, "record", OTHER, timeout=PATIENCE)
            assert recorder.streams == (STREAM, OTHER)
            boss.command(tag, "forget", STREAM, timeout=PATIENCE)
            assert recorder.streams == (OTHER,)
            boss.command(tag, "stop", timeout=PATIENCE)
            assert recorder.streams == ()
            boss.command(tag, "start", timeout=PATIENCE)
            assert recorder.streams == (OTHER,)
    assert [frame.seq for frame in Recording(tmp_path / "rec")] == [0, 2]
    assert verify(str(tmp_path / "rec")).ok


def test_segments_end_by_bytes_by_frames_and_by_time(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(pool, tmp_path / "rec", [STREAM], timeout=0, segment_bytes=65_536, segment_seconds=0.5) as recorder:
        camera = camera_for(pool, recorder)
        for seed in range(3):
            camera.publish(picture(seed, 40_000))
            all_recorded(recorder, seed + 1)
        until(lambda: recorder.progress().segments == 3)
        camera.publish(picture(3, 200_000))
        all_recorded(recorder, 4)
        until(lambda: recorder.progress().segments == 4)
    recording = Recording(tmp_path / "rec")
    assert [segment.frames for segment in recording.segments if segment.frames] == [1, 1, 1, 1]
    assert all(segment.path.stat().st_size == segment.entry.bytes for segment in recording.segments)


def test_frame_that_is_larger_than_the_staging_buffer_is_recorded(
    pool: fp.Pool, base_dir: Path, tmp_path: Path
) -> None:
    large = ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=4 * 2**20),))
    config = configuration(base_dir / "large")
    (base_dir / "large").mkdir()
    config = Config(aeron=config.aeron, driver=config.driver, profiles={"default": large})
    with fp.serve(config) as roomy:
        with Recorder(roomy, tmp_path / "rec", [STREAM], timeout=0, staging_bytes=2**20) as recorder:
            camera = camera_for(roomy, recorder)
            for seed in range(2):
                camera.publish(picture(seed, 3_000_000))
                all_recorded(recorder, seed + 1)
    recording = Recording(tmp_path / "rec")
    assert [np.array_equal(frame.array, picture(frame.seq, 3_000_000)) for frame in recording] == [True, True]


def test_retention_keeps_a_ring_and_says_where_it_begins(pool: fp.Pool, tmp_path: Path) -> None:
    with Recorder(
        pool, tmp_path / "rec", [STREAM], timeout=0, segment_bytes=65_536, retain_bytes=4 * 65_536
    ) as recorder:
        camera = camera_for(pool, recorder)
        for seed in range(12):
            camera.publish(picture(seed, 50_000))
            all_recorded(recorder, seed + 1)
        until(lambda: recorder.progress().segments >= 11)
    recording = Recording(tmp_path / "rec")
    assert 2 <= len(recording) <= 4
    assert sum(segment.entry.bytes for segment in recording.segments) <= 4 * 65_536
    assert recording[0].ordinal == recording.retained.first_ordinal == 12 - len(recording)
    assert len(list((tmp_path / "rec" / "segments").glob("*.seg"))) == len(recording.segments)
    assert verify(str(tmp_path / "rec")).ok
    with pytest.raises(fp.FramepoolError, match="removed by retention"):
        recording.between(0, 12)
