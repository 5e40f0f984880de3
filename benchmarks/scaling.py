"""How costs grow: with the number of streams, of consumers and of slots, with the size of a frame, with other streams
that are busy, and with streams that do nothing.

A frame of 4 KiB makes its way from `publish` to `with frame` in one process, so that nothing but the number differs;
each figure is the median of rounds that take turns with the smallest number. An idle stream is there, announced and
found, and nobody uses it: the driver's share of a core, its media driver's with it, is read from its process's clock,
and its memory is what that process has for itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import framepool as fp
from benchmarks.row import Row
from framepool.config import load

STREAM = 10_000
FRAMES = 2_000
ROUNDS = 11
STREAMS = (10, 100, 1_000)
BUSY_STREAMS = (1, 10, 100)
CONSUMERS = (4, 16, 64)
SLOTS = (16, 256, 4_096)
SIZE = 4_096
SIZES = (64, 65_536, 1_048_576)
IDLE_STREAMS = 1_000
IDLE_S = 10.0
FOUR_LIMIT = 1.10
"""What a publish to four consumers may take of one to a single one."""
IDLE_LIMIT = 0.02
ATTACH_LIMIT = 2.0

CONFIG = """
[aeron]
directory = "{base}/aeron"
[driver]
shm_base_dir = "{base}"
[driver.limits]
max_streams = 2000
[profiles.default]
nslots = {slots}
pools = [{{ pool_id = 1, stride_bytes = {size} }}]
"""


@contextlib.contextmanager
def place(slots: int = 64, size: int = SIZE) -> Iterator[Path]:
    """A configuration of its own, whose files go with it."""
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir=root) as base:
        path = Path(base, "scaling.toml")
        path.write_text(CONFIG.format(base=base, slots=slots, size=size))
        yield path


class Way:
    """Of a frame from a producer to so many consumers, behind one of each of so many other streams."""

    def __init__(self, pool: fp.Pool, consumers: int = 1, size: int = SIZE, others: int = 0) -> None:
        self.camera = pool.producer(STREAM)
        self.eyes = [pool.consumer(STREAM) for _ in range(consumers)]
        self.others = [pool.producer(STREAM + 1 + number) for number in range(others)]
        self.image = np.zeros(size, np.uint8)
        deadline = time.monotonic() + 30
        while not all(eye.latest(0.05) for eye in self.eyes):
            assert time.monotonic() < deadline, "frames did not begin to flow"
            self.camera.publish(self.image)

    def publish(self) -> float:
        """Nanoseconds of a `publish`."""
        began = time.perf_counter_ns()
        for _ in range(FRAMES):
            self.camera.publish(self.image)
        return (time.perf_counter_ns() - began) / FRAMES

    def pass_on(self) -> float:
        """Nanoseconds from `publish` until every consumer had the frame in its hands."""
        took = []
        for eye in self.eyes:
            eye.pass_over()
        for _ in range(FRAMES // len(self.eyes)):
            for other in self.others:
                other.publish(self.image)
            began = time.perf_counter_ns()
            self.camera.publish(self.image)
            for eye in self.eyes:
                while not (frames := eye.poll()):
                    pass
                with contextlib.suppress(fp.FrameOverwritten), frames[-1]:
                    pass
            took.append(time.perf_counter_ns() - began)
        return statistics.median(took)


def in_turns(*measures: Callable[[], float]) -> list[float]:
    """The medians of measurements that take turns."""
    rounds = [[measure() for measure in measures] for _ in range(ROUNDS)]
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def by_consumers(count: int) -> list[Row]:
    with place() as one, place() as many, fp.serve(load(one)) as alone, fp.serve(load(many)) as crowd:
        first, all_of_them = Way(alone), Way(crowd, count)
        single, several = in_turns(first.publish, all_of_them.publish)
        reach_one, reach_all = in_turns(first.pass_on, all_of_them.pass_on)
    return [
        Row(f"scaling: publish to {count} consumers", several, "to 1", single, FOUR_LIMIT if count == 4 else None),
        Row(f"scaling: until the last of {count} consumers has it", reach_all, "1 consumer", reach_one),
    ]


def by_slots(slots: int) -> list[Row]:
    with place(64) as usual, place(slots) as other, fp.serve(load(usual)) as few, fp.serve(load(other)) as many:
        first, second = Way(few), Way(many)
        base, value = in_turns(first.pass_on, second.pass_on)
    return [Row(f"scaling: way of a frame, {slots} slots", value, "64 slots", base)]


def by_size(size: int) -> list[Row]:
    with place() as usual, place(size=size) as other, fp.serve(load(usual)) as small, fp.serve(load(other)) as large:
        first, second = Way(small), Way(large, size=size)
        base, value = in_turns(first.pass_on, second.pass_on)
    return [Row(f"scaling: way of a frame of {size:,} bytes", value, f"{SIZE:,} bytes", base)]


def by_busy_streams(count: int) -> list[Row]:
    """Consumers hear of the frames of all streams of a driver, and take their own."""
    with place() as one, place() as many, fp.serve(load(one)) as alone, fp.serve(load(many)) as crowd:
        first, second = Way(alone), Way(crowd, others=count)
        base, value = in_turns(first.pass_on, second.pass_on)
    return [Row(f"scaling: way of a frame behind {count} of other streams", value, "behind none", base)]


def by_streams(count: int) -> list[Row]:
    """One busy stream beside so many that are only there."""
    with place() as one, place(8) as many, fp.serve(load(one)) as alone, fp.serve(load(many)) as crowd:
        for number in range(1, count):
            crowd.producer(STREAM + number)
        first, second = Way(alone), Way(crowd)
        base, value = in_turns(first.pass_on, second.pass_on)
    return [Row(f"scaling: way of a frame beside {count - 1} streams", value, "beside none", base)]


def idle(count: int) -> list[Row]:
    """What streams that do nothing cost their driver, and whether attaching to one of many takes longer."""
    few, many = with_idle_streams(10), with_idle_streams(count)
    memory, files = (many.memory - few.memory) / (count - 10), (many.files - few.files) / (count - 10)
    return [
        Row(f"scaling: driver with {count} idle streams, a second", many.share * 1e9, "a core", 1e9, IDLE_LIMIT),
        Row(f"scaling: attach to one of {count} streams", many.attach_ns, "of 10", few.attach_ns, ATTACH_LIMIT),
        Row("scaling: memory of a driver for an idle stream", memory, "its shared memory", files, unit="bytes"),
    ]


class Idle(NamedTuple):
    """A driver with streams that nobody uses."""

    share: float
    """Of a core."""
    attach_ns: float
    """Until a producer was attached to one of them."""
    memory: int
    """Bytes of the process that nobody shares."""
    files: int
    """Bytes of the files of all streams, as far as there is memory behind them."""


def with_idle_streams(count: int) -> Idle:
    with place(8) as path:
        with path.open("a") as file:
            for number in range(count):
                file.write(f'[[streams]]\nstream_id = {STREAM + number}\nprofile = "default"\n')
        command = [sys.executable, "-m", "framepool", "driver", "--json", "--config", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            try:
                assert driver.stdout is not None
                json.loads(driver.stdout.readline())
                time.sleep(3 + 0.02 * count)  # its janitor looks at each stream once
                before, began = cpu_seconds(driver.pid), time.monotonic()
                time.sleep(IDLE_S)
                share = (cpu_seconds(driver.pid) - before) / (time.monotonic() - began)
                memory, files = private_bytes(driver.pid), file_bytes(path.parent)
                with fp.connect(load(path)) as pool:
                    took = [attach(pool, STREAM + number) for number in range(10)]
            finally:
                driver.terminate()
    return Idle(share, statistics.median(took), memory, files)


def attach(pool: fp.Pool, stream_id: int) -> float:
    began = time.perf_counter_ns()
    pool.producer(stream_id)
    return time.perf_counter_ns() - began


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def file_bytes(base: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in base.rglob("*") if path.is_file())


def run() -> list[Row]:
    rows = []
    for count in CONSUMERS:
        rows += by_consumers(count)
    for slots in SLOTS:
        rows += by_slots(slots)
    for size in SIZES:
        rows += by_size(size)
    for count in BUSY_STREAMS:
        rows += by_busy_streams(count)
    for count in STREAMS:
        rows += by_streams(count)
    return rows + idle(IDLE_STREAMS)
