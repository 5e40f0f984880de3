"""`framepool record`, `replay` and `recordings`, as a user meets them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framepool.config import load
from framepool.driver.driver import ShmDriver
from framepool.recorder.recording import Recording
from tests.support.drivers import table, write_toml
from tests.support.processes import Process, Processes

STREAM, AGAIN = 10_000, 10_005
PATIENCE = 60.0


class Site:
    """A driver in this process, and commands that find it."""

    def __init__(self, processes: Processes, path: Path) -> None:
        self._processes = processes
        self.config = path

    def start(self, *args: object) -> Process:
        return self._processes.start("-m", "framepool", *map(str, args))

    def with_config(self, *args: object) -> Process:
        return self.start(*args, "--config", self.config)

    def run(self, *args: object, code: int = 0) -> list[str]:
        """What a command prints that ends by itself."""
        process = self.start(*args)
        assert process.wait(PATIENCE) == code, process.lines
        return process.lines

    def json(self, *args: object, code: int = 0) -> Any:
        return json.loads(self.run(*args, "--json", code=code)[-1])


@pytest.fixture
def site(processes: Processes, base_dir: Path) -> Iterator[Site]:
    values = table(base_dir)
    values["profiles"]["default"] = {"nslots": 512, "pools": [{"pool_id": 1, "stride_bytes": 8192}]}
    path = write_toml(base_dir / "framepool.toml", values)
    with ShmDriver(load(path)).start():
        yield Site(processes, path)


def publish(site: Site, *options: object) -> Process:
    size = ("--width", 32, "--height", 32, "--rate", 300, "--name", "camera")
    return site.with_config("publish", STREAM, *size, *options)


def end(process: Process) -> dict[str, Any]:
    process.signal(signal.SIGINT)
    told: dict[str, Any] = json.loads(process.wait_line('{"event": "end"', PATIENCE))
    assert process.wait(PATIENCE) == 0, process.lines
    return told


@pytest.fixture
def recorded(site: Site, tmp_path: Path) -> Path:
    """A recording of 100 frames, made by the command."""
    path = tmp_path / "rec"
    camera = publish(site)
    process = site.with_config("record", path, STREAM, "--wait", PATIENCE, "--count", 100, "--json")
    ready = json.loads(process.wait_line('{"event": "ready"', PATIENCE))
    assert (ready["streams"], ready["attached"], ready["next_ordinal"]) == ([STREAM], [STREAM], 0)
    told = json.loads(process.wait_line('{"event": "end"', PATIENCE))
    assert process.wait(PATIENCE) == 0, process.lines
    assert told["frames"] >= 100
    assert told["ordinal"] == told["frames"]
    camera.close()
    return path


def test_recording_is_listed_described_verified_and_exported(site: Site, recorded: Path, tmp_path: Path) -> None:
    (listed,) = site.json("recordings", "ls", tmp_path)
    assert (listed["path"], listed["state"], list(listed["streams"])) == (str(recorded), "stopped", [str(STREAM)])
    told = site.json("recordings", "info", recorded)
    stream = told["streams"][str(STREAM)]
    assert (stream["frames"], stream["shape"], stream["dtype"]) == (listed["frames"], [32, 32], "uint16")
    assert told["durable_ordinal"] == told["frames"] == sum(each["frames"] for each in told["segments"])
    assert told["host"]
    assert any("rec" in line and "10000" in line for line in site.run("recordings", "ls", tmp_path))
    assert any("32x32" in line for line in site.run("recordings", "info", recorded))
    verdict = site.json("recordings", "verify", recorded)
    assert verdict["ok"]
    assert verdict["frames"] == told["frames"]
    assert "everything is what was recorded" in site.run("recordings", "verify", recorded)[-1]
    (made,) = site.json("recordings", "export", recorded, tmp_path / "out", "--format", "npy")
    assert made["frames"] == told["frames"]
    assert np.array_equal(np.load(made["path"]), Recording(recorded).stack())
    assert site.run("recordings", "export", recorded, tmp_path / "zarr", "--format", "zarr", "--stream", STREAM)


def test_damage_is_an_exit_code(site: Site, recorded: Path) -> None:
    frame = Recording(recorded)[3]
    with open(frame.reference.path, "r+b") as file:
        file.seek(frame.reference.offset)
        file.write(b"\xff\xfe\xfd")
    verdict = site.json("recordings", "verify", recorded, code=1)
    assert [problem["fault"] for problem in verdict["problems"]] == ["damaged"]


def test_missing_index_is_written_again(site: Site, recorded: Path) -> None:
    pytest.importorskip("pyarrow")
    before = sorted(path.name for path in recorded.glob("segments/*.parquet"))
    for path in recorded.glob("segments/*.parquet"):
        path.unlink()
    site.json("recordings", "verify", recorded, code=1)
    assert site.json("recordings", "index", recorded)["indexed"] >= 1
    assert sorted(path.name for path in recorded.glob("segments/*.parquet")) == before
    assert site.json("recordings", "verify", recorded)["ok"]


def test_replay_is_what_was_recorded(site: Site, recorded: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    replay = site.with_config(
        "replay", recorded, "--to", AGAIN, "--speed", 2, "--wait-for-readers", "--linger", PATIENCE, "--json"
    )
    ready = json.loads(replay.wait_line('{"event": "ready"', PATIENCE))
    count = len(Recording(recorded))
    assert (ready["frames"], ready["streams"]) == (count, [AGAIN])
    process = site.with_config("record", again, AGAIN, "--wait", PATIENCE, "--json")
    process.wait_line('{"event": "ready"', PATIENCE)
    told = json.loads(replay.wait_line('{"event": "end"', PATIENCE))
    assert (told["published"], told["dropped"]) == (count, 0)
    while len(Recording(again)) + sum(row.loss.frames or 0 for row in Recording(again).losses()) < count:
        process.line(PATIENCE)
    replay.signal(signal.SIGINT)
    assert replay.wait(PATIENCE) == 0
    end(process)
    first, second = Recording(recorded), Recording(again)
    lost = {seq for row in second.losses() for seq in range(row.loss.first_seq, (row.loss.last_seq or 0) + 1)}
    assert [(frame.seq, frame.crc, frame.timestamp_ns) for frame in second] == [
        (number, frame.crc, frame.timestamp_ns) for number, frame in enumerate(first) if number not in lost
    ]
    assert len(second) > 0


def test_killed_recorder_is_recovered_by_hand(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "rec"
    publish(site)
    process = site.with_config("record", path, STREAM, "--wait", PATIENCE, "--flush-interval-ms", 20, "--json")
    process.wait_line('{"event": "second"', PATIENCE)
    process.kill()
    (listed,) = site.json("recordings", "ls", tmp_path)
    assert listed["state"] == "needs recovery"
    assert site.json("recordings", "verify", path, code=1)["problems"][0]["fault"] == "unsealed"
    assert site.json("recordings", "recover", path)["recovered"] == 1
    assert site.json("recordings", "verify", path)["ok"]


def test_recorder_waits_for_a_stream_that_comes_later(site: Site, tmp_path: Path) -> None:
    process = site.with_config("record", tmp_path / "rec", STREAM, "--wait", 0, "--count", 20, "--json")
    assert json.loads(process.wait_line('{"event": "ready"', PATIENCE))["attached"] == []
    publish(site)
    assert json.loads(process.wait_line('{"event": "end"', PATIENCE))["frames"] >= 20
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("record", "x"), 2, "name at least one stream"),
        (("record", "x", "0"), 2, "no stream id"),
        (("record", "x", "10000", "--retain-bytes", "1000"), 2, "three segments"),
        (("replay", "nowhere"), 1, "is no recording"),
        (("recordings", "info", "nowhere"), 1, "is no recording"),
        (("recordings", "verify", "nowhere"), 1, "is no recording"),
    ],
)
def test_mistakes_are_one_line(site: Site, tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    named = [str(tmp_path / arg) if arg in ("x", "nowhere") else arg for arg in args]
    config = ("--config", site.config) if args[0] != "recordings" else ()
    lines = site.run(*named, *config, code=code)
    assert len(lines) == 1
    assert said in lines[0]
