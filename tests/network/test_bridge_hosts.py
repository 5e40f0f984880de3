"""The bridge between hosts whose clocks differ by a day: every frame right or not there at all, whatever gets lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.network.bridge_site import PATIENCE, Site, dynamic, end, flows, multicast, told, unicast
from tests.support.bridges import DEST, SOURCE, mapping
from tests.support.hosts import MakeHosts

SMALL, LARGE = 4_000, 40_000
"""Bytes of a frame: of a few chunks, and of many."""
RESIDENT = 64 * 2**20
"""How much more memory a bridge may take under loss than before."""
DROPS = frozenset({"timeout", "overtaken", "crowded", "epoch_change", "target_change"})
"""Why frames of which something came were given up."""
NOT_SENT = frozenset({"lapped", "unmapped", "unheard", "abandoned"})


def accounted(out: dict[str, Any]) -> bool:
    """Whether every frame that the sender took was sent or given up."""
    frames = out["frames"]
    return bool(frames["sent"] + sum(frames.get(name, 0) for name in NOT_SENT) == out["source"]["received"])


@pytest.mark.timeout(300)
@pytest.mark.clause("B-1-01", "B-6-12", "B-7.1-05")
def test_frames_arrive_bit_exact_on_a_host_a_day_ahead(hosts: MakeHosts, tmp_path: Path) -> None:
    one, two = hosts(2)
    assert two.shift != one.shift
    receiver = Site(two, tmp_path, {**unicast(two), "role": "receiver"}, mapping())
    camera = Site(one, tmp_path, {**unicast(two), "role": "sender"}, mapping()).start("produce", SOURCE, LARGE)
    eye = receiver.start("consume", DEST, LARGE)
    flows(eye, lines=10)
    told(eye)
    frames = receiver.mapping()["frames"]
    (said,) = end(camera, eye)
    assert said["received"] >= 200
    assert not frames.keys() & {"conflict", "checksum", "header", "malformed"}


@pytest.mark.timeout(300)
@pytest.mark.clause("B-3-04", "B-5.3a-03")
@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "unreliable"])
def test_lost_packets_cost_frames_or_time_and_never_make_one_wrong(
    hosts: MakeHosts, tmp_path: Path, reliable: bool
) -> None:
    group = hosts(2)
    one, two = group
    sender = Site(one, tmp_path, {**unicast(two), "role": "sender"}, mapping())
    incoming = unicast(two)
    if not reliable:
        incoming["payload_channel"] += "|reliable=false"
    receiver = Site(two, tmp_path, {**incoming, "role": "receiver"}, mapping())
    camera, eye = sender.start("produce", SOURCE, SMALL), receiver.start("consume", DEST, SMALL)
    flows(eye)
    before = receiver.resident_bytes()
    for percent in (1, 5, 20):
        group.drop(percent)
        flows(eye, lines=10)
    assert receiver.resident_bytes() - before < RESIDENT
    sender.quiet()
    group.heal()
    deadline = time.monotonic() + 30
    while not accounted(out := sender.mapping()) and time.monotonic() < deadline:  # one may still be on its way
        time.sleep(0.05)
    into = receiver.mapping()
    sent, arrived = out["frames"], into["frames"]
    (said,) = end(camera, eye)
    assert accounted(out), out
    assert arrived["published"] <= sent["sent"]
    assert arrived.get("in_flight", 0) <= 16
    lost = sum(count for name, count in arrived.items() if name in DROPS)
    if reliable:
        assert lost <= said.get("gap", 0) + 16
    else:
        assert 0 < lost <= said["gap"] + 16, (arrived, said)


@pytest.mark.timeout(300)
def test_hosts_that_were_cut_off_from_each_other_find_together_again(hosts: MakeHosts, tmp_path: Path) -> None:
    group = hosts(2)
    one, two = group
    camera = Site(one, tmp_path, {**unicast(two), "role": "sender"}, mapping()).start("produce", SOURCE, SMALL)
    eye = Site(two, tmp_path, {**unicast(two), "role": "receiver"}, mapping()).start("consume", DEST, SMALL)
    flows(eye)
    group.partition(one, two)
    flows(camera, lines=40)
    group.heal()
    flows(eye, lines=5)
    end(camera, eye)


@pytest.mark.timeout(300)
@pytest.mark.clause("B-2.3-01")
def test_three_hosts_in_a_chain(hosts: MakeHosts, tmp_path: Path) -> None:
    one, two, three = hosts(3)
    first, second = unicast(two), unicast(three, 3010, 40_110)
    onward = mapping(DEST, 50_001, role="sender", link="onward")
    middle = Site(two, tmp_path, {**first, "role": "receiver", "links": {"onward": second}}, mapping(), onward)
    last = Site(three, tmp_path, {**second, "role": "receiver"}, mapping(DEST, 50_001))
    camera = Site(one, tmp_path, {**first, "role": "sender"}, mapping()).start("produce", SOURCE, SMALL)
    eyes = [middle.start("consume", DEST, SMALL), last.start("consume", 50_001, SMALL)]
    flows(*eyes, lines=5)
    told(*eyes)
    assert len(end(camera, *eyes)) == 2


@pytest.mark.timeout(300)
@pytest.mark.clause("B-3-01", "B-3-02")
@pytest.mark.parametrize("way", ["multi-destination", "multicast"])
def test_one_host_reaches_three_and_a_loss_at_one_is_its_own(hosts: MakeHosts, tmp_path: Path, way: str) -> None:
    group = hosts(4)
    source, *targets = group
    out = dynamic(source) if way == "multi-destination" else multicast(source)
    camera = Site(source, tmp_path, {**out, "role": "sender"}, mapping()).start("produce", SOURCE, SMALL)
    eyes = []
    for host in targets:
        into = dynamic(source, at=host) if way == "multi-destination" else multicast(host)
        eyes.append(Site(host, tmp_path, {**into, "role": "receiver"}, mapping()).start("consume", DEST, SMALL))
    flows(*eyes)
    told(*eyes)
    group.drop(100, source=source, target=targets[0])
    deadline = time.monotonic() + PATIENCE
    while True:  # what was on its way comes, and then nothing for as long as the others take for ten lines
        flows(*eyes[1:], lines=10)
        if not eyes[0].has_line("flowing"):
            break
        while eyes[0].has_line("flowing"):
            pass
        assert time.monotonic() < deadline
    group.heal()
    flows(*eyes, lines=3)
    end(camera, *eyes)
