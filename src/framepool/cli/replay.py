"""`framepool replay`: a recording into live streams, at the recorded pace or another."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import framepool
from framepool.agent import Runner, State
from framepool.cli.stopping import stop_asked
from framepool.cli.stream import ConfigFile, check, printed, refuse, showing
from framepool.config import load
from framepool.recorder.recording import Recording
from framepool.recorder.replay import Replay
from framepool.wire._generated.control_900 import DataSourceAnnounce

PAUSE = 0.05


def replay(
    path: Annotated[Path, Parameter(help="The recording.")],
    /,
    *,
    stream: Annotated[
        tuple[int, ...], Parameter(negative="", help="A stream of it; may be repeated. All unless one is named.")
    ] = (),
    to: Annotated[int | None, Parameter(help="Publish on this stream instead; for a single stream.")] = None,
    speed: Annotated[float, Parameter(help="1 is the recorded pace, 2 twice as fast, 0 as fast as it goes.")] = 1.0,
    start: Annotated[float, Parameter(name="--from", help="Begin so many seconds after the first frame.")] = 0.0,
    until: Annotated[float | None, Parameter(help="End so many seconds after the first frame.")] = None,
    loop: Annotated[bool, Parameter(negative="", help="Begin again at the end.")] = False,
    wait_for_readers: Annotated[bool, Parameter(negative="", help="Begin when somebody listens.")] = False,
    linger: Annotated[float, Parameter(help="Seconds for slow readers to take the last frames, before they go.")] = 1.0,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object a second, and one at the end.")] = False,
) -> None:
    """Publish the frames of a recording, with their own timestamps, until they end."""
    recording = Recording(path)
    chosen = stream or tuple(recording.streams)
    targets = {to} if to is not None else set(chosen)
    for each in targets:
        check("replay", each, speed=speed, linger=linger)
    if to is not None and len(chosen) != 1:
        refuse("replay", f"--to is for a single stream: name one of {', '.join(map(str, chosen))} with --stream")
    names = _names(recording)
    with stop_asked() as asked, framepool.connect(load(config)) as pool, contextlib.ExitStack() as open_:
        producers = {}
        for source in chosen:
            target = source if to is None else to
            producers[source] = open_.enter_context(pool.producer(target, name=names.get(source, "")))
        try:
            playing = Replay(
                recording,
                producers,
                speed=speed,
                start=start,
                end=until,
                loop=loop,
                wait_for_readers=wait_for_readers,
            )
        except ValueError as error:
            refuse("replay", str(error))
        if json:
            ready = {"event": "ready", "pid": os.getpid(), "frames": playing.total, "streams": sorted(targets)}
            printed(jsonlib.dumps(ready))
        with showing(f"replaying {path}", json) as show:
            runner = open_.enter_context(Runner(playing).start())
            shown = time.monotonic()
            while runner.state is not State.CLOSED and not asked.wait(PAUSE):
                if time.monotonic() - shown >= 1.0:
                    shown = time.monotonic()
                    show(_line("second", playing, json))
        printed(_line("end", playing, json))
        asked.wait(linger)


def _names(recording: Recording) -> dict[int, str]:
    """What the sources were called."""
    announces = (each.message for each in recording.messages(DataSourceAnnounce))
    return {each.stream_id: each.name for each in announces if isinstance(each, DataSourceAnnounce)}


def _line(event: str, playing: Replay, json: bool) -> str:
    figures: dict[str, Any] = {"event": event, "published": 0, "dropped": 0, **playing.statistics()}
    if json:
        return jsonlib.dumps(figures)
    share = playing.done / playing.total if playing.total else 1.0
    bar = "#" * int(30 * share)
    return (
        f"[{bar:30}] {100 * share:3.0f} %  {playing.position:.1f} s  {figures['published']} published, "
        f"{figures['dropped']} dropped"
    )
