"""One process of a tortured cluster: a real part of framepool, which carries on by itself and obeys a nemesis.

Lines: `ready`; `flowing N` about twice a second while frames pass; `end` when it ended in good order. Standard input:
`end` ends it, `jump SECONDS` moves its clock, `delay SECONDS` makes each write of the recorder take so much longer,
`status` asks what it counted. SIGUSR1 makes it say what its threads do.

Usage: python -m framepool.testing.worker ROLE CONFIG NAME JOURNAL [STREAM…] [--dwell S] [--directory DIR] [--patch M:F]
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from framepool.bridge.bridge import Bridge
from framepool.client.pool import Pool
from framepool.config import Config, load
from framepool.discovery.registry import RegistryServer
from framepool.driver.driver import ShmDriver
from framepool.errors import FramepoolError
from framepool.recorder.disk import Disk
from framepool.recorder.recorder import Recorder
from framepool.testing.clocks import JumpingClock
from framepool.testing.journal import Journal
from framepool.testing.members import Believing, Sealing
from framepool.testing.witness import Witness
from framepool.transport.media_driver import MediaDriver

PATIENCE = 20.0
RETRY = 0.3
SAY_EVERY = 0.5
PERIOD = 0.012
"""Seconds between the frames of a producer."""
BURST_EVERY = 3.0
BURST = 48
"""Frames at once, now and then: more than a ring holds, so that every reader is lapped."""
LARGE = 4_000
"""Words of the larger frames."""


class Orders:
    """What the nemesis wants, and the clock and the disk that it plays with."""

    def __init__(self) -> None:
        self.clock = JumpingClock()
        self.delay = 0.0
        self.ended = threading.Event()
        self.status: Callable[[], object] = dict
        self._said_at = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, value = line.strip().partition(" ")
            if word == "jump":
                self.clock.jump(float(value))
            elif word == "delay":
                self.delay = float(value)
            elif word == "status":
                print("status", self.status(), flush=True)
            elif word == "end":
                break
        self.ended.set()  # at its word, or because it is gone itself

    def say(self, count: int) -> None:
        """Says how much was done, not too often."""
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY:
            self._said_at = now
            print(f"flowing {count}", flush=True)


def keep_trying[T](orders: Orders, make: Callable[[], T]) -> T | None:
    """Until it works: what a process needs may be down when it starts. None once it is to end."""
    while not orders.ended.is_set():
        try:
            return make()
        except (FramepoolError, OSError) as error:
            logging.getLogger(__name__).warning("not yet: %s", error)
            orders.ended.wait(RETRY)
    return None


def media_driver(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    serve(orders, lambda: MediaDriver(config.aeron), lambda running: running.running)


def driver(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    serve(orders, lambda: ShmDriver(config, clock=orders.clock).start(), lambda running: running.running)


def registry(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    serve(orders, lambda: RegistryServer(config).start(), lambda running: running.running)


def bridge(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    serve(orders, lambda: Bridge(config).start(), lambda running: running.running)


def serve[S: contextlib.AbstractContextManager[object]](
    orders: Orders, make: Callable[[], S], running: Callable[[S], bool]
) -> None:
    """Runs a server until it is to end; one that ends by itself is a failure."""
    made = keep_trying(orders, make)
    if made is None:
        return
    orders.status = getattr(made, "statistics", dict)
    with made:
        print("ready", flush=True)
        while not orders.ended.wait(SAY_EVERY):
            if not running(made):
                raise SystemExit("it ended by itself")
            orders.say(1)


@contextlib.contextmanager
def connected(config: Config, orders: Orders) -> Iterator[Pool | None]:
    pool = keep_trying(orders, lambda: Pool(config, clock=orders.clock, timeout=PATIENCE))
    with contextlib.ExitStack() as opened:
        if pool is not None:
            opened.enter_context(pool)
        yield pool


def produce(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    """Publishes on each stream whenever it may, and waits for its turn where another one does."""
    with connected(config, orders) as pool, Journal(options.journal, options.name) as journal:
        if pool is None:
            return
        sealing = []
        for stream in options.streams:
            producer = keep_trying(orders, lambda stream=stream: pool.producer(stream, timeout=PATIENCE))  # type: ignore[misc]
            if producer is None:
                return
            sealing.append(Sealing(producer, journal, large=LARGE))
        orders.status = lambda: (pool.statistics(), [dict(each.user.counts) for each in sealing])
        print("ready", flush=True)
        burst_at = time.monotonic() + BURST_EVERY
        while not orders.ended.is_set():
            now = time.monotonic()
            turns, burst_at = (BURST, now + BURST_EVERY) if now >= burst_at else (1, burst_at)
            for _ in range(turns):
                if sum(each.turn() for each in sealing):
                    orders.say(sum(each.frames for each in sealing))
            time.sleep(PERIOD)
        finish(sealing)


def consume(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    """Reads every frame of each stream, some of them slowly."""
    chance = random.Random(options.name)
    with connected(config, orders) as pool, Journal(options.journal, options.name) as journal:
        if pool is None:
            return
        believing = []
        for stream in options.streams:
            consumer = keep_trying(orders, lambda stream=stream: pool.consumer(stream, timeout=0))  # type: ignore[misc]
            if consumer is None:
                return
            believing.append(Believing(consumer, journal))
        orders.status = lambda: (
            pool.statistics(),
            [
                (dict(each.user.counts), each.user._descriptors.statistics(), vars(each.user._listener))
                for each in believing
            ],
        )
        print("ready", flush=True)
        while not orders.ended.is_set():
            read = 0
            for each in believing:
                each.dwell = chance.random() * options.dwell
                read += each.turn()
            if read:
                orders.say(sum(each.frames for each in believing))
            elif not any(each.user._descriptors.waiting for each in believing):
                believing[0].user.wait(0.02)
        finish(believing)


def finish(members: list[Sealing] | list[Believing]) -> None:
    for member in members:
        member.note_lease()
        member.user.close()
        member.end()


def record(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    """Records the streams; writes are as slow as the nemesis wants."""
    write = Disk._write

    def slowly(self: Disk, fd: int, start: int, end: int) -> None:
        time.sleep(orders.delay)
        write(self, fd, start, end)

    Disk._write = slowly  # type: ignore[method-assign]
    with connected(config, orders) as pool:
        if pool is None:
            return
        recorder = keep_trying(orders, lambda: Recorder(pool, options.directory, options.streams, timeout=0))
        if recorder is None:
            return
        orders.status = recorder.statistics
        with recorder:
            print("ready", flush=True)
            durable = 0
            while not orders.ended.wait(0.1):
                if not recorder.running:
                    raise SystemExit(f"the recorder ended by itself: {recorder.failure}")
                if recorder.progress().ordinal > durable:
                    durable = recorder.progress().ordinal
                    orders.say(durable)


def witness(config: Config, orders: Orders, options: argparse.Namespace) -> None:
    with connected(config, orders) as pool, Journal(options.journal, options.name) as journal:
        if pool is None:
            return
        hearing = Witness(pool.plane, journal)
        print("ready", flush=True)
        while not orders.ended.wait(SAY_EVERY):
            orders.say(hearing.heard)


ROLES: dict[str, Callable[[Config, Orders, argparse.Namespace], None]] = {
    "media-driver": media_driver,
    "driver": driver,
    "registry": registry,
    "bridge": bridge,
    "produce": produce,
    "consume": consume,
    "record": record,
    "witness": witness,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m framepool.testing.worker")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("config", type=Path)
    parser.add_argument("name")
    parser.add_argument("journal", type=Path)
    parser.add_argument("streams", nargs="*", type=int)
    parser.add_argument("--dwell", type=float, default=0.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--patch", default="")
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    if options.patch:
        module, _, function = options.patch.partition(":")
        getattr(importlib.import_module(module), function)()
    ROLES[options.role](load(options.config, {}), Orders(), options)
    print("end", flush=True)


if __name__ == "__main__":
    main()
