"""1,000 times: connect, add, use, close, in an order that differs each time. Nothing may be left in the process."""

from __future__ import annotations

import gc
import os
import random
import threading
import time

from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver

CYCLES = 1000
WARM_UP = 100
CHANNEL = "aeron:ipc?term-length=64k"
LEAK = 4 * 1024 * 1024
"""Bytes that the process may grow by after the warm-up: under 5 KiB a cycle, where one client's logs have 200 KiB."""


class Footprint:
    """What this process holds, C's share included."""

    def __init__(self) -> None:
        gc.collect()
        self.files = len(os.listdir("/proc/self/fd"))
        with open("/proc/self/maps") as maps:
            lines = maps.readlines()
        self.maps = len(lines)
        self.aeron_maps = sum("aeron" in line and ".so" not in line for line in lines)
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        self.threads = int(fields["Threads"])
        self.resident = int(fields["RssAnon"].split()[0]) * 1024

    def __str__(self) -> str:
        return (
            f"{self.files} files, {self.maps} maps ({self.aeron_maps} of Aeron), {self.threads} threads, "
            f"{self.resident / 2**20:.1f} MiB"
        )


def cycle(media_driver: MediaDriver, rng: random.Random) -> None:
    client = Client.connect(media_driver.settings)
    stream = rng.randrange(1, 5)
    adds = [
        client.add_subscription_async,
        client.add_publication_async,
        client.add_exclusive_publication_async,
    ]
    rng.shuffle(adds)
    pending = [add(CHANNEL, stream) for add in adds[: rng.randrange(4)]]
    pending.append(client.add_counter_async(4000, "cycle"))
    objects: list[object] = [client]
    for one in pending:
        fate = rng.randrange(6)
        if fate == 0:
            one.cancel()
        elif fate > 1:
            objects.append(one.wait(20))
    objects += [thing.drain() for thing in objects if hasattr(thing, "drain") and rng.random() < 0.5]
    for thing in objects:
        if hasattr(thing, "try_claim"):
            thing.offer(bytes(rng.randrange(5000)))
            objects.append(thing.try_claim(10))
        elif hasattr(thing, "poll") and not any(hasattr(other, "take") for other in objects):
            thing.poll()
    rng.shuffle(objects)
    for thing in objects[: rng.randrange(len(objects) + 1)]:
        if hasattr(thing, "close"):
            thing.close()
    if rng.random() < 0.3:
        other = threading.Thread(target=client.close)
        other.start()
        other.join()


def test_thousand_cycles_leave_nothing_behind(media_driver: MediaDriver) -> None:
    rng = random.Random(20240229)
    for _ in range(WARM_UP):
        cycle(media_driver, rng)
    before = Footprint()
    for _ in range(CYCLES):
        cycle(media_driver, rng)
    deadline = time.monotonic() + 30
    after = Footprint()
    while (after.files > before.files or after.threads > before.threads) and time.monotonic() < deadline:
        time.sleep(0.1)  # the media driver lets go of the last ones a moment later
        after = Footprint()
    print(f"\nbefore: {before}\nafter:  {after}")
    assert after.files <= before.files
    assert after.threads <= before.threads
    assert after.aeron_maps <= before.aeron_maps + 60  # logs of the last cycles that the media driver lets linger
    assert after.maps <= before.maps + 80
    assert after.resident - before.resident < LEAK
