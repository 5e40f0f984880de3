"""Zero-copy shared-memory tensor transport.

>>> import numpy as np, framepool as fp
>>> with fp.serve() as pool:                                # or fp.connect() to a running `framepool driver`
...     camera, eye = pool.producer(10_000), pool.consumer(10_000)
...     with camera.claim((4, 4), np.uint16) as slot:
...         slot.array[:] = 7                               # straight into shared memory; committed on exit
...     with next(eye) as image:
...         int(image.sum())                                # in place, read-only
112
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from framepool.errors import FrameOverwritten, FramepoolError

if TYPE_CHECKING:
    from framepool.bridge.bridge import Bridge
    from framepool.client.consumer import Consumer
    from framepool.client.fallback import PayloadSource, SourceRequest
    from framepool.client.frame import Frame
    from framepool.client.pool import Pool
    from framepool.client.producer import Producer, Slot
    from framepool.config import Config
    from framepool.discovery.stream import Stream
    from framepool.recorder.recorder import Recorder
    from framepool.recorder.recording import Recording

    def bridge(config: Config | None = None) -> Bridge:
        """Starts the bridge of a configuration; close it, or use it in `with`."""


__version__ = "0.1.0"
__all__ = [
    "Consumer",
    "Frame",
    "FrameOverwritten",
    "FramepoolError",
    "Pool",
    "Producer",
    "Recorder",
    "Recording",
    "Slot",
    "Stream",
    "__version__",
    "bridge",
    "connect",
    "serve",
]

HOMES = {
    "Consumer": "framepool.client.consumer",
    "Frame": "framepool.client.frame",
    "Pool": "framepool.client.pool",
    "Producer": "framepool.client.producer",
    "Recorder": "framepool.recorder.recorder",
    "Recording": "framepool.recorder.recording",
    "Slot": "framepool.client.producer",
    "Stream": "framepool.discovery.stream",
}


def __getattr__(name: str) -> Any:
    """Loads a public class when it is first named, so that `framepool decode` does not load numpy and Aeron."""
    if name == "bridge":
        return importlib.import_module("framepool.bridge")  # a room that can be called
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module 'framepool' has no attribute {name!r}")


def connect(config: Config | None = None, *, timeout: float | None = None) -> Pool:
    """Connects to a running driver. Without a configuration the defaults apply, with what the environment overrides.

    Waits for a media driver up to `timeout` seconds, by default `aeron.driver_timeout`, and raises `TransportTimeout`.

    >>> with fp.connect() as other:                         # `framepool driver` runs, here or in another terminal
    ...     [stream.name for stream in other.discover()]
    ['camera']
    """
    from framepool.client.pool import Pool
    from framepool.config import load

    return Pool(load() if config is None else config, open_source=_open_source, timeout=timeout)


def serve(config: Config | None = None) -> Pool:
    """Starts a driver inside this process, with its media driver, and connects to it.

    Other processes can attach to it too: it is the same driver as `framepool driver` (Driver 2.1). It ends with the
    pool.

    >>> with fp.serve() as pool:
    ...     pool.producer(10_000).publish(np.zeros((2, 2)))
    0
    """
    from framepool.client.pool import Pool
    from framepool.config import load
    from framepool.driver.driver import ShmDriver

    settings = load() if config is None else config
    with contextlib.ExitStack() as owned:
        owned.enter_context(ShmDriver(settings).start())
        return Pool(settings, owned=owned.pop_all(), open_source=_open_source)


def _open_source(request: SourceRequest) -> PayloadSource:
    """How payloads come to consumers without shared memory: over a bridge."""
    from framepool.bridge.fallback import open_source

    return open_source(request)
