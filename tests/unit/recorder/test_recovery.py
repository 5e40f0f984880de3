"""After a kill at any moment: what was durable is there, what was written is kept as far as it is whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framepool.errors import RecordingError, RecordingInUse
from framepool.recorder.account import Reason
from framepool.recorder.manifest import Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.recovery import take_over
from framepool.recorder.verify import Fault, verify
from tests.support.directories import private_directory
from tests.support.tape import EPOCH, STREAM, Workshop, picture

steps = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(1, 4), st.sampled_from([0, 10, 700, 5000])),
        st.tuples(st.just("lose"), st.integers(1, 3)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("roll")),
        st.tuples(st.just("turn"), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives=st.lists(steps, min_size=1, max_size=3), cut=st.floats(0, 1))
def test_any_kill_leaves_a_recording_whose_account_is_complete(lives: list[list[tuple]], cut: float) -> None:
    with private_directory() as base:
        path = base / "rec"
        for life in lives:
            shop = Workshop(path, segment_bytes=65_536, direct_io="never")
            for step in life:
                match step:
                    case ("record", count, nbytes):
                        shop.record(count, nbytes)
                    case ("lose", count):
                        shop.lose(count)
                    case ("flush",):
                        shop.flush()
                    case ("roll",):
                        shop.roll()
                    case ("turn", times):
                        shop.turn(times)
            durable = shop.frontier.ordinal
            shop.kill()
            _tear(shop, cut)
            again = Workshop(path)
            assert again.begin.next_ordinal >= durable
            again.kill()
        recording = Recording(path)
        assert verify(str(path)).problems == ()
        kept = [frame.seq for frame in recording]
        lost = [s for row in recording.losses() for s in range(row.loss.first_seq, (row.loss.last_seq or 0) + 1)]
        assert sorted(kept + lost) == list(range(len(kept) + len(lost)))
        known = again.begin.state.get(STREAM)
        assert len(kept) + len(lost) == (0 if known is None else known.next_seq[EPOCH])
        for frame in recording:
            assert np.array_equal(frame.array, picture(frame.seq, frame.nbytes))
        assert [frame.ordinal for frame in recording] == list(range(len(kept)))


def _tear(shop: Workshop, share: float) -> None:
    """Takes back part of what the last writes brought, as a kill in the middle of one would."""
    watermark = shop.manifest.watermark()
    durable = {entry.file: entry.bytes for entry in watermark.open} if watermark else {}
    for path in shop.manifest.unsealed(len(shop.manifest.numbers())):
        safe = durable.get(path.name, 0)
        written = max(safe, min(shop.staging.tail, path.stat().st_size))
        with open(path, "r+b") as file:
            keep = safe + int((written - safe) * share)
            if keep < path.stat().st_size:
                rest = path.stat().st_size - keep
                file.seek(keep)
                file.write(bytes(min(rest, 2**16)))


def left_open(path: Path, frames: int = 10) -> Workshop:
    """A recording whose recorder was killed after a flush."""
    shop = Workshop(path)
    shop.record(frames)
    shop.flush()
    shop.turn()
    shop.kill()
    return shop


def test_unsealed_recording_is_said_to_be_and_can_be_read(tmp_path: Path) -> None:
    left_open(tmp_path / "rec")
    assert [problem.fault for problem in verify(str(tmp_path / "rec")).problems] == [Fault.UNSEALED]
    assert len(Recording(tmp_path / "rec")) == 10
    begin = take_over(Manifest(tmp_path / "rec"))
    assert (begin.recovered, begin.next_number, begin.next_ordinal) == (1, 1, 10)
    assert verify(str(tmp_path / "rec")).ok
    (entry,) = Manifest(tmp_path / "rec").entries()
    assert entry.recovered
    assert entry.indexed


@pytest.mark.parametrize("part", ["header", "payload"])
def test_damage_below_the_watermark_costs_one_frame_and_is_a_row(tmp_path: Path, part: str) -> None:
    shop = left_open(tmp_path / "rec")
    frame = Recording(tmp_path / "rec")[4]
    flip(frame.reference.path, frame.reference.offset + (5 if part == "payload" else -500))
    begin = take_over(Manifest(tmp_path / "rec"))
    assert begin.next_ordinal == 10
    recording = Recording(tmp_path / "rec")
    assert [each.seq for each in recording] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [each.ordinal for each in recording] == [0, 1, 2, 3, 5, 6, 7, 8, 9], "an ordinal is never given twice"
    (row,) = recording.losses()
    assert (row.loss.first_seq, row.loss.last_seq, row.loss.reason) == (4, 4, Reason.DAMAGED)
    assert row.ordinal == 10
    assert begin.state[STREAM].next_seq == {EPOCH: 10}
    assert shop.next_seq == {STREAM: 10}


def test_frames_that_were_durable_and_are_gone_keep_their_ordinals(tmp_path: Path) -> None:
    left_open(tmp_path / "rec")
    frame = Recording(tmp_path / "rec")[7]
    os.truncate(frame.reference.path, frame.reference.offset + 3)
    begin = take_over(Manifest(tmp_path / "rec"))
    assert begin.next_ordinal == 10
    assert len(Recording(tmp_path / "rec")) == 7


def test_segment_that_was_just_made_is_nothing(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec")
    shop.record()
    shop.turn(1)
    shop.kill()
    begin = take_over(Manifest(tmp_path / "rec"))
    assert (begin.recovered, begin.next_number) == (0, 0)
    assert list((tmp_path / "rec" / "segments").iterdir()) == []


def test_removal_that_was_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(tmp_path / "rec", segment_frames=1)
    shop.record(3)
    shop.close()
    first = shop.manifest.entry(0)
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "files_of", lambda self, stem: [])
        shop.manifest.remove(first)
    assert (shop.manifest.segments / first.file).exists()
    begin = take_over(Manifest(tmp_path / "rec"))
    assert begin.next_number == 3
    assert not (shop.manifest.segments / first.file).exists()
    assert len(Recording(tmp_path / "rec")) == 2
    assert verify(str(tmp_path / "rec")).ok


def test_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not touch")
    with pytest.raises(RecordingError, match="other things"):
        take_over(Manifest(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_recording_that_is_written_cannot_be_recovered_by_another(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "rec")
    take_over(manifest)
    with pytest.raises(RecordingInUse):
        take_over(Manifest(tmp_path / "rec"))
    assert Manifest(tmp_path / "rec").is_locked()
    manifest.unlock()
    assert not Manifest(tmp_path / "rec").is_locked()


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


# What a hostile recording cannot do to whoever goes on with it


def unfinished(path: Path) -> Path:
    """A recording whose recorder was killed, with a watermark that speaks of its open segment; that segment."""
    shop = Workshop(path)
    shop.record(3)
    shop.flush()
    shop.turn(4)
    shop.kill()
    watermark = Manifest(path).watermark()
    assert watermark is not None
    return path / "segments" / watermark.open[0].file


def test_recovery_cuts_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    segment = unfinished(tmp_path / "rec")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    segment.unlink()
    segment.symlink_to(victim)
    with pytest.raises(RecordingError):
        take_over(Manifest(tmp_path / "rec"))
    assert victim.read_bytes() == b"mine"


def test_small_files_are_not_written_through_links(tmp_path: Path) -> None:
    unfinished(tmp_path / "rec")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "rec" / "manifest" / ".00000000.json.tmp").symlink_to(victim)
    take_over(Manifest(tmp_path / "rec"))
    assert victim.read_bytes() == b"mine"
    assert len(Recording(tmp_path / "rec")) == 3


@pytest.mark.parametrize("name", ["segments", "manifest", "holds", "lock"])
def test_recording_with_a_link_in_it_is_not_written(tmp_path: Path, name: str) -> None:
    unfinished(tmp_path / "rec")
    place = tmp_path / "rec" / name
    elsewhere = tmp_path / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    with pytest.raises(RecordingError, match="link"):
        take_over(Manifest(tmp_path / "rec"))
