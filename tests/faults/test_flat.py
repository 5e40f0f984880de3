"""Nothing grows: memory, descriptors and mappings of those who stay while others come and go, and over many frames.

FRAMEPOOL_SOAK_SECONDS is the length of the churn, four minutes unless told.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.console_site import ConsoleSite
from tests.support.processes import Process, Processes

SECONDS = int(os.environ.get("FRAMEPOOL_SOAK_SECONDS", "240"))
PATIENCE = 300.0
SETTLE = 8.0
"""Leases have ended by then, and lines that linger are closed."""
MIB = 2**20
SLACK = {"console": 1.75}
"""What pages and previews gave back stays with the allocator, in pieces; `malloc_trim` brings it down again."""
FRAMES = 10_000_000
PARTS = 10


class Held(NamedTuple):
    """What a process has of the machine."""

    memory: int
    """Private, in bytes: pages of rings and of Aeron's logs become resident as they are first used."""
    descriptors: int
    mappings: int

    @classmethod
    def by(cls, process: Process) -> Held:
        at = Path(f"/proc/{process.pid}")
        private = re.search(r"RssAnon:\s+(\d+) kB", (at / "status").read_text())
        assert private is not None
        return cls(
            1024 * int(private[1]),
            len(list((at / "fd").iterdir())),
            len((at / "maps").read_text().splitlines()),
        )


def ready(site: ConsoleSite, what: str) -> Process:
    """A driver or a console, once it says that it is there."""
    process = site.framepool(what, "--json")
    site.url = json.loads(process.wait_line('{"event": "ready"', timeout=PATIENCE)).get("url", site.url)
    return process


def turns(churn: Process, site: ConsoleSite, seconds: float) -> int:
    """Lets programs and pages come and go for so long: how many programs that was."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        churn.wait_line("turn", timeout=PATIENCE)
        count += 1
        with site.page(10_000, 10_001 + count % 12, 99_000 + count) as page:
            page.state()
        site.ask("/api/history")
    return count


@pytest.mark.soak
def test_memory_descriptors_and_mappings_stay_flat_under_churn(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    stayed = {"driver": ready(site, "driver")}
    stayed["steady"] = processes.start("-m", "tests.faults.flat_worker", "steady", str(site.path))
    stayed["steady"].wait_line("ready", timeout=PATIENCE)
    stayed["console"] = ready(site, "console")
    churn = processes.start("-m", "tests.faults.flat_worker", "churn", str(site.path))
    warm = turns(churn, site, SECONDS / 4)
    churn.kill()
    time.sleep(SETTLE)
    before = {name: Held.by(process) for name, process in stayed.items()}
    churn = processes.start("-m", "tests.faults.flat_worker", "churn", str(site.path))
    count = turns(churn, site, SECONDS)
    churn.kill()
    time.sleep(SETTLE)
    after = {name: Held.by(process) for name, process in stayed.items()}
    print(f"{warm} + {count} programs came and went: {before} -> {after}")
    assert count > 4
    for name, held in after.items():
        assert held.descriptors <= before[name].descriptors + 2, name
        assert held.mappings <= before[name].mappings + 16, name
        assert held.memory <= before[name].memory * SLACK.get(name, 1.05) + 2 * MIB, name


@pytest.mark.soak
def test_ten_million_frames_leave_memory_flat(processes: Processes, base_dir: Path) -> None:
    site = ConsoleSite(processes, base_dir)
    ready(site, "driver")
    produce = processes.start("-m", "tests.faults.flat_worker", "produce", str(site.path), str(FRAMES), str(PARTS))
    produce.wait_line("ready", timeout=PATIENCE)
    consume = processes.start("-m", "tests.faults.flat_worker", "consume", str(site.path))
    consume.wait_line("ready", timeout=PATIENCE)
    held = []
    for _ in range(PARTS):
        produce.say("go on")
        produce.wait_line("part", timeout=600)
        held.append((Held.by(produce), Held.by(consume)))
    print(held)
    for first, last in zip(held[0], held[-1], strict=True):  # the first million has filled what is filled once
        assert last.descriptors == first.descriptors
        assert last.mappings <= first.mappings + 4
        assert last.memory <= first.memory + MIB
