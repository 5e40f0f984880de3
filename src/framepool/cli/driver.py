"""`framepool driver`, `status`, `gc`: run a shared-memory driver, ask what it does, clean up after dead ones."""

from __future__ import annotations

import json as jsonlib
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from framepool.cli.stopping import stop_asked
from framepool.clock import NANOS_PER_MILLI, MonotonicClock
from framepool.config import load
from framepool.driver import janitor
from framepool.driver.driver import ShmDriver, make_allocator
from framepool.driver.status import read_status

STALE_PERIODS = 3


def driver(*, config: Path | None = None, json: bool = False, verbose: bool = False) -> None:
    """Run a shared-memory driver until SIGINT, SIGTERM or an authorised shutdown request.

    Parameters
    ----------
    config
        A TOML file; the defaults work without one.
    json
        Print the ready line as JSON.
    verbose
        Log what happens to leases and streams, not only what goes wrong.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    settings = load(config)
    raise_file_limit()
    with stop_asked() as asked, ShmDriver(settings).start() as running:
        ready = {
            "event": "ready",
            "pid": os.getpid(),
            "namespace": make_allocator(settings.driver).directory,
            "aeron_directory": settings.aeron.directory,
        }
        text = f"driver ready: streams in {ready['namespace']}, Aeron in {ready['aeron_directory']}, Ctrl-C stops it"
        print(jsonlib.dumps(ready) if json else text, flush=True)
        while running.running and not asked.wait(0.1):
            pass


def raise_file_limit() -> None:
    """A driver keeps every file of its current epochs open, so that a few hundred streams are more than the usual soft
    limit; up to the hard one a process may help itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def status(*, config: Path | None = None, json: bool = False) -> None:
    """Show the streams, epochs, leases and counts of the driver that runs in the configured namespace.

    Parameters
    ----------
    config
        The TOML file that the driver runs with.
    json
        One JSON document.
    """
    settings = load(config)
    now = read_status(make_allocator(settings.driver))
    now["age_s"] = (time.monotonic_ns() - now["monotonic_ns"]) / 1e9
    now["alive"] = janitor.process_lives(now["pid"])
    if json:
        print(jsonlib.dumps(now))
    else:
        show(now)
    if not now["alive"]:
        print(f"framepool status: driver {now['pid']} is dead; this is what it last said", file=sys.stderr)
        sys.exit(1)


def show(now: dict[str, Any]) -> None:
    """The status as tables."""
    console = Console()
    console.print(
        f"driver {now['pid']}, namespace {now['namespace']}: {len(now['streams'])} streams, {len(now['leases'])} leases"
    )
    streams = Table("stream", "epoch", "MiB", "slots", "producer", "consumers")
    for stream in now["streams"]:
        size = f"{stream['bytes'] / 2**20:.1f}"
        epoch, producer = stream["epoch"] or "none", stream["producer"] or "none"
        columns = (stream["stream_id"], epoch, size, stream["nslots"], producer, stream["consumers"])
        streams.add_row(*map(str, columns))
    console.print(streams)
    if now["leases"]:
        leases = Table("lease", "stream", "client", "role", "state", "age s", "expires in s")
        for lease in now["leases"]:
            expires = "never" if lease["expires_in_s"] is None else f"{lease['expires_in_s']:.1f}"
            names = ("lease_id", "stream_id", "client_id", "role", "state")
            leases.add_row(*(str(lease[name]) for name in names), f"{lease['age_s']:.1f}", expires)
        console.print(leases)
    for name, count in now["counts"].items():
        if count:
            console.print(f"  {name:24} {count}")


def gc(*, config: Path | None = None, dry_run: bool = False, json: bool = False) -> None:
    """Remove the epochs that dead drivers and producers of this user left behind.

    Parameters
    ----------
    config
        A TOML file that names the base directory.
    dry_run
        Only say what would be removed.
    json
        One JSON document.
    """
    settings = load(config)
    freshness_ns = STALE_PERIODS * settings.driver.announce_period_ms * NANOS_PER_MILLI
    removals = []
    for allocator, removal in janitor.abandoned(settings.driver.shm_base_dir, MonotonicClock(), freshness_ns):
        if not dry_run:
            allocator.remove_epoch(removal.stream_id, removal.epoch)
        removals.append(removal)
    if json:
        print(jsonlib.dumps({"dry_run": dry_run, "removed": msgspec.to_builtins(removals)}))
        return
    verb = "would remove" if dry_run else "removed"
    for removal in removals:
        print(f"{verb} {removal.directory}/{removal.stream_id}/{removal.epoch}: {removal.reason}")
    print(f"{verb} {len(removals)} epochs")
