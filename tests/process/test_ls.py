"""`framepool ls` as a person runs it, and registries that may be killed without anybody noticing."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import framepool as fp
from framepool.cli.ls import ls as ls_here
from framepool.config import Config, DiscoveryConfig, load
from framepool.discovery.host import this_host
from tests.support.drivers import RunningDriver, running_driver, table, write_toml
from tests.support.onlooker import PATIENCE, first_frame, wait_until
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

STREAM = 10_000


PATIENT = "--timeout=15"


@pytest.fixture
def driver(base_dir: Path) -> Iterator[RunningDriver]:
    with running_driver("embedded", base_dir, table(base_dir, announce_period_ms=500)) as running:
        yield running


@pytest.fixture
def pool(driver: RunningDriver) -> Iterator[fp.Pool]:
    with fp.connect(driver.config) as pool:
        yield pool


def ls(processes: Processes, path: Path, *args: str) -> Process:
    return processes.start("-m", "framepool", "ls", f"--config={path}", *args, env={"COLUMNS": "200"})


def output(process: Process) -> str:
    assert process.wait() == 0, process.lines
    return "\n".join(process.lines)


def test_table_has_all_that_a_person_asks_for(processes: Processes, driver: RunningDriver, pool: fp.Pool) -> None:
    pool.producer(STREAM, name="camera", tags=["lab:3", "[bold]"])
    epoch = pool.discover("camera")[0].epoch
    for _ in range(5):  # the age is not there if no announce came while it listened
        text = output(ls(processes, driver.path, PATIENT))
        heading, row = (line for line in text.splitlines() if "stream" in line or "camera" in line)
        *values, old = (part.strip() for part in row.strip("│").split("│"))
        if old:
            break
    assert [part.strip() for part in heading.strip("┃").split("┃")] == [
        *("stream", "name", "epoch", "slots", "pools", "tags", "driver", "host", "age s")
    ]
    named = pool.discover("camera")[0].driver
    assert values == [str(STREAM), "camera", str(epoch), "4", "64 1K 4K", "lab:3 [bold]", named, "local"]
    assert 0 <= float(old) < 30
    assert this_host() not in text, "the host is a column"


def test_streams_are_chosen_by_name_and_tag_and_id(
    processes: Processes, driver: RunningDriver, pool: fp.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.producer(STREAM, name="camera", tags=["a", "b"], data_source_id=7)
    pool.producer(STREAM + 1, name="gauge", tags=["a"])
    wait_until(lambda: len(pool.discover(tags=["a"])) == 2)

    def found(**filters: Any) -> list[int]:
        ls_here(config=driver.path, json=True, timeout=PATIENCE, **filters)
        return [stream["stream_id"] for stream in json.loads(capsys.readouterr().out)["streams"]]

    assert found() == [STREAM, STREAM + 1]
    assert found(tag=("a", "b")) == [STREAM]
    assert found(name="gauge") == [STREAM + 1]
    assert found(stream=STREAM, data_source_id=7) == [STREAM]
    assert found(name="Gauge") == []
    assert output(ls(processes, driver.path, PATIENT, "--tag=a", "--tag=c")) == "no streams"


def test_watching_shows_streams_come_and_ends_in_good_order(
    processes: Processes, driver: RunningDriver, pool: fp.Pool
) -> None:
    watcher = ls(processes, driver.path, PATIENT, "--watch", "--json")
    assert json.loads(watcher.line()) == {"streams": []}
    pool.producer(STREAM, name="camera")
    while not (seen := [each for each in json.loads(watcher.line())["streams"] if each["name"]]):
        pass
    assert (seen[0]["name"], seen[0]["local"], seen[0]["nslots"]) == ("camera", True, 4)
    watcher.signal(signal.SIGTERM)
    assert watcher.wait() == 0


def test_watching_goes_on_while_nobody_answers(processes: Processes, driver: RunningDriver) -> None:
    away = write_toml(driver.path.with_name("away.toml"), {**table(driver.path.parent), "discovery": {"stream_id": 99}})
    watcher = ls(processes, away, "--watch", "--json", "--timeout=0.1")
    for _ in range(2):
        assert "nobody listens there" in json.loads(watcher.line())["error"]
    watcher.signal(signal.SIGINT)
    assert watcher.wait() == 0


def test_nobody_to_answer_is_one_line_and_exit_code_1(processes: Processes, driver: RunningDriver) -> None:
    away = write_toml(driver.path.with_name("away.toml"), {**table(driver.path.parent), "discovery": {"stream_id": 99}})
    asked = ls(processes, away, "--timeout=0.1")
    assert asked.wait() == 1
    (line,) = asked.lines
    assert line.startswith("framepool: discovery was asked for all streams: aeron:ipc stream 99: nobody listens there")


def test_consuming_by_name_from_a_terminal(processes: Processes, driver: RunningDriver) -> None:
    config = f"--config={driver.path}"
    command = ("publish", str(STREAM), config, "--name=camera", "--tag=x", "--width=8", "--height=8", "--rate=200")
    processes.start("-m", "framepool", *command, "--json").wait_line("{")
    reader = processes.start("-m", "framepool", "consume", "camera", config, "--count=3", "--json")
    assert reader.wait() == 0, reader.lines
    assert json.loads(reader.lines[-1])["received"] == 3


class Fleet:
    """A driver that answers nobody itself, and two registries that hear it over UDP."""

    def __init__(self, processes: Processes, base_dir: Path) -> None:
        self._processes = processes
        announces = [f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=64k" for _ in range(2)]
        asked = [f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=64k" for _ in range(2)]
        values = table(base_dir)
        values["discovery"] = {
            "embedded": False,
            "driver_instance_id": "lab",
            "announce_channels": announces,
            "registries": asked,
        }
        self.driver_values = values
        self.registries = [self._registry(base_dir, number, announces[number], asked[number]) for number in range(2)]

    def _registry(self, base_dir: Path, number: int, announces: str, channel: str) -> Path:
        # twenty times the real period: a driver that gets no processor for a while keeps its streams
        source = {"driver_instance_id": "lab", "host": this_host(), "channel": announces, "announce_period_ms": 2_000}
        values: dict[str, Any] = table(base_dir)
        values["discovery"] = {"channel": channel}
        values["registry"] = {"media_driver": "external", "instance": str(number), "sources": [source]}
        return write_toml(base_dir / f"registry-{number}.toml", values)

    def only(self, config: Config, number: int) -> Config:
        """For a client that asks one of the registries and nobody else."""
        channel = load(self.registries[number], {}).discovery.channel
        return msgspec.structs.replace(config, discovery=DiscoveryConfig(channel=channel))

    def start(self, number: int) -> Process:
        process = self._processes.start("-m", "framepool", "registry", f"--config={self.registries[number]}", "--json")
        process.wait_line("{")
        return process


@pytest.mark.clause("N-13-02")
def test_nobody_notices_that_one_of_two_registries_is_killed(processes: Processes, base_dir: Path) -> None:
    fleet = Fleet(processes, base_dir)
    with contextlib.ExitStack() as opened:
        driver = opened.enter_context(running_driver("embedded", base_dir, fleet.driver_values))
        pool = opened.enter_context(fp.connect(driver.config))
        askers = [opened.enter_context(fp.connect(fleet.only(driver.config, number))) for number in range(2)]
        registries = [fleet.start(number) for number in range(2)]
        camera = pool.producer(STREAM, name="camera", tags=["lab"])
        for killed in (0, 1):
            for asker in askers:
                wait_until(lambda asker=asker: asker.discover("camera", tags=["lab"], timeout=PATIENCE))
            pool.discover()
            registries[killed].kill()
            for _ in range(20):
                (found,) = pool.discover("camera", tags=["lab"])
                assert (found.stream_id, found.driver, found.local) == (STREAM, "lab", True)
            with pool.consumer("camera") as eye:
                first_frame(camera, eye)
            registries[killed] = fleet.start(killed)
