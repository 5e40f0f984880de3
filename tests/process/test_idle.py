"""What waits, sleeps. Counted is how often threads go to sleep, which on a busy machine is less and never more."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.driver_site import STREAM, Site
from tests.support.processes import Process, Processes

SETTLE_S = 2.0

ONLOOKER = """
import sys, framepool as fp
from framepool.config import load
with fp.connect(load(sys.argv[1])) as pool, pool.consumer(int(sys.argv[2])) as consumer:
    print("ready", flush=True)
    sys.stdin.readline()
"""


def naps(pid: int, names: tuple[str, ...]) -> int:
    """How often threads of these names went to sleep; all threads without names."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if not names or (task / "comm").read_text().strip() in names:
            count += int((task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return count


def naps_a_second(process: Process, *names: str) -> float:
    time.sleep(SETTLE_S)
    before, began = naps(process.pid, names), time.monotonic()
    while True:  # a process that gets no processor does not nap at all
        time.sleep(1)
        count, elapsed = naps(process.pid, names) - before, time.monotonic() - began
        if count or elapsed > 30:
            return count / elapsed


def test_idle_media_driver(processes: Processes, base_dir: Path) -> None:
    """Aeron's own back-off wakes each of these a thousand times a second and more."""
    media_driver = Site(processes, base_dir, media_driver="external").start_media_driver()
    assert 0 < naps_a_second(media_driver, "conductor", "aeron-md-nra", "[sender, receiv") < 1_000


def test_idle_consumer(processes: Processes, base_dir: Path) -> None:
    """Its drain alone would wake five thousand times a second if it looked as often as it may."""
    site = Site(processes, base_dir)
    driver = site.start_driver()
    site.start_worker("producer", "produce").wait_line("attached")
    consumer = processes.start("-c", ONLOOKER, str(site.path), str(STREAM))
    consumer.wait_line("ready")
    assert 0 < naps_a_second(consumer) < 1_500
    assert 0 < naps_a_second(driver) < 1_500
