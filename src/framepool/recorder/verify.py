"""Whether a recording is what was recorded: every byte against its checksum, every index against its segment, every
frame accounted for once.

Nothing is changed. What a recorder is writing at the moment is looked at as far as it is durable; what a killed one
left open is said to need recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

from framepool._native.crc32c import crc32c
from framepool.errors import FramesRemoved, IndexDamaged, RecordingDamaged
from framepool.recorder import format as form
from framepool.recorder.account import Loss
from framepool.recorder.codecs import decompress
from framepool.recorder.contents import NO_FRAMES, NO_OFFSETS, is_sound, loss_row
from framepool.recorder.format import Codec, Kind, Record
from framepool.recorder.index import ALL, FRAMES, has_arrow, read_frames
from framepool.recorder.manifest import Manifest, SegmentEntry
from framepool.recorder.recording import Recording, Segment


class Fault(StrEnum):
    """What can be wrong."""

    MANIFEST = "manifest"
    """A small file of the recording cannot be read."""
    MISSING_SEGMENT = "missing segment"
    TRUNCATED = "truncated segment"
    DAMAGED = "damaged"
    """Bytes are not what was written: a checksum does not fit."""
    MISSING_INDEX = "missing index"
    WRONG_INDEX = "wrong index"
    """The index says something else than its segment."""
    DUPLICATE = "duplicated frame"
    UNACCOUNTED = "unaccounted frames"
    """Frames are neither there nor in the loss table."""
    UNSEALED = "unsealed"
    """A recorder was killed: the next one, or `framepool recordings recover`, brings it in order."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, and where."""

    fault: Fault
    where: str
    """A file of the recording, or a stream."""
    detail: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at every byte showed."""

    problems: tuple[Problem, ...]
    segments: int
    frames: int
    lost: int
    bytes: int

    @property
    def ok(self) -> bool:
        return not self.problems


class Verifier:
    """Looks at a recording, segment by segment."""

    def __init__(self, path: str, *, on_progress: Callable[[int, int], object] = lambda done, total: None) -> None:
        """`on_progress` is called with the bytes that were looked at, and with all of them."""
        self._path = path
        self._on_progress = on_progress
        self._problems: list[Problem] = []
        self._frames: dict[tuple[int, int], list[npt.NDArray[np.uint64]]] = {}
        self._losses: dict[tuple[int, int], list[Loss]] = {}
        self._done = 0

    def run(self) -> Verdict:
        """Looks at everything and says what is wrong."""
        self._check_manifest()
        recording = None
        if not self._problems:
            recording = Recording(self._path)
            total = sum(segment.entry.bytes for segment in recording.segments)
            for segment in recording.segments:
                self._check_segment(segment)
                self._done += segment.entry.bytes
                self._on_progress(self._done, total)
            self._check_order(recording)
            self._check_accounts()
        return Verdict(
            problems=tuple(self._problems),
            segments=len(recording.segments) if recording is not None else 0,
            frames=sum(len(seqs) for runs in self._frames.values() for seqs in runs),
            lost=sum(loss.frames or 0 for losses in self._losses.values() for loss in losses),
            bytes=self._done,
        )

    def _report(self, fault: Fault, where: object, detail: str) -> None:
        self._problems.append(Problem(fault=fault, where=str(where), detail=detail))

    def _check_manifest(self) -> None:
        manifest = Manifest(self._path)
        manifest.info()
        for name, read in (("watermark.json", manifest.watermark), ("retained.json", manifest.retained)):
            try:
                read()
            except RecordingDamaged as error:
                self._report(Fault.MANIFEST, name, str(error))
        for number in manifest.numbers():
            try:
                manifest.entry(number)
            except RecordingDamaged as error:
                self._report(Fault.MANIFEST, f"manifest/{number:08}.json", str(error))

    def _check_order(self, recording: Recording) -> None:
        """Numbers and ordinals rise without a hole, and what is open is being written."""
        following = (recording.retained.first_segment, recording.retained.first_ordinal)
        for segment in recording.segments:
            entry = segment.entry
            if entry.number != following[0]:
                missing = f"segments {following[0]} to {entry.number - 1} are not in the manifest"
                self._report(Fault.MISSING_SEGMENT, f"{following[0]:08}.seg", missing)
            elif entry.first_ordinal != following[1]:
                self._report(
                    Fault.MANIFEST, f"{entry.file}", f"begins with frame {entry.first_ordinal}, not {following[1]}"
                )
            following = (entry.number + 1, entry.end_ordinal)
        watermark = recording.watermark
        if watermark is not None and watermark.ordinal > following[1]:
            detail = f"frames {following[1]} to {watermark.ordinal - 1} were durable"
            self._report(Fault.MISSING_SEGMENT, f"{following[0]:08}.seg", detail)
        left_open = [each.path.name for each in recording.segments if not each.sealed]
        left_open += [each.name for each in recording.manifest.unsealed(following[0])]
        if left_open and not recording.manifest.is_locked():
            self._report(Fault.UNSEALED, left_open[0], "its recorder did not live to seal it")

    def _check_segment(self, segment: Segment) -> None:
        try:
            buffer = segment.buffer
        except FramesRemoved:
            return  # retention was faster
        except RecordingDamaged as error:
            fault = Fault.TRUNCATED if segment.path.exists() else Fault.MISSING_SEGMENT
            self._report(fault, segment.path.name, str(error))
            return
        offsets: list[int] = []
        for record in self._records(segment, buffer):
            if record.kind is Kind.FRAME:
                header = form.frame_headers(buffer, np.array([record.offset]))[0]
                if is_sound(header):
                    offsets.append(record.offset)
                else:
                    detail = f"the frame at byte {record.offset} has a header that no recorder writes"
                    self._report(Fault.DAMAGED, segment.path.name, detail)
            elif record.kind is Kind.LOSS and form.is_whole(buffer, record):
                row = loss_row(buffer, record)
                if row is None:
                    self._report(Fault.DAMAGED, segment.path.name, f"the loss at byte {record.offset} is none")
                    continue
                loss = row.loss
                self._losses.setdefault((loss.stream_id, loss.epoch), []).append(loss)
        places = np.array(offsets, np.int64) if offsets else NO_OFFSETS
        headers = form.frame_headers(buffer, places) if offsets else NO_FRAMES
        self._note_frames(headers)
        if not np.array_equal(headers["number"], np.unique(headers["number"])):
            self._report(Fault.DUPLICATE, segment.path.name, "its frames are not numbered one after the other")
        if isinstance(segment.entry, SegmentEntry):
            self._check_index(segment, segment.entry, places, headers)

    def _records(self, segment: Segment, buffer: memoryview) -> Iterator[Record]:
        """The records with a whole header; whatever is not whole is reported."""
        offset, end, name = 0, len(buffer), segment.path.name
        while offset < end:
            record = form.read(buffer, offset, segment.segment_id)
            if record is None:
                following = form.find(buffer, offset + form.ALIGNMENT, end, segment.segment_id)
                until = end if following is None else following
                self._report(Fault.DAMAGED, name, f"bytes {offset} to {until - 1} are no record")
                offset = until
                continue
            if not form.is_whole(buffer, record):
                self._report(
                    Fault.DAMAGED, name, f"the {record.kind.name.lower()} at byte {offset} is not what was written"
                )
            elif record.kind is Kind.FRAME:
                self._check_raw(name, buffer, record)
            yield record
            offset = record.end

    def _check_raw(self, name: str, buffer: memoryview, record: Record) -> None:
        """A compressed frame is what it was before, too."""
        header = form.frame_headers(buffer, np.array([record.offset]))[0]
        if not is_sound(header) or int(header["codec"]) == Codec.RAW:
            return
        codec = Codec(int(header["codec"]))
        try:
            raw = decompress(codec, form.payload(buffer, record), int(header["raw_bytes"]))
        except RecordingDamaged as error:
            self._report(Fault.DAMAGED, name, f"the frame at byte {record.offset}: {error}")
            return
        if crc32c(raw) != int(header["raw_crc"]):
            self._report(Fault.DAMAGED, name, f"the frame at byte {record.offset} came out of its compression changed")

    def _check_index(
        self, segment: Segment, entry: SegmentEntry, places: npt.NDArray[np.int64], headers: npt.NDArray[np.void]
    ) -> None:
        name = segment.path.name
        if entry.frames != len(headers):
            self._report(Fault.WRONG_INDEX, name, f"{len(headers)} frames, the manifest says {entry.frames}")
        if not entry.indexed:
            return
        for suffix in ALL:
            if not segment.path.with_suffix(suffix).exists():
                self._report(Fault.MISSING_INDEX, segment.path.with_suffix(suffix).name, "it is not there")
        index = segment.path.with_suffix(FRAMES)
        if not has_arrow() or not index.exists():
            return
        try:
            said = read_frames(index)
        except IndexDamaged as error:
            self._report(Fault.WRONG_INDEX, index.name, str(error))
            return
        if not np.array_equal(said[0], places) or said[1].tobytes() != headers.tobytes():
            self._report(Fault.WRONG_INDEX, index.name, "says something else than its segment")

    def _note_frames(self, headers: npt.NDArray[np.void]) -> None:
        for stream_id, epoch in {(int(each[0]), int(each[1])) for each in headers[["stream_id", "epoch"]]}:
            mine = (headers["stream_id"] == stream_id) & (headers["epoch"] == epoch)
            self._frames.setdefault((stream_id, epoch), []).append(headers["seq"][mine].astype(np.uint64))

    def _check_accounts(self) -> None:
        """Each epoch of a stream without a hole, and nothing in it twice."""
        for stream_id, epoch in sorted(self._frames.keys() | self._losses.keys()):
            where = f"stream {stream_id}, epoch {epoch}"
            runs = self._frames.get((stream_id, epoch), [np.empty(0, np.uint64)])
            seqs = np.sort(np.concatenate(runs))
            twice = np.unique(seqs[1:][seqs[1:] == seqs[:-1]])
            if len(twice):
                self._report(Fault.DUPLICATE, where, f"frame {', '.join(map(str, twice[:5]))} is there more than once")
            spans = _spans(np.unique(seqs)) + [
                (loss.first_seq, loss.last_seq)
                for loss in self._losses.get((stream_id, epoch), [])
                if loss.last_seq is not None
            ]
            spans.sort()
            reach = spans[0][0] - 1 if spans else -1
            for first, last in spans:
                if first > reach + 1:
                    self._report(Fault.UNACCOUNTED, where, f"frames {reach + 1} to {first - 1}")
                elif first <= reach:
                    self._report(Fault.UNACCOUNTED, where, f"frames {first} to {min(last, reach)} are there and lost")
                reach = max(reach, last)


def _spans(seqs: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Runs of numbers that follow each other."""
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    starts = np.concatenate(([0], breaks + 1))
    ends = np.concatenate((breaks, [len(seqs) - 1]))
    return [(int(seqs[start]), int(seqs[end])) for start, end in zip(starts, ends, strict=True)]


def verify(path: str, on_progress: Callable[[int, int], object] = lambda done, total: None) -> Verdict:
    """Looks at every byte of a recording; raises `RecordingError` if there is none."""
    return Verifier(path, on_progress=on_progress).run()
