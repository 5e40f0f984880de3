"""What a job reads is kept for it, however long it takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from framepool.recorder.manifest import Manifest
from framepool.spark.jobs import job


def test_a_hold_is_renewed_while_its_job_runs_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "HELD_S", 0.4)
    manifest = Manifest(tmp_path / "recording")
    manifest.create(1)
    with job.held(manifest.path):
        ((name, first),) = manifest.holds().items()
        deadline = time.monotonic() + 20
        while manifest.holds()[name].expires_ns == first.expires_ns:
            assert time.monotonic() < deadline, "it was not renewed"
            time.sleep(0.01)
        assert manifest.holds()[name].ordinal == first.ordinal
    assert manifest.holds() == {}
