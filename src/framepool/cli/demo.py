"""`framepool demo`: frames from a synthetic camera in one process to a reader in another, live.

Everything lives in one private directory in shared memory that is removed at the end: the media driver's files, the
driver's namespace with the header ring and the payload pool. This process embeds the driver and reads every byte of
every frame; the camera is a process of its own that connects to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json as jsonlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.console import Console

import framepool
from framepool.cli.patterns import moving_spot
from framepool.cli.stopping import stop_asked
from framepool.client.consumer import Consumer
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig, StreamConfig
from framepool.driver.janitor import process_lives
from framepool.errors import FrameOverwritten, FramepoolError
from framepool.transport.settings import AeronSettings

STREAM_ID = 10_000
NSLOTS = 8
PREFIX = "framepool-demo-"
PR_SET_PDEATHSIG = 1


def demo(
    *,
    width: Annotated[int, Parameter(help="Columns of a frame.")] = 1024,
    height: Annotated[int, Parameter(help="Rows of a frame.")] = 1024,
    rate: Annotated[float, Parameter(help="Frames a second the camera tries for.")] = 500.0,
    seconds: Annotated[float, Parameter(help="Stop after so long; 0 is until Ctrl-C.")] = 0.0,
    json: Annotated[bool, Parameter(help="One JSON object a second, and one at the end.")] = False,
) -> None:
    """Publish synthetic camera frames through shared memory and read them in this process, until Ctrl-C."""
    if not (0 < width <= 16_384 and 0 < height <= 16_384 and rate > 0 and seconds >= 0):
        print("framepool demo: width and height are 1 to 16384, rate above 0, seconds 0 or more", file=sys.stderr)
        sys.exit(2)
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    with stop_asked() as asked, private_directory() as base:
        with framepool.serve(configuration(base, 2 * width * height)) as pool, pool.consumer(STREAM_ID) as consumer:
            with running_camera(base, width, height, rate) as camera:
                console.print(f"camera   pid {camera.pid}: {width} x {height} uint16 into {base}")
                console.print(f"reader   pid {os.getpid()}: in place, descriptors over Aeron; Ctrl-C stops both")
                reader = Reader(consumer)
                end = time.monotonic() + seconds if seconds else float("inf")
                with live(console) as show:
                    while not asked.is_set() and time.monotonic() < end:
                        figures = reader.run(min(1.0, end - time.monotonic()))
                        if camera.poll() is not None:
                            raise FramepoolError(f"the camera ended with exit code {camera.returncode}; see above")
                        show(jsonlib.dumps(figures) if json else line(figures))
                published = stop(camera)
                reader.finish(published)
                report(consumer, published, json, console)
    console.print("stopped; nothing is left in shared memory")


def configuration(base: str, frame_bytes: int) -> Config:
    """One stream whose pool holds such frames, in a directory of its own."""
    stride = max(64, 1 << (frame_bytes - 1).bit_length())
    profile = ProfileConfig(nslots=NSLOTS, pools=(PoolConfig(pool_id=1, stride_bytes=stride),))
    return Config(
        aeron=AeronSettings(directory=f"{base}/aeron"),
        driver=DriverConfig(shm_base_dir=base),
        profiles={"default": profile},
        streams=(StreamConfig(stream_id=STREAM_ID),),
    )


@contextlib.contextmanager
def private_directory() -> Iterator[str]:
    """A directory of our own in shared memory, gone afterwards; what killed demos left goes first."""
    root = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for left in root.glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(left.name.removeprefix(PREFIX).partition("-")[0])
            if left.lstat().st_uid == os.geteuid() and not process_lives(pid):
                shutil.rmtree(left)
    base = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def running_camera(base: str, width: int, height: int, rate: float) -> Iterator[subprocess.Popen[str]]:
    """The camera in a session of its own, so that Ctrl-C reaches only us and we stop it in order."""
    numbers = [f"--width={width}", f"--height={height}", f"--rate={rate}"]
    camera = subprocess.Popen(
        [sys.executable, "-m", "framepool", "demo-camera", base, *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with camera:
        try:
            yield camera
        finally:
            camera.kill()


def stop(camera: subprocess.Popen[str]) -> int:
    """Asks the camera to stop and returns how many frames it published; it keeps its lease until its input ends."""
    camera.terminate()
    assert camera.stdout is not None
    try:
        return int(camera.stdout.readline())
    except ValueError:
        raise FramepoolError("the camera did not stop in good order; see its messages above") from None


@contextlib.contextmanager
def live(console: Console, waiting: str = "waiting for the camera") -> Iterator[Callable[[str], object]]:
    """Shows a line in place on a terminal, lines below each other elsewhere."""
    if console.stderr or not console.is_terminal:  # what is said beside JSON goes to stderr
        yield lambda text: print(text, flush=True)
        return
    with console.status(waiting) as status:
        yield status.update


def line(figures: dict[str, float]) -> str:
    """A second of work in one line."""
    if not figures["frames_per_s"]:
        return "waiting for the camera"
    return (
        f"{figures['frames_per_s']:7.0f} frames/s  {figures['gigabytes_per_s']:5.2f} GB/s  "
        f"{figures['dropped']:.0f} dropped  latency {figures['latency_p50_us']:.0f} µs, "
        f"99 %: {figures['latency_p99_us']:.0f} µs"
    )


def report(consumer: Consumer, published: int, json: bool, console: Console) -> None:
    """The account at the end: every frame that was published is read or counted as dropped."""
    read = consumer.counts["received"]
    dropped = {f"dropped_{name.replace(' ', '_')}": count for name, count in drops(consumer).items()}
    if json:
        print(jsonlib.dumps({"published": published, "read": read, **dropped}), flush=True)
    console.print(f"{published} frames published, {read} read whole, {sum(dropped.values())} dropped")


def drops(consumer: Consumer) -> dict[str, int]:
    """What was not read, by cause."""
    return {name: count for name, count in consumer.counts.items() if name not in {"received", "resyncs"}}


class Reader:
    """Reads every frame that a descriptor tells of, as long as it is still there."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._latencies: list[int] = []
        self._bytes = 0

    def run(self, seconds: float) -> dict[str, float]:
        """Reads for so long and says what came of it."""
        counts = self._consumer.counts
        started, frames, dropped = time.monotonic(), counts["received"], sum(drops(self._consumer).values())
        self._latencies.clear()
        self._bytes = 0
        while (left := started + seconds - time.monotonic()) > 0:
            self._consumer.wait(min(left, 0.1))
            self._take()
        elapsed = time.monotonic() - started
        p50, p99 = np.percentile(self._latencies, [50, 99]) / 1_000 if self._latencies else (0.0, 0.0)
        return {
            "frames_per_s": (counts["received"] - frames) / elapsed,
            "gigabytes_per_s": self._bytes / elapsed / 1e9,
            "dropped": sum(drops(self._consumer).values()) - dropped,
            "latency_p50_us": float(p50),
            "latency_p99_us": float(p99),
        }

    def finish(self, published: int) -> None:
        """Reads what the camera sent before it stopped; what is missing then was never told of."""
        counts = self._consumer.counts
        deadline = time.monotonic() + 1.0
        while (missing := published - counts["received"] - sum(drops(self._consumer).values())) > 0:
            if time.monotonic() > deadline:
                counts["gap"] += missing
                return
            self._consumer.wait(0.05)
            self._take()

    def _take(self) -> None:
        for frame in self._consumer.poll():
            with contextlib.suppress(FrameOverwritten):
                self._bytes += frame.copy().nbytes
                self._latencies.append(time.monotonic_ns() - frame.timestamp_ns)


def camera(base: str, /, *, width: int, height: int, rate: float) -> None:
    """The camera's process: publishes until SIGTERM, says how many frames that were, and ends with its input."""
    _end_with_parent()
    images = moving_spot(width, height)
    config = configuration(base, images[0].nbytes)
    with stop_asked() as asked, framepool.connect(config) as pool, pool.producer(STREAM_ID) as producer:
        while not producer.has_readers and not asked.wait(0.01):
            pass
        due = time.monotonic()
        while not asked.is_set():
            producer.publish(images[producer.counts["published"] % len(images)])
            due = max(due + 1 / rate, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))
        print(producer.counts["published"], flush=True)
        sys.stdin.read()


def _end_with_parent() -> None:
    """Asks Linux for a SIGTERM when the demo dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
