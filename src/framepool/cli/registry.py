"""`framepool registry`: one place to ask for the streams of many drivers."""

from __future__ import annotations

import json as jsonlib
import logging
import os
from pathlib import Path

from framepool.cli.stopping import stop_asked
from framepool.config import load
from framepool.discovery.registry import RegistryServer


def registry(*, config: Path, json: bool = False, verbose: bool = False) -> None:
    """Run a discovery registry until SIGINT or SIGTERM.

    Parameters
    ----------
    config
        A TOML file with the endpoint in [discovery] and the drivers in [[registry.sources]].
    json
        Print the ready line as JSON.
    verbose
        Log what is asked now and then, not only what goes wrong.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    settings = load(config)
    with stop_asked() as asked, RegistryServer(settings).start() as running:
        drivers = [source.driver_instance_id for source in settings.registry.sources]
        ready = {
            "event": "ready",
            "pid": os.getpid(),
            "tag": running.registry.tag,
            "channel": settings.discovery.channel,
            "stream_id": settings.discovery_stream_id,
            "drivers": drivers,
        }
        where = f"{ready['channel']} stream {ready['stream_id']}"
        text = f"registry ready: asked at {where}, listens to {', '.join(drivers)}, Ctrl-C stops it"
        print(jsonlib.dumps(ready) if json else text, flush=True)
        while running.running and not asked.wait(0.1):
            pass
