"""`framepool bridge`: run a UDP bridge, ask what it does, and change its mappings while it runs."""

from __future__ import annotations

import json as jsonlib
import logging
import os
from pathlib import Path
from typing import Any

import cyclopts
from rich.console import Console
from rich.table import Table

from framepool.bridge.bridge import Bridge
from framepool.cli.stopping import stop_asked
from framepool.config import Config, load
from framepool.errors import ConfigurationError
from framepool.service import service_tag
from framepool.service.commander import Commander

bridge = cyclopts.App(name="bridge", help="Run a UDP bridge: the same stream on another host.")

CARRIED = ("sent", "published")
NO_LOSS = {
    *CARRIED,
    "chunks",
    "payload_bytes",
    "copied_bytes",
    "back_pressured",
    "in_flight",
    "state_bytes",
    "duplicates",
}
"""What is counted of frames and chunks that tells of no loss."""


@bridge.default
def run(*, config: Path, json: bool = False, verbose: bool = False) -> None:
    """Run the bridge of a file until SIGINT or SIGTERM.

    Parameters
    ----------
    config
        The TOML file with [bridge] and [[mappings]].
    json
        Print the ready line as JSON.
    verbose
        Log what happens to leases and streams, not only what goes wrong.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    settings = load(config)
    if settings.bridge is not None:
        warn_about_metadata(settings)
    with stop_asked() as asked, Bridge(settings).start() as running:
        ready = {"event": "ready", "pid": os.getpid(), "tag": running.tag, "mappings": len(settings.mappings)}
        text = f"bridge ready: {running.tag}, {len(settings.mappings)} mappings, Ctrl-C stops it"
        print(jsonlib.dumps(ready) if json else text, flush=True)
        while running.running and not asked.wait(0.1):
            pass


def warn_about_metadata(settings: Config) -> None:
    """Metadata is forwarded by default, where there is a channel for it (`decisions.md` #57)."""
    assert settings.bridge is not None
    links = {mapping.link for mapping in settings.mappings}
    without = sorted(name or "[bridge]" for name in links if not settings.bridge.link(name).metadata_channel)
    if without and settings.bridge.forward_metadata is None:
        logging.getLogger(__name__).warning("no metadata_channel in %s: metadata is not forwarded", ", ".join(without))


@bridge.command
def status(*, config: Path, json: bool = False) -> None:
    """Show what the running bridge does: its mappings, what they carried, and what was lost why.

    Parameters
    ----------
    config
        The TOML file that the bridge runs with.
    json
        One JSON document.
    """
    now = jsonlib.loads(str(told(config, "state")))
    if json:
        print(jsonlib.dumps(now))
    else:
        show(now)


@bridge.command
def add(mapping: str, /, *, config: Path) -> None:
    """Map one more stream.

    Parameters
    ----------
    mapping
        The keys of a [[mappings]] table, as JSON: '{"source_stream_id": 10000, "dest_stream_id": 50000}'.
    config
        The TOML file that the bridge runs with.
    """
    print(told(config, "add", mapping))


@bridge.command
def pause(mapping: str = "", /, *, config: Path) -> None:
    """Let go of a mapping for a while.

    Parameters
    ----------
    mapping
        Its name, as `status` shows it; all of them without one.
    config
        The TOML file that the bridge runs with.
    """
    told(config, "pause", mapping or None)


@bridge.command
def resume(mapping: str = "", /, *, config: Path) -> None:
    """Take a mapping up again.

    Parameters
    ----------
    mapping
        Its name, as `status` shows it; all of them without one.
    config
        The TOML file that the bridge runs with.
    """
    told(config, "resume", mapping or None)


@bridge.command
def remove(mapping: str, /, *, config: Path) -> None:
    """Unmap a stream for good.

    Parameters
    ----------
    mapping
        Its name, as `status` shows it.
    config
        The TOML file that the bridge runs with.
    """
    told(config, "remove", mapping)


def told(config: Path, key: str, value: str | None = None) -> object:
    """Tells the bridge of a file something, and gives back its answer."""
    settings = load(config)
    if settings.bridge is None:
        raise ConfigurationError(f"{config}: no [bridge]")
    with Commander.connect(settings) as commander:
        return commander.command(service_tag("bridge", settings.bridge.instance_id), key, value).result


def show(now: dict[str, Any]) -> None:
    """The status as tables."""
    console = Console()
    console.print(f"bridge {now['instance_id']}, {now['state']} for {now['uptime_s']:.0f} s")
    table = Table("mapping", "role", "source", "destination", "epochs", "frames", "lost", "state")
    for mapping in now["mappings"]:
        frames = mapping.get("frames", {})
        done = sum(frames.get(name, 0) for name in CARRIED)
        epochs = "/".join(str(mapping.get(name) or "-") for name in ("source_epoch", "local_epoch") if name in mapping)
        state = ": ".join(filter(None, (mapping["state"], mapping.get("refusal", ""))))
        names = ("mapping", "role", "source_stream_id", "dest_stream_id")
        table.add_row(
            *(str(mapping[name]) for name in names), epochs, str(done), str(sum(losses(frames).values())), state
        )
    console.print(table)
    for mapping in now["mappings"]:
        for name, count in losses(mapping.get("frames", {})).items():
            console.print(f"  {mapping['mapping']:12} {name:24} {count}")
    for name, link in now["links"].items():
        counts = ", ".join(f"{what} {count}" for what, count in link.items() if count)
        console.print(f"  link {name}: {counts}")


def losses(frames: dict[str, int]) -> dict[str, int]:
    """The counts of frames and chunks that were dropped, by cause."""
    return {name: count for name, count in frames.items() if name not in NO_LOSS}
