"""`framepool publish` and `framepool consume`: frames into a stream and out of it, from a terminal."""

from __future__ import annotations

import contextlib
import json as jsonlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import Parameter

from framepool.client.attach import AttachSettings, AttachState
from framepool.client.consumer import Consumer
from framepool.client.producer import Producer
from framepool.client.seat import ControlPlane, Seat
from framepool.clock import MonotonicClock
from framepool.config import Config, load
from framepool.shm.paths import AllowedDirectories
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter
from framepool.wire._generated.control_900 import FrameDescriptor
from framepool.wire._generated.driver_901 import Role

STREAM_ID_OFFSET = 8  # behind the message header

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
    settings = load(config)
    image = (np.add.outer(np.arange(height), np.arange(width)) % 256).astype(dtype)
    with attached(settings, stream, Role.PRODUCER, create=True) as (client, plane, seat):
        descriptors = client.add_publication(
            channel.descriptor_publication(settings.channels.descriptor, settings.aeron), settings.stream_ids.descriptor
        )
        producer = Producer(seat, descriptors, plane.clock)
        due = time.monotonic()
        for _ in ticking(seconds, json, producer.statistics):
            plane.do_work()
            if count and producer.counts["published"] >= count:
                break
            if time.monotonic() < due:
                time.sleep(min(0.001, 1 / rate))
                continue
            due = max(due + 1 / rate, time.monotonic() - 1.0)
            if seat.attachment.state is AttachState.ATTACHED:
                image.flat[0] = producer.counts["published"] % 256
                producer.publish(image)
        producer.close()


def consume(
    stream: StreamId, /, *, config: ConfigFile = None, count: Count = 0, seconds: Seconds = 0.0, json: Json = False
) -> None:
    """Read the frames of a stream and say how many came and how many were missed, until Ctrl-C."""
    settings = load(config)
    with attached(settings, stream, Role.CONSUMER) as (client, plane, seat):
        only = Filter(
            schema_id=FrameDescriptor.SCHEMA_ID,
            template_id=FrameDescriptor.TEMPLATE_ID,
            offset=STREAM_ID_OFFSET,
            pattern=stream.to_bytes(4, "little"),
        )
        descriptors = client.add_subscription(
            channel.descriptor_subscription(settings.channels.descriptor), settings.stream_ids.descriptor, only=only
        )
        consumer = Consumer(seat, descriptors.drain(capacity=4096, max_message=64))
        for _ in ticking(seconds, json, consumer.statistics):
            plane.do_work()
            if consumer.wait(0.005):
                consumer.poll()
            if count and consumer.counts["received"] >= count:
                break
        consumer.close()


@contextlib.contextmanager
def attached(
    settings: Config, stream: int, role: Role, *, create: bool = False
) -> Iterator[tuple[Client, ControlPlane, Seat]]:
    """A connection to the driver with one seat; it is given back at the end, whatever happens."""
    signal.signal(signal.SIGTERM, _interrupt)
    with Client.connect(settings.aeron, name=f"framepool {role.name.lower()}") as client:
        plane = ControlPlane(client, MonotonicClock(), settings.stream_ids, settings.channels)
        allowed = AllowedDirectories(filter(None, (settings.driver.shm_base_dir, settings.driver.hugepages_dir)))
        patience = AttachSettings.configured(settings.driver)
        seat = plane.add(Seat(plane, stream, role, allowed=allowed, create=create, settings=patience))
        try:
            yield client, plane, seat
        except KeyboardInterrupt:
            pass
        finally:
            plane.on_close()


def ticking(seconds: float, json: bool, statistics: Callable[[], dict[str, int]]) -> Iterator[None]:
    """Turns as fast as its caller does, showing the statistics each second and at the end."""
    end = time.monotonic() + seconds if seconds else float("inf")
    shown = time.monotonic()
    try:
        while (now := time.monotonic()) < end:
            yield
            if now - shown >= 1.0:
                shown = now
                _show(statistics, json)
    finally:
        _show(statistics, json)


def _show(statistics: Callable[[], dict[str, int]], json: bool) -> None:
    figures = statistics()
    if json:
        print(jsonlib.dumps(figures), flush=True)
    else:
        print("  ".join(f"{name} {value}" for name, value in figures.items()) or "waiting for the driver", flush=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
