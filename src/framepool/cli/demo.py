"""`framepool demo`: frames from a synthetic camera in one process to a reader in another, live.

Everything lives in one private directory in shared memory that is removed at the end: the media driver's files, the
header ring and the payload pool. The camera announces its regions and sends a descriptor for each frame; the reader
maps what was announced, reads every byte of every frame it is told of, and counts what it missed.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.console import Console

from framepool._native.seqlock import Layout, RingReader, RingWriter
from framepool.agent import Invoker, State, Timers
from framepool.client.mapping import Mapping, ring_parts
from framepool.clock import NANOS_PER_SECOND, MonotonicClock
from framepool.config import StreamIds
from framepool.errors import FramepoolError
from framepool.shm.allocator import Allocator
from framepool.shm.drop import DropReason
from framepool.shm.layout import StreamLayout
from framepool.shm.paths import AllowedDirectories
from framepool.shm.region import map_stream
from framepool.shm.tensor import TensorLayout
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import FrameDescriptor, PayloadPool, ShmPoolAnnounce

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
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    with private_directory() as base, MediaDriver(AeronSettings(directory=f"{base}/aeron")):
        with running_camera(base, width, height, rate) as camera:
            console.print(f"camera   pid {camera.pid}: {width} x {height} uint16 into {base}")
            console.print(f"reader   pid {os.getpid()}: in place, descriptors over Aeron; Ctrl-C stops both")
            with Reader(base) as reader:
                with contextlib.suppress(KeyboardInterrupt):
                    watch(reader, camera, seconds, json, console)
                published = stop(camera)
                reader.finish(published)
                report(reader, published, json, console)
    console.print("stopped; nothing is left in shared memory")


@contextlib.contextmanager
def private_directory() -> Iterator[str]:
    """A directory of our own in shared memory, gone afterwards; what killed demos left goes first."""
    root = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for left in root.glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(left.name.removeprefix(PREFIX).partition("-")[0])
            if left.lstat().st_uid == os.geteuid() and not _alive(pid):
                shutil.rmtree(left)
    base = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def running_camera(base: str, width: int, height: int, rate: float) -> Iterator[subprocess.Popen[str]]:
    """The camera in a process of its own session, so that Ctrl-C reaches only us and we stop it in order."""
    numbers = [f"--width={width}", f"--height={height}", f"--rate={rate}"]
    camera = subprocess.Popen(
        [sys.executable, "-m", "framepool", "demo-camera", base, *numbers],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield camera
    finally:
        if camera.poll() is None:
            camera.kill()
        camera.wait()
        assert camera.stdout is not None
        camera.stdout.close()


def stop(camera: subprocess.Popen[str]) -> int:
    """Ends the camera in good order and returns how many frames it published."""
    camera.terminate()
    try:
        output, _ = camera.communicate(timeout=10)
        return int(output)
    except (subprocess.TimeoutExpired, ValueError):
        raise FramepoolError("the camera did not stop in good order; see its messages above") from None


def watch(reader: Reader, camera: subprocess.Popen[str], seconds: float, json: bool, console: Console) -> None:
    """Shows a line each second: in place on a terminal, below each other elsewhere."""
    end = time.monotonic() + seconds if seconds else float("inf")
    with console.status("waiting for the camera") if console.is_terminal else contextlib.nullcontext() as status:
        while time.monotonic() < end:
            figures = reader.run(min(1.0, end - time.monotonic()))
            if camera.poll() is not None:
                raise FramepoolError(f"the camera ended with exit code {camera.returncode}; see its messages above")
            if json:
                print(jsonlib.dumps(figures), flush=True)
            elif status is not None:
                status.update(line(figures))
            else:
                console.print(line(figures))


def line(figures: dict[str, float]) -> str:
    """A second of work in one line."""
    if not figures["frames_per_s"]:
        return "waiting for the camera"
    return (
        f"{figures['frames_per_s']:7.0f} frames/s  {figures['gigabytes_per_s']:5.2f} GB/s  "
        f"{figures['dropped']:.0f} dropped  latency {figures['latency_p50_us']:.0f} µs, "
        f"99 %: {figures['latency_p99_us']:.0f} µs"
    )


def report(reader: Reader, published: int, json: bool, console: Console) -> None:
    """The account at the end: every frame that was published is read or counted as dropped."""
    total = {
        "published": published,
        "read": reader.read,
        "dropped_gap": reader.gaps,
        "dropped_late": reader.late,
        "dropped_invalid": reader.invalid,
    }
    if json:
        print(jsonlib.dumps(total), flush=True)
    dropped = reader.gaps + reader.late + reader.invalid
    console.print(f"{published} frames published, {reader.read} read whole, {dropped} dropped")


class Reader:
    """Reads every frame that a descriptor tells of, as long as it is still there."""

    def __init__(self, base: str) -> None:
        ids = StreamIds()
        clock = MonotonicClock()
        allowed = AllowedDirectories([base])
        self._clock = clock
        self._client = Client.connect(AeronSettings(directory=f"{base}/aeron"), name="demo reader")
        self._announces = self._client.add_subscription(channel.control(), ids.announce)
        only = Filter(
            schema_id=FrameDescriptor.SCHEMA_ID,
            template_id=FrameDescriptor.TEMPLATE_ID,
            offset=8,
            pattern=STREAM_ID.to_bytes(4, "little"),
        )
        descriptors = self._client.add_subscription(channel.descriptor_subscription(), ids.descriptor, only=only)
        self._drain = descriptors.drain(capacity=4096, max_message=64)
        self._mapping = Mapping(STREAM_ID, open_stream=lambda layout: map_stream(layout, allowed), clock=clock)
        self._ring: RingReader | None = None
        self._next_seq = 0
        self._latencies: list[int] = []
        self._bytes = 0
        self.read = self.gaps = self.late = self.invalid = 0

    def run(self, seconds: float) -> dict[str, float]:
        """Reads for so long and says what came of it."""
        started, frames = self._clock.monotonic_ns(), self.read
        dropped = self.gaps + self.late + self.invalid
        self._latencies.clear()
        self._bytes = 0
        deadline = started + int(seconds * NANOS_PER_SECOND)
        while (now := self._clock.monotonic_ns()) < deadline:
            if self._ring is None:
                self._look_for_the_camera()
            elif self._drain.wait(min(0.1, (deadline - now) / NANOS_PER_SECOND)):
                self._take()
        elapsed = (self._clock.monotonic_ns() - started) / NANOS_PER_SECOND
        p50, p99 = np.percentile(self._latencies, [50, 99]) / 1_000 if self._latencies else (0.0, 0.0)
        return {
            "frames_per_s": (self.read - frames) / elapsed,
            "gigabytes_per_s": self._bytes / elapsed / 1e9,
            "dropped": self.gaps + self.late + self.invalid - dropped,
            "latency_p50_us": float(p50),
            "latency_p99_us": float(p99),
        }

    def finish(self, published: int) -> None:
        """Reads what the camera sent before it stopped; what is then missing was never told of."""
        deadline = time.monotonic() + 1.0
        while self._ring is not None and self._next_seq < published and time.monotonic() < deadline:
            if self._drain.wait(0.05):
                self._take()
        self.gaps += published - self._next_seq

    def _look_for_the_camera(self) -> None:
        for message in self._announces.poll():
            self._mapping.on_announce(ShmPoolAnnounce.decode(message))
        if self._mapping.stream is None:
            time.sleep(0.005)
        else:
            self._ring = RingReader(*ring_parts(self._mapping.stream))

    def _take(self) -> None:
        assert self._ring is not None
        for message in self._drain.take():
            seq = FrameDescriptor.decode(message).seq
            self.gaps += seq - self._next_seq
            self._next_seq = seq + 1
            frame = self._ring.read(seq)
            if isinstance(frame, DropReason):
                if frame.late:
                    self.late += 1
                else:
                    self.invalid += 1
                continue
            checked, image = frame
            self.read += 1
            self._bytes += image.nbytes
            self._latencies.append(self._clock.monotonic_ns() - checked.timestamp_ns)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._drain.close()
        self._client.close()
        if self._ring is not None:
            self._ring.close()
        self._mapping.unmap("the demo ends")


class Camera:
    """The agent that fills slots with a moving spot and tells of each."""

    role = "demo camera"

    def __init__(self, base: str, width: int, height: int, rate: float) -> None:
        self.published = 0
        self._clock = MonotonicClock()
        self._timers = Timers(self._clock)
        self._period_ns = int(NANOS_PER_SECOND / rate)
        self._base = base
        self._images = moving_spot(width, height)
        self._layout = Layout(TensorLayout.of(self._images[0]).header)
        self._client = Client.connect(AeronSettings(directory=f"{base}/aeron"), name="demo camera")

    def on_start(self) -> None:
        ids = StreamIds()
        self._announces = self._client.add_publication(channel.control(), ids.announce)
        self._descriptors = self._client.add_publication(channel.descriptor_publication(), ids.descriptor)
        allocator = Allocator(self._base, "demo", sync=False)
        stride = max(64, 1 << (self._images[0].nbytes - 1).bit_length())
        self._regions = map_stream(
            allocator.create(
                STREAM_ID,
                allocator.next_epoch(STREAM_ID),
                nslots=NSLOTS,
                strides={1: stride},
                timestamp_ns=self._clock.timestamp_ns(),
            ),
            AllowedDirectories([self._base]),
            writable=True,
        )
        self._ring = RingWriter(*ring_parts(self._regions))
        self._timers.every(NANOS_PER_SECOND // 10, self._announce, first_ns=0)
        self._timers.every(self._period_ns, self._expose, first_ns=NANOS_PER_SECOND // 4)

    def do_work(self) -> int:
        return self._timers.poll()

    def on_close(self) -> None:
        self._client.close()
        if hasattr(self, "_ring"):
            self._ring.close()
        if hasattr(self, "_regions"):
            self._regions.close()

    def idle(self) -> None:
        """Sleeps until the next exposure is due."""
        due = self._timers.next_deadline_ns()
        if due is not None:
            time.sleep(max(0.0, (due - self._clock.monotonic_ns()) / NANOS_PER_SECOND))

    def _announce(self) -> None:
        self._regions.refresh_activity(self._clock.timestamp_ns())
        self._announces.offer(announce(self._regions.layout, self._clock.timestamp_ns()).encode())

    def _expose(self) -> None:
        seq = self.published
        self.published += 1
        image = self._images[seq % len(self._images)]
        self._ring.publish(seq, image, self._layout, timestamp_ns=self._clock.timestamp_ns())
        descriptor = FrameDescriptor(stream_id=STREAM_ID, epoch=self._regions.layout.epoch, seq=seq)
        self._descriptors.offer(descriptor.encode())


def camera(base: str, /, *, width: int, height: int, rate: float) -> None:
    """The camera's process: runs until SIGTERM, then prints how many frames it published."""
    signal.signal(signal.SIGTERM, _interrupt)
    _end_with_parent()
    agent = Camera(base, width, height, rate)
    invoker = Invoker(agent, on_error=_raise)
    try:
        invoker.start()
        while invoker.state is State.RUNNING:
            invoker.invoke()
            agent.idle()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        invoker.close()
    print(agent.published)


