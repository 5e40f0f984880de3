"""`framepool supervisor`: watches streams, producers and consumers, tells what happens and acts by its rules."""

from __future__ import annotations

import json as jsonlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from framepool.cli.stopping import stop_asked
from framepool.config import Config, load
from framepool.supervisor import capture
from framepool.supervisor.notices import Notice
from framepool.supervisor.state import State, Thresholds
from framepool.supervisor.supervisor import SupervisorServer

PAUSE = 0.1


def supervisor(
    *, config: Path | None = None, replay: Path | None = None, json: bool = False, verbose: bool = False
) -> None:
    """Watch all streams of a host until SIGINT or SIGTERM, and print what happens to them.

    Parameters
    ----------
    config
        The TOML file that the driver runs with; [supervisor] has the limits and [[supervisor.rules]] what to do.
    replay
        Instead, fold a capture of `framepool tap --json` and print what was known in the end.
    json
        One JSON object a line.
    verbose
        Log what cannot be read, not only what goes wrong.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(message)s")
    settings = load(config)
    if replay is not None:
        _replay(settings, replay, json)
        return
    with stop_asked() as asked, SupervisorServer(settings).start() as running:
        ready = {
            "event": "ready",
            "pid": os.getpid(),
            "tag": running.supervisor.tag,
            "metrics_port": running.metrics_port,
        }
        served = f", figures at port {running.metrics_port}" if running.metrics_port else ""
        text = f"supervisor ready: {running.supervisor.tag} in {settings.aeron.directory}{served}, Ctrl-C stops it"
        print(jsonlib.dumps(ready) if json else text, flush=True)
        seen = 0
        while running.running:
            ending = asked.wait(PAUSE)
            for notice in running.supervisor.notices(seen):
                seen = notice.number
                print(jsonlib.dumps(notice.plain()) if json else line(notice), flush=True)
            if ending:
                break


def line(notice: Notice, time: str | None = None) -> str:
    """A notice in one line: when, how bad, about whom, what."""
    time = time or datetime.now(UTC).strftime("%H:%M:%S")
    stream = "" if notice.stream_id is None else f"stream {notice.stream_id} "
    client = "" if notice.client_id is None else f"client {notice.client_id} "
    return f"{time}  {notice.level.value:7}  {stream}{client}{notice.kind.value}: {notice.text}"


def _replay(settings: Config, path: Path, json: bool) -> None:
    with path.open() as lines:
        state = capture.replay(capture.read_capture(lines), State(Thresholds.of(settings)))
    notices = state.journal.after(0)
    if json:
        print(jsonlib.dumps({**state.describe(), "notices": [each.plain() for each in notices]}))
        return
    for notice in notices:
        print(line(notice, f"{notice.at_ns / 1e9:8.3f}"))
    for stream in state.describe()["streams"]:
        consumers = len(stream["consumers"])
        print(f"stream {stream['stream_id']}: {stream['health']}, epoch {stream['epoch']}, {consumers} consumers")
