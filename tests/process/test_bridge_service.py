"""The bridge as a service: mappings come and go by command, and the command line shows what it does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import framepool as fp
from framepool.bridge.mapping import SenderMapping
from framepool.cli import bridge as cli
from framepool.config import MappingConfig
from framepool.errors import CommandRefused, ConfigurationError, FramepoolError
from framepool.service.commander import Commander
from tests.support.bridges import (
    DEST,
    SOURCE,
    Both,
    Host,
    bridged,
    carried,
    image,
    joined,
    link,
    mapping,
    mapping_of,
    two_hosts,
)
from tests.support.drivers import write_toml
from tests.support.processes import Processes

TAG = "service:bridge:bridge-b"


@pytest.fixture
def hosts(base_dir: Path) -> Iterator[Both]:
    with two_hosts(base_dir) as both:
        yield both


@pytest.fixture
def commander(hosts: Both) -> Iterator[Commander]:
    with Commander.connect(hosts[1].config) as commander:
        yield commander


def names(state: dict[str, Any]) -> dict[str, str]:
    return {each["mapping"]: each["state"] for each in state["mappings"]}


def test_mapping_is_paused_and_resumed_by_command(hosts: Both, commander: Commander) -> None:
    here, there = hosts
    _, receiver = bridged(hosts)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    joined(camera, eye)
    sent = commander.command(TAG, "pause", str(SOURCE))
    assert sent.echo is not None
    assert mapping_of(receiver)["state"] == "paused"
    with there.pool.producer(DEST) as resident:  # the destination was given back
        joined(resident, eye)
        camera.publish(image(1))
        assert eye.latest(0.2) is None
    commander.command(TAG, "resume", str(SOURCE))
    joined(camera, eye)
    carried(camera, eye)


def test_mapping_is_added_and_removed_by_command(hosts: Both, commander: Commander) -> None:
    here, there = hosts
    sender, receiver = bridged(hosts)
    more = MappingConfig(source_stream_id=10_001, dest_stream_id=50_001)
    assert sender.add(more) == "10001"
    assert commander.command(TAG, "add", json.dumps(mapping(10_001, 50_001))).result == "10001"
    camera, eye = here.pool.producer(10_001), there.pool.consumer(50_001)
    joined(camera, eye)
    carried(camera, eye)
    commander.command(TAG, "remove", "10001")
    assert [each["mapping"] for each in receiver.statistics()["mappings"]] == ["10000"]
    there.pool.producer(50_001).close()
    other = here.pool.producer(SOURCE)
    old = there.pool.consumer(DEST)
    joined(other, old)
    carried(other, old)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("add", "{", "truncated"),
        ("add", '{"dest_stream_id": 50001}', "source_stream_id"),
        ("add", '{"source_stream_id": 10000, "dest_stream_id": 50001}', "mapped twice"),
        ("add", '{"source_stream_id": 10001, "dest_stream_id": 50000}', "destination of two mappings"),
        ("add", '{"source_stream_id": 10001, "dest_stream_id": 50001, "role": "sender"}', "of the two directions"),
        ("add", '{"source_stream_id": 50000, "dest_stream_id": 10000, "role": "sender"}', "back to where it came from"),
        ("pause", "10009", "no mapping '10009'; there are 10000"),
        ("remove", "10009", "no mapping '10009'"),
        ("remove", "10000", "at least one mapping"),
        ("remove", None, "remove"),
    ],
)
def test_command_that_makes_no_sense_is_refused_and_changes_nothing(
    hosts: Both, commander: Commander, key: str, value: str | None, complaint: str
) -> None:
    receiver = hosts[1].bridge(link(), mapping(), role="receiver")
    with pytest.raises(CommandRefused, match=complaint):
        commander.command(TAG, key, value)
    assert names(receiver.statistics()).keys() == {"10000"}
    assert mapping_of(receiver)["state"] != "paused"


def test_whole_bridge_is_stopped_and_started_and_remembers_what_was_paused(hosts: Both, commander: Commander) -> None:
    here, there = hosts
    _, receiver = bridged(hosts, mapping(), mapping(10_001, 50_001))
    commander.command(TAG, "pause", "10001")
    for stop, start in (("pause", "resume"), ("stop", "start")):
        commander.command(TAG, stop)
        assert set(names(receiver.statistics()).values()) == {"paused"}
        assert receiver.statistics()["links"] == {}
        commander.command(TAG, start)
        assert names(receiver.statistics())["10001"] == "paused"
        assert names(receiver.statistics())["10000"] != "paused"
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    joined(camera, eye)
    carried(camera, eye)


def test_mapping_that_cannot_begin_keeps_the_bridge_from_starting(hosts: Both) -> None:
    between = link()
    taken = {**between, "payload_channel": "aeron:udp?endpoint=192.0.2.1:40000"}
    with pytest.raises(FramepoolError, match=r"192\.0\.2\.1"):
        hosts[1].bridge(taken, mapping(), role="receiver")
    receiver = hosts[1].bridge(between, mapping(), role="receiver", links={"far": {**taken, "payload_stream_id": 3010}})
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        receiver.add(MappingConfig(source_stream_id=10_001, dest_stream_id=50_001, link="far"))
    assert names(receiver.statistics()).keys() == {"10000"}


def test_bridge_needs_a_bridge_section(hosts: Both) -> None:
    with pytest.raises(ConfigurationError, match=r"\[bridge\]"):
        fp.bridge(hosts[0].config)


# The command line


def config_file(host: Host, **sections: Any) -> Path:
    return write_toml(host.directory / "bridge.toml", {**host.table, **sections})


def framepool(*args: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-m", "framepool", *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (args, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def test_command_line_runs_a_bridge_and_shows_what_it_does(
    hosts: Both, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = hosts
    between = link()
    here.bridge(between, mapping())
    section = {"instance_id": "bridge-b", **between, "role": "receiver"}
    path = config_file(there, bridge=section, mappings=[mapping()])
    process = processes.start("-m", "framepool", "bridge", "--config", str(path), "--json")
    ready = json.loads(process.wait_line("{"))
    assert (ready["event"], ready["tag"], ready["mappings"]) == ("ready", TAG, 1)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    joined(camera, eye)
    carried(camera, eye)
    status = json.loads(framepool("bridge", "status", "--config", str(path), "--json"))
    assert (status["instance_id"], status["state"]) == ("bridge-b", "running")
    (one,) = status["mappings"]
    assert (one["dest_stream_id"], one["state"], one["local_epoch"]) == (DEST, "running", eye.epoch)
    assert one["frames"]["published"] >= 5
    cli.status(config=path)
    shown = capsys.readouterr().out
    assert "bridge-b" in shown
    assert str(DEST) in shown
    cli.add(json.dumps(mapping(10_001, 50_001)), config=path)
    assert capsys.readouterr().out == "10001\n"
    cli.pause("10001", config=path)
    cli.status(config=path, json=True)
    assert names(json.loads(capsys.readouterr().out)) == {"10000": "running", "10001": "paused"}
    cli.resume("10001", config=path)
    cli.remove("10001", config=path)
    with pytest.raises(CommandRefused, match="no mapping '10001'"):
        cli.pause("10001", config=path)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.lines
    there.pool.producer(DEST).close()  # it gave the destination back


def test_command_line_says_what_is_wrong_with_a_file(hosts: Both) -> None:
    loop = {
        "bridge": {"instance_id": "x", **link(), "links": {"back": link(3010)}},
        "mappings": [mapping(), mapping(DEST, SOURCE, role="receiver", link="back")],
    }
    path = config_file(hosts[0], **loop)
    assert "back to where it came from" in framepool("bridge", "--config", str(path), code=1)
    path = config_file(hosts[0])
    for command in (cli.run, cli.status):
        with pytest.raises(ConfigurationError, match=r"\[bridge\]"):
            command(config=path)


@pytest.mark.clause("B-2.3-01")
def test_mapping_that_fails_is_begun_anew_and_in_nobodys_way(hosts: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = hosts
    sender, _ = bridged(hosts, mapping(), mapping(10_001, 50_001))
    monkeypatch.setattr("framepool.bridge.service.RETRY_NS", 0)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    other, other_eye = here.pool.producer(10_001), there.pool.consumer(50_001)
    joined(camera, eye)
    joined(other, other_eye)
    entry = sender._service._entries[str(SOURCE)]
    broken = entry.mapping
    assert isinstance(broken, SenderMapping)
    monkeypatch.setattr(broken._chunks, "_writer", None)
    carried(other, other_eye)
    joined(camera, eye)
    carried(camera, eye)
    assert entry.mapping is not broken
    assert sender.statistics()["counts"]["mappings failed"] == 1
