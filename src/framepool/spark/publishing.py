"""Staged frames into a live stream: what the driver's side of the sink does when a batch is complete.

Spark makes a process for commits and keeps it while it is used, so the lease is kept there too, from batch to batch:
readers stay on one epoch. Should Spark turn to another process, that one asks for the lease, and gets it as soon as no
batch is being published. Which batches were published is written down beside the staged frames, after the last frame
of each: a crash in between repeats the batch, and readers tell repeats by `origin_of`.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from framepool.client.pool import Pool
from framepool.client.producer import Producer
from framepool.config import load
from framepool.errors import AttachRefused, NoPoolFits, NotAttached, RecordingDamaged
from framepool.recorder import contents
from framepool.recorder.format import FRAME_HEADER_BYTES
from framepool.recorder.manifest import write_whole
from framepool.wire.constants import TENSOR_HEADER_OFFSET

QUERY, BATCH, EPOCH, SEQ, ROW = (f"spark_{name}" for name in ("query", "batch", "epoch", "seq", "row"))
LOOK_EVERY: Final = 0.05
TOLD_WITHIN: Final = 1.0
"""Seconds for the metadata of a batch to go out ahead of its frames."""


class Origin(NamedTuple):
    """Where a published frame comes from; the same for all repeats of a frame."""

    query: str
    batch: int
    row: int
    """Counted over the whole batch, in the order of partitions and of rows within them."""


class Described(Protocol):
    """A frame, live or recorded."""

    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def metadata(self) -> Mapping[str, Any] | None: ...


def origin_of(frame: Described) -> Origin | None:
    """Query, batch and row of a frame that Spark published; None of any other, or while its metadata is unheard."""
    told = frame.metadata
    if told is None or QUERY not in told or int(told[EPOCH]) != frame.epoch:
        return None
    return Origin(str(told[QUERY]), int(told[BATCH]), int(told[ROW]) + frame.seq - int(told[SEQ]))


class Published(msgspec.Struct, frozen=True):
    """`QUERY.json` beside the staged frames: the last batch whose frames were all published."""

    batch: int


class Ledger:
    """Which batches of a query were published."""

    def __init__(self, staging: Path, query: str) -> None:
        self._file = staging / f"{query}.json"

    def has(self, batch: int) -> bool:
        try:
            return batch <= msgspec.json.decode(self._file.read_bytes(), type=Published).batch
        except FileNotFoundError:
            return False

    def note(self, batch: int) -> None:
        write_whole(self._file, msgspec.json.encode(Published(batch)), durable=True)


class Seat:
    """A producer that is kept between batches, until it is idle for long or another process asks for it."""

    def __init__(self, stream_id: int, config: str, staging: Path, name: str, timeout: float, settle: float) -> None:
        self._lock_file = staging / f"stream-{stream_id}.lock"
        self._wanted = staging / f"stream-{stream_id}.wanted"
        self._turn = threading.Lock()
        self._idle_since = time.monotonic()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._locked(timeout))
            pool = undo.enter_context(Pool(load(config or None)))
            self.producer: Producer = undo.enter_context(
                pool.producer(stream_id, name=name, summary="published by Spark", timeout=timeout)
            )
            time.sleep(settle)  # for readers to see the new epoch: what is told before is lost to them
            self._open = undo.pop_all()

    def acquire(self) -> None:
        self._turn.acquire()

    def release(self) -> None:
        self._idle_since = time.monotonic()
        self._turn.release()

    def give_up_if(self, idle: float) -> bool:
        """Lets go of the stream if nobody used it for so long, or somebody else wants it; not while it is used."""
        if not self._turn.acquire(blocking=False):
            return False
        with contextlib.ExitStack() as done:
            done.callback(self._turn.release)
            if self._wanted.exists() or time.monotonic() - self._idle_since > idle:
                self._open.close()
                return True
        return False

    def close(self) -> None:
        with self._turn:
            self._open.close()

    @contextlib.contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        fd = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline = time.monotonic() + timeout
            while not _try_lock(fd):
                self._wanted.touch()
                if time.monotonic() > deadline:
                    raise AttachRefused(f"{self._lock_file}: another process publishes on this stream")
                time.sleep(LOOK_EVERY)
            self._wanted.unlink(missing_ok=True)
            yield
        finally:
            os.close(fd)


class Seats:
    """The streams that this process publishes on."""

    def __init__(self) -> None:
        self._seats: dict[tuple[Any, ...], Seat] = {}
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def using(
        self, stream_id: int, config: str, staging: Path, *, name: str, timeout: float, settle: float, keep: float
    ) -> Iterator[Producer]:
        """The producer of a stream, from the batch before or a new one; without `keep` it goes with the batch."""
        if keep <= 0:
            seat = Seat(stream_id, config, staging, name, timeout, settle)
            try:
                yield seat.producer
            finally:
                seat.close()
            return
        key = (stream_id, config, str(staging))
        with self._turn:
            if key not in self._seats:
                self._seats[key] = Seat(stream_id, config, staging, name, timeout, settle)
                threading.Thread(target=self._watch, args=(key, keep), daemon=True).start()
            seat = self._seats[key]
            seat.acquire()
        try:
            yield seat.producer
        finally:
            seat.release()

    def _watch(self, key: tuple[Any, ...], keep: float) -> None:
        while True:
            time.sleep(LOOK_EVERY)
            with self._turn:
                if self._seats[key].give_up_if(keep):
                    del self._seats[key]
                    return


def publish(producer: Producer, files: list[Path], query: str, batch: int, *, rate: float, patience: float) -> int:
    """Publishes the frames of staged segments in this order; says how many.

    A frame that no pool holds raises `NoPoolFits`; without a lease it waits for one, `NotAttached` after `patience`.
    """
    row = 0
    expected: int | None = None
    begun = time.monotonic()
    for file in files:
        for frame in staged(file):
            if rate:
                time.sleep(max(0.0, begun + row / rate - time.monotonic()))
            while True:
                expected = _tell(producer, Origin(query, batch, row), patience) if expected is None else expected
                seq = _publish(producer, frame, patience)
                if seq == expected:
                    break
                expected = None  # there is another epoch since, in which nobody could tell whose frame that was
            row, expected = row + 1, seq + 1
    return row


class Staged(NamedTuple):
    """A frame in a staged segment."""

    payload: memoryview
    tensor_header: bytes
    timestamp_ns: int | None
    trace_id: int | None


def staged(file: Path) -> Iterator[Staged]:
    """The frames of a staged segment, in the order of their rows."""
    with open(file, "rb") as opened:
        buffer = memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    head = contents.head_of(buffer)
    if head is None:
        raise RecordingDamaged(f"{file} is no segment")
    offsets, headers, _, _ = contents.scan(buffer, head[0])
    for offset, header in zip(offsets.tolist(), headers, strict=True):
        begin = offset + FRAME_HEADER_BYTES
        yield Staged(
            buffer[begin : begin + int(header["stored_bytes"])],
            bytes(header["slot"])[TENSOR_HEADER_OFFSET:],
            int(header["timestamp_ns"]) or None,
            int(header["trace_id"]) or None,
        )


def _publish(producer: Producer, frame: Staged, patience: float) -> int:
    """The sequence under which a frame was told of."""
    before = producer.counts
    deadline = time.monotonic() + patience
    while True:
        seq = producer.publish_raw(
            frame.payload, frame.tensor_header, timestamp_ns=frame.timestamp_ns, trace_id=frame.trace_id
        )
        counts = producer.counts
        if seq is not None and counts["descriptors lost"] == before["descriptors lost"]:
            return seq
        if counts["no pool fits"] != before["no pool fits"]:
            raise NoPoolFits(f"stream {producer.stream_id}: {len(frame.payload)} bytes, more than its largest pool has")
        before = counts
        _wait_for(producer, deadline)


def _tell(producer: Producer, origin: Origin, patience: float) -> int:
    """Says in the metadata whose frames follow, and waits until that is said; the sequence of the first of them."""
    deadline = time.monotonic() + patience
    while (epoch := _epoch(producer)) is None:
        _wait_for(producer, deadline)
    metadata, seq = producer.metadata, _next_seq(producer)
    sent = metadata.counts["sent"]
    about = {QUERY: origin.query, BATCH: origin.batch, EPOCH: epoch, SEQ: seq, ROW: origin.row}
    metadata.update(about)
    until = time.monotonic() + TOLD_WITHIN
    while metadata.counts["sent"] < sent + 2 and time.monotonic() < until:
        time.sleep(0.001)
    return seq


def _wait_for(producer: Producer, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NotAttached(f"stream {producer.stream_id}: no lease; the batch is not published")
    time.sleep(0.01)


def _epoch(producer: Producer) -> int | None:
    attachment: Any = producer.statistics()["attachment"]
    return attachment["epoch"] if producer.attached else None


def _next_seq(producer: Producer) -> int:
    found: Any = producer.statistics()["next_seq"]
    return int(found)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


SEATS: Final = Seats()
