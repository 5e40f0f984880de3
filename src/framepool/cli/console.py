"""`framepool console`: a web page of what goes on, on this machine."""

from __future__ import annotations

import json as jsonlib
import logging
import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from framepool.agent import stand_back
from framepool.cli.stopping import stop_asked
from framepool.config import load
from framepool.errors import ConfigurationError

NEEDED = "framepool console needs more packages: pip install 'framepool[console]'"


def console(
    *,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    host: Annotated[str | None, Parameter(help="The address to listen at; 127.0.0.1 unless configured.")] = None,
    port: Annotated[int | None, Parameter(help="The port; 0 takes a free one.")] = None,
    read_only: Annotated[bool, Parameter(negative="", help="Refuse every change, token or not.")] = False,
    open: Annotated[bool, Parameter(negative="", help="Open the page in a browser.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Say where it is as a JSON object.")] = False,
    verbose: Annotated[bool, Parameter(negative="", help="Log more than what goes wrong.")] = False,
) -> None:
    """Serve a page with live pictures, charts, topology, services and events, until Ctrl-C."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    try:
        from framepool.console.console import Console
    except ModuleNotFoundError as error:
        print(f"{NEEDED} ({error.name} is missing)", file=sys.stderr)
        sys.exit(1)
    settings = load(config)
    changes: dict[str, Any] = {"host": host, "port": port, "read_only": read_only or None}
    try:
        chosen = {name: value for name, value in changes.items() if value is not None}
        section = msgspec.convert({**msgspec.to_builtins(settings.console), **chosen}, type(settings.console))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"console: {error}") from error
    stand_back()  # who only looks on does not slow those whom he looks at
    with stop_asked() as asked, Console(msgspec.structs.replace(settings, console=section)).start() as running:
        ready = {"event": "ready", "pid": os.getpid(), "url": running.url, "address": running.address}
        text = (
            f"console ready: {running.address}\nthe token in it is for those who may change something; Ctrl-C stops it"
        )
        print(jsonlib.dumps(ready) if json else text, flush=True)
        if not section.is_local:
            print(f"framepool console: {section.host} is not loopback: others can look at your frames", file=sys.stderr)
        if open:
            webbrowser.open(running.address)
        while running.running and not asked.wait(0.2):
            pass
