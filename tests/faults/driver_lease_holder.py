"""Many consumer leases of one stream in one process.

Lines: `held` when all seats are mapped; `end JSON` with how many are and how many leases were lost on the way.
Standard input: `end`. Usage: driver_lease_holder.py CONFIG STREAM COUNT
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter
from collections.abc import Callable

from framepool.client.attach import AttachSettings
from framepool.client.plane import ControlPlane
from framepool.client.seat import Seat
from framepool.clock import MonotonicClock
from framepool.config import load
from framepool.shm.paths import AllowedDirectories
from framepool.transport.aeron import Client
from framepool.wire._generated.driver_901 import Role


def mapped(plane: ControlPlane) -> int:
    return sum(seat.stream is not None for seat in plane.places)


def turn(plane: ControlPlane, over: Callable[[], object]) -> None:
    while not over():
        if plane.do_work() == 0:
            time.sleep(0.001)


def main(path: str, stream: str, count: str) -> None:
    config = load(path)
    client = Client.connect(config.aeron)
    plane = ControlPlane(client, MonotonicClock(), config.stream_ids, config.channels)
    allowed = AllowedDirectories([config.driver.shm_base_dir])
    settings = AttachSettings.configured(config.driver)
    for _ in range(int(count)):
        plane.add(Seat(plane, int(stream), Role.CONSUMER, allowed=allowed, settings=settings))
    turn(plane, lambda: mapped(plane) == len(plane.places))
    print("held", flush=True)
    turn(plane, lambda: select.select([sys.stdin], [], [], 0)[0])
    turn(plane, lambda: mapped(plane) == len(plane.places))  # after the last epoch, too
    held = mapped(plane)
    lost: Counter[str] = sum((seat.attachment.counts for seat in plane.places), Counter())
    plane.on_close()
    client.close()
    print("end", json.dumps({"held": held, **lost, "plane": plane.statistics()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
