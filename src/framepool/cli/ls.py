"""`framepool ls`: which streams there are, on this host and on others, and who owns them."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import framepool
from framepool.cli.stopping import Asked, stop_asked
from framepool.client.pool import Pool
from framepool.config import load
from framepool.discovery.host import HOST_TAG
from framepool.discovery.stream import Stream
from framepool.errors import DiscoveryError

REFRESH = 1.0
"""Seconds between looks with `--watch`."""
GLANCE = 0.02
UNITS = ((2**30, "G"), (2**20, "M"), (2**10, "K"))

Look = Callable[[], list[Stream]]


def ls(
    *,
    name: Annotated[str | None, Parameter(help="Only streams of exactly this name.")] = None,
    tag: Annotated[tuple[str, ...], Parameter(negative="", help="Only streams with this tag; with all of them.")] = (),
    stream: Annotated[int | None, Parameter(help="Only the stream of this id.")] = None,
    data_source_id: Annotated[int | None, Parameter(help="Only streams of this data source.")] = None,
    watch: Annotated[bool, Parameter(negative="", help="Look again each second, until Ctrl-C.")] = False,
    timeout: Annotated[float, Parameter(help="Seconds to wait for an answer.")] = 2.0,
    config: Annotated[Path | None, Parameter(help="The TOML file that says where discovery is asked.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON document; with --watch, one a second.")] = False,
) -> None:
    """List the streams that discovery knows, of this host and of others."""
    with framepool.connect(load(config)) as pool, stop_asked() as asked:

        def look() -> list[Stream]:
            return pool.discover(name, tags=tag, stream_id=stream, data_source_id=data_source_id, timeout=timeout)

        if watch:
            follow(pool, look, asked, json)
            return
        streams = look()
        hear_of(pool, streams, asked)
        if json:
            print(jsonlib.dumps(document(pool, streams)))
        else:
            Console().print(shown(pool, streams))


def follow(pool: Pool, look: Look, asked: Asked, json: bool) -> None:
    """Looks again and again. A provider that does not answer is shown and no reason to end: it may come back."""
    with Live(Text("asking…"), console=Console(quiet=json), auto_refresh=False) as live:
        said: dict[str, Any]
        view: Table | Text
        while not asked.is_set():
            try:
                streams = look()
            except DiscoveryError as error:
                said, view = {"error": str(error)}, Text(str(error), style="red")
            else:
                said, view = document(pool, streams), shown(pool, streams)
            if json:
                print(jsonlib.dumps(said), flush=True)
            else:
                live.update(view, refresh=True)
            asked.wait(REFRESH)


def hear_of(pool: Pool, streams: Sequence[Stream], asked: Asked) -> None:
    """Waits for the next announce of the streams of this host, which says how old they are: at most as long as they
    count as there without one."""
    end = time.monotonic() + 3 * pool.config.driver.announce_period_ms / 1_000
    waiting = [stream for stream in streams if stream.local]
    while time.monotonic() < end and any(age(pool, stream) is None for stream in waiting):
        if asked.wait(GLANCE):
            return


def age(pool: Pool, stream: Stream) -> float | None:
    """Seconds since the stream was announced, as far as that is heard here."""
    announced = pool.plane.announced(stream.stream_id) if stream.local else None
    if announced is None or announced[0].epoch != stream.epoch:
        return None
    return (time.monotonic_ns() - announced[1]) / 1e9


def document(pool: Pool, streams: Sequence[Stream]) -> dict[str, Any]:
    """All that is known, as plain values."""
    return {"streams": [{**msgspec.to_builtins(stream), "age_s": age(pool, stream)} for stream in streams]}


def shown(pool: Pool, streams: Sequence[Stream]) -> Table | Text:
    """What people want to know, as a table."""
    if not streams:
        return Text("no streams")
    table = Table("stream", "name", "epoch", "slots", "pools", "tags", "driver", "host", "age s")
    for stream in streams:
        old = age(pool, stream)
        table.add_row(
            str(stream.stream_id),
            Text(stream.name),
            str(stream.epoch),
            str(stream.nslots),
            " ".join(size(pool.stride_bytes) for pool in stream.pools),
            Text(" ".join(tag for tag in stream.tags if not tag.startswith(HOST_TAG))),
            Text(stream.driver),
            Text("local" if stream.local else stream.host or "unknown", style="" if stream.local else "dim"),
            "" if old is None else f"{old:.1f}",
        )
    return table


def size(length: int) -> str:
    """A stride in few characters: 64, 4K, 1M."""
    for unit, letter in UNITS:
        if length % unit == 0:
            return f"{length // unit}{letter}"
    return str(length)
