"""Consumers that do not keep up: the producer does not notice, the others lose nothing, and every drop is counted."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config, load
from framepool.testing import history
from framepool.transport.settings import KIB
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.faults.pool_worker import WORDS, seal
from tests.support.drivers import table, write_toml
from tests.support.onlooker import STREAM, Onlooker, first_frame, wait_until
from tests.support.processes import Process, Processes

WORKER = str(Path(__file__).parent / "pool_worker.py")
SLEEPER = str(Path(__file__).parent / "pool_sleeper.py")
OTHER = STREAM + 1
TERM = 64 * KIB
DESCRIPTOR = 96
"""Bytes of a descriptor in a term buffer, with Aeron's header and padding."""
TWO_TERMS = 2 * TERM // DESCRIPTOR


@pytest.fixture
def path(base_dir: Path) -> Path:
    values = table(base_dir, keepalive_interval_ms=1_000)
    values["channels"] = {"descriptor": f"aeron:ipc?term-length={TERM // KIB}k"}
    values["profiles"]["default"] = {"nslots": 1024, "pools": [{"pool_id": 1, "stride_bytes": 1024}]}
    return write_toml(base_dir / "pool.toml", values)


@pytest.fixture
def config(path: Path) -> Config:
    return load(path, environ={})


@pytest.fixture
def pool(config: Config) -> Iterator[fp.Pool]:
    with fp.serve(config) as pool:
        yield pool


def publish(camera: fp.Producer) -> None:
    with camera.claim(WORDS, np.uint64) as slot:
        seal(slot.array, slot.epoch, slot.seq)


def start_consumer(processes: Processes, path: Path, name: str, *streams: int) -> tuple[Process, Path]:
    journal = path.parent / f"{name}.journal"
    arguments = (WORKER, str(path), str(journal), name, "consume", "0.01", *map(str, streams))
    return processes.start(*arguments), journal


def end(worker: Process) -> dict[int, dict[str, int]]:
    """Ends a worker in good order; the counts of each of its streams."""
    worker.say("end")
    counts = json.loads(worker.wait_line("end").removeprefix("end "))
    assert worker.wait() == 0
    return {int(stream): each for stream, each in counts.items()}


def flow(cameras: list[fp.Producer], workers: list[Process]) -> None:
    """Publishes until everybody reads."""
    waiting = list(workers)
    deadline = time.monotonic() + 60
    while waiting:
        assert time.monotonic() < deadline, [worker.lines for worker in waiting]
        for camera in cameras:
            publish(camera)
        time.sleep(0.005)
        waiting = [worker for worker in waiting if not worker.has_line("flowing")]


def received(events: list[history.Event], stream_id: int) -> set[int]:
    return {event.seq for event in events if event.op == "received" and event.stream_id == stream_id}


def accounted(counts: Mapping[str, int]) -> int:
    """Frames of which it is known what became of them."""
    fates = ("received", "gap", "late", "skipped", "invalid")
    return sum(count for name, count in counts.items() if name.startswith(fates))


