"""What a question to discovery costs: over UDP against a bare round trip, and among many streams against among few.

The registry is a process of its own with a thousand streams of each of three drivers, which a second process announces
and tells of once a second. The bare round trip goes to a third process that sends back what it hears and idles like
the registry does. All of them use one media driver, and both kinds of round trips are measured in turn.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.row import Row
from framepool.agent import Backoff
from framepool.clock import MonotonicClock
from framepool.config import Config, load
from framepool.discovery.announcer import Announcer
from framepool.discovery.entry import Filters, Origin
from framepool.discovery.index import Index
from framepool.transport.aeron import Client, Publication, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import (
    ClockDomain,
    DataSourceAnnounce,
    DataSourceMeta,
    PayloadPool,
    ShmPoolAnnounce,
)
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from framepool.wire.attributes import attribute_of

DRIVERS, STREAMS = 3, 1_000
ROUNDS = 2_000
FEW, MANY = 10, 10_000
BATCH = 1_000
P99_LIMIT = 20.0
GROWTH_LIMIT = 1.5
BARE_STREAM = 99
BARE = "bare round trip over UDP"
MESSAGE = bytes(64)
LONGEST_NS = 60 * 10**9


def announce(stream_id: int) -> ShmPoolAnnounce:
    path = f"shm:file?path=/dev/shm/tensorpool-user/default/{stream_id}/1700000000"
    pool = PayloadPool(pool_id=1, pool_nslots=4, stride_bytes=64, region_uri=f"{path}/1.pool")
    return ShmPoolAnnounce(
        stream_id=stream_id,
        producer_id=7,
        epoch=1_700_000_000,
        announce_timestamp_ns=time.monotonic_ns(),
        announce_clock_domain=ClockDomain.MONOTONIC,
        layout_version=1,
        header_nslots=4,
        header_slot_bytes=256,
        payload_pools=(pool,),
        header_region_uri=f"{path}/header.ring",
    )


def source(stream_id: int) -> DataSourceAnnounce:
    return DataSourceAnnounce(
        stream_id=stream_id, producer_id=7, epoch=1_700_000_000, meta_version=1, name=f"camera {stream_id}"
    )


def meta(stream_id: int) -> DataSourceMeta:
    attributes = (attribute_of("tags", ["lab", f"row:{stream_id % 10}"]),)
    return DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1, attributes=attributes)


# What does not grow


def filled(number: int) -> Index:
    origin = Origin(
        instance_id="driver", control_channel="aeron:ipc", control_stream_id=1000, host="host", window_ns=10**15
    )
    index = Index()
    for stream_id in range(number):
        index.on_announce(origin, announce(stream_id), 0)
        index.on_source(origin, source(stream_id), 0)
        index.on_meta(origin, meta(stream_id), 0)
    return index


def lookups(kind: str, number: int) -> list[Filters]:
    """As many streams of either index, from all over it: what is compared is the search, not the processor's cache."""
    ids = [number * (step % FEW) // FEW for step in range(BATCH)]
    return [Filters(stream_id=each) if kind == "stream id" else Filters(name=f"camera {each}") for each in ids]


def growth() -> list[Row]:
    indexes = {number: filled(number) for number in (FEW, MANY)}
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(50):
        for kind, (number, index) in itertools.product(("stream id", "name"), indexes.items()):
            questions = lookups(kind, number)
            started = time.perf_counter_ns()
            for filters in questions:
                index.find(filters, 1)[0].encode()
            times.setdefault((kind, number), []).append((time.perf_counter_ns() - started) / BATCH)
    medians = {key: statistics.median(values) for key, values in times.items()}
    return [
        Row(
            f"discovery: find by {kind} among {MANY:,} streams",
            medians[kind, MANY],
            f"the same among {FEW}",
            medians[kind, FEW],
            GROWTH_LIMIT,
        )
        for kind in ("stream id", "name")
    ]


# Over UDP


def configuration(root: Path, ports: Iterator[int]) -> Path:
    """One file for the registry, with its drivers."""
    sources = [
        {
            "driver_instance_id": f"driver-{number}",
            "host": f"host-{number}",
            "channel": f"aeron:udp?endpoint=127.0.0.1:{next(ports)}",
        }
        for number in range(DRIVERS)
    ]
    tables = "\n".join(
        "[[registry.sources]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in each.items())
        for each in sources
    )
    path = root / "registry.toml"
    path.write_text(
        f"[aeron]\ndirectory = '{root}/aeron'\n"
        f"[discovery]\nchannel = 'aeron:udp?endpoint=127.0.0.1:{next(ports)}'\n"
        f"[discovery.limits]\nrequests_per_second = 0\n"
        f"[registry]\nmedia_driver = 'external'\n{tables}\n"
    )
    return path


@contextlib.contextmanager
def process(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has said that it is ready, and ends with the block."""
    started = subprocess.Popen([sys.executable, "-u", "-m", *args], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert "ready" in started.stdout.readline(), args
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def feed(path: str) -> None:
    """Announces the streams of all drivers once a second, as their drivers would."""
    config = load(path, {})
    clock = MonotonicClock()
    with Client.connect(config.aeron, name="drivers") as client:
        announcers = [announcer(config, each.channel, client, clock) for each in config.registry.sources]
        print("ready", flush=True)
        due = 0.0
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + 1
                for stream_id, message in itertools.product(range(STREAMS), (announce, source, meta)):
                    told = message(stream_id)
                    encoded = told.encode()
                    for each in announcers:
                        each.put(told, encoded)
            for each in announcers:
                each.do_work()
            time.sleep(0.001)


def announcer(config: Config, channel: str, client: Client, clock: MonotonicClock) -> Announcer:
    discovery = msgspec.structs.replace(config.discovery, announce_channels=(channel,))
    one = Announcer(msgspec.structs.replace(config, discovery=discovery), client, clock)
    one.on_start()
    return one


def echo(directory: str, here: str, there: str) -> None:
    """Sends back whatever comes."""
    with Client.connect(AeronSettings(directory=directory), name="echo") as client:
        subscription = client.add_subscription(here, BARE_STREAM)
        publication = client.add_publication(there, BARE_STREAM)
        print("ready", flush=True)
        idle = Backoff()
        while True:
            messages = subscription.poll()
            for message in messages:
                publication.offer(message)
            idle.idle(len(messages))


@dataclass(frozen=True)
class Site:
    """Where a registry is, an echo beside it, and what the registry knows."""

    registry: str
    answers: str
    echo: str
    echoes: str
    first: int = 0
    names: tuple[str, ...] = tuple(f"camera {number}" for number in range(STREAMS))
    of_one_name: int = DRIVERS
    """How many streams have the same name."""


def ask(publication: Publication, subscription: Subscription, message: bytes) -> tuple[int, bytes]:
    """Nanoseconds until the answer, and the answer."""
    started = time.perf_counter_ns()
    while publication.offer(message) < 0:
        pass
    while not (answers := subscription.poll(1)):
        if time.perf_counter_ns() - started > LONGEST_NS:
            raise TimeoutError(f"no answer to {publication.describe()} for a minute")
    return time.perf_counter_ns() - started, answers[0]


def connect(publication: Publication, subscription: Subscription, message: bytes) -> None:
    """Until something comes back; the rest of it is thrown away."""
    while publication.offer(message) < 0 or not subscription.poll():
        time.sleep(0.05)
    time.sleep(0.5)
    while subscription.poll():
        pass


def round_trips(client: Client, site: Site) -> dict[str, list[int]]:
    """Nanoseconds of questions to a registry by kind, and of bare round trips to the same place."""
    numbers = itertools.count(1)

    def question(**filters: Any) -> bytes:
        return DiscoveryRequest(
            request_id=next(numbers), client_id=1, response_channel=site.answers, response_stream_id=5, **filters
        ).encode()

    asked, answers = client.add_publication(site.registry, 7_000), client.add_subscription(site.answers, 5)
    there, back = client.add_publication(site.echo, BARE_STREAM), client.add_subscription(site.echoes, BARE_STREAM)
    connect(asked, answers, question(stream_id=0))
    connect(there, back, MESSAGE)
    kinds: dict[str, tuple[Callable[[int], bytes], int]] = {
        "by stream id": (lambda each: question(stream_id=site.first + each), DRIVERS),
        "by name": (lambda each: question(data_source_name=site.names[each % len(site.names)]), site.of_one_name),
    }
    for message, count in kinds.values():  # until the registry knows the last stream of each driver
        while len(DiscoveryResponse.decode(ask(asked, answers, message(STREAMS - 1))[1]).results) < count:
            time.sleep(0.1)
    times: dict[str, list[int]] = {}
    short = 0
    for step in range(ROUNDS):
        times.setdefault(BARE, []).append(ask(there, back, MESSAGE)[0])
        for kind, (message, count) in kinds.items():
            nanoseconds, answer = ask(asked, answers, message(step % STREAMS))
            response = DiscoveryResponse.decode(answer)
            assert response.status is DiscoveryStatus.OK
            short += len(response.results) != count
            times.setdefault(kind, []).append(nanoseconds)
    assert short <= ROUNDS // 100, f"{short} answers lacked streams: this machine is too busy to announce them in time"
    return times


def measure(directory: str, site: str) -> None:
    """The round trips as a program, for a host of its own; prints the times."""
    settings = AeronSettings(directory=directory)
    with MediaDriver(settings), Client.connect(settings, name="bench") as client:
        print(json.dumps(round_trips(client, Site(**json.loads(site)))), flush=True)


def percentile(values: list[int], percent: float) -> float:
    return float(sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))])


def rows_of(times: dict[str, list[int]], where: str) -> list[Row]:
    """Each kind of question against the bare round trip: the median for information, the p99 as promised."""
    bare = times.pop(BARE)
    return [
        Row(
            f"discovery: question {kind} {where}, {DRIVERS * STREAMS:,} streams, p{percent}",
            percentile(values, percent),
            f"{BARE}, p{percent}",
            percentile(bare, percent),
            limit,
        )
        for percent, limit in ((50, None), (99, P99_LIMIT))
        for kind, values in times.items()
    ]


def run() -> list[Row]:
    rows = growth()
    ports = iter(range(40_700, 40_800))
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as root:
        path = configuration(Path(root), ports)
        config = load(path, {})
        answers, there, back = (f"aeron:udp?endpoint=127.0.0.1:{next(ports)}" for _ in range(3))
        with (
            MediaDriver(config.aeron),
            process("framepool", "registry", "--config", str(path), "--json"),
            process("benchmarks.discovery", "feed", str(path)),
            process("benchmarks.discovery", "echo", config.aeron.directory, there, back),
            Client.connect(config.aeron, name="bench") as client,
        ):
            times = round_trips(client, Site(config.discovery.channel, answers, there, back))
    return rows + rows_of(times, "over UDP")


if __name__ == "__main__":
    {"feed": feed, "echo": echo, "measure": measure}[sys.argv[1]](*sys.argv[2:])
