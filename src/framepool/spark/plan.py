"""Recordings cut into pieces of work: ranges of ordinals within segments, read wherever a task runs.

A piece says which segment it means by number and id, so that a recording that was replaced meanwhile is noticed. The
segment may be sealed between the plan and the read: frames keep their ordinals, so a range stays the same.
"""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from framepool.discovery.host import this_host
from framepool.errors import FramesRemoved, IndexDamaged, RecordingDamaged, RecordingError
from framepool.recorder import contents
from framepool.recorder.recording import Recording, Segment
from framepool.spark.selection import Selection

log = logging.getLogger(__name__)

KEPT_RECORDINGS: Final = 8


class Range(NamedTuple):
    """Frames of one segment, from an ordinal to before another."""

    number: int
    segment_id: int
    start: int
    end: int


class Piece(NamedTuple):
    """What one task reads."""

    path: str
    recording_id: str
    ranges: tuple[Range, ...]


def plan(
    recording: Recording, selection: Selection, target_bytes: int, start: int = 0, end: int | None = None
) -> list[Piece]:
    """Pieces of about so many bytes, in the order of the recording; large segments are cut, small ones put together."""
    pieces: list[Piece] = []
    gathered: list[Range] = []
    room = target_bytes

    def finish() -> None:
        nonlocal room
        if gathered:
            pieces.append(Piece(str(recording.path), recording.info.recording_id, tuple(gathered)))
            gathered.clear()
        room = target_bytes

    for segment in recording.segments:
        entry = segment.entry
        low, high = max(start, entry.first_ordinal), entry.end_ordinal if end is None else min(end, entry.end_ordinal)
        if low >= high or not selection.may_be_in(entry):
            continue
        size = entry.bytes * (high - low) // (entry.end_ordinal - entry.first_ordinal)
        parts = max(1, min(high - low, round(size / target_bytes)))
        if size > room:
            finish()
        edges = np.linspace(low, high, parts + 1).astype(np.int64).tolist()
        for first, last in itertools.pairwise(edges):
            if parts > 1:
                finish()
            gathered.append(Range(segment.number, segment.segment_id, first, last))
        room -= size // parts
    finish()
    return pieces


def plan_segments(recording: Recording) -> list[Piece]:
    """A piece for each segment, those without frames too."""
    return [
        Piece(
            str(recording.path),
            recording.info.recording_id,
            (Range(each.number, each.segment_id, each.first_ordinal, each.entry.end_ordinal),),
        )
        for each in recording.segments
    ]


_opened: dict[str, Recording] = {}
"""Recordings that this process reads: a worker of Spark lives for many tasks."""


def open_recording(path: str, recording_id: str) -> Recording:
    """A recording, looked at again only when that is needed."""
    known = _opened.get(path)
    if known is not None and known.info.recording_id == recording_id:
        return known
    found = _found(path)
    if found.info.recording_id != recording_id:
        raise RecordingDamaged(f"{path} was replaced by another recording while it was read")
    _opened.pop(path, None)
    if len(_opened) >= KEPT_RECORDINGS:
        _opened.pop(next(iter(_opened)))
    _opened[path] = found
    return found


def _found(path: str) -> Recording:
    """The recording, or what to do where its path leads nowhere: Spark's driver has it, an executor need not."""
    try:
        return Recording(path)
    except RecordingError as error:
        raise RecordingError(
            f"{error} on host {socket.gethostname()} (boot id {this_host()}), where a task of Spark is to read it: put "
            "the recording on storage that Spark's driver and every executor mount at this path"
        ) from None


def find_segment(recording: Recording, piece: Range) -> Segment:
    """The segment of a range, durable at least as far as the range goes."""
    for look in (True, False):
        for segment in reversed(recording.segments):
            if segment.number == piece.number and segment.entry.end_ordinal >= piece.end:
                if segment.segment_id != piece.segment_id:
                    raise RecordingDamaged(f"{segment.path} was replaced while it was read")
                return segment
        if look:
            recording.refresh()
    recording.check_retained(piece.number)
    raise RecordingDamaged(f"{recording.path} has no segment {piece.number} with frame {piece.end - 1} any more")


class Rows(NamedTuple):
    """Frames of one segment: where their records are and what their headers say."""

    segment: Segment
    offsets: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]


def read_range(recording: Recording, piece: Range, selection: Selection) -> tuple[Rows, str]:
    """The wanted frames of a range, and what is wrong with their segment; `RecordingDamaged` if nothing is right."""
    segment = find_segment(recording, piece)
    problem = ""
    try:
        offsets, headers = segment.offsets, segment.headers
    except IndexDamaged as error:  # the segment itself says the same
        problem = f"{segment.path.name}: its index cannot be read, it was scanned: {error}"
        offsets, headers, _, _ = contents.scan(segment.buffer, segment.segment_id)
        if segment.sealed and len(headers) < segment.frames:
            problem += f" and has {len(headers)} of {segment.frames} frames"
    ordinals = headers["number"].astype(np.int64) + segment.first_ordinal
    inside = np.flatnonzero((ordinals >= piece.start) & (ordinals < piece.end))
    rows = inside[selection.rows(headers[inside])]
    return Rows(segment, offsets[rows], headers[rows]), problem


def read_piece(piece: Piece, selection: Selection, *, strict: bool, without_removed: bool = False) -> Iterator[Rows]:
    """The wanted frames of a piece. Damaged segments are logged and passed over unless `strict`; those that retention
    removed since the plan only if asked."""
    recording = open_recording(piece.path, piece.recording_id)
    for each in piece.ranges:
        try:
            rows, problem = read_range(recording, each, selection)
        except FramesRemoved as error:
            if not without_removed:
                raise
            log.error("passed over: %s", error)
            continue
        except RecordingDamaged as error:
            if strict:
                raise
            log.error("passed over: %s", error)
            continue
        if problem:
            log.error("%s", problem)
            if strict:
                raise RecordingDamaged(problem)
        yield rows
