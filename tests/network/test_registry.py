"""A registry over the drivers of three hosts with a thousand streams each, two of them with clocks of other days."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network.fleet import FIRST, NAMED, STREAMS, Fleet, hosts_of
from tests.support.hosts import make_hosts
from tests.support.processes import Processes

LAST = FIRST + STREAMS - 1


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Started once: the tests below go through its life in order."""
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="framepool-fleet-")))
        processes = Processes(sys.executable)
        hosts = opened.enter_context(make_hosts(3, processes))
        opened.callback(processes.stop_all)
        fleet = Fleet(hosts, directory)
        fleet.start()
        yield fleet


@pytest.mark.timeout(300)
def test_a_query_finds_the_streams_of_all_hosts_by_every_filter(fleet: Fleet) -> None:
    everywhere = {host.name for host in fleet.hosts}
    client = fleet.client
    found, _ = client.wait_until(lambda found: hosts_of(found) == everywhere, stream_id=LAST)
    assert {(each["driver"], each["stream_id"]) for each in found} == {(f"{name}/driver", LAST) for name in everywhere}
    assert [each["local"] for each in sorted(found, key=lambda each: each["host"])] == [False, False, True]

    tagged, _ = client.wait_until(lambda found: len(found) == 3 * len(NAMED), tags=["lab"])
    assert hosts_of(tagged) == everywhere
    assert {each["stream_id"] for each in tagged} == set(NAMED)

    (odd,), _ = client.wait_until(bool, tags=["row:1", "host:host-2"])
    assert (odd["name"], odd["tags"]) == (f"camera {NAMED[0]} of host-2", ["host:host-2", "lab", "row:1"])
    alone: list[dict[str, Any]] = [
        {"name": odd["name"]},
        {"producer_id": odd["producer_id"]},
        {"tags": ["host:host-2"], "stream_id": NAMED[0]},
    ]
    for query in alone:
        client.wait_until(lambda found: [{**each, "epoch": 0} for each in found] == [{**odd, "epoch": 0}], **query)
    client.wait_until(lambda found: len(found) == 3, data_source_id=NAMED[1])
    assert client.find(name=odd["name"].upper()) == []
    assert client.find(stream_id=LAST + 1) == []


def test_a_stream_of_another_host_is_not_attached_to(fleet: Fleet) -> None:
    assert fleet.client.consume(f"camera {NAMED[0]} of host-1") == "NotLocal"
    assert fleet.client.consume(f"camera {NAMED[0]} of host-3") == ""


@pytest.mark.timeout(300)
def test_the_streams_of_a_killed_driver_expire_and_come_back_with_higher_epochs(fleet: Fleet) -> None:
    host = fleet.hosts[1]
    before = {}
    for stream_id in (*NAMED, LAST):
        (found,), _ = fleet.client.wait_until(bool, stream_id=stream_id, tags=["host:host-2"])
        before[stream_id] = found["epoch"]
    fleet.drivers[host.name].kill()
    others = {each.name for each in fleet.hosts if each is not host}
    for stream_id in before:
        fleet.client.wait_until(lambda found: hosts_of(found) == others, stream_id=stream_id)
    fleet.restart_driver(host)
    for stream_id, epoch in before.items():
        fleet.client.wait_until(
            lambda found, epoch=epoch: hosts_of(found) == {host.name} and found[0]["epoch"] > epoch,
            stream_id=stream_id,
            tags=["host:host-2"],
        )


@pytest.mark.timeout(300)
def test_a_host_that_nobody_hears_expires_and_comes_back_as_it_was(fleet: Fleet) -> None:
    (before,), _ = fleet.client.wait_until(bool, stream_id=LAST, tags=["host:host-1"])
    fleet.hosts.partition(fleet.hosts[0], fleet.hosts[1])
    fleet.hosts.partition(fleet.hosts[0], fleet.hosts[2])
    fleet.client.wait_until(lambda found: hosts_of(found) == {"host-2", "host-3"}, stream_id=LAST)
    fleet.hosts.heal()
    (back,), _ = fleet.client.wait_until(bool, stream_id=LAST, tags=["host:host-1"])
    assert back == before
    fleet.other_client.wait_until(lambda found: found == [before], stream_id=LAST, tags=["host:host-1"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_the_end_of_one_of_two_registries_is_not_noticed(fleet: Fleet, how: signal.Signals) -> None:
    everywhere = {host.name for host in fleet.hosts}
    for question in range(60):
        for client in (fleet.first_client, fleet.other_client):
            client.wait_until(lambda found: hosts_of(found) == everywhere, stream_id=FIRST + question)
    gone = fleet.registries[fleet.registry_hosts[0].name]
    for question in range(60):
        if question == 20:
            gone.signal(how)
        assert hosts_of(fleet.client.find(stream_id=FIRST + question)) == everywhere
    if how is signal.SIGSTOP:
        gone.signal(signal.SIGCONT)
