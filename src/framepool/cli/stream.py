"""`framepool publish` and `framepool consume`: frames into a stream and out of it, from a terminal."""

from __future__ import annotations

import contextlib
import itertools
import json as jsonlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from cyclopts import Parameter
from rich.console import Console

import framepool
from framepool.cli.demo import live
from framepool.cli.patterns import BadSource, Image, Pattern, PixelType, from_files, synthetic
from framepool.cli.stopping import Asked, stop_asked
from framepool.client.frame import Frame
from framepool.client.histogram import PERCENTILES, LatencyHistogram, LatencyMeter
from framepool.config import load
from framepool.errors import FrameOverwritten, FramepoolError, NoPoolFits

StreamId = Annotated[int, Parameter(help="The stream id.")]
ConfigFile = Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")]
Count = Annotated[int, Parameter(help="Stop after so many frames; 0 is never.")]
Seconds = Annotated[float, Parameter(help="Stop after so long; 0 is never.")]
Json = Annotated[bool, Parameter(negative="", help="One JSON object a second, and one at the end.")]

LARGEST_SIDE = 16_384
PATIENCE = 0.05
"""Seconds between looks at signals and clock."""
BATCH = 256
NOT_DROPS = frozenset({"received", "published", "resyncs", "repeated", "rate limited", "without readers"})
"""Counts of frames that arrived or were not wanted, and of other things than frames."""


