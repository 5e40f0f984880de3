"""The recordings below a directory: where they are, and what each holds, from its manifest alone.

For lists that are looked at again and again: a sealed segment is read once, so that a look costs what changed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from framepool.errors import RecordingError
from framepool.recorder.manifest import Activity, Manifest, SegmentEntry

DEPTH: Final = 3
MOST: Final = 200
"""Recordings that are listed."""
REPORT: Final = "report.html"


def recordings_below(directory: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The recordings in a directory, so many levels deep; links are not followed."""
    if (directory / "recording.json").is_file():
        yield directory
        return
    if depth == 0:
        return
    try:
        children = sorted(child for child in directory.iterdir() if child.is_dir() and not child.is_symlink())
    except OSError as error:
        raise RecordingError(f"{directory}: {error.strerror}") from None
    for child in children:
        with contextlib.suppress(RecordingError):
            yield from recordings_below(child, depth - 1)


def tables_of(recording: Path) -> Path:
    """Where the tables of a recording are, unless somebody wanted them elsewhere: beside it."""
    return recording.with_name(f"{recording.name}.tables")


class Shelf:
    """The recordings below one directory, looked at now and then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, dict[int, SegmentEntry]] = {}

    def look(self) -> list[dict[str, Any]]:
        """What there is now, by name."""
        found = []
        try:
            paths = list(recordings_below(self._directory))[:MOST]
        except RecordingError:
            paths = []
        for path in paths:
            with contextlib.suppress(RecordingError, OSError):
                found.append(self._summary(path))
        self._known = {path: entries for path, entries in self._known.items() if path in paths}
        return found

    def report(self, name: str) -> Path | None:
        """The page that Spark made of a recording with this name, if there is one."""
        for path in self._known:
            if self._name(path) == name:
                page = tables_of(path) / REPORT
                return page if page.is_file() and not page.is_symlink() else None
        return None

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._directory))

    def _summary(self, path: Path) -> dict[str, Any]:
        manifest = Manifest(path)
        info, watermark = manifest.info(), manifest.watermark()
        known = self._known.setdefault(path, {})
        numbers = manifest.numbers()
        for number in numbers:
            if number not in known and (entry := manifest.entry(number)) is not None:
                known[number] = entry
        entries = [known[number] for number in numbers if number in known]
        streams: Counter[int] = Counter()
        for entry in entries:
            streams.update({stream: span.frames for stream, span in entry.streams.items()})
        active = manifest.is_locked()
        sealed = max((entry.end_ordinal for entry in entries), default=0)
        durable = max(sealed, watermark.ordinal if watermark is not None else 0)
        unsealed = [each for each in (watermark.open if watermark is not None else ()) if each.end_ordinal > sealed]
        state = watermark.activity if active and watermark is not None else Activity.STOPPED
        return {
            "name": self._name(path),
            "path": str(path),
            "created": info.created_ns / 1e9,
            "state": state.value,
            "streams": {str(stream): count for stream, count in sorted(streams.items())},
            "frames": sum(entry.frames for entry in entries)
            + sum(each.end_ordinal - each.first_ordinal for each in unsealed),
            "bytes": sum(entry.bytes for entry in entries) + sum(each.bytes for each in unsealed),
            "lost": sum(sum(entry.lost.values()) for entry in entries),
            "segments": len(entries) + len(unsealed),
            "watermark": durable,
            "removed": manifest.retained().removed_frames,
            "report": self.report(self._name(path)) is not None,
        }
