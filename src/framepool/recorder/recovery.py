"""Going on after a recorder that was killed: what it wrote is found by its checksums, sealed, and accounted for.

Records follow one another and a header says how long its record is, so the end of what was written is where the next
one is not whole. Below the watermark that cannot be: what is not whole there was damaged, and the search goes on behind
it. Which frames are missing shows in their sequence, as it would in a live stream (`account`).
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder import format as form
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.contents import NO_FRAMES, Contents, head_of, is_sound, loss_row, message_row
from framepool.recorder.format import Kind, Record
from framepool.recorder.manifest import SEGMENT_SUFFIX, Manifest, OpenEntry, RecordingInfo, open_file, sync_directory
from framepool.recorder.sealing import seal
from framepool.recorder.segment_file import SegmentFile

log = logging.getLogger(__name__)

SEGMENT_FILE: Final = re.compile(rf"([0-9]{{8,}}){re.escape(SEGMENT_SUFFIX)}")


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the next recorder goes on."""

    info: RecordingInfo
    next_number: int
    next_ordinal: int
    state: dict[int, AccountState]
    recovered: int = 0
    """Segments that were not sealed."""


def take_over(manifest: Manifest) -> Continuation:
    """Makes this process the writer of a recording, new or old, and brings that in order.

    Raises `RecordingInUse` while another process writes it.
    """
    if not manifest.exists() and manifest.path.exists() and {each.name for each in manifest.path.iterdir()} - {"lock"}:
        raise RecordingError(f"{manifest.path} has other things in it: name a new directory or a recording")
    manifest.lock()
    try:
        if not manifest.exists():
            manifest.create(time.time_ns())
        return recover(manifest)
    except BaseException:
        manifest.unlock()
        raise


def recover(manifest: Manifest) -> Continuation:
    """Seals what a recorder left open. The recording is locked by the caller."""
    info, retained = manifest.info(), manifest.retained()
    last = next((entry for number in reversed(manifest.numbers()) if (entry := manifest.entry(number))), None)
    number, ordinal, state = retained.first_segment, retained.first_ordinal, dict[int, AccountState]()
    if last is not None:
        number, ordinal, state = last.number + 1, last.end_ordinal, dict(last.state)
    _remove_leftovers(manifest, set(manifest.numbers()), number)
    watermark = manifest.watermark()
    known = {entry.number: entry for entry in watermark.open} if watermark is not None else {}
    losses: list[Loss] = []
    recovered = 0
    for path in list(manifest.unsealed(number)):
        found = _recover_segment(path, number, ordinal, known.get(number), state, losses)
        if found is None:  # it was just made: nothing comes behind it
            os.unlink(path)
            break
        seal(manifest, found)
        state, ordinal, number = found.state, found.end_ordinal, number + 1
        recovered += 1
    if watermark is not None and watermark.ordinal > ordinal:
        log.error("%s: frames %d to %d were durable and are gone", manifest.path, ordinal, watermark.ordinal - 1)
        ordinal = watermark.ordinal
    if losses:
        _append_losses(manifest, info, number, ordinal, state, losses)
        number += 1
    return Continuation(info=info, next_number=number, next_ordinal=ordinal, state=state, recovered=recovered)


def _remove_leftovers(manifest: Manifest, sealed: set[int], following: int) -> None:
    """What retention was about to remove when it was killed."""
    for path in manifest.segments.iterdir():
        numbered = SEGMENT_FILE.fullmatch(path.name.partition(".")[0] + SEGMENT_SUFFIX)
        if numbered is not None and int(numbered[1]) < following and int(numbered[1]) not in sealed:
            os.unlink(path)


