"""Registries as programs: drivers, registries and clients in processes of their own, over UDP on this machine."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import framepool as fp
from framepool.config import Config, DiscoveryConfig, RegistryConfig, SourceConfig, load
from framepool.discovery.registry import Registry, RegistryServer
from framepool.errors import CommandRefused
from framepool.service import Commander
from framepool.service.commander import Sent
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.discovery_910 import Result
from tests.support.discovery_rig import (
    Asker,
    DiscoveryRig,
    SpokenDriver,
    announce,
    meta,
    new_channel,
    new_stream_id,
    send,
    source,
)
from tests.support.drivers import table, write_toml
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

STREAMS = (10_000, 10_001)
HOSTS = ("rig-0", "rig-1")
PERIOD_MS = 100
HEARD_MS = 20 * PERIOD_MS
"""What registries take for the period: a driver that gets no processor for a while keeps its streams."""


class Fleet:
    """Two drivers and two registries, each a process with a media driver of its own: as on four machines."""

    def __init__(self, base_dir: Path, processes: Processes) -> None:
        self._processes = processes
        self._base = base_dir
        self.controls = [free_port() for _ in HOSTS]
        self.registries = [f"aeron:udp?endpoint=127.0.0.1:{free_port()}" for _ in range(2)]
        self.drivers = [self._driver_file(number) for number in range(len(HOSTS))]
        self._registry_files = [self._registry_file(number) for number in range(2)]
        self.aeron = AeronSettings(directory=str(base_dir / "client"), driver_timeout=5.0)

    def _driver_file(self, number: int) -> Path:
        host = self._base / HOSTS[number]
        host.mkdir()
        values = table(host, announce_period_ms=PERIOD_MS)
        values["streams"] = [{"stream_id": stream_id} for stream_id in STREAMS]
        values["discovery"] = {
            "host": HOSTS[number],
            "driver_instance_id": f"{HOSTS[number]}/cameras",
            "announce_channels": [f"aeron:udp?control=127.0.0.1:{self.controls[number]}|control-mode=dynamic"],
        }
        return write_toml(host / "driver.toml", values)

    def _registry_file(self, number: int) -> Path:
        directory = self._base / f"registry-{number}"
        directory.mkdir()
        values: dict[str, Any] = {
            "aeron": {"directory": str(directory / "aeron"), "driver_timeout": 5.0},
            "discovery": {"channel": self.registries[number]},
            "registry": {
                "instance": str(number),
                "sources": [
                    {
                        "driver_instance_id": f"{host}/cameras",
                        "host": host,
                        "channel": f"aeron:udp?endpoint=127.0.0.1:{free_port()}|control=127.0.0.1:{control}",
                        "announce_period_ms": HEARD_MS,
                    }
                    for host, control in zip(HOSTS, self.controls, strict=True)
                ],
            },
        }
        return write_toml(directory / "registry.toml", values)

    def start_driver(self, number: int) -> Process:
        return self._start("driver", self.drivers[number])

    def start_all(self) -> tuple[list[Process], list[Process]]:
        """Everything at once; drivers and registries when all of them are ready."""
        drivers = [self.start_driver(number) for number in range(2)]
        registries = [self._start("registry", path) for path in self._registry_files]
        for process in drivers:
            process.wait_line('{"event": "ready"')
        for number, process in enumerate(registries):
            ready = json.loads(process.wait_line('{"event": "ready"'))
            assert ready["channel"] == self.registries[number]
            assert ready["drivers"] == ["rig-0/cameras", "rig-1/cameras"]
            assert ready["tag"] == f"service:registry:{number}"
        return drivers, registries

    def _start(self, command: str, path: Path) -> Process:
        return self._processes.start("-m", "framepool", command, "--config", str(path), "--json")

    def asker(self, number: int) -> Asker:
        return Asker(self.aeron, self.registries[number], 7_000, response_channel=new_channel("udp", "term-length=1m"))


@pytest.fixture
def fleet(base_dir: Path, processes: Processes) -> Iterator[Fleet]:
    fleet = Fleet(base_dir, processes)
    with MediaDriver(fleet.aeron):
        yield fleet


def described(results: tuple[Result, ...]) -> list[tuple[str, int, str]]:
    return [(each.driver_instance_id, each.stream_id, each.tags[-1].tag) for each in results]


def of_all_drivers() -> list[tuple[str, int, str]]:
    return [(f"{host}/cameras", stream_id, f"host:{host}") for host in HOSTS for stream_id in STREAMS]


@pytest.mark.clause("N-2.2-01", "N-13-02", "N-6.2-01")
def test_registries_follow_drivers_through_death_and_restart(fleet: Fleet) -> None:
    drivers, _ = fleet.start_all()
    with fleet.asker(0) as first, fleet.asker(1) as second:
        for asker in (first, second):
            asker.until(lambda asker=asker: described(asker.ask().results) == of_all_drivers())
        epochs = {each.driver_instance_id: each.epoch for each in first.ask().results}
        assert (
            first.ask(tags=["host:rig-1"], stream_id=10_001).results
            == second.ask(tags=["host:rig-1"], stream_id=10_001).results
        )

        drivers[0].kill()
        for asker in (first, second):
            asker.until(lambda asker=asker: described(asker.ask().results) == of_all_drivers()[2:])

        fleet.start_driver(0)
        for asker in (first, second):
            asker.until(lambda asker=asker: described(asker.ask().results) == of_all_drivers())
        again = {each.driver_instance_id: each.epoch for each in first.ask().results}
        assert again["rig-0/cameras"] > epochs["rig-0/cameras"]
        assert again["rig-1/cameras"] == epochs["rig-1/cameras"]


@pytest.mark.clause("N-13-02")
def test_death_of_one_of_two_registries_is_not_noticed(fleet: Fleet) -> None:
    _, registries = fleet.start_all()
    config = Config(aeron=fleet.aeron, discovery=DiscoveryConfig(registries=tuple(fleet.registries), host="rig-9"))
    for number in range(2):
        with fleet.asker(number) as asker:
            asker.until(lambda asker=asker: len(asker.ask(stream_id=10_000).results) == 2)
    with fp.connect(config) as pool:
        assert len(pool.discover(stream_id=10_000, timeout=30)) == 2
        registries[0].kill()
        for _ in range(3):
            found = pool.discover(stream_id=10_000, timeout=30)
            assert [(each.driver, each.local) for each in found] == [("rig-0/cameras", False), ("rig-1/cameras", False)]
        registries[1].signal(signal.SIGTERM)
        assert registries[1].wait() == 0


# What a registry hears


def test_drivers_that_share_an_endpoint_are_told_apart_by_their_session(media_driver: MediaDriver) -> None:
    port = free_port()
    sources = tuple(
        SourceConfig(
            driver_instance_id=f"driver-{session}",
            host=f"host-{session}",
            channel=f"aeron:udp?endpoint=127.0.0.1:{port}|session-id={session}|term-length=64k",
            announce_stream_id=1001,
            metadata_stream_id=1300,
            announce_period_ms=60_000,  # it is said once
        )
        for session in (101, 102)
    )
    config = Config(
        aeron=media_driver.settings,
        discovery=DiscoveryConfig(stream_id=new_stream_id()),
        registry=RegistryConfig(media_driver="external", sources=sources),
    )
    with RegistryServer(config).start() as server, Client.connect(media_driver.settings) as client:
        drivers = [SpokenDriver(client, each) for each in sources]
        for number, driver in enumerate(drivers):
            driver.say(announce(10_000, 1 + number), source(10_000, f"camera {number}"))
        with Asker(media_driver.settings, "aeron:ipc", config.discovery.stream_id) as asker:
            asker.until(lambda: len(asker.ask().results) == 2)
            asker.until(lambda: all(each.data_source_name for each in asker.ask().results))
            assert [(each.driver_instance_id, each.epoch, each.data_source_name) for each in asker.ask().results] == [
                ("driver-101", 1, "camera 0"),
                ("driver-102", 2, "camera 1"),
            ]
        assert server.running


def test_metadata_of_foreign_streams_is_not_repeated_by_a_driver(base_dir: Path) -> None:
    """A metadata stream is shared by all producers of a media driver, whosever streams they write."""
    port = free_port()
    values = table(base_dir)
    values["streams"] = [{"stream_id": 10_000}]
    values["discovery"] = {"announce_channels": [f"aeron:udp?endpoint=127.0.0.1:{port}"]}
    config = load(write_toml(base_dir / "driver.toml", values), {})
    with fp.serve(config), Client.connect(config.aeron) as client:
        ear = client.add_subscription(f"aeron:udp?endpoint=127.0.0.1:{port}", 1300)
        metadata = client.add_publication("aeron:ipc?term-length=1m", 1300)
        own, foreign = source(10_000, "own").encode(), source(10_999, "foreign").encode()
        tags = meta(10_000, tags=["a"]).encode()
        heard: set[bytes] = set()
        deadline = time.monotonic() + 30
        while not heard >= {own, tags}:
            assert time.monotonic() < deadline, heard
            for message in (foreign, own, tags):
                send(metadata, message)
            time.sleep(0.01)
            heard.update(ear.poll())
        assert heard == {own, tags}


# As a service


@pytest.fixture
def rig(media_driver: MediaDriver) -> Iterator[DiscoveryRig]:
    with DiscoveryRig(media_driver.settings, "ipc") as rig:
        rig.say(announce(10_000))
        yield rig


@pytest.fixture
def commander(rig: DiscoveryRig) -> Iterator[Commander]:
    with Client.connect(rig.settings, name="commander") as client, Commander(client, rig.config) as commander:
        yield commander


def command(rig: DiscoveryRig, commander: Commander, key: str, value: Any = None) -> Any:
    """Sends a command while the registry is turned; what it gave back."""
    sent: Sent | None = None

    def done() -> bool:
        nonlocal sent
        sent = sent or commander.send("service:registry", key, value)
        commander.poll()
        return sent is not None and sent.done

    rig.asker.until(done)
    assert sent is not None
    if sent.error is not None:
        raise CommandRefused(sent.error)
    return sent.result


def test_paused_registry_answers_nobody_and_stays_up_to_date(rig: DiscoveryRig, commander: Commander) -> None:
    assert rig.asker.found() == [10_000]
    command(rig, commander, "pause")
    asked = rig.asker.request()
    rig.asker.send(asked)
    rig.say(announce(10_001))
    assert asked.request_id not in {each.request_id for each in rig.asker.hear()}
    command(rig, commander, "resume")
    assert [each.stream_id for each in rig.asker.answer(asked.request_id).results] == [10_000, 10_001]


def test_stopped_registry_forgets_what_it_knew_and_starts_anew(rig: DiscoveryRig, commander: Commander) -> None:
    assert rig.asker.found() == [10_000]
    command(rig, commander, "stop")
    rig.asker.until(lambda: not rig.asker.requests.is_connected)
    command(rig, commander, "start")
    assert rig.asker.found() == []
    rig.say(announce(10_001))
    assert rig.asker.found() == [10_001]


def test_state_of_a_registry_says_what_it_knows_of_each_driver(rig: DiscoveryRig, commander: Commander) -> None:
    state = json.loads(command(rig, commander, "state"))
    assert state["drivers"]["driver-0"]["streams"] == 1
    assert state["drivers"]["driver-1"]["streams"] == 0
    assert state["discovery"]["streams"] == 1
    assert state["parameters"]["requests_per_second"] == 1_000


def test_rate_of_requests_is_set_while_it_runs(rig: DiscoveryRig, commander: Commander) -> None:
    command(rig, commander, "set:requests_per_second", 1)
    assert rig.asker.found() == [10_000]
    assert "1 requests a second" in rig.asker.ask().error_message
    command(rig, commander, "set:requests_per_second", 0)
    assert [rig.asker.found() for _ in range(5)] == [[10_000]] * 5
    with pytest.raises(CommandRefused):
        command(rig, commander, "set:requests_per_second", -1)


# Through faults


def test_registry_answers_again_when_the_media_driver_is_back(media_driver: MediaDriver) -> None:
    with DiscoveryRig(media_driver.settings, "ipc", drivers=1) as rig:
        rig.say(announce(10_000))
        assert rig.asker.found() == [10_000]
        registry: Registry = rig.registry
        media_driver.close()
        deadline = time.monotonic() + 30
        while registry.report()["discovery"]["endpoints"]:
            assert time.monotonic() < deadline
            rig.turn()
        with MediaDriver(media_driver.settings):
            while registry.counts["reconnects"] == 0:
                assert time.monotonic() < deadline
                rig.turn()
            rig.reconnect()
            while rig.asker.found() != [10_000, 10_001]:  # announces are repeated: the first may find nobody there yet
                assert time.monotonic() < deadline
                rig.drivers[0].say(announce(10_001))
                rig.turn()
            rig.close()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "registry.sources is empty"),
        ("[[registry.sources]]\nchannel = 'aeron:ipc'\nhost = 'a'", "driver_instance_id"),
        ("[[registry.sources]]\nchannel = 'aeron:ipc'\ndriver_instance_id = 'a'", "host"),
        ("[[registry.sources]]\nchannel = 'ipc'\nhost = 'a'\ndriver_instance_id = 'a'", "no Aeron channel"),
    ],
)
def test_registry_says_what_its_configuration_lacks(
    base_dir: Path, processes: Processes, text: str, complaint: str
) -> None:
    path = base_dir / "registry.toml"
    path.write_text(f"[aeron]\ndirectory = '{base_dir}/aeron'\n{text}\n")
    process = processes.start("-m", "framepool", "registry", "--config", str(path))
    assert process.wait() == 1
    assert complaint in "\n".join(process.lines)
    assert "Traceback" not in "\n".join(process.lines)
