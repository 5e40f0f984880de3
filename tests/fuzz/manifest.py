"""The small files of a recording, and the indexes beside its segments, with other bytes in one or two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from framepool.errors import RecordingError
from framepool.recorder.manifest import Hold, Manifest
from framepool.recorder.recording import Recording
from framepool.recorder.recovery import take_over
from framepool.recorder.verify import verify
from framepool.spark.plan import plan, plan_segments, read_piece
from framepool.spark.selection import Selection
from tests.fuzz.draw import Draw, pieced
from tests.fuzz.places import scratch
from tests.fuzz.segments import read_all
from tests.support.tape import STREAM, Workshop

FILES: Final = (
    "recording.json",
    "watermark.json",
    "retained.json",
    "manifest/00000000.json",
    "manifest/00000001.json",
    "holds/reader.json",
    "segments/00000000.frames.parquet",
    "segments/00000000.losses.parquet",
    "segments/00000001.messages.parquet",
)


@cache
def sound() -> Path:
    """A recording that nothing is wrong with: two sealed segments with their indexes."""
    path = scratch() / "sound"
    shop = Workshop(path, segment_frames=2)
    for _ in range(2):
        shop.record(1)
        shop.record(1, 100, stream_id=STREAM + 1)
    shop.close()
    Manifest(path).hold("reader", Hold(ordinal=1, expires_ns=0))
    return path


def one(data: bytes) -> None:
    """Other bytes in a file or two, and one of the things that are done with recordings."""
    draw = Draw(data)
    act = draw.chosen((read_all, _verify, _plan, _remove, _go_on))
    path = _copy()
    for _ in range(1 + draw.number() % 2):
        name, other = draw.chosen(FILES), draw.piece()
        (path / name).write_bytes(other)
    before = set(scratch().iterdir())
    act(path)
    assert set(scratch().iterdir()) == before, "something outside of the recording changed"


@cache
def _contents() -> dict[str, bytes]:
    return {str(each.relative_to(sound())): each.read_bytes() for each in sound().rglob("*") if each.is_file()}


def _copy() -> Path:
    """The sound recording once more; of the copy before, what is as it was stays."""
    path = scratch() / "copy"
    for each in list(path.rglob("*")):
        if each.is_file() and str(each.relative_to(path)) not in _contents():
            each.unlink()
    for name, data in _contents().items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)
    return path


def _verify(path: Path) -> None:
    with suppress(RecordingError):
        verify(str(path))


def _plan(path: Path) -> None:
    with suppress(RecordingError):
        recording = Recording(path)
        recording.check_retained(0)
        for piece in plan(recording, Selection(), 64)[:16] + plan_segments(recording)[:16]:
            with suppress(RecordingError):
                for rows in read_piece(piece, Selection(), strict=False):
                    len(rows.headers)


def _remove(path: Path) -> None:
    manifest = Manifest(path)
    manifest.holds()
    with suppress(RecordingError):
        for entry in manifest.entries():
            manifest.remove(entry)


def _go_on(path: Path) -> None:
    manifest = Manifest(path)
    with suppress(RecordingError):
        try:
            take_over(manifest)
        finally:
            manifest.unlock()


def seeds() -> Iterator[bytes]:
    for act in range(5):
        for number, name in enumerate(FILES):
            file = sound() / name
            data = file.read_bytes() if file.exists() else b"{}"
            begin = bytes([act, 0, number])
            yield begin + pieced(data)
            if name.endswith(".json"):
                changes = ((b'": ', b'": -'), (b"00000000.seg", b"../../x"), (b"true", b"false"), (b"1", b"9" * 20))
                for old, new in changes[act % 2 :: 2]:
                    yield begin + pieced(data.replace(old, new))
