"""A service that hears 100,000 events for others, with every call of the C allocator counted. Run by test_allocation.

Prints how often its thread asked for memory in so many duty cycles without and with such events.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time

from framepool.agent import Invoker
from framepool.config import Channels, Config
from framepool.service import Event, Service
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings

MESSAGES, BATCH = 100_000, 100
SMALL = "aeron:ipc?term-length=64k"


def main(directory: str) -> None:
    allocations = ctypes.CDLL(None).allocations
    allocations.restype = ctypes.c_ulong
    settings = AeronSettings(directory=directory, ipc_term_length=64 * KIB)
    # A status each hour: what is measured are commands.
    config = Config(aeron=settings, channels=Channels(service_control=SMALL, service_status=SMALL))
    with MediaDriver(settings), Client.connect(settings) as client, Client.connect(settings) as other:
        service = Service(client, config, name="mine", instance="1")
        invoker = Invoker(service)
        invoker.start()
        service._timers._heap.clear()
        publication = other.add_publication(SMALL, config.stream_ids.service_control)
        while not service._subscription.is_connected:  # before that it takes nothing out of the window
            time.sleep(0.001)
        message = Event(tag="service:other:1", key="set:rate", value=25, correlation_id=1).encode()
        gc.disable()

        def turn(count: int) -> int:
            """One duty cycle with so many new events, and what it asked of the allocator."""
            for _ in range(count):
                while publication.offer(message) < 0:
                    time.sleep(0.0005)
            before = allocations()
            for _ in range(2):
                invoker.invoke()
            return int(allocations() - before)

        for count in (0, BATCH) * 50:
            turn(count)
        filtered = service.statistics()["filtered"]
        rounds = MESSAGES // BATCH
        quiet = sum([turn(0) for _ in range(rounds)])
        busy = sum([turn(BATCH) for _ in range(rounds)])
        while service.statistics()["filtered"] < filtered + MESSAGES:
            busy += turn(0)
            quiet += turn(0)
        print(json.dumps({"quiet": quiet, "busy": busy, "filtered": service.statistics()["filtered"] - filtered}))
        invoker.close()


if __name__ == "__main__":
    main(sys.argv[1])
