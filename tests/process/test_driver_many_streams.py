"""A driver of many streams, where the usual limits would stop it."""

from __future__ import annotations

from pathlib import Path

from tests.support.drivers import table, write_toml
from tests.support.onlooker import wait_until
from tests.support.processes import Processes

STREAMS = 100


def test_a_driver_has_more_streams_than_the_usual_limit_of_open_files(base_dir: Path, processes: Processes) -> None:
    values = table(base_dir)
    values["streams"] = [{"stream_id": 10_000 + number} for number in range(STREAMS)]
    path = write_toml(base_dir / "driver.toml", values)
    few = ("sh", "-c", 'ulimit -Sn 128 && exec "$@"', "sh")
    driver = processes.start("-m", "framepool", "driver", "--config", str(path), "--json", prefix=few)
    driver.wait_line('{"event": "ready"', 60)
    wait_until(lambda: list(base_dir.glob("tensorpool-*/default/.driver.status.json")))
    status = processes.start("-m", "framepool", "status", "--config", str(path), "--json")
    assert status.wait(60) == 0
    assert status.lines[-1].count('"epoch": 1') == STREAMS, "every stream has files"
