"""What an open console costs the producers it shows: eight streams, with the page closed and open in turns.

A process publishes 512 x 512 pixels of 16 bits 100 times a second on each stream, 420 MB/s together, and notes how long
each `publish` takes. The page is closed, open elsewhere (a program that draws nothing but answers like a page), and in
Chromium on the same cores where there is one. The figures are the 99th percentile of the time of a `publish`, and the
time from frame to frame, which rises if the producers cannot keep their rate; each is the median over rounds that take
turns.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from benchmarks.row import Row

STREAMS = range(10_000, 10_008)
RATE_HZ = 100
SIDE = 512
ROUNDS = 32
"""A round's p99 differs by a third from the next one's; the median of so many still does by a twentieth."""
ROUND_S = 3.0
SETTLE_S = 1.5
"""After the page was opened or closed."""
P99_LIMIT = 1.10
PERIOD_LIMIT = 1.05
NOBODY = 65534
CLOSED = "closed"

CONFIG = """
[aeron]
directory = "{base}/aeron"
[driver]
shm_base_dir = "{base}"
[console]
port = 0
[profiles.default]
nslots = 8
pools = [{{ pool_id = 1, stride_bytes = 524288 }}]
"""


def run() -> list[Row]:
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir=root) as base:
        config = Path(base, "bench.toml")
        config.write_text(CONFIG.format(base=base))
        started: list[subprocess.Popen[str]] = []
        try:
            driver = start(started, "-m", "framepool", "driver", "--json", "--config", str(config))
            json.loads(line(driver))
            producers = start(started, "-m", "benchmarks.console", str(config))
            assert line(producers) == "ready"
            console = start(started, "-m", "framepool", "console", "--json", "--config", str(config))
            return measure(producers, json.loads(line(console))["url"])
        finally:
            for process in reversed(started):
                process.terminate()
            for process in reversed(started):
                process.communicate(timeout=30)


def start(started: list[subprocess.Popen[str]], *args: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    started.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def measure(producers: subprocess.Popen[str], url: str) -> list[Row]:
    pages: dict[str, ProgramPage | BrowserPage] = {"elsewhere": ProgramPage(url)}
    if shutil.which("chromium"):
        pages["in Chromium here"] = BrowserPage(url)
    figures: dict[str, list[dict[str, float]]] = {CLOSED: [], **{name: [] for name in pages}}
    try:
        for _ in range(ROUNDS):
            for name, found in figures.items():
                if name != CLOSED:
                    pages[name].open()
                time.sleep(SETTLE_S)
                assert producers.stdin is not None
                producers.stdin.write(f"{ROUND_S}\n")
                found.append(json.loads(line(producers)))
                if name != CLOSED:
                    pages[name].close()
    finally:
        for page in pages.values():
            page.end()
    assert all(page.pictures for page in pages.values()), "a page showed nothing"

    def median(name: str, key: str) -> float:
        return statistics.median(each[key] for each in figures[name])

    keys = {"p99_ns": ("p99 of publish", P99_LIMIT), "period_ns": ("from frame to frame", PERIOD_LIMIT)}
    return [
        Row(f"console open {name}, 8 streams: {what}", median(name, key), CLOSED, median(CLOSED, key), limit)
        for name in pages
        for key, (what, limit) in keys.items()
    ]


class BrowserPage:
    """The page in Chromium, as somebody at a desk has it: not root, whose browser takes a higher priority than other
    programs, and not under Playwright, which has every picture sent to itself too."""

    def __init__(self, url: str) -> None:
        self.pictures = 0
        self._url = url
        self._target = ""
        self._profile = tempfile.TemporaryDirectory(prefix="framepool-chromium-")
        as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(self._profile.name, NOBODY, NOBODY)
            as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self._browser = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--remote-debugging-port=0", "--window-size=1400,1000",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            env={**os.environ, "HOME": self._profile.name}, stderr=subprocess.PIPE, text=True, **as_nobody,
        )  # fmt: skip
        assert self._browser.stderr is not None
        said = next(line for line in self._browser.stderr if line.startswith("DevTools listening on "))
        threading.Thread(target=self._browser.stderr.read, daemon=True).start()
        self._tools = "http://" + said.split("/")[2]

    def open(self) -> None:
        from websockets.sync.client import connect

        target = json.loads(self._ask("PUT", "new?" + self._url))
        self._target = target["id"]
        count = "document.querySelectorAll('.card.pictured').length"
        deadline = time.monotonic() + 60
        with connect(target["webSocketDebuggerUrl"], proxy=None) as tools:
            shown = 0
            while shown < len(STREAMS):
                assert time.monotonic() < deadline, f"the page shows {shown} streams"
                time.sleep(0.2)
                tools.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": count}}))
                shown = json.loads(tools.recv())["result"]["result"].get("value", 0)
        self.pictures += shown

    def close(self) -> None:
        if self._target:
            self._ask("GET", "close/" + self._target)
            self._target = ""

    def end(self) -> None:
        self._browser.terminate()
        self._browser.wait(30)
        self._profile.cleanup()

    def _ask(self, method: str, what: str) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(f"{self._tools}/json/{what}", method=method)) as answer:
            return bytes(answer.read())


class ProgramPage:
    """A program that answers like a page."""

    def __init__(self, url: str) -> None:
        self.pictures = 0
        self._url = url.replace("http", "ws", 1) + "socket"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        self.close()

    def _look(self) -> None:
        from websockets.sync.client import connect

        from framepool.console.picture import decoded

        with connect(self._url, max_size=None, proxy=None) as socket:
            socket.send(json.dumps({"type": "watch", "streams": {str(stream): {"size": 224} for stream in STREAMS}}))
            while not self._ended.is_set():
                try:
                    message = socket.recv(0.2)
                except TimeoutError:
                    continue
                answer: dict[str, Any] = {"type": "seen"}
                if isinstance(message, bytes):
                    self.pictures += 1
                    answer = {"type": "drawn", "streams": [header["stream"] for header, _ in decoded(message)]}
                socket.send(json.dumps(answer))


def produce(path: str, orders: IO[str]) -> None:
    """The producers' process: publishes all the time, and measures when it is told for how long."""
    import numpy as np

    import framepool as fp
    from framepool.config import load

    with fp.connect(load(path)) as pool:
        producers = [pool.producer(stream, name=f"camera {stream}") for stream in STREAMS]
        images = np.random.default_rng(0).integers(0, 4096, (4, SIDE, SIDE), np.uint16)
        wanted: deque[float] = deque()
        threading.Thread(target=lambda: wanted.extend(map(float, orders)), daemon=True).start()
        turn = cycle([producer.publish for producer in producers], list(images))
        print("ready", flush=True)
        while True:
            if not wanted:
                turn(0.1)
                continue
            times, elapsed = turn(wanted.popleft())
            figures = {"p99_ns": float(np.percentile(times, 99)), "period_ns": elapsed / len(times)}
            print(json.dumps(figures), flush=True)


def cycle(publish: list[Callable[[Any], object]], images: list[Any]) -> Callable[[float], tuple[list[int], float]]:
    """Publishes on all streams in turn at their rate for so long: the time of each publish, and of all, in ns."""
    interval_ns = 10**9 // (RATE_HZ * len(publish))
    count = 0

    def turn(seconds: float) -> tuple[list[int], float]:
        nonlocal count
        times = []
        started = due = time.monotonic_ns()
        while (now := time.monotonic_ns()) < started + seconds * 1e9:
            if now < due:
                time.sleep((due - now) / 1e9)
            before = time.monotonic_ns()
            publish[count % len(publish)](images[count % len(images)])
            times.append(time.monotonic_ns() - before)
            due = max(due + interval_ns, before - 100 * interval_ns)
            count += 1
        return times, float(time.monotonic_ns() - started)

    return turn


if __name__ == "__main__":
    produce(sys.argv[1], sys.stdin)
