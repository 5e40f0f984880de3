"""`framepool publish` and `framepool consume`: frames into a stream and out of it, from a terminal."""

from __future__ import annotations

import contextlib
import json as jsonlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

import framepool
from framepool.config import load
from framepool.errors import FrameOverwritten

StreamId = Annotated[int, Parameter(help="The stream id.")]
ConfigFile = Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")]
Count = Annotated[int, Parameter(help="Stop after so many frames; 0 is never.")]
Seconds = Annotated[float, Parameter(help="Stop after so long; 0 is never.")]
Json = Annotated[bool, Parameter(help="One JSON object a second, and one at the end.")]


def publish(
    stream: StreamId,
    /,
    *,
    config: ConfigFile = None,
    width: Annotated[int, Parameter(help="Columns of a frame.")] = 640,
    height: Annotated[int, Parameter(help="Rows of a frame.")] = 480,
    dtype: Annotated[Literal["uint8", "uint16", "float32"], Parameter(help="Type of a pixel.")] = "uint16",
    rate: Annotated[float, Parameter(help="Frames a second.")] = 100.0,
    count: Count = 0,
    seconds: Seconds = 0.0,
    json: Json = False,
) -> None:
    """Publish synthetic frames on a stream, making it if it does not exist, until Ctrl-C."""
    if width <= 0 or height <= 0 or rate <= 0:
        print("framepool publish: width, height and rate are above 0", file=sys.stderr)
        sys.exit(2)
    image = (np.add.outer(np.arange(height), np.arange(width)) % 256).astype(dtype)
    with stopping(), framepool.connect(load(config)) as pool, pool.producer(stream) as producer:
        due = time.monotonic()
        for _ in ticking(seconds, json, producer.counts):
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due + 1 / rate, time.monotonic() - 1.0)
            image.flat[0] = producer.counts["published"] % 256
            producer.publish(image)
            if count and producer.counts["published"] >= count:
                break


def consume(
    stream: StreamId, /, *, config: ConfigFile = None, count: Count = 0, seconds: Seconds = 0.0, json: Json = False
) -> None:
    """Read the frames of a stream and say how many came and how many were missed, until Ctrl-C."""
    with stopping(), framepool.connect(load(config)) as pool, pool.consumer(stream) as consumer:
        for _ in ticking(seconds, json, consumer.counts):
            consumer.wait(0.05)
            for frame in consumer.poll():
                with contextlib.suppress(FrameOverwritten):
                    frame.copy()
            if count and consumer.counts["received"] >= count:
                break


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block in good order."""
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        yield


def ticking(seconds: float, json: bool, counts: Mapping[str, int]) -> Iterator[None]:
    """Turns as fast as its caller does, showing the counts each second and at the end."""
    end = time.monotonic() + seconds if seconds else float("inf")
    shown = time.monotonic()
    try:
        while (now := time.monotonic()) < end:
            yield
            if now - shown >= 1.0:
                shown = now
                _show(counts, json)
    finally:
        _show(counts, json)


def _show(counts: Mapping[str, int], json: bool) -> None:
    if json:
        print(jsonlib.dumps(dict(counts)), flush=True)
    else:
        print("  ".join(f"{name} {value}" for name, value in counts.items()) or "nothing yet", flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
