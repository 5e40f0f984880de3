"""References to frames, as a task resolves them: on the host that recorded, on another one, and where nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder.recording import Recording
from framepool.spark.frames import frames_in
from framepool.spark.options import Options
from framepool.spark.plan import open_recording, plan
from framepool.spark.rows import batches
from framepool.spark.selection import Selection
from tests.support.awkward import Awkward, write_awkward

ARROW: dict[str, Any] = {"bigint": pa.int64(), "string": pa.string(), "array<bigint>": pa.list_(pa.int64())}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Awkward:
    """A recording that another host has made, on storage that this one mounts."""
    with monkeypatch.context() as there:
        there.setattr("framepool.recorder.manifest.this_host", lambda: "another-boot")
        there.setattr("socket.gethostname", lambda: "observatory")
        return write_awkward(tmp_path / "recording")


def references(recording: Awkward, **changed: str) -> Iterator[pa.RecordBatch]:
    """The rows of the source in reference mode, with columns changed."""
    from framepool.spark.rows import columns_of

    options = Options.of({"path": str(recording.path)})
    pairs = [each.replace("`", "").split(" ") for each in columns_of(options).split(", ")]
    schema = pa.schema([(name, ARROW[kind]) for name, kind in pairs])
    for piece in plan(Recording(recording.path), Selection(), 2**20):
        for batch in batches(piece, options, Selection(), schema, strict=True):
            table = pa.Table.from_batches([batch])
            for name, value in changed.items():
                where = table.column_names.index(name)
                table = table.set_column(where, name, pa.array([value] * len(table)))
            yield from table.to_batches()


def test_references_of_another_host_are_read_from_shared_storage(shared: Awkward) -> None:
    rows = list(references(shared))
    assert {boot for batch in rows for boot in batch["boot_id"].to_pylist()} == {"another-boot"}
    found = {frame.row["ordinal"]: frame.array for frame in frames_in(rows, strict=True)}
    assert found.keys() == shared.arrays().keys()
    assert all(
        np.array_equal(found[at], array, equal_nan=array.dtype.kind == "f") for at, array in shared.arrays().items()
    )


def test_references_that_lead_nowhere_on_this_host_fail_with_what_to_do(shared: Awkward) -> None:
    said = (
        r"recorded on host observatory \(boot id another-boot\), and on \S+ is not here: put the recording on storage"
    )
    with pytest.raises(RecordingError, match=said) as caught:
        list(frames_in(references(shared, path="/nowhere/segments/0.seg")))
    assert not isinstance(caught.value, RecordingDamaged), "or it would be passed over"


def test_another_file_at_the_path_of_a_reference_is_not_read(shared: Awkward) -> None:
    with pytest.raises(RecordingError, match="another file is here, of host observatory: put the recording") as caught:
        list(frames_in(references(shared, boot_id="a-third", host="elsewhere")))
    assert not isinstance(caught.value, RecordingDamaged), "or it would be passed over"


def test_segment_that_is_missing_from_a_recording_that_is_here_is_damage(shared: Awkward) -> None:
    rows = list(references(shared))
    shared.segment(2).unlink()
    left = [frame.row["ordinal"] for frame in frames_in(rows)]
    assert left == [each.ordinal for each in shared.frames if each.ordinal < 29]
    with pytest.raises(RecordingDamaged, match=r"00000002.seg is missing"):
        list(frames_in(rows, strict=True))


def test_task_on_a_host_without_the_recording_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"no recording.* on host \S+ \(boot id .* every executor mount"):
        open_recording(str(tmp_path / "recording"), "0" * 32)
