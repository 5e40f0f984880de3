"""`framepool demo`: live streams, readers of every kind and the console, in a place of their own.

This process embeds the driver and reads every byte of every frame of the fast camera; the cameras, the other readers
and the console are processes that connect to it (`demo_parts`). All of it lives in one private directory that is
removed at the end (`demo_site`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json as jsonlib
import os
import select
import subprocess
import sys
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.console import Console

import framepool
from framepool.cli.demo_site import FILE, RECORDINGS, STARS, Plan, configure, private_directory, settle
from framepool.cli.stopping import stop_asked
from framepool.client.consumer import Consumer
from framepool.errors import FrameOverwritten, FramepoolError

CONSOLE_MODULES = ("starlette", "uvicorn", "websockets")
PATIENCE_S = 60.0


def demo(
    *,
    width: Annotated[int, Parameter(help="Columns of a frame of the fast camera.")] = 1024,
    height: Annotated[int, Parameter(help="Rows of it.")] = 768,
    rate: Annotated[float, Parameter(help="Frames a second it tries for.")] = 120.0,
    seconds: Annotated[float, Parameter(help="Stop after so long; 0 is until Ctrl-C.")] = 0.0,
    port: Annotated[int, Parameter(help="The port of the console; 0 is a free one.")] = 0,
    open: Annotated[bool, Parameter(negative="", help="Open the console in a browser.")] = False,
    headless: Annotated[
        bool, Parameter(negative="", help="For scripts and tests: plain lines, and no browser.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="One JSON object a second, and one at the end.")] = False,
) -> None:
    """Publish synthetic streams through shared memory, read them, and show all of it on a page, until Ctrl-C."""
    if not (0 < width <= 16_384 and 0 < height <= 16_384 and rate > 0 and seconds >= 0 and 0 <= port <= 65_535):
        print("framepool demo: width and height are 1 to 16384, rate above 0, seconds 0 or more", file=sys.stderr)
        sys.exit(2)
    console = Console(stderr=json, soft_wrap=True, highlight=False)
    with stop_asked() as asked, contextlib.ExitStack() as stack:
        root, plan = settle(width, height)
        base = stack.enter_context(private_directory(root))
        config = configure(base, plan, port)
        pool = stack.enter_context(framepool.serve(config))
        consumer = stack.enter_context(pool.consumer(STARS))
        parts = stack.enter_context(Parts(base))
        camera = parts.start_camera(plan, rate)
        console.print(f"camera   pid {camera.pid}: {plan.stars[0]} x {plan.stars[1]} uint16 into {base}")
        console.print(f"reader   pid {os.getpid()}: in place, descriptors over Aeron; Ctrl-C stops all")
        parts.start_others(plan)
        address = parts.start_console()
        console.print(f"console  {address or 'needs more packages: pip install framepool[console]'}")
        console.print(f"look     framepool top --config {base}/{FILE}", style="dim")
        console.print(f"report   framepool spark report {base}/{RECORDINGS}/detector", style="dim")
        if open and address and not headless:
            webbrowser.open(address)
        reader = Reader(consumer)
        end = time.monotonic() + seconds if seconds else float("inf")
        with live(console, plain=headless) as show:
            while not asked.is_set() and time.monotonic() < end:
                figures = reader.run(min(1.0, end - time.monotonic()))
                parts.check()
                show(jsonlib.dumps(figures) if json else line(figures))
        published = parts.stop()
        reader.finish(published)
        report(reader, published, json, console)
    console.print("stopped; nothing is left in shared memory")


class Parts:
    """The processes of the demo, each in a session of its own, so that Ctrl-C reaches only us and we stop them in
    order."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start_camera(self, plan: Plan, rate: float) -> subprocess.Popen[str]:
        width, height = plan.stars
        return self._start("camera", f"--width={width}", f"--height={height}", f"--rate={rate}")

    def start_others(self, plan: Plan) -> None:
        """The other sources, readers of all of them, and a recorder."""
        sizes = ("x".join(map(str, size)) for size in (plan.chart, plan.noise))
        self._start("sources", *(f"--{name}={size}" for name, size in zip(("chart", "noise"), sizes, strict=True)))
        self._start("readers")
        self._start("recorder")

    def start_console(self) -> str:
        """Where the console is, once it serves; nothing if its packages are not there."""
        if any(importlib.util.find_spec(name) is None for name in CONSOLE_MODULES):
            return ""
        console = self._start("console")
        assert console.stdout is not None
        ready, _, _ = select.select([console.stdout], [], [], PATIENCE_S)
        said = console.stdout.readline() if ready else ""
        if not said:
            raise FramepoolError("the console did not start; see above")
        address: str = jsonlib.loads(said)["address"]
        return address

    def check(self) -> None:
        """Raises if one of them ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise FramepoolError(f"the {name} ended with exit code {process.returncode}; see above")

    def stop(self) -> int:
        """Asks all to stop, and returns how many frames the camera published; it keeps its lease until its input
        ends."""
        camera = self._running["camera"]
        for process in self._running.values():
            process.terminate()
        assert camera.stdout is not None
        try:
            return int(camera.stdout.readline())
        except ValueError:
            raise FramepoolError("the camera did not stop in good order; see its messages above") from None

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
            if process.stdin is not None:
                process.stdin.close()
        for process in self._running.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def _start(self, name: str, *args: str) -> subprocess.Popen[str]:
        self._running[name] = subprocess.Popen(
            [sys.executable, "-m", "framepool", f"demo-{name}", self._base, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._running[name]


@contextlib.contextmanager
def live(
    console: Console, waiting: str = "waiting for the camera", *, plain: bool = False
) -> Iterator[Callable[[str], object]]:
    """Shows a line in place on a terminal, lines below each other elsewhere."""
    if plain or console.stderr or not console.is_terminal:  # what is said beside JSON goes to stderr
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


def report(reader: Reader, published: int, json: bool, console: Console) -> None:
    """The account at the end: every frame that was published is read or counted as dropped."""
    dropped = {f"dropped_{name.replace(' ', '_')}": count for name, count in reader.drops().items()}
    if json:
        print(jsonlib.dumps({"published": published, "read": reader.received, **dropped}), flush=True)
    console.print(f"{published} frames published, {reader.received} read whole, {sum(dropped.values())} dropped")


class Reader:
    """Reads every frame that a descriptor tells of, as long as it is still there."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._latencies: list[int] = []
        self._bytes = 0
        self._unheard = 0

    @property
    def received(self) -> int:
        return self._consumer.counts["received"]

    def drops(self) -> Counter[str]:
        """What was not read, by cause."""
        counts = self._consumer.counts
        counts["gap"] += self._unheard
        return Counter(
            {name: count for name, count in counts.items() if name not in {"received", "resyncs", "repeated"}}
        )

    def run(self, seconds: float) -> dict[str, float]:
        """Reads for so long and says what came of it."""
        started, frames, dropped = time.monotonic(), self.received, self.drops().total()
        self._latencies.clear()
        self._bytes = 0
        while (left := started + seconds - time.monotonic()) > 0:
            self._consumer.wait(min(left, 0.1))
            self._take()
        elapsed = time.monotonic() - started
        p50, p99 = np.percentile(self._latencies, [50, 99]) / 1_000 if self._latencies else (0.0, 0.0)
        return {
            "frames_per_s": (self.received - frames) / elapsed,
            "gigabytes_per_s": self._bytes / elapsed / 1e9,
            "dropped": self.drops().total() - dropped,
            "latency_p50_us": float(p50),
            "latency_p99_us": float(p99),
        }

    def finish(self, published: int) -> None:
        """Reads what the camera sent before it stopped; what is missing then was never told of."""
        deadline = time.monotonic() + 1.0
        while (missing := published - self.received - self.drops().total()) > 0:
            if time.monotonic() > deadline:
                self._unheard = missing
                return
            self._consumer.wait(0.05)
            self._take()

    def _take(self) -> None:
        for frame in self._consumer.poll():
            with contextlib.suppress(FrameOverwritten):
                self._bytes += frame.copy().nbytes
                self._latencies.append(time.monotonic_ns() - frame.timestamp_ns)
