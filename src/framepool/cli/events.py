"""`framepool events`: what is said on the control and status streams, as it is said.

It reads untethered, as `framepool tap` does; tokens are starred out (`decisions.md` #15).
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from framepool.cli.ctl import printable, refuse, shown
from framepool.cli.stopping import stop_asked
from framepool.config import load
from framepool.errors import MediaDriverLost
from framepool.service.commander import Ear
from framepool.service.events import Event
from framepool.transport.aeron import Client

PAUSE = 0.002


def events(
    *,
    control: Annotated[bool, Parameter(negative="", help="Commands to services.")] = False,
    status: Annotated[bool, Parameter(negative="", help="What services say; both streams if none is named.")] = False,
    tag: Annotated[
        tuple[str, ...], Parameter(negative="", help="Of this service only, by its exact tag; may be repeated.")
    ] = (),
    count: Annotated[int, Parameter(help="Stop after so many events; 0 is never.")] = 0,
    seconds: Annotated[float, Parameter(help="Stop after so long; 0 is never.")] = 0.0,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object an event.")] = False,
) -> None:
    """Show commands to services and what they say, as it passes, until Ctrl-C."""
    if not (count >= 0 and 0 <= seconds < float("inf")):
        refuse("events", "count and seconds are 0 or more")
    settings = load(config)
    both = control == status
    wanted = [name for name, named in (("control", control), ("status", status)) if named or both]
    with Client.connect(settings.aeron, name="framepool events") as client:
        ears = {
            name: Ear(
                client, getattr(settings.channels, f"service_{name}"), getattr(settings.stream_ids, f"service_{name}")
            )
            for name in wanted
        }
        print(f"framepool events: listening to {' and '.join(wanted)}", file=sys.stderr, flush=True)
        end = time.monotonic() + seconds if seconds else float("inf")
        passed = 0
        with stop_asked() as asked:
            while not asked.is_set() and time.monotonic() < end and not 0 < count <= passed:
                heard = hear(client, ears)
                for stream, event in heard:
                    if (tag and event.tag not in tag) or 0 < count <= passed:
                        continue
                    print(line(stream, event, json))
                    passed += 1
                sys.stdout.flush()
                if not heard:
                    asked.wait(PAUSE)
        tell_unread(ears)


def hear(client: Client, ears: dict[str, Ear]) -> list[tuple[str, Event]]:
    """What came since the last call, with its stream; while there is no media driver, tries to get back to one."""
    try:
        return [(name, event) for name, ear in ears.items() for event in ear.hear()]
    except MediaDriverLost:
        client.try_reconnect()
        return []


def line(stream: str, event: Event, json: bool) -> str:
    """One event: when it was heard, on which stream, whose, what."""
    now = datetime.now(UTC)
    if json:
        return dumps({"time": now.isoformat(timespec="microseconds"), "stream": stream, **event.plain()})
    value = "" if event.value is None else shown(event.value)
    about = f" about {event.ref}" if event.ref is not None and event.ref != event.value else ""
    identity = f" #{event.correlation_id}" if event.correlation_id else ""
    head = f"{now:%H:%M:%S.%f}  {stream:7}  {printable(event.tag)}  {printable(event.key)}"
    return f"{head} {value}{about}{identity}".rstrip()


def tell_unread(ears: dict[str, Ear]) -> None:
    if unread := sum(ear.counts["undecodable"] for ear in ears.values()):
        print(f"framepool events: {unread} messages were no events; `framepool tap` shows them", file=sys.stderr)
