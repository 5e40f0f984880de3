"""The recorder behind a live query: who starts it, who shares it, and that it ends when nobody reads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import load
from framepool.errors import RecordingError
from framepool.recorder.manifest import Hold, Manifest
from framepool.spark.live import LiveLog, default_log
from tests.support.drivers import table, write_toml

STREAM = 10_000
HOLD_S = 4
"""How long a recorder stays without a hold."""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def config_file(base_dir: Path) -> Path:
    return write_toml(base_dir / "framepool.toml", table(base_dir))


pytestmark = [
    pytest.mark.timeout(300),
    # The recorder is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def pid_of(manifest: Manifest) -> int:
    told = manifest.watermark()
    assert told is not None
    return told.pid


def ordinal_of(manifest: Manifest) -> int:
    told = manifest.watermark()
    return 0 if told is None else told.ordinal


def test_recorder_is_shared_started_again_and_ends_when_nobody_holds_its_log(config_file: Path, tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "log")
    words = str(manifest.path), str(STREAM), str(config_file), 2**22, HOLD_S
    with fp.serve(load(config_file)) as pool, pool.producer(STREAM) as producer:
        one, other = LiveLog(*words), LiveLog(*words)
        one.ensure()
        first = pid_of(manifest)
        other.ensure()
        assert pid_of(manifest) == first
        manifest.hold("query", Hold(ordinal=0, expires_ns=time.time_ns() + 120 * 10**9))
        os.kill(first, signal.SIGKILL)
        until(lambda: not manifest.is_locked())
        until(lambda: one.ensure() or pid_of(manifest) != first)
        second = pid_of(manifest)
        until(lambda: (producer.publish(np.arange(3)), ordinal_of(manifest))[1] > 0)
        time.sleep(HOLD_S + 1)  # longer than without a hold
        assert manifest.is_locked()
        manifest.release("query")
        until(lambda: not manifest.is_locked())
        assert pid_of(manifest) == second


def test_why_there_is_no_recorder_is_told_in_a_line(config_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"^10000 cannot be recorded: no media driver in .* within 5.0 s$"):
        LiveLog(str(tmp_path / "log"), str(STREAM), str(config_file), 2**22, 2).ensure()


def test_log_is_the_same_for_the_same_streams_of_the_same_driver(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = default_log("camera,../10001", str(config_file))
    assert log == default_log("camera,../10001", str(config_file))
    assert Path(log).parent == tmp_path / "framepool" / "live"
    assert len({log, default_log("camera", str(config_file)), default_log("camera,../10001", "")}) == 3
