"""Aeron between hosts that have a media driver each: unicast, several destinations, multicast, and packets lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.hosts import GROUP, Host, Hosts, MakeHosts
from tests.support.processes import Process

STREAM = 3000
COUNT = 1_000


def peer(host: Host, *args: str) -> Process:
    return host.start("-m", "tests.network.udp_peer", *args)


def carry(publisher: tuple[Host, str], subscribers: dict[Host, str]) -> list[dict[str, Any]]:
    """Sends messages from the channel of the publisher to those of the subscribers; what these say in the end."""
    host, channel = publisher
    ears = [peer(target, "subscribe", name, str(STREAM)) for target, name in subscribers.items()]
    mouth = peer(host, "publish", channel, str(STREAM), str(COUNT))
    for process in (*ears, mouth):
        process.wait_line("joined")
    mouth.say("go")
    said = [json.loads(ear.wait_line("end ", timeout=60).removeprefix("end ")) for ear in ears]
    mouth.say("stop")
    assert [process.wait() for process in (*ears, mouth)] == [0] * (1 + len(ears))
    return said


def unicast(hosts: Hosts, more: str = "") -> list[dict[str, Any]]:
    one, two = hosts
    name = f"aeron:udp?endpoint={two.address}:40100"
    return carry((one, name), {two: name + more})


def multi_destination(hosts: Hosts, more: str = "") -> list[dict[str, Any]]:
    one, *others = hosts
    control = f"control={one.address}:40200|control-mode=dynamic"
    subscribers = {host: f"aeron:udp?endpoint={host.address}:40201|{control}{more}" for host in others}
    return carry((one, f"aeron:udp?{control}|fc=min"), subscribers)


def multicast(hosts: Hosts, more: str = "") -> list[dict[str, Any]]:
    one, *others = hosts
    names = {host: f"aeron:udp?endpoint={GROUP}:40300|interface={host.address}" for host in hosts}
    return carry((one, f"{names[one]}|fc=min"), {host: names[host] + more for host in others})


WAYS = {"unicast": (unicast, 2), "multi-destination": (multi_destination, 3), "multicast": (multicast, 3)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("percent", [0, 5, 20])
def test_a_reliable_channel_delivers_everything_in_order(hosts: MakeHosts, way: str, percent: float) -> None:
    send, count = WAYS[way]
    group = hosts(count)
    group.drop(percent)
    for said in send(group):
        assert said["taken"] == [[0, COUNT - 1]]
        assert said["torn"] == said["backwards"] == said["gap_fills"] == 0
        assert percent == 0 or said["naks"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_an_unreliable_channel_loses_messages_whole_and_goes_on(hosts: MakeHosts, way: str) -> None:
    send, count = WAYS[way]
    group = hosts(count)
    group.drop(5)
    for said in send(group, "|reliable=false"):
        assert said["torn"] == said["backwards"] == 0
        assert 0 < COUNT - said["count"] < COUNT // 2
        assert said["gap_fills"] > 0