def publish(
    stream: StreamId,
    /,
    *,
    pattern: Annotated[Pattern | None, Parameter(help="What the frames show; gradient unless --from is given.")] = None,
    source: Annotated[
        Path | None,
        Parameter(
            name="--from",
            help="Frames from a .npy file (along its first axis if it has three or more), a directory of them (one "
            "frame each), a picture or a video.",
        ),
    ] = None,
    loop: Annotated[bool, Parameter(negative="", help="Begin again when the files end.")] = False,
    width: Annotated[int, Parameter(help="Columns of a pattern.")] = 640,
    height: Annotated[int, Parameter(help="Rows of a pattern.")] = 480,
    dtype: Annotated[PixelType, Parameter(help="Type of a pixel of a pattern.")] = "uint16",
    rate: Annotated[float, Parameter(help="Frames a second; 0 is as fast as it goes.")] = 100.0,
    name: Annotated[str, Parameter(help="What others see as the name of the stream.")] = "",
    tag: Annotated[tuple[str, ...], Parameter(negative="", help="A tag that the stream is found by.")] = (),
    count: Count = 0,
    seconds: Seconds = 0.0,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Publish frames on a stream, making it if it does not exist, until Ctrl-C."""
    check("publish", stream, rate=rate, count=count, seconds=seconds)
    if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        refuse("publish", f"width and height are 1 to {LARGEST_SIDE}")
    if pattern is not None and source is not None:
        refuse("publish", "--pattern or --from, not both")
    try:
        if source is None:
            images = synthetic(pattern or "gradient", width, height, dtype)
        else:
            images = from_files(source, loop=loop)
        with framepool.connect(load(config)) as pool, pool.producer(stream, name=name, tags=tag) as producer:
            with stop_asked() as asked, showing(f"publishing on stream {stream}", json) as show:
                report = Report(lambda: producer.counts, "published", show, json)
                for image in itertools.islice(paced(images, rate, seconds, asked), count or None):
                    if producer.publish(image) is not None:
                        report.add(image.nbytes)
                    elif producer.counts["no pool fits"] and not report.frames:
                        raise NoPoolFits(f"stream {stream}: a frame of {image.nbytes} bytes fits none of its pools")
                    report.turn()
            report.end()
    except BadSource as error:
        refuse("publish", str(error))


def consume(
    stream: Annotated[int | str, Parameter(help="The stream id, or the name of a stream of this host.")],
    /,
    *,
    save: Annotated[Path | None, Parameter(help="A directory for the frames, one .npy each.")] = None,
    max_rate: Annotated[int, Parameter(help="Frames a second at the most, evenly spread; 0 is all.")] = 0,
    count: Count = 0,
    seconds: Seconds = 0.0,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Read the frames of a stream; say how fast they come, how old they are and how many were missed, until Ctrl-C."""
    check("consume", stream if isinstance(stream, int) else 1, max_rate=max_rate, count=count, seconds=seconds)
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            refuse("consume", f"--save {save}: {error.strerror}")
    with framepool.connect(load(config)) as pool, pool.consumer(stream, max_rate_hz=max_rate) as consumer:
        with stop_asked() as asked, showing(f"waiting for frames of stream {stream}", json) as show:
            report = Report(lambda: consumer.counts, "received", show, json, consumer.latency)
            while not (asked.is_set() or 0 < seconds <= report.elapsed or 0 < count <= report.frames):
                consumer.wait(PATIENCE)
                for frame in consumer.poll(min(BATCH, count - report.frames) if count else BATCH):
                    read(frame, report, save)
                report.turn()
        report.end()


def paced(images: Iterator[Image], rate: float, seconds: float, asked: Asked) -> Iterator[Image]:
    """The images at a rate, until they end, or the time, or somebody asks to stop."""
    due = started = time.monotonic()
    end = started + seconds if seconds else float("inf")
    for image in images:
        asked.wait(max(0.0, min(due, end) - time.monotonic()))
        if asked.is_set() or time.monotonic() >= end:
            return
        yield image
        due = max(due + 1 / rate, time.monotonic() - 1.0) if rate else due


def read(frame: Frame, report: Report, save: Path | None) -> None:
    """Reads every byte of a frame; one that was overwritten meanwhile is counted by its consumer, and not saved."""
    try:
        image = frame.copy()
    except FrameOverwritten:
        return
    report.add(image.nbytes)
    if save is not None:
        keep(image, save / f"{frame.stream_id}-{frame.epoch:06}-{frame.seq:012}.npy")


def keep(image: Image, path: Path) -> None:
    """Writes a file that is whole as soon as it has its name."""
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            np.save(file, image)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FramepoolError(f"{path}: {error.strerror}") from error


class Report:
    """Says each second what came of it, and at the end what came of it all."""

    def __init__(
        self,
        counts: Callable[[], Counter[str]],
        done: str,
        show: Callable[[str], object],
        json: bool,
        latency: LatencyMeter | None = None,
    ) -> None:
        self.frames = 0
        self._bytes = 0
        self._counts = counts
        self._done = done
        self._show = show
        self._json = json
        self._latency = latency
        self._latencies = LatencyHistogram()
        self._started = self._shown = time.monotonic()
        self._before = (0, 0)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def add(self, nbytes: int) -> None:
        """One more frame."""
        self.frames += 1
        self._bytes += nbytes

    def turn(self) -> None:
        """Shows the last second when it is over."""
        now = time.monotonic()
        if now - self._shown < 1.0:
            return
        frames, size = self._before
        latency = None if self._latency is None else self._latency.histogram
        figures = self._figures("second", now - self._shown, self.frames - frames, self._bytes - size, latency)
        self._shown, self._before = now, (self.frames, self._bytes)
        self._take_latency()
        self._show(self._text(figures))

    def end(self) -> None:
        """Prints the whole."""
        self._take_latency()
        latency = self._latencies if self._latency is not None else None
        printed(self._text(self._figures("end", self.elapsed, self.frames, self._bytes, latency)))

    def _take_latency(self) -> None:
        if self._latency is not None:
            self._latencies.merge(self._latency.histogram)
            self._latency.histogram.reset()

    def _figures(
        self, event: str, seconds: float, frames: int, size: int, latency: LatencyHistogram | None
    ) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "event": event,
            "seconds": seconds,
            "frames_per_s": frames / seconds,
            "gigabytes_per_s": size / seconds / 1e9,
            self._done: self.frames,
            "dropped": sum(count for name, count in self._counts().items() if name not in NOT_DROPS),
            "counts": dict(self._counts()),
        }
        if latency is not None:
            known = {f"p{percent:g}": latency.percentile(percent) for percent in PERCENTILES}
            known["max"] = latency.maximum
            figures["latency_us"] = {name: None if ns is None else ns / 1_000 for name, ns in known.items()}
        return figures

    def _text(self, figures: dict[str, Any]) -> str:
        if self._json:
            return jsonlib.dumps(figures)
        text = (
            f"{figures['frames_per_s']:7.0f} frames/s  {figures['gigabytes_per_s']:5.2f} GB/s  "
            f"{figures[self._done]} {self._done}  {figures['dropped']} dropped"
        )
        latency = figures.get("latency_us")
        if latency is not None and latency["p50"] is not None:
            text += f"  latency {latency['p50']:.0f} µs, 99 %: {latency['p99']:.0f} µs, most {latency['max']:.0f} µs"
        return text


def showing(waiting: str, json: bool) -> contextlib.AbstractContextManager[Callable[[str], object]]:
    """A place for the figures: one line in place for people, lines below each other for programs."""
    return contextlib.nullcontext(printed) if json else live(Console(highlight=False), waiting)


def printed(text: str) -> None:
    print(text, flush=True)


def check(command: str, stream: int, **numbers: float) -> None:
    """Refuses numbers that mean nothing."""
    if not 0 < stream < 2**31:
        refuse(command, f"{stream} is no stream id: they are 1 to {2**31 - 1}")
    for name, number in numbers.items():
        if not 0 <= number < float("inf"):
            refuse(command, f"{name.replace('_', '-')} is 0 or more, not {number}")


def refuse(command: str, why: str) -> NoReturn:
    print(f"framepool {command}: {why}", file=sys.stderr)
    sys.exit(2)
