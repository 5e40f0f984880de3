"""What a recording consists of, in small files that appear and change as a whole (`docs/recording.md`).

Each sealed segment has an entry of its own under `manifest/`, which appears by rename once segment and index are
durable. `watermark.json` says how far the recording is durable, beyond the sealed segments too. Readers in other
processes need no lock: they read the watermark first and the entries after it, and what they miss in the one is in
the other. A frame's place in the recording is its *ordinal*: it rises by one from frame to frame over all streams, is
never given twice, and tells Spark where it is.

Nothing in a recording is a link, and no name in it leads out of its directory: whoever gives you one can make it say
anything, and still not have other files read, cut or removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from framepool.discovery.host import this_host
from framepool.errors import RecordingDamaged, RecordingError, RecordingInUse
from framepool.recorder.account import AccountState, Reason

FORMAT: Final = 1
LOCK_TRIES: Final = 5
SEGMENTS: Final = "segments"
MANIFEST: Final = "manifest"
HOLDS: Final = "holds"
SEGMENT_SUFFIX: Final = ".seg"
NUMBERED: Final = re.compile(r"([0-9]{8,18})\.json")
SEGMENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,200}\.seg")
HOLD_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
LARGEST_FILE: Final = 2**26
"""Bytes of a small file; a larger one is none."""
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What bytes raise that are not the JSON they are to be: text that is no UTF-8 and nesting without end too."""
FRAME_BYTES: Final = 512
"""No frame takes less of a segment."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A place in a recording."""
Amount = Annotated[int, msgspec.Meta(ge=0)]
SegmentId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,16}$")]


class Activity(StrEnum):
    """What the recorder does, as the watermark says."""

    RECORDING = "recording"
    STALLED = "stalled"
    """The disk takes nothing; frames are lost and accounted for."""
    STOPPED = "stopped"


class RecordingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`recording.json`: written once."""

    format: int = FORMAT
    recording_id: str
    created_ns: int
    host: str
    """The name of the machine that made it."""
    boot_id: str
    """Of that machine at that time: paths in memory are good as long as it is the same."""


class StreamSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The frames of one stream in a segment."""

    frames: Amount
    raw_bytes: Amount
    """Of the payloads as they were in shared memory."""
    first_epoch: Amount
    first_seq: Amount
    last_epoch: Amount
    last_seq: Amount
    first_timestamp_ns: Amount
    last_timestamp_ns: Amount


class SegmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest/NNNNNNNN.json`: a sealed segment."""

    number: Number
    file: str
    """Below `segments/`."""
    segment_id: SegmentId
    """As in its records, in hexadecimal."""
    bytes: Number
    frames: Number
    first_ordinal: Number
    end_ordinal: Number
    """One more than that of the last frame; higher than `first_ordinal + frames` if frames were damaged."""
    first_recorded_ns: int | None
    last_recorded_ns: int | None
    streams: dict[int, StreamSpan]
    lost: dict[Reason, int]
    """Frames in its loss rows, by reason; those without an end count 0."""
    losses: int
    """Rows."""
    messages: int
    indexed: bool
    """Whether the Parquet files are beside it."""
    recovered: bool
    """Whether its recorder did not live to seal it."""
    state: dict[int, AccountState]
    """Which frames of each stream are accounted for at its end."""

    def __post_init__(self) -> None:
        _check_place(self)
        if self.frames > self.end_ordinal - self.first_ordinal or self.frames * FRAME_BYTES > self.bytes:
            raise ValueError(f"{self.frames} frames do not go into {self.bytes} bytes from {self.first_ordinal} on")
        if sum(span.frames for span in self.streams.values()) > self.frames:
            raise ValueError("its streams have more frames than it has")

    @property
    def stem(self) -> str:
        return self.file.removesuffix(SEGMENT_SUFFIX)


class OpenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that is not sealed, as far as it is durable."""

    number: Number
    file: str
    segment_id: SegmentId
    bytes: Number
    first_ordinal: Number
    end_ordinal: Number

    def __post_init__(self) -> None:
        _check_place(self)


def _check_place(entry: SegmentEntry | OpenEntry) -> None:
    """What is written about a segment names a file of this recording, and ordinals that rise."""
    if not SEGMENT_NAME.fullmatch(entry.file):
        raise ValueError(f"{entry.file!r} is no name of a segment")
    if entry.end_ordinal < entry.first_ordinal:
        raise ValueError(f"it ends with frame {entry.end_ordinal}, before it begins with {entry.first_ordinal}")


class Watermark(msgspec.Struct, frozen=True, kw_only=True):
    """`watermark.json`: frames below `ordinal` are durable."""

    ordinal: Number
    recorded_ns: int
    activity: Activity
    open: tuple[OpenEntry, ...]
    pid: int
    boot_id: str
    frames: int
    """Recorded by this recorder since it started."""
    lost: dict[Reason, int]
    """By this recorder since it started."""


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """`retained.json`: what retention left. Without the file, everything is there."""

    first_segment: Number = 0
    first_ordinal: Number = 0
    removed_segments: Number = 0
    removed_frames: Number = 0
    removed_bytes: Amount = 0


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """`holds/NAME.json`: a reader that still needs frames from `ordinal` on, until it expires."""

    ordinal: int
    expires_ns: int
    """By the wall clock; whoever cannot promise to say goodbye renews it."""


class Manifest:
    """The directory of a recording, for its one writer and any number of readers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.segments = self.path / SEGMENTS
        self._lock: int | None = None

    # What readers ask

    def exists(self) -> bool:
        return (self.path / "recording.json").is_file()

    def info(self) -> RecordingInfo:
        try:
            data = read_file(self.path / "recording.json", LARGEST_FILE)
        except OSError as error:
            raise RecordingError(f"{self.path} is no recording: {error.strerror}") from None
        info = self._decode("recording.json", data, RecordingInfo)
        if info.format != FORMAT:
            raise RecordingError(f"{self.path} has format {info.format}, this version of framepool knows {FORMAT}")
        return info

    def watermark(self) -> Watermark | None:
        """How far it is durable; None before the first flush."""
        return self._small("watermark.json", Watermark)

    def retained(self) -> Retained:
        """What retention left."""
        return self._small("retained.json", Retained) or Retained()

    def numbers(self) -> list[int]:
        """The sealed segments."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.path / MANIFEST)
            return sorted(int(match[1]) for name in names if (match := NUMBERED.fullmatch(name)))
        return []

    def entry(self, number: int) -> SegmentEntry | None:
        """A sealed segment; None if it is not sealed yet, or removed."""
        name = f"{MANIFEST}/{number:08}.json"
        entry = self._small(name, SegmentEntry)
        if entry is not None and entry.number != number:
            raise RecordingDamaged(f"{self.path / name}: it is of segment {entry.number}")
        return entry

    def entries(self) -> Iterator[SegmentEntry]:
        """The sealed segments in order; those that are removed meanwhile are passed over."""
        for number in self.numbers():
            if (entry := self.entry(number)) is not None:
                yield entry

    def holds(self) -> dict[str, Hold]:
        """Who needs what; files that are no holds are passed over."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path / HOLDS):
                with contextlib.suppress(RecordingDamaged):
                    if name.endswith(".json") and (hold := self._small(f"{HOLDS}/{name}", Hold)) is not None:
                        found[name.removesuffix(".json")] = hold
        return found

    def hold(self, name: str, hold: Hold) -> None:
        """Keeps the recorder from removing frames until the hold expires."""
        if not HOLD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a hold: letters, digits, '.', '_' and '-'")
        (self.path / HOLDS).mkdir(exist_ok=True)
        self._put(f"{HOLDS}/{name}.json", hold)

    def release(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / HOLDS / f"{name}.json")

    # What the writer says

    def create(self, created_ns: int, recording_id: str = "") -> RecordingInfo:
        """Makes an empty recording, durable with its name; its id is a new one unless its segments have one already."""
        info = RecordingInfo(
            recording_id=recording_id or secrets.token_hex(16),
            created_ns=created_ns,
            host=socket.gethostname(),
            boot_id=this_host(),
        )
        for directory in (self.path, self.segments, self.path / MANIFEST):
            self._make(directory)
        sync_directory(self.path.parent)
        self._put("recording.json", info, durable=True)
        return info

    def lock(self) -> None:
        """Makes this process the one that writes, or raises `RecordingInUse`; the directory is made if need be."""
        self._make(self.path)
        for name in (SEGMENTS, MANIFEST, HOLDS):
            if os.path.islink(self.path / name):
                raise RecordingDamaged(f"{self.path / name} is a link: nothing is written through it")
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | NO_LINK, 0o666)
        except OSError as error:
            raise RecordingError(f"{self.path / 'lock'}: {error.strerror}") from None
        if not any(map(_locked, [fd] * LOCK_TRIES)):
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise RecordingInUse(f"{self.path} is being written by process {owner}")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd

    def is_locked(self) -> bool:
        """Whether somebody writes it now."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY | os.O_NONBLOCK | NO_LINK)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def unlock(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)

    def publish(self, entry: SegmentEntry) -> None:
        """Makes a segment part of the recording, for good: what it names is durable already."""
        self._put(f"{MANIFEST}/{entry.number:08}.json", entry, durable=True)

    def advance(self, watermark: Watermark) -> None:
        """Says how far the recording is durable. A crash may take this back, never what it says: recovery finds it."""
        self._put("watermark.json", watermark)

    def remove(self, entry: SegmentEntry) -> None:
        """Removes the oldest segment; says so before anything is gone."""
        before = self.retained()
        after = Retained(
            first_segment=entry.number + 1,
            first_ordinal=entry.end_ordinal,
            removed_segments=before.removed_segments + 1,
            removed_frames=before.removed_frames + entry.frames,
            removed_bytes=before.removed_bytes + entry.bytes,
        )
        self._put("retained.json", after, durable=True)
        os.unlink(self.path / MANIFEST / f"{entry.number:08}.json")
        for path in self.files_of(entry.stem):
            os.unlink(path)

    def unsealed(self, number: int) -> Iterator[Path]:
        """The files from this one on, as far as they follow each other: behind the last sealed one, those that a
        recorder writes or left."""
        while (path := self.segments / f"{number:08}{SEGMENT_SUFFIX}").exists():
            yield path
            number += 1

    def files_of(self, stem: str) -> list[Path]:
        """The files of a segment that are there."""
        return [path for path in self.segments.glob(f"{stem}.*") if path.is_file()]

    @staticmethod
    def _make(directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{directory}: {error.strerror}") from None

    def _small[T: msgspec.Struct](self, name: str, kind: type[T]) -> T | None:
        try:
            data = read_file(self.path / name, LARGEST_FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordingDamaged(f"{self.path / name}: {error.strerror}") from None
        return self._decode(name, data, kind)

    def _decode[T: msgspec.Struct](self, name: str, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except UNREADABLE as error:
            raise RecordingDamaged(f"{self.path / name}: {error}") from None

    def _put(self, name: str, value: msgspec.Struct, *, durable: bool = False) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        write_whole(self.path / name, data + b"\n", durable=durable)


NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file of a recording: no link, and nothing that an open would wait for."""
    fd = os.open(path, flags | os.O_NONBLOCK | NO_LINK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file")


def read_file(path: Path, most: int) -> bytes:
    """A file of at most so many bytes."""
    with open(open_file(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def _locked(fd: int) -> bool:
    """Tries to get the lock; whoever only looks whether it is taken has it for a moment."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.01)
        return False
    return True


def write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Puts a file in place at once: nobody ever sees a part of it."""
    part = path.with_name(f".{path.name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | NO_LINK
    try:
        fd = os.open(part, flags, 0o666)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        os.unlink(part)  # a link or a FIFO: not ours
        fd = os.open(part, flags, 0o666)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(part, path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
