"""Segments to disk: in whole blocks, durable before it is said, and as one part or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framepool._native.recording import NO_ROOM
from framepool.clock import NANOS_PER_SECOND
from framepool.config import RecorderConfig
from framepool.recorder import index as indexes
from framepool.recorder import sealing
from framepool.recorder.account import Reason
from framepool.recorder.manifest import Activity, Hold, Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.segments import CapturedMessage
from framepool.recorder.verify import verify
from framepool.wire._generated.event_905 import EventMessage, Format
from tests.support.tape import STREAM, Framed, Ring, Workshop, picture


def test_what_was_recorded_is_read_from_the_mapped_file(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec")
    shop.record(3)
    shop.lose(2)
    shop.record(1, stream_id=STREAM + 1)
    shop.close()
    recording = Recording(tmp_path / "rec")
    assert [(each.ordinal, each.stream_id, each.seq) for each in recording] == [
        *((seq, STREAM, seq) for seq in range(3)),
        (3, STREAM + 1, 0),
    ]
    for frame in recording:
        array = frame.array
        assert np.array_equal(array, picture(frame.seq))
        assert not array.flags.writeable
        assert array.__array_interface__["data"][0] % 64 == 0
        reference = frame.reference
        with open(reference.path, "rb") as file:
            file.seek(reference.offset)
            assert file.read(reference.length) == array.tobytes()
        assert (reference.host, reference.boot_id) == (recording.info.host, recording.info.boot_id)
    mapped = np.frombuffer(recording.segments[0].buffer, np.uint8)
    assert np.shares_memory(mapped, recording[0].array), "no copy"
    (row,) = recording.losses()
    assert (row.ordinal, row.loss.first_seq, row.loss.last_seq, row.loss.reason) == (3, 3, 4, Reason.GAP)
    assert verify(str(tmp_path / "rec")).ok


def test_watermark_moves_after_the_sync_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(tmp_path / "rec")
    synced: list[tuple[int, bytes]] = []

    def fdatasync(fd: int) -> None:
        watermark = Manifest(tmp_path / "rec").watermark()
        synced.append((0 if watermark is None else watermark.ordinal, Path(f"/proc/self/fd/{fd}").read_bytes()))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(2):
        shop.record(2)
        assert shop.turn() == (0 if synced else 1), "the file is made; what is not asked for is not written yet"
        shop.flush()
        shop.turn()
    assert [ordinal for ordinal, _ in synced] == [0, 2]
    assert all(picture(seq).tobytes() in content for _, content in synced for seq in range(2)), "written before"
    watermark = Manifest(tmp_path / "rec").watermark()
    assert watermark is not None
    assert (watermark.ordinal, watermark.activity) == (4, Activity.RECORDING)
    (entry,) = watermark.open
    assert (entry.first_ordinal, entry.end_ordinal, entry.bytes) == (0, 4, shop.staging.head)
    assert shop.staging.head % 4096 == 0
    shop.kill()


def test_segment_is_part_of_the_recording_once_its_index_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    shop = Workshop(tmp_path / "rec")
    shop.record(2)
    shop.flush()
    shop.roll()
    order: list[str] = []
    write, publish = sealing.write_index, Manifest.publish

    def write_index(*args: Any) -> None:
        order.append("index")
        assert shop.manifest.numbers() == []
        write(*args)

    def published(self: Manifest, entry: Any) -> None:
        order.append("manifest")
        publish(self, entry)

    monkeypatch.setattr(sealing, "write_index", write_index)
    monkeypatch.setattr(Manifest, "publish", published)
    shop.turn()
    assert order == ["index", "manifest"]
    (entry,) = shop.manifest.entries()
    assert (entry.frames, entry.first_ordinal, entry.end_ordinal, entry.indexed) == (2, 0, 2, True)
    assert (shop.manifest.segments / entry.file).stat().st_size == entry.bytes
    shop.kill()


@pytest.mark.parametrize(
    ("settings", "frames"),
    [({"segment_frames": 2}, [2, 2, 1]), ({"segment_bytes": 65_536, "nbytes": 30_000}, [2, 2, 1])],
)
def test_segments_end_by_frames_and_by_bytes(tmp_path: Path, settings: dict[str, int], frames: list[int]) -> None:
    nbytes = settings.pop("nbytes", 600)
    shop = Workshop(tmp_path / "rec", **settings)
    shop.record(5, nbytes)
    shop.close()
    recording = Recording(tmp_path / "rec")
    assert [segment.frames for segment in recording.segments] == frames
    assert [segment.first_ordinal for segment in recording.segments] == [0, 2, 4]
    assert [frame.seq for frame in recording] == list(range(5))


def test_segment_that_says_something_ends_after_its_time(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_seconds=10)
    said = CapturedMessage(1401, 0, 905, 1, bytes(1000))
    for add in (shop.record, shop.lose):
        assert shop.log.add_message(said)
        shop.clock.advance(20 * NANOS_PER_SECOND)
        assert not shop.log.is_due, "there is nothing in it that anybody waits for"
        add()
        assert shop.log.is_due
        shop.roll()
        assert not shop.log.is_due
    shop.kill()


def test_segment_of_messages_alone_ends_by_its_bytes(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_bytes=65_536)
    said = CapturedMessage(1401, 0, 905, 1, bytes(1000))
    for _ in range(54):
        assert shop.log.add_message(said)
    assert not shop.log.is_due
    for _ in range(5):
        assert shop.log.add_message(said)
    assert shop.log.is_due
    shop.kill()


def test_more_than_can_be_carried_is_left_out(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec")
    shop.log._carried = lambda: [CapturedMessage(1300, STREAM, 900, 4, bytes(200_000))] * 9
    shop.record()
    shop.close()
    assert len(Recording(tmp_path / "rec").segments[0].messages) == 2, "half of the staging buffer at the most"


def test_room_is_reserved_and_what_is_not_needed_given_back(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_bytes=2**20)
    shop.record()
    shop.flush()
    shop.turn()
    path = shop.manifest.segments / "00000000.seg"
    assert path.stat().st_size == 2**20
    assert path.stat().st_blocks * 512 >= 2**20
    shop.close()
    assert path.stat().st_size == 4096


def test_filesystem_without_direct_writes_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    shop = Workshop(tmp_path / "rec")
    shop.record(3)
    shop.close()
    assert not shop.disk.direct
    assert len(Recording(tmp_path / "rec")) == 3


def test_filesystem_that_refuses_only_the_direct_write_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = os.pwrite, []

    def refusing(fd: int, data: Any, offset: int) -> int:
        asked.append(offset)
        if len(asked) == 1:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, data, offset)

    shop = Workshop(tmp_path / "rec")
    monkeypatch.setattr(os, "pwrite", refusing)
    shop.disk.direct = True
    shop.record(3)
    shop.close()
    assert not shop.disk.direct
    assert asked[:2] == [0, 0]
    assert verify(str(tmp_path / "rec")).ok


def test_never_is_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, flags_seen = os.open, []

    def looking(path: Any, flags: int, *args: Any, **options: Any) -> int:
        flags_seen.append(flags)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", looking)
    shop = Workshop(tmp_path / "rec", direct_io="never")
    shop.record()
    shop.close()
    assert not any(flags & os.O_DIRECT for flags in flags_seen)


def test_short_write_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:5000], offset))
    shop = Workshop(tmp_path / "rec", direct_io="never")
    shop.record(10, 1000)
    shop.close()
    assert verify(str(tmp_path / "rec")).ok
    assert len(Recording(tmp_path / "rec")) == 10


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_full_disk_loses_nothing_that_is_staged_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    shop = Workshop(tmp_path / "rec")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        shop.record(3)
        shop.flush()
        shop.turn()
        assert shop.disk.refusal == "No space left on device"
        assert shop.frontier.ordinal == 0
        assert shop.disk.do_work() == 0, "not again at once"
        if call == "posix_fallocate":
            assert list(shop.manifest.segments.iterdir()) == [], "nothing half-made is left"
    assert shop.disk.do_work() == 0
    shop.clock.advance(NANOS_PER_SECOND)
    shop.turn()
    assert (shop.disk.refusal, shop.frontier.ordinal) == ("", 3)
    shop.close()
    assert len(Recording(tmp_path / "rec")) == 3


def test_what_is_durable_counts_once_readers_can_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    shop = Workshop(tmp_path / "rec")
    seen_by_others: list[int] = []
    real = shop.manifest.advance
    monkeypatch.setattr(
        shop.manifest, "advance", lambda mark: (seen_by_others.append(shop.frontier.ordinal), real(mark))
    )
    shop.record(3)
    shop.flush()
    shop.turn()
    assert (seen_by_others, shop.frontier.ordinal, len(Recording(tmp_path / "rec"))) == ([0], 3, 3)
    monkeypatch.setattr(shop.manifest, "advance", full)
    shop.record(2)
    shop.flush()
    shop.turn()
    assert (shop.frontier.ordinal, len(Recording(tmp_path / "rec"))) == (3, 3)
    monkeypatch.setattr(shop.manifest, "advance", real)
    shop.clock.advance(NANOS_PER_SECOND)
    shop.turn()
    assert (shop.frontier.ordinal, len(Recording(tmp_path / "rec"))) == (5, 5)
    shop.close()


def test_filesystem_that_cannot_reserve_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    shop = Workshop(tmp_path / "rec")
    shop.record(3)
    shop.close()
    assert len(Recording(tmp_path / "rec")) == 3


def test_disk_that_lost_what_it_took_is_not_trusted_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    shop = Workshop(tmp_path / "rec")
    shop.record(2)
    shop.flush()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        shop.turn()
    shop.clock.advance(NANOS_PER_SECOND)
    assert shop.disk.failure is not None
    assert shop.disk.do_work() == 0
    assert shop.frontier.ordinal == 0
    shop.kill()


def test_staging_that_is_full_takes_nothing_until_the_disk_made_room(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", staging_bytes=2**20, segment_bytes=4 * 2**20)
    shop.record(16, 60_000)
    frame = Ring().publish(16, picture(16, 60_000))
    assert shop.log.add_frames([frame]) == (1, 0)
    assert shop.log.add_frames([Ring().publish(17, picture(17, 60_000))]) == (0, NO_ROOM)
    assert shop.turn() > 0
    assert shop.log.add_frames([Ring().publish(17, picture(17, 60_000))]) == (1, 0)
    shop.close()
    assert len(Recording(tmp_path / "rec")) == 18


def test_every_segment_begins_with_what_is_carried(tmp_path: Path) -> None:
    event = EventMessage(
        timestamp_ns=5, correlation_id=6, format=Format.NOTHING, pad=bytes(3), tag="service:x", key="y", value=b""
    )
    said = CapturedMessage(1401, 0, EventMessage.SCHEMA_ID, EventMessage.TEMPLATE_ID, event.encode())
    shop = Workshop(tmp_path / "rec")
    shop.log._carried = lambda: [said]
    shop.record(2)
    assert shop.log.add_message(said)
    shop.roll()
    shop.record(1)
    shop.close()
    recording = Recording(tmp_path / "rec")
    assert [(each.ordinal, each.message.tag) for each in recording.messages(EventMessage)] == [
        (0, "service:x"),
        (2, "service:x"),
        (2, "service:x"),
    ]
    assert [len(segment.messages) for segment in recording.segments] == [2, 1]


@pytest.mark.parametrize("rule", [{"retain_bytes": 3 * 65_536}, {"retain_seconds": 50.0}])
def test_retention_removes_the_oldest_and_says_so(tmp_path: Path, rule: dict[str, Any]) -> None:
    shop = Workshop(tmp_path / "rec", segment_bytes=65_536, **rule)
    for _ in range(6):
        shop.record(2, 30_000)
        shop.roll()
        shop.turn()
        shop.clock.advance(20 * NANOS_PER_SECOND)
    shop.clock.advance(0)
    shop.turn()
    retained = shop.manifest.retained()
    kept = list(shop.manifest.entries())
    assert 1 <= len(kept) <= 3
    assert retained.first_segment == kept[0].number == 6 - len(kept)
    assert (retained.first_ordinal, retained.removed_frames) == (kept[0].first_ordinal, 12 - 2 * len(kept))
    assert {path.name.partition(".")[0] for path in shop.manifest.segments.iterdir()} == {
        f"{entry.number:08}" for entry in kept
    }
    shop.close()
    assert verify(str(tmp_path / "rec")).ok


def test_reader_holds_what_it_needs_until_its_hold_expires(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_bytes=65_536, retain_bytes=3 * 65_536)
    now_ns = 1_700_000_000 * NANOS_PER_SECOND
    shop.manifest.hold("spark", Hold(ordinal=3, expires_ns=now_ns + 100 * NANOS_PER_SECOND))
    (tmp_path / "rec" / "holds" / "nonsense.json").write_text("{")
    for _ in range(6):
        shop.record(2, 30_000)
        shop.roll()
        shop.turn()
    assert shop.manifest.numbers() == [1, 2, 3, 4, 5], "the segment of frame 3 is held, and what comes behind it"
    shop.clock.advance(200 * NANOS_PER_SECOND)
    shop.turn()
    assert len(shop.manifest.numbers()) <= 3
    assert shop.manifest.holds(), "its reader may be late"
    shop.clock.advance(3601 * NANOS_PER_SECOND)
    shop.turn()
    assert not shop.manifest.holds(), "its reader is dead"
    shop.manifest.release("nobody")
    with pytest.raises(ValueError, match="no name"):
        shop.manifest.hold("../spark", Hold(ordinal=3, expires_ns=1))
    shop.kill()


def test_newest_segment_stays_whatever_its_age(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", retain_seconds=1.0)
    shop.record()
    shop.close()
    shop = Workshop(tmp_path / "rec", retain_seconds=1.0)
    shop.clock.advance(100 * NANOS_PER_SECOND)
    shop.turn()
    assert shop.manifest.numbers() == [0], "it says which frames are accounted for"
    shop.kill()


def test_segment_that_cannot_be_sealed_now_is_sealed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shop = Workshop(tmp_path / "rec")
    shop.record(2)
    shop.roll()
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "publish", full)
        shop.turn()
        assert shop.sealer.refusal == "No space left on device"
    assert not shop.sealer.is_idle
    shop.clock.advance(2 * NANOS_PER_SECOND)
    shop.turn()
    assert shop.sealer.is_idle
    assert shop.manifest.numbers() == [0]
    shop.kill()


def test_recording_without_pyarrow_works_and_is_indexed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(sealing, "has_arrow", lambda: False)
        shop = Workshop(tmp_path / "rec")
        shop.record(3)
        shop.close()
    (entry,) = shop.manifest.entries()
    assert not entry.indexed
    assert [path.name for path in shop.manifest.segments.iterdir()] == ["00000000.seg"]
    assert [frame.seq for frame in Recording(tmp_path / "rec")] == [0, 1, 2]
    assert verify(str(tmp_path / "rec")).ok


def test_frames_of_an_index_are_those_of_its_segment(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shop = Workshop(tmp_path / "rec")
    shop.record(300, 50, trace_id=7)
    shop.close()
    segment = Recording(tmp_path / "rec").segments[0]
    offsets, headers = indexes.read_frames(segment.path.with_suffix(indexes.FRAMES))
    segment._scan()
    assert np.array_equal(offsets, segment.offsets)
    assert headers.tobytes() == segment.headers.tobytes()


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="three segments"):
        RecorderConfig(segment_bytes=2**20, retain_bytes=2**20)


def test_frames_of_one_call_may_be_cut_by_the_end_of_a_segment(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec", segment_frames=3)
    ring = Ring()
    frames: list[Framed] = [ring.publish(seq, picture(seq)) for seq in range(5)]
    count, code = shop.log.add_frames(frames)
    assert (count, code) == (3, 3)
    shop.roll()
    assert shop.log.add_frames(frames, 3) == (2, 0)
    shop.close()
    assert [frame.seq for frame in Recording(tmp_path / "rec")] == list(range(5))