@pytest.mark.clause("W-15.4-02")
def test_stopped_consumer_costs_the_producer_and_the_other_consumer_nothing(
    processes: Processes, path: Path, pool: fp.Pool
) -> None:
    """At a pace at which what is left of the window covers the time until the stopped one is cut off."""
    cameras = [pool.producer(STREAM), pool.producer(OTHER)]
    stopped, its_journal = start_consumer(processes, path, "stopped", STREAM)
    attentive, journal = start_consumer(processes, path, "attentive", STREAM, OTHER)
    for worker in (stopped, attentive):
        worker.wait_line("attached", 60)
    flow(cameras, [stopped, attentive])
    stopped.signal(signal.SIGSTOP)
    before = [camera.current_seq for camera in cameras]
    told = cameras[0]._descriptors
    for _ in range(TWO_TERMS // 2 + 100):  # each turn tells of two frames
        wait_until(lambda: told.position_limit - told.position > 4 * DESCRIPTOR)  # it is cut off, however late
        for camera in cameras:
            publish(camera)
        time.sleep(0.01)
    assert [camera.counts["descriptors lost"] for camera in cameras] == [0, 0]
    stopped.signal(signal.SIGCONT)
    stopped.has_line("flowing")
    flow(cameras, [stopped])
    for camera in cameras:
        camera_last = camera.current_seq
        wait_until(lambda: camera_last in received(history.read([journal]), camera.stream_id))  # noqa: B023
    counts = end(attentive)
    end(stopped)
    events = history.read([journal])
    assert history.check(history.read([journal, its_journal])) == []
    for camera, first in zip(cameras, before, strict=True):
        span = set(range(first, camera.current_seq + 1))
        assert span <= received(events, camera.stream_id), counts
    missed = sum(event.count for event in history.read([its_journal]) if event.op == "missed")
    print(f"\nthe stopped consumer missed {missed} of {cameras[0].current_seq + 1}")


def test_stopped_consumer_accounts_for_every_frame_of_a_producer_at_full_speed(
    processes: Processes, path: Path, pool: fp.Pool
) -> None:
    camera = pool.producer(STREAM)
    workers = {name: start_consumer(processes, path, name, STREAM) for name in ("stopped", "attentive")}
    stopped, attentive = (worker for worker, _ in workers.values())
    for worker in (stopped, attentive):
        worker.wait_line("attached", 60)
    flow([camera], [stopped, attentive])
    stopped.signal(signal.SIGSTOP)
    for _ in range(2 * TWO_TERMS):
        publish(camera)
    stopped.signal(signal.SIGCONT)
    journals = [journal for _, journal in workers.values()]

    def everybody_has_the_newest() -> bool:
        publish(camera)
        time.sleep(0.05)
        return all(camera.current_seq in received(history.read([journal]), STREAM) for journal in journals)

    wait_until(everybody_has_the_newest)
    assert camera.counts["published"] == camera.current_seq + 1, "nothing made it drop"
    assert history.check(history.read(journals)) == []
    for worker, journal in workers.values():
        first = min(received(history.read([journal]), STREAM))
        counts = end(worker)[STREAM]
        assert accounted(counts) == camera.current_seq + 1 - first, counts


@pytest.mark.clause("W-15.4-02")
def test_reader_that_cannot_be_left_behind_does_not_hold_the_producer(config: Config, pool: fp.Pool) -> None:
    """Tethered, and it never reads, as a program of another make might: descriptors are lost, but no frame waits."""
    camera = pool.producer(STREAM)
    with Onlooker(config) as onlooker:
        stalled = onlooker.listen(config.stream_ids.descriptor)
        wait_until(lambda: camera.has_readers)
        for _ in range(2 * TWO_TERMS):
            publish(camera)
        assert camera.counts["published"] == camera.current_seq + 1 == 2 * TWO_TERMS
        lost = camera.counts["descriptors lost"]
        assert lost > 0, "otherwise nothing held it"
        assert len(stalled.all(FrameDescriptor)) == 2 * TWO_TERMS - lost


def test_sleeping_consumer_accounts_for_every_frame_it_slept_through(pool: fp.Pool) -> None:
    camera, sleeper = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, sleeper)
    start, before = camera.current_seq + 1, dict(sleeper.counts)
    published = sum(camera.publish(np.zeros(8, np.uint8)) is not None for _ in range(3 * TWO_TERMS))
    assert published == 3 * TWO_TERMS, "nothing made it wait, and nothing made it drop"
    time.sleep(0.05)
    seen: list[int] = []
    while seen[-1:] != [camera.current_seq]:
        publish(camera)  # the last one tells of the gap before it, if its descriptor is taken
        sleeper.wait(0.05)
        seen += [frame.seq for frame in sleeper.poll()]
    counts = {name: sleeper.counts[name] - before.get(name, 0) for name in sleeper.counts}
    assert counts["received"] == len(seen)
    assert accounted(counts) == camera.current_seq + 1 - start, counts
    assert accounted(counts) > counts["received"], "the ring has fewer slots than it was told of"


@pytest.mark.parametrize("kind", ["sleeping", "stopped"])
@pytest.mark.soak
@pytest.mark.clause("W-15.4-02")
def test_rate_of_the_producer_does_not_depend_on_a_slow_consumer(
    processes: Processes, base_dir: Path, kind: str
) -> None:
    """The best of many runs of half a second in turn: what else the machine does only ever makes one slower."""
    values = table(base_dir, announce_period_ms=1_000)  # as it is unless somebody says otherwise
    values["profiles"]["default"] = {"nslots": 64, "pools": [{"pool_id": 1, "stride_bytes": 64 * KIB}]}
    path = write_toml(base_dir / "rate.toml", values)
    image = np.zeros((256, 128), np.uint16)
    alone, with_it = [], []
    with fp.serve(load(path, environ={})) as pool, pool.producer(STREAM) as camera:

        def rate() -> float:
            started = time.perf_counter()
            for _ in range(200_000):
                camera.publish(image)
            return 200_000 / (time.perf_counter() - started)

        rate()
        for _ in range(12):
            alone.append(rate())
            worker = processes.start(SLEEPER, str(path), str(STREAM))
            worker.wait_line("attached", 60)
            if kind == "stopped":
                worker.signal(signal.SIGSTOP)
            time.sleep(1)  # until it has said its hello and settled
            with_it.append(rate())
            worker.kill()
    ratio = max(with_it) / max(alone)
    print(f"\n{kind}: rate with / rate without = {ratio:.3f}, of {sorted(with_it)} and {sorted(alone)}")
    assert ratio > 0.95