def moving_spot(width: int, height: int, count: int = 16) -> list[np.ndarray]:
    """A few frames of a bright spot that goes round on a gradient."""
    rows, columns = np.mgrid[0:height, 0:width]
    gradient = (rows + columns) % 1024
    images = []
    for angle in np.linspace(0, 2 * np.pi, count, endpoint=False):
        row, column = height * (0.5 + 0.3 * np.sin(angle)), width * (0.5 + 0.3 * np.cos(angle))
        spot = 3000 * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (0.002 * width * height))
        images.append((gradient + spot).astype(np.uint16))
    return images


def announce(layout: StreamLayout, timestamp_ns: int) -> ShmPoolAnnounce:
    """The announce of a layout by a producer without a driver."""
    return ShmPoolAnnounce(
        stream_id=layout.stream_id,
        producer_id=os.getpid(),
        epoch=layout.epoch,
        announce_timestamp_ns=timestamp_ns,
        announce_clock_domain=MonotonicClock.domain,
        layout_version=layout.layout_version,
        header_nslots=layout.nslots,
        header_slot_bytes=layout.header_slot_bytes,
        payload_pools=tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=pool.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=str(pool.uri),
            )
            for pool in layout.pools
        ),
        header_region_uri=str(layout.header_uri),
    )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end_with_parent() -> None:
    """Asks Linux for a SIGTERM when the demo dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _raise(_role: str, error: BaseException) -> None:
    raise error
