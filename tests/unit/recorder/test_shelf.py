"""The list of recordings below a directory."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from framepool.recorder.account import Loss, Reason
from framepool.recorder.manifest import Activity, Manifest, OpenEntry, Watermark
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile
from framepool.recorder.shelf import Shelf, tables_of


def make(path: Path, frames: int, lost: int = 0) -> Manifest:
    manifest = Manifest(path)
    info = manifest.create(time.time_ns())
    with SegmentFile(manifest.segments / "00000000.seg", info.recording_id) as segment:
        for seq in range(frames):
            segment.add(np.zeros(10, np.uint8), stream_id=10_000 + seq % 2, epoch=1, seq=seq)
        if lost:
            segment.add_loss(Loss(stream_id=10_000, epoch=1, first_seq=50, last_seq=49 + lost, reason=Reason.GAP))
    seal(manifest, segment.contents)
    return manifest


def test_each_recording_is_listed_with_its_streams_frames_losses_and_watermark(tmp_path: Path) -> None:
    make(tmp_path / "b" / "night", 3, lost=4)
    opened = make(tmp_path / "a", 2)
    entry = OpenEntry(number=1, file="00000001.seg", segment_id="1", bytes=700, first_ordinal=2, end_ordinal=7)
    opened.lock()
    opened.advance(
        Watermark(
            ordinal=7, recorded_ns=1, activity=Activity.RECORDING, open=(entry,), pid=1, boot_id="", frames=7, lost={}
        )
    )
    (tmp_path / "nothing").mkdir()
    shelf = Shelf(tmp_path)
    first, second = shelf.look()
    assert (first["name"], first["state"], first["frames"], first["watermark"]) == ("a", "recording", 7, 7)
    assert first["segments"] == 2
    assert (second["name"], second["state"], second["lost"]) == ("b/night", "stopped", 4)
    assert second["streams"] == {"10000": 2, "10001": 1}
    assert second["bytes"] > 0
    opened.unlock()
    assert [each["state"] for each in shelf.look()] == ["stopped", "stopped"]


def test_a_report_is_found_beside_its_recording_and_nowhere_else(tmp_path: Path) -> None:
    make(tmp_path / "night", 1)
    shelf = Shelf(tmp_path)
    assert [each["report"] for each in shelf.look()] == [False]
    page = tables_of(tmp_path / "night") / "report.html"
    page.parent.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    page.symlink_to(secret)
    assert shelf.report("night") is None
    page.unlink()
    page.write_text("<p>")
    assert [each["report"] for each in shelf.look()] == [True]
    assert shelf.report("night") == page
    assert shelf.report("../night") is None
    assert shelf.report("") is None


def test_what_is_gone_or_damaged_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "night", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recording.json").write_text("{}")
    shelf = Shelf(tmp_path)
    assert [each["name"] for each in shelf.look()] == ["night"]
    assert Shelf(tmp_path / "nowhere").look() == []
