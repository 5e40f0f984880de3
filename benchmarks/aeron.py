"""What a 48-byte message costs from Python, against an empty Python method call in the same run and thread."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import repeat

from benchmarks.row import Row
from framepool.transport.aeron import AnyPublication, Client, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import MIB, AeronSettings

MESSAGE = bytes(48)
BATCH = 1024
ROUNDS = 300
CHANNEL = "aeron:ipc?term-length=1m"
STREAM = 1100
LIMITS = {"offer": 4.0, "offer, exclusive": 4.0, "poll": 2.0}
BASELINE = "empty method call"


class Empty:
    """The measure of all things here."""

    def method(self) -> None:
        pass


def call(method: Callable[[], object]) -> None:
    for _ in repeat(None, BATCH):
        method()


def send(offer: Callable[[bytes], int]) -> None:
    for _ in repeat(None, BATCH):
        offer(MESSAGE)


def clocked(work: Callable[..., object], *args: object) -> int:
    started = time.perf_counter_ns()
    work(*args)
    return time.perf_counter_ns() - started


def receive(subscription: Subscription, count: int) -> None:
    while count > 0:  # a poll ends at the end of a term
        count -= len(subscription.poll(BATCH))


def handle(subscription: Subscription, count: int) -> None:
    while count > 0:
        count -= subscription.poll_handler(ignore, BATCH)


def ignore(message: bytes) -> None:
    pass


def wait_for_room(publication: AnyPublication) -> None:
    """The media driver moves the limit on once a millisecond; what is measured here is not its pace."""
    while publication.position_limit - publication.position < 2 * BATCH * 96:
        time.sleep(0.0005)


def measure(client: Client) -> dict[str, float]:
    """Nanoseconds per call or message: medians over rounds in which all are measured in turn."""
    empty = Empty()
    times: dict[str, list[float]] = {}

    def note(name: str, nanoseconds: int) -> None:
        times.setdefault(name, []).append(nanoseconds / BATCH)

    subscription = client.add_subscription(CHANNEL, STREAM)
    shared = client.add_publication(CHANNEL, STREAM)
    exclusive = client.add_exclusive_publication(CHANNEL, STREAM)
    kinds: dict[str, AnyPublication] = {"offer": shared, "offer, exclusive": exclusive}
    while subscription.image_count < len(kinds):
        time.sleep(0.001)
    for _ in range(ROUNDS):
        for name, publication in kinds.items():
            wait_for_room(publication)
            note(BASELINE, clocked(call, empty.method))
            note(name, clocked(send, publication.offer))
            note("poll", clocked(receive, subscription, BATCH))
        note("poll of nothing", clocked(call, subscription.poll))
        wait_for_room(shared)
        send(shared.offer)
        note("poll with a handler", clocked(handle, subscription, BATCH))
    return {name: statistics.median(values) for name, values in times.items()}


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as root:
        settings = AeronSettings(directory=f"{root}/aeron", ipc_term_length=MIB)
        with MediaDriver(settings), Client.connect(settings, name="bench") as client:
            times = measure(client)
    baseline = times.pop(BASELINE)
    return [Row(f"aeron: {name}", value, BASELINE, baseline, LIMITS.get(name)) for name, value in times.items()]
