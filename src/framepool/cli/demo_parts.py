"""The processes of a demo beside the first one: cameras, a detector, readers of every kind, a recorder, the console.

Each connects as any program would, with the configuration that the demo wrote, and ends when its parent does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import numpy as np

import framepool
from framepool.agent import Runner, Sleeping
from framepool.cli.demo_site import CHART, FILE, NOISE, RECORDINGS, STARS
from framepool.cli.scenes import Chart, Image, Noise, StarField
from framepool.cli.stopping import Asked, stop_asked
from framepool.client.consumer import Consumer
from framepool.client.pool import Pool
from framepool.client.producer import Producer
from framepool.config import Config, load
from framepool.errors import FrameOverwritten, NoPoolFits, NotAttached
from framepool.service import Parameter, Service

PR_SET_PDEATHSIG = 1
CHART_HZ, NOISE_HZ = 30.0, 4.0
ROWS_AT_ONCE = 32
NAP_EVERY_S, NAP_S = 6.0, 0.5
"""How often the dreamy reader falls asleep, and for how long."""
LIMITED_HZ = 10


class Scene(Protocol):
    """Something that a camera sees."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.generic]: ...
    def draw(self, number: int, image: Image) -> None: ...


class Camera(Service):
    """A camera that can be told how fast to be: `set:rate`, `pause`, `resume`."""

    rate = Parameter(Annotated[float, msgspec.Meta(ge=0.1, le=5_000)], 100.0, "Frames a second.")

    def __init__(self, pool: Pool, producer: Producer, scene: Scene, name: str, rate: float) -> None:
        super().__init__(pool.client, pool.config, name="camera", instance=name)
        self.rate = rate
        self._producer = producer
        self._scene = scene
        self._number = 0
        self._due = time.monotonic()

    def work(self) -> int:
        """Takes the frame that is due; one that the driver has no room for just now is lost."""
        now = time.monotonic()
        if now < self._due:
            return 0
        self._due = max(self._due + 1 / self.rate, now - 0.1)
        with contextlib.suppress(NotAttached, NoPoolFits):
            with self._producer.claim(self._scene.shape, self._scene.dtype) as slot:
                self._scene.draw(self._number, slot.array)
        self._number += 1
        return 1


def camera(base: str, /, *, width: int, height: int, rate: float) -> None:
    """The fast camera: publishes until SIGTERM, says how many frames that were, and ends with its input."""
    end_with_parent()
    field = StarField(width, height)
    about = {"exposure_ms": 2.5, "filter": "R", "pixel_scale_arcsec": 0.21}
    with stop_asked() as asked, framepool.connect(configuration(base)) as pool:
        with pool.producer(STARS, name="stars", summary="a star field through moving air", metadata=about) as producer:
            while not producer.has_readers and not asked.wait(0.01):
                pass
            with Runner(Camera(pool, producer, field, "stars", rate), idle=Sleeping(0.0002)).start():
                asked.wait()
            print(producer.counts["published"], flush=True)
            sys.stdin.read()


def sources(base: str, /, *, chart: str, noise: str) -> None:
    """The slower sources: a chart in colour, and a detector that is read out row by row."""
    end_with_parent()
    with stop_asked() as asked, framepool.connect(configuration(base)) as pool:
        with pool.producer(CHART, name="chart", summary="a test chart", metadata={"standard": "demo"}) as camera:
            picture = Chart(*_size(chart))
            with Runner(Camera(pool, camera, picture, "chart", CHART_HZ), idle=Sleeping(0.002)).start():
                with pool.producer(NOISE, name="detector", summary="read out row by row") as detector:
                    read_out(detector, Noise(*_size(noise)), asked)


def read_out(detector: Producer, scene: Noise, asked: Asked) -> None:
    """Fills each frame a few rows at a time and tells of it, until the demo ends.

    Frames have the time of their last row, so that latency begins when there is something to wait for.
    """
    number = 0
    rows = scene.shape[0]
    pause = 1 / NOISE_HZ / max(1, rows // ROWS_AT_ONCE)
    while not asked.is_set():
        whole_ns = time.monotonic_ns() + round(1e9 * pause * (rows // ROWS_AT_ONCE))
        try:
            with detector.claim(scene.shape, scene.dtype, progress="rows", timestamp_ns=whole_ns) as slot:
                for first in range(0, rows, ROWS_AT_ONCE):
                    last = min(rows, first + ROWS_AT_ONCE)
                    slot.array[first:last] = scene.rows(number, first, last)
                    slot.progress(rows=last)
                    if asked.wait(pause):
                        break
        except NotAttached:
            asked.wait(0.1)
        number += 1


def readers(base: str, /) -> None:
    """Readers of different speeds: one that falls asleep, one that takes a few frames, one that takes all, and one that
    sees frames while they come."""
    end_with_parent()
    with stop_asked() as asked, framepool.connect(configuration(base)) as pool:
        with (
            pool.consumer(STARS) as dreamy,
            pool.consumer(STARS, max_rate_hz=LIMITED_HZ) as limited,
            pool.consumer(CHART) as steady,
            pool.consumer(NOISE, progress=True) as eager,
        ):
            jobs: list[tuple[Callable[[Consumer], object], Consumer]] = [
                (dream, dreamy),
                (take, limited),
                (take, steady),
                (take_parts, eager),
            ]
            threads = [threading.Thread(target=_until, args=(asked, *job), daemon=True) for job in jobs]
            for thread in threads:
                thread.start()
            asked.wait()
            for thread in threads:
                thread.join(2)


def dream(consumer: Consumer) -> None:
    """Takes what comes, but sleeps now and then, and loses what was overwritten meanwhile."""
    end = time.monotonic() + NAP_EVERY_S
    while time.monotonic() < end and not consumer.closed:
        take(consumer)
    time.sleep(NAP_S)


def take(consumer: Consumer) -> None:
    """Takes what comes."""
    consumer.wait(0.05)
    for frame in consumer.poll():
        with contextlib.suppress(FrameOverwritten), frame as image:
            image.mean()


def take_parts(consumer: Consumer) -> None:
    """Looks at the rows that are there already, and at the frame when it is whole."""
    part = consumer.partial()
    if part is not None and part.readable:
        with contextlib.suppress(FrameOverwritten), part as rows:
            rows.mean()
    time.sleep(0.02)
    take(consumer)


def recorder(base: str, /) -> None:
    """Records the detector into a ring, which a console lists and Spark can read."""
    from framepool.recorder.recorder import Recorder

    end_with_parent()
    with stop_asked() as asked, framepool.connect(configuration(base)) as pool:
        with Recorder(pool, Path(base, RECORDINGS, "detector"), [NOISE], instance="detector", timeout=0.0):
            asked.wait()


def console(base: str, /, *, read_only: bool = False) -> None:
    """The console, with a supervisor beside it; says where it is as a JSON object."""
    from framepool.console.console import Console
    from framepool.supervisor.supervisor import SupervisorServer

    end_with_parent()
    settings = configuration(base)
    with stop_asked() as asked, SupervisorServer(settings).start(), Console(settings).start() as running:
        print(json.dumps({"url": running.url, "address": running.address}), flush=True)
        asked.wait()


def configuration(base: str) -> Config:
    return load(Path(base, FILE), {})


def end_with_parent() -> None:
    """Asks Linux for a SIGTERM when the demo dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == 1:  # it died before we asked
            sys.exit(1)


def _until(asked: Asked, work: Callable[[Consumer], object], consumer: Consumer) -> None:
    while not asked.is_set():
        work(consumer)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)
