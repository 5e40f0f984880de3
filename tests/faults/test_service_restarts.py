"""Services outlive what they stand on: media driver, driver and source die in turn, and commands are obeyed again."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framepool.errors import NoEcho
from framepool.service import Commander, Sent
from tests.support.driver_site import STREAM, Site
from tests.support.processes import Process, Processes

DEST = 20_000
DRIVER, LIMITER = "service:driver:site", f"service:limiter:{DEST}"
PATIENCE = 60.0


@pytest.fixture
def site(processes: Processes, base_dir: Path) -> Site:
    return Site(processes, base_dir, media_driver="external")


@pytest.fixture
def media_driver(site: Site) -> Process:
    return site.start_media_driver()


@pytest.fixture
def commander(site: Site, media_driver: Process) -> Iterator[Commander]:
    with Commander.connect(site.config) as commander:
        yield commander


def obeyed(commander: Commander, tag: str, key: str, fits: Callable[[Sent], bool] = lambda _: True) -> Sent:
    """The first answer that fits, asking again as long as nobody is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline, f"{tag} {key}"
        with contextlib.suppress(NoEcho):
            sent = commander.command(tag, key, timeout=1.0)
            if fits(sent):
                return sent
        time.sleep(0.1)


def republished(commander: Commander) -> int:
    state = json.loads(str(obeyed(commander, LIMITER, "state").result))
    return int(state["counts"].get("republished", 0))


def wait_flowing(commander: Commander) -> None:
    """Until the limiter republishes frames, from now on."""
    before = republished(commander)
    deadline = time.monotonic() + PATIENCE
    while republished(commander) <= before:
        assert time.monotonic() < deadline, "no frames pass the limiter"
        time.sleep(0.05)


def start_source(site: Site) -> Process:
    return site.framepool("publish", str(STREAM), "--rate", "200", "--width", "8", "--height", "8", "--json")


def start_limiter(site: Site) -> Process:
    process = site.framepool("limiter", "--source", str(STREAM), "--dest", str(DEST), "--max-rate", "100", "--json")
    process.wait_line('{"event": "ready"')
    return process


def test_services_and_frames_come_back_whatever_dies(site: Site, media_driver: Process, commander: Commander) -> None:
    driver = site.start_driver()
    source, limiter = start_source(site), start_limiter(site)
    wait_flowing(commander)

    source.kill()
    source = start_source(site)
    wait_flowing(commander)

    driver.kill()
    driver = site.start_driver()
    wait_flowing(commander)
    obeyed(commander, DRIVER, "state")

    media_driver.kill()
    site.start_media_driver()
    for tag in (LIMITER, DRIVER):
        obeyed(commander, tag, "state", lambda sent: re.search('"reconnects":[1-9]', str(sent.result)) is not None)
    wait_flowing(commander)
    assert [each.popen.poll() for each in (driver, limiter, source)] == [None, None, None]


def test_killed_service_is_silent_and_its_successor_does_not_obey_its_commands(
    site: Site, commander: Commander
) -> None:
    site.start_driver()
    limiter = start_limiter(site)
    obeyed(commander, LIMITER, "pause")
    limiter.kill()
    start_limiter(site)
    state = obeyed(commander, LIMITER, "state")
    assert '"state":"running"' in str(state.result), "the pause was said to its predecessor"
    deadline = time.monotonic() + PATIENCE
    while True:
        pids = {each.pid: commander.directory.age_s(each) for each in commander.services(0.05) if each.tag == LIMITER}
        if limiter.pid in pids and pids[limiter.pid] > 3 > min(pids.values()):
            break
        assert time.monotonic() < deadline, pids
