"""`framepool recordings`: what there is, whether it is whole, and the same in other formats."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from framepool.recorder.export import Format, export
from framepool.recorder.index import ALL, arrow, write_index
from framepool.recorder.manifest import Activity, Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.recovery import take_over
from framepool.recorder.shelf import recordings_below
from framepool.recorder.verify import Verifier

recordings = cyclopts.App(name="recordings")

At = Annotated[Path, Parameter(help="The recording.")]
Json = Annotated[bool, Parameter(negative="", help="One JSON document.")]


@recordings.command
def ls(
    directory: Annotated[Path, Parameter(help="Where to look, three levels deep.")] = Path(), /, *, json: Json = False
) -> None:
    """List the recordings below a directory."""
    found = [summary(Recording(path)) for path in recordings_below(directory)]
    if json:
        print(jsonlib.dumps(found))
        return
    table = Table("recording", "begun", "streams", "frames", "lost", "GB", "state")
    for each in found:
        streams = ", ".join(each["streams"])
        size = f"{each['bytes'] / 1e9:.2f}"
        columns = (each["path"], each["created"], streams, each["frames"], each["lost_frames"], size, each["state"])
        table.add_row(*map(str, columns))
    wide().print(table if found else f"no recordings below {directory}")


@recordings.command
def info(path: At, /, *, json: Json = False) -> None:
    """Say what a recording holds: streams, times, losses, segments."""
    recording = Recording(path)
    told = summary(recording) | {
        "recording_id": recording.info.recording_id,
        "host": recording.info.host,
        "boot_id": recording.info.boot_id,
        "segments": [
            {"number": each.number, "file": each.path.name, "sealed": each.sealed, "frames": each.frames}
            | {"bytes": each.entry.bytes, "first_ordinal": each.first_ordinal, "end_ordinal": each.entry.end_ordinal}
            for each in recording.segments
        ],
        "losses": [
            {"recorded_ns": row.recorded_ns, "ordinal": row.ordinal, **msgspec.to_builtins(row.loss)}
            for row in recording.losses()
        ],
        "messages": dict(Counter(type(each.message).__name__ for each in recording.messages())),
        "retained": msgspec.to_builtins(recording.retained),
    }
    if json:
        print(jsonlib.dumps(told))
        return
    console = wide()
    console.print(f"{told['path']}: {told['frames']} frames, {told['bytes'] / 1e9:.2f} GB, {told['state']}")
    streams = Table("stream", "frames", "shape", "type", "epochs", "GB", "lost")
    for stream_id, each in told["streams"].items():
        shape = "x".join(map(str, each["shape"]))
        columns = (stream_id, each["frames"], shape, each["dtype"], each["epochs"], f"{each['bytes'] / 1e9:.2f}")
        streams.add_row(*map(str, columns), str(each["lost"]))
    console.print(streams)
    if told["losses"]:
        losses = Table("stream", "epoch", "frames", "reason", "when")
        for row in told["losses"][:50]:
            span = f"{row['first_seq']} to {'?' if row['last_seq'] is None else row['last_seq']}"
            reason = row["reason"] + (f": {row['detail']}" if row.get("detail") else "")
            losses.add_row(str(row["stream_id"]), str(row["epoch"]), span, reason, _when(row["recorded_ns"]))
        console.print(losses)
        if len(told["losses"]) > 50:
            console.print(f"and {len(told['losses']) - 50} more rows: --json has all")


@recordings.command
def verify(path: At, /, *, json: Json = False) -> None:
    """Look at every byte of a recording; exit code 1 if something is wrong with it."""
    with progressing("verifying", json) as show:
        verdict = Verifier(str(path), on_progress=show).run()
    if json:
        print(jsonlib.dumps({"ok": verdict.ok, **msgspec.to_builtins(verdict)}))
    else:
        for problem in verdict.problems:
            print(f"{problem.fault}: {problem.where}: {problem.detail}")
        said = "everything is what was recorded" if verdict.ok else f"{len(verdict.problems)} problems"
        print(f"{path}: {verdict.segments} segments, {verdict.frames} frames, {verdict.lost} lost: {said}")
    if not verdict.ok:
        sys.exit(1)


@recordings.command(name="export")
def export_(
    path: At,
    out: Annotated[Path, Parameter(help="A directory that is made.")],
    /,
    *,
    format: Annotated[Format, Parameter(help="What to make of it.")] = Format.NPY,
    stream: Annotated[
        tuple[int, ...], Parameter(negative="", help="A stream of it; may be repeated. All unless one is named.")
    ] = (),
    json: Json = False,
) -> None:
    """Write the frames in another format, a file or directory a stream."""
    recording = Recording(path)
    chosen = list(stream) or None
    total = sum(
        int(part.headers["raw_bytes"][rows].sum()) for part, rows in recording.only(chosen or recording.streams).parts()
    )
    done = 0
    with progressing("exporting", json) as show:

        def on_frame(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            show(done, total)

        made = export(recording, out, format, streams=chosen, on_frame=on_frame)
    if json:
        print(jsonlib.dumps(msgspec.to_builtins(made)))
    for each in made if not json else ():
        print(f"{each.path}: {each.frames} frames, {each.bytes / 1e6:.1f} MB")


@recordings.command
def recover(path: At, /, *, json: Json = False) -> None:
    """Seal what a killed recorder left open; the next recorder does the same."""
    manifest = Manifest(path)
    manifest.info()
    found = take_over(manifest)
    manifest.unlock()
    if json:
        print(jsonlib.dumps({"recovered": found.recovered, "next_ordinal": found.next_ordinal}))
    else:
        print(f"{path}: {found.recovered} segments sealed, {found.next_ordinal} frames")


@recordings.command
def index(path: At, /, *, json: Json = False) -> None:
    """Write the Parquet index of segments that have none, as those of a recorder without pyarrow."""
    arrow()
    manifest = Manifest(path)
    manifest.info()
    made = 0
    recording = Recording(path)
    for segment in recording.segments:
        entry = manifest.entry(segment.number)
        if entry is None or (entry.indexed and all(segment.path.with_suffix(suffix).exists() for suffix in ALL)):
            continue
        write_index(manifest.segments, segment.contents)
        manifest.publish(msgspec.structs.replace(entry, indexed=True))
        made += 1
    print(jsonlib.dumps({"indexed": made}) if json else f"{path}: {made} segments indexed")


def summary(recording: Recording) -> dict[str, Any]:
    """What `ls` says of a recording."""
    lost: Counter[int] = Counter()
    reasons: Counter[str] = Counter()
    for row in recording.losses():
        lost[row.loss.stream_id] += row.loss.frames or 0
        reasons[row.loss.reason] += row.loss.frames or 0
    streams = {}
    for stream_id, frames in recording.streams.items():
        mine = recording.stream(stream_id)
        first, last = mine[0], mine[-1]
        headers = [part.headers[rows] for part, rows in mine.parts()]
        streams[str(stream_id)] = {
            "frames": frames,
            "bytes": sum(int(each["raw_bytes"].sum()) for each in headers),
            "epochs": len({int(epoch) for each in headers for epoch in each["epoch"]}),
            "shape": list(first.shape),
            "dtype": str(first.dtype),
            "first_ns": first.recorded_ns,
            "last_ns": last.recorded_ns,
            "lost": lost[stream_id],
        }
    watermark = recording.watermark
    active = recording.manifest.is_locked()
    state = watermark.activity if watermark is not None and active else Activity.STOPPED
    if not active and any(not segment.sealed for segment in recording.segments):
        state_name = "needs recovery"
    else:
        state_name = state.value
    return {
        "path": str(recording.path),
        "created": _when(recording.info.created_ns),
        "created_ns": recording.info.created_ns,
        "frames": len(recording),
        "bytes": sum(segment.entry.bytes for segment in recording.segments),
        "streams": streams,
        "lost_frames": sum(lost.values()),
        "lost": dict(reasons),
        "durable_ordinal": watermark.ordinal if watermark is not None else 0,
        "state": state_name,
    }


def wide() -> Console:
    """As wide as the terminal; paths are not cut where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


@contextlib.contextmanager
def progressing(what: str, quiet: bool, *, counted: bool = False) -> Iterator[Callable[[int, int], object]]:
    """A bar on a terminal, of bytes or of what can be counted; nothing elsewhere."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    figures = (MofNCompleteColumn(), TimeElapsedColumn()) if counted else (DownloadColumn(), TransferSpeedColumn())
    with Progress(TextColumn(what), BarColumn(), *figures, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _when(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(sep=" ", timespec="seconds")