def _recover_segment(
    path: Path,
    number: int,
    ordinal: int,
    known: OpenEntry | None,
    state: dict[int, AccountState],
    losses: list[Loss],
) -> Contents | None:
    """What a file holds, cut behind its last whole record; None if it holds nothing."""
    try:
        fd = open_file(path, os.O_RDWR)
    except OSError as error:
        raise RecordingDamaged(f"{path}: {error.strerror}") from None
    with open(fd, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return None
        with contextlib.closing(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) as mapped:
            with memoryview(mapped) as buffer:
                head = head_of(buffer)
                if head is None and known is None:
                    return None
                contents = Contents(
                    number=number,
                    file=path.name,
                    segment_id=int(known.segment_id, 16) if known is not None else head[0] if head is not None else 0,
                    first_ordinal=ordinal,
                    end_ordinal=ordinal if known is None else known.end_ordinal,
                    state=dict(state),
                    recovered=True,
                )
                _gather(buffer, contents, 0 if known is None else min(known.bytes, size), losses)
        os.ftruncate(file.fileno(), contents.bytes)
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return contents


def _gather(buffer: memoryview, contents: Contents, durable: int, losses: list[Loss]) -> None:
    """Puts together what the records say, and which frames are missing among them."""
    state = contents.state
    offsets: list[int] = []
    for record in _whole_records(buffer, contents.segment_id, durable):
        contents.bytes = record.end
        match record.kind:
            case Kind.FRAME:
                header = form.frame_headers(buffer, np.array([record.offset]))[0]
                if not is_sound(header):  # written by somebody else: as good as damaged
                    continue
                offsets.append(record.offset)
                stream_id, epoch, seq = int(header["stream_id"]), int(header["epoch"]), int(header["seq"])
                following = _next(state, stream_id, epoch)
                if following is not None and seq > following:
                    losses.append(_damaged(stream_id, epoch, following, seq - 1))
                _account(state, stream_id, epoch, seq)
            case Kind.LOSS:
                row = loss_row(buffer, record)
                if row is None:
                    continue
                contents.losses.append(row)
                if row.loss.last_seq is not None:
                    _account(state, row.loss.stream_id, row.loss.epoch, row.loss.last_seq)
            case Kind.MESSAGE:
                contents.messages.append(message_row(buffer, record))
    contents.offsets = np.array(offsets, np.int64)
    contents.headers = form.frame_headers(buffer, contents.offsets) if offsets else NO_FRAMES
    if offsets:
        last = contents.first_ordinal + int(contents.headers["number"][-1])
        contents.end_ordinal = max(contents.end_ordinal, last + 1)


def _whole_records(buffer: memoryview, segment_id: int, durable: int) -> Iterator[Record]:
    """Records whose payload is whole too. Below `durable`, those that are not are passed over."""
    offset: int | None = 0
    while offset is not None:
        record = form.read(buffer, offset, segment_id)
        if record is not None and form.is_whole(buffer, record):
            yield record
            offset = record.end
        elif record is not None and record.end <= durable:
            offset = record.end
        else:
            offset = form.find(buffer, offset + form.ALIGNMENT, durable, segment_id)


def _damaged(stream_id: int, epoch: int, first: int, last: int) -> Loss:
    return Loss(stream_id=stream_id, epoch=epoch, first_seq=first, last_seq=last, reason=Reason.DAMAGED)


def _next(state: dict[int, AccountState], stream_id: int, epoch: int) -> int | None:
    known = state.get(stream_id)
    return None if known is None else known.next_seq.get(epoch)


def _account(state: dict[int, AccountState], stream_id: int, epoch: int, seq: int) -> None:
    """Frames up to this one are accounted for."""
    known = state.get(stream_id, AccountState()).next_seq
    state[stream_id] = AccountState({**known, epoch: max(seq + 1, known.get(epoch, 0))})


def _append_losses(
    manifest: Manifest,
    info: RecordingInfo,
    number: int,
    ordinal: int,
    state: dict[int, AccountState],
    losses: list[Loss],
) -> None:
    """A segment without frames that tells what was damaged."""
    path = manifest.segments / f"{number:08}{SEGMENT_SUFFIX}"
    with SegmentFile(
        path, info.recording_id, number=number, first_ordinal=ordinal, host=info.host, boot_id=info.boot_id
    ) as file:
        for loss in losses:
            file.add_loss(loss)
    contents = file.contents
    contents.state, contents.recovered = state, True
    sync_directory(path.parent)
    seal(manifest, contents)
