"""What an event for somebody else costs a service, against a poll that finds nothing, in the same run and thread.

The tags differ in their last byte only, so that the filter has to compare all of it.
"""

from __future__ import annotations

import statistics
import tempfile
import time

from benchmarks.aeron import BATCH, ROUNDS, call, clocked, wait_for_room
from benchmarks.row import Row
from framepool.service import Event, service_tag
from framepool.service.tags import tag_filter
from framepool.transport.aeron import Client, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import MIB, AeronSettings

CHANNEL = "aeron:ipc?term-length=1m"
STREAM = 1400
BASELINE = "poll of nothing"
LIMIT = 2.0


def pass_over(subscription: Subscription, until: int) -> None:
    """Polls until so many events were filtered out; a poll ends at the end of a term."""
    while subscription.statistics()["filtered"] < until:
        subscription.poll(BATCH)


def measure(client: Client) -> dict[str, float]:
    """Nanoseconds per poll and per event: medians over rounds in which both are measured in turn."""
    subscription = client.add_subscription(CHANNEL, STREAM, only=tag_filter(service_tag("limiter", "20000")))
    publication = client.add_publication(CHANNEL, STREAM)
    message = Event(tag=service_tag("limiter", "20001"), key="set:rate", value=25, correlation_id=1).encode()
    while not publication.is_connected:
        time.sleep(0.001)
    polls, events = [], []
    for number in range(1, ROUNDS + 1):
        wait_for_room(publication)
        polls.append(clocked(call, subscription.poll) / BATCH)
        for _ in range(BATCH):
            publication.offer(message)
        events.append(clocked(pass_over, subscription, number * BATCH) / BATCH)
    return {BASELINE: statistics.median(polls), "an event for another service": statistics.median(events)}


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as root:
        settings = AeronSettings(directory=f"{root}/aeron", ipc_term_length=MIB)
        with MediaDriver(settings), Client.connect(settings, name="bench") as client:
            times = measure(client)
    baseline = times.pop(BASELINE)
    return [Row(f"service: {name}", value, BASELINE, baseline, LIMIT) for name, value in times.items()]
