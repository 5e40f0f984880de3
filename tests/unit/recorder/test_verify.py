"""Verification finds what is wrong, each kind of it, and names it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framepool.errors import RecordingError
from framepool.recorder import format as form
from framepool.recorder.account import Loss, Reason
from framepool.recorder.codecs import compressor
from framepool.recorder.index import FRAMES, LOSSES
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.segment_file import SegmentFile
from framepool.recorder.verify import Fault, verify
from tests.support.tape import EPOCH, STREAM, Ring, Workshop, picture


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three segments of four frames, with a loss."""
    shop = Workshop(tmp_path / "rec", segment_frames=4)
    shop.record(6)
    shop.lose(3)
    shop.record(6)
    shop.close()
    assert verify(str(tmp_path / "rec")).ok
    return tmp_path / "rec"


def faults(path: Path) -> list[Fault]:
    return [problem.fault for problem in verify(str(path)).problems]


def change(path: Path, offset: int, edit: Callable[[int], int] = lambda byte: byte ^ 1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] = edit(content[offset])
    path.write_bytes(content)


def test_whole_recording_is_counted(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verdict = verify(str(path), on_progress=lambda done, total: seen.append((done, total)))
    assert (verdict.segments, verdict.frames, verdict.lost, verdict.problems) == (3, 12, 3, ())
    assert (
        seen[-1][0] == seen[-1][1] == verdict.bytes == sum(each.stat().st_size for each in path.glob("segments/*.seg"))
    )


def test_flipped_bit_of_a_payload_is_found(path: Path) -> None:
    frame = Recording(path)[5]
    change(Path(frame.reference.path), frame.reference.offset + 100)
    (problem,) = verify(str(path)).problems
    assert (problem.fault, problem.where) == (Fault.DAMAGED, "00000001.seg")
    assert str(frame.reference.offset - form.FRAME_HEADER_BYTES) in problem.detail


@pytest.mark.parametrize("offset", [0, 4, 30, 70, 100, 256, 300, 511])
def test_flipped_bit_of_a_header_is_found_wherever_it_is(path: Path, offset: int) -> None:
    frame = Recording(path)[5]
    change(Path(frame.reference.path), frame.reference.offset - form.FRAME_HEADER_BYTES + offset)
    found = faults(path)
    assert Fault.DAMAGED in found
    assert Fault.WRONG_INDEX in found, "the index still knows the frame"


def test_flipped_bit_of_any_record_is_found(path: Path) -> None:
    file = path / "segments" / "00000001.seg"
    content = file.read_bytes()
    for record in list(form.walk(memoryview(content))):
        if record.prefix.stored_bytes:
            change(file, record.payload_offset)
            assert Fault.DAMAGED in faults(path), record.kind
            file.write_bytes(content)


def test_truncated_segment_is_found(path: Path) -> None:
    file = path / "segments" / "00000002.seg"
    os.truncate(file, file.stat().st_size - 1)
    assert faults(path) == [Fault.TRUNCATED]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_segment_is_found(path: Path, number: int) -> None:
    (path / "segments" / f"{number:08}.seg").unlink()
    assert Fault.MISSING_SEGMENT in faults(path)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_segment_that_is_missing_with_its_entry_is_found(path: Path, number: int) -> None:
    for file in [*path.glob(f"segments/{number:08}.*"), path / "manifest" / f"{number:08}.json"]:
        file.unlink()
    assert Fault.MISSING_SEGMENT in faults(path)


@pytest.mark.parametrize("suffix", [FRAMES, LOSSES])
def test_missing_index_is_found(path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    (path / "segments" / f"00000001{suffix}").unlink()
    (problem,) = verify(str(path)).problems
    assert (problem.fault, problem.where) == (Fault.MISSING_INDEX, f"00000001{suffix}")


def test_index_of_another_segment_is_found(path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copy(path / "segments" / f"00000000{FRAMES}", path / "segments" / f"00000001{FRAMES}")
    assert faults(path) == [Fault.WRONG_INDEX]
    (path / "segments" / f"00000001{FRAMES}").write_bytes(b"no Parquet")
    assert faults(path) == [Fault.WRONG_INDEX]


def test_frame_that_is_there_twice_is_found(path: Path) -> None:
    file = path / "segments" / "00000001.seg"
    content = file.read_bytes()
    first, second = [each for each in form.walk(memoryview(content)) if each.kind is form.Kind.FRAME][:2]
    assert first.prefix.record_bytes == second.prefix.record_bytes
    copied = content[: second.offset] + content[first.offset : first.end] + content[second.end :]
    file.write_bytes(copied)
    found = faults(path)
    assert Fault.DUPLICATE in found
    assert Fault.UNACCOUNTED in found, "the one that it took the place of"


def test_segment_that_is_there_twice_is_found(path: Path) -> None:
    for suffix in (".seg", ".frames.parquet", ".losses.parquet", ".messages.parquet"):
        if (path / "segments" / f"00000002{suffix}").exists():
            shutil.copy(path / "segments" / f"00000002{suffix}", path / "segments" / f"00000003{suffix}")
    entry = json.loads((path / "manifest" / "00000002.json").read_text())
    entry |= {"number": 3, "file": "00000003.seg", "first_ordinal": 12, "end_ordinal": 16}
    (path / "manifest" / "00000003.json").write_text(json.dumps(entry))
    assert Fault.DUPLICATE in faults(path)


def test_frames_that_are_neither_there_nor_lost_are_found(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "rec")
    info = manifest.create(1)
    with SegmentFile(manifest.segments / "00000000.seg", info.recording_id) as file:
        file.add(picture(0), stream_id=STREAM, epoch=EPOCH, seq=0)
        file.add(picture(3), stream_id=STREAM, epoch=EPOCH, seq=3)
        file.add_loss(Loss(stream_id=STREAM, epoch=EPOCH, first_seq=3, last_seq=4, reason=Reason.GAP))
    manifest.publish(file.contents.entry(indexed=False))
    details = [(each.fault, each.detail) for each in verify(str(tmp_path / "rec")).problems]
    assert details == [
        (Fault.UNACCOUNTED, "frames 1 to 2"),
        (Fault.UNACCOUNTED, "frames 3 to 3 are there and lost"),
    ]


@pytest.mark.parametrize("name", ["watermark.json", "manifest/00000001.json"])
def test_manifest_that_cannot_be_read_is_found(path: Path, name: str) -> None:
    (path / name).write_text("{")
    assert faults(path) == [Fault.MANIFEST]


def test_what_is_no_recording_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is no recording"):
        verify(str(tmp_path))
    Manifest(tmp_path / "rec").create(1)
    info = json.loads((tmp_path / "rec" / "recording.json").read_text()) | {"format": 2}
    (tmp_path / "rec" / "recording.json").write_text(json.dumps(info))
    with pytest.raises(RecordingError, match="format 2"):
        verify(str(tmp_path / "rec"))


def test_damaged_compressed_frame_is_found(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    zstd = compressor("zstd")
    assert zstd is not None
    shop = Workshop(tmp_path / "rec")
    shop.record(1, 0)
    for content, raw in ((bytes(1000), bytes(1000)), (b"x" * 1000, b"y" * 1000)):
        seq = shop.next_seq[STREAM]
        frame = Ring().publish(seq, np.frombuffer(raw, np.uint8))
        position = shop.staging.head
        shop.staging.hold()
        assert shop.log.add_frames([frame]) == (1, 0)
        stored = zstd.compress(memoryview(content), 1)
        assert stored is not None
        shop.log.restore(position, stored, zstd.codec)
        shop.staging.publish()
        shop.next_seq[STREAM] = seq + 1
    shop.close()
    assert bytes(Recording(tmp_path / "rec")[1].payload) == bytes(1000)
    (problem,) = verify(str(tmp_path / "rec")).problems
    assert problem.fault is Fault.DAMAGED
    assert "came out of its compression changed" in problem.detail
