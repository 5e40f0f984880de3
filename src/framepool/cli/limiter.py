"""`framepool limiter`: a stream republished at a lower rate, for displays."""

from __future__ import annotations

import json as jsonlib
import logging
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import framepool
from framepool.cli.ctl import refuse
from framepool.cli.stopping import stop_asked
from framepool.config import load
from framepool.errors import CommandRefused, ConfigurationError
from framepool.limiter.limiter import Limiter


def limiter(
    *,
    source: Annotated[int, Parameter(help="The stream to read.")],
    dest: Annotated[int, Parameter(help="The stream to publish on, made if it does not exist.")],
    max_rate: Annotated[float, Parameter(help="Frames a second at the most; 0 is all of them.")] = 25.0,
    name: Annotated[str | None, Parameter(help="The name of the new stream; by default that of the source.")] = None,
    instance: Annotated[str, Parameter(help="service:limiter:INSTANCE; by default the id of the new stream.")] = "",
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the ready line as JSON.")] = False,
    verbose: Annotated[bool, Parameter(negative="", help="Log more than what goes wrong.")] = False,
) -> None:
    """Republish a stream at a lower rate until Ctrl-C; `framepool ctl` changes the rate, pauses and resumes it."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    for stream in (source, dest):
        if not 0 < stream < 2**31:
            refuse("limiter", f"{stream} is no stream id: they are 1 to {2**31 - 1}")
    with stop_asked() as asked, framepool.connect(load(config)) as pool:
        try:
            service = Limiter(pool, source, dest, rate=max_rate, name=name, instance=instance)
        except (CommandRefused, ConfigurationError) as error:
            refuse("limiter", str(error))
        with service:
            ready = {"event": "ready", "pid": os.getpid(), "tag": service.tag, "source": source, "dest": dest}
            text = f"limiter ready: stream {source} to {dest}, at most {max_rate:g} a second; it is {service.tag}"
            print(jsonlib.dumps(ready) if json else text, flush=True)
            asked.wait()
