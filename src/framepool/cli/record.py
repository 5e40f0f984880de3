"""`framepool record`: streams into a recording, with its progress, until Ctrl-C."""

from __future__ import annotations

import contextlib
import json as jsonlib
import logging
import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

import framepool
from framepool.cli.stopping import stop_asked
from framepool.cli.stream import ConfigFile, Count, Seconds, check, printed, refuse, showing
from framepool.config import load
from framepool.errors import RecordingError
from framepool.recorder.manifest import Manifest
from framepool.recorder.recorder import Progress, Recorder

PAUSE = 0.05


def record(
    path: Annotated[Path, Parameter(help="A directory that is made, or a recording that is continued.")],
    /,
    *streams: Annotated[int | str, Parameter(help="The streams: their ids, or names of streams of this host.")],
    segment_bytes: Annotated[int | None, Parameter(help="A segment ends before it is longer.")] = None,
    segment_seconds: Annotated[float | None, Parameter(help="A segment ends after so long.")] = None,
    flush_interval_ms: Annotated[int | None, Parameter(help="How often frames are made durable.")] = None,
    retain_bytes: Annotated[int | None, Parameter(help="Keep a ring of so many bytes; 0 keeps all.")] = None,
    retain_seconds: Annotated[float | None, Parameter(help="Keep a ring of so long; 0 keeps all.")] = None,
    compression: Annotated[Literal["none", "zstd", "blosc2"] | None, Parameter(help="Of each frame.")] = None,
    instance: Annotated[str, Parameter(help="Which recorder this is, if there are several: its service tag.")] = "",
    wait: Annotated[float, Parameter(help="Seconds to wait for the streams; 0 records each once it is there.")] = 10.0,
    while_held: Annotated[
        float | None, Parameter(help="End when no reader, such as a Spark query, has held frames for so many seconds.")
    ] = None,
    count: Count = 0,
    seconds: Seconds = 0.0,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON object a second, and one at the end.")] = False,
) -> None:
    """Record streams until Ctrl-C: every frame, or a row in the loss table that says why not."""
    if not streams:
        refuse("record", "name at least one stream")
    for stream in streams:
        check(
            "record",
            stream if isinstance(stream, int) else 1,
            wait=wait,
            count=count,
            seconds=seconds,
            while_held=while_held or 0.0,
        )
    given: dict[str, Any] = {
        "segment_bytes": segment_bytes,
        "segment_seconds": segment_seconds,
        "flush_interval_ms": flush_interval_ms,
        "retain_bytes": retain_bytes,
        "retain_seconds": retain_seconds,
        "compression": compression,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    with stop_asked() as asked, framepool.connect(load(config)) as pool:
        try:
            recorder = Recorder(pool, path, streams, instance=instance, timeout=wait, **settings)
        except msgspec.ValidationError as error:
            refuse("record", str(error))
        with contextlib.ExitStack() as ending, showing(f"recording {path}", json) as show:
            ending.callback(recorder.close)
            if json:
                printed(jsonlib.dumps(_ready(recorder)))
            report = Report(recorder, json)
            readers = Readers(recorder.path, while_held)
            while recorder.running and not asked.wait(PAUSE) and not readers.are_gone():
                if 0 < seconds <= report.elapsed or 0 < count <= recorder.progress().frames:
                    break
                if (line := report.turn()) is not None:
                    show(line)
        printed(report.end())
    if recorder.failure:
        raise RecordingError(f"{path}: the disk lost what it was given: {recorder.failure}")


def _ready(recorder: Recorder) -> dict[str, Any]:
    return {
        "event": "ready",
        "pid": os.getpid(),
        "path": recorder.path,
        "streams": list(recorder.streams),
        "attached": list(recorder.attached),
        "recovered_segments": recorder.continued.recovered,
        "next_ordinal": recorder.continued.next_ordinal,
    }


class Readers:
    """Whether somebody still needs what is recorded, for a recorder that is there for its readers alone."""

    def __init__(self, path: str, patience: float | None) -> None:
        self._manifest = Manifest(path)
        self._patience = patience
        self._seen = self._looked = time.monotonic()

    def are_gone(self) -> bool:
        """Whether the last hold ran out so long ago. Readers that are killed cannot say goodbye."""
        now = time.monotonic()
        if self._patience is None or now - self._looked < min(1.0, self._patience / 4):
            return False
        self._looked = now
        if any(hold.expires_ns > time.time_ns() for hold in self._manifest.holds().values()):
            self._seen = now
        return now - self._seen > self._patience


class Report:
    """Says each second how the recorder does, and at the end what came of it."""

    def __init__(self, recorder: Recorder, json: bool) -> None:
        self._recorder = recorder
        self._json = json
        self._started = self._shown = time.monotonic()
        self._before = recorder.progress()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def turn(self) -> str | None:
        """The last second, when it is over."""
        now = time.monotonic()
        if now - self._shown < 1.0:
            return None
        progress = self._recorder.progress()
        line = self._line("second", now - self._shown, progress, self._before)
        self._shown, self._before = now, progress
        return line

    def end(self) -> str:
        """The whole."""
        progress = self._recorder.progress()
        nothing = msgspec.structs.replace(progress, frames=0, bytes=0)
        return self._line("end", self.elapsed, progress, nothing)

    def _line(self, event: str, seconds: float, now: Progress, before: Progress) -> str:
        frames, size = (now.frames - before.frames) / seconds, (now.bytes - before.bytes) / seconds
        if self._json:
            figures = {"event": event, "seconds": seconds, "frames_per_s": frames, "gigabytes_per_s": size / 1e9}
            return jsonlib.dumps({**figures, "attached": list(self._recorder.attached), **msgspec.to_builtins(now)})
        text = f"{frames:7.0f} frames/s  {size / 1e9:5.2f} GB/s  {now.frames} recorded, {now.ordinal} durable"
        lost = ", ".join(f"{count} {reason}" for reason, count in now.lost.items() if count)
        text += f"  lost: {lost}" if lost else "  0 lost"
        if now.refusal:
            text += f"  STALLED: {now.refusal}"
        missing = sorted(set(self._recorder.streams) - set(self._recorder.attached))
        return text + (f"  waiting for {', '.join(map(str, missing))}" if missing and event == "second" else "")
