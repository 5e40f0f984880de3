"""What a recorder does all the time: frames of any number of streams into segments, every loss into the loss table.

`RecordingAgent` takes frames and messages and lays them into the staging buffer; it never waits. `Disk` and `Sealer`
take it from there on threads of their own. What cannot be recorded is owed a row of the loss table, and nothing is
recorded before the rows that come before it: so what is found after a kill is a recording with a complete account up
to its last frame, and the next recorder accounts for the rest.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from framepool._native.recording import LAPPED, NO_ROOM, SEGMENT_FULL, TORN
from framepool.agent import AgentTerminated, Timers
from framepool.client.frame import Frame
from framepool.client.pool import Pool
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import RecorderConfig
from framepool.discovery.stream import Stream
from framepool.recorder import format as form
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.capture import Capture, Ears
from framepool.recorder.codecs import Compressor
from framepool.recorder.disk import Disk, set_priority
from framepool.recorder.recorded_stream import BATCH, Drop, RecordedStream
from framepool.recorder.segments import SegmentLog

HEAR_NS: Final = 5 * NANOS_PER_MILLI
"""How often messages are listened for: they are few, and keep for longer than frames."""
LAST_POLLS: Final = 32
"""Of a stream that is to be recorded no more, if it never has a moment's rest."""
MOST_OWED: Final = 4096
"""Rows that may wait for room; beyond that, causes that alternate are not told apart."""
OVERWRITTEN: Final = {TORN: Reason.TORN, LAPPED: Reason.LAPPED}
STOPPED: Final = "stopped"
PAUSED: Final = "paused"


class RecordingAgent:
    """Records streams into a log. An agent; `disk` is another one, on another thread."""

    role = "recorder"

    def __init__(
        self,
        pool: Pool,
        source: SegmentLog,
        disk: Disk,
        config: RecorderConfig,
        clock: Clock,
        capture: Capture,
        compressor: Compressor | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.lost: Counter[Reason] = Counter()
        """Frames by reason; rows without an end are not counted."""
        self.log = source
        self.finished = threading.Event()
        """Everything that was asked for is in the log, and nothing more will be."""
        self._pool = pool
        self._disk = disk
        self._config = config
        self._clock = clock
        self._compressor = compressor
        self._capture = capture
        self._ears: Ears | None = None
        self._streams: dict[int, RecordedStream] = {}
        self._states: dict[int, AccountState] = {}
        self._owed: list[Loss] = []
        self._requests: deque[Callable[[], object]] = deque()
        self._paused = False
        self._behind = False
        """Whether something found no room the last time round."""
        self._stuck = False
        self._finishing = False
        self._unflushed = False
        self._timers = Timers(clock)
        self._timers.every(config.flush_interval_ms * NANOS_PER_MILLI, self.flush)
        self._timers.every(HEAR_NS, self._hear, first_ns=0)

    @property
    def streams(self) -> Sequence[int]:
        """What is recorded."""
        return tuple(self._streams)

    @property
    def attached(self) -> Sequence[int]:
        """Of these, the ones that frames can come from now."""
        return tuple(each.stream_id for each in tuple(self._streams.values()) if each.is_attached)

    @property
    def state(self) -> dict[int, AccountState]:
        """Which frames are accounted for."""
        return {**self._states, **{each.stream_id: each.account.state for each in self._streams.values()}}

    def keep(self, states: dict[int, AccountState]) -> None:
        """What is known of streams that were recorded before."""
        self._states = dict(states)

    def request(self, action: Callable[[], object]) -> None:
        """Has something done on the agent's own thread."""
        self._requests.append(action)

    def add(self, stream: int | str | Stream, *, timeout: float = 0.0) -> None:
        """Records a stream from now on. With a timeout, it waits so long for a lease: only before it is turned."""
        if stream in self._streams:
            return
        added = RecordedStream(self._pool, stream, self._states, timeout)
        if added.stream_id in self._streams:  # by another of its names
            added.detach()
            return
        self._streams[added.stream_id] = added
        self._capture.streams = frozenset(self._streams)

    def remove(self, stream_id: int) -> None:
        """Records a stream no more; what was published until now and did not come is a loss."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        stream.detach()
        self._owe(stream.losses)
        for each in stream.at_hand:
            self._owe(stream.account.dropped(each.epoch, each.seq, Reason.NOT_RECORDING, STOPPED))
        self._owe(stream.account.finished(Reason.NOT_RECORDING, STOPPED))
        self._states[stream_id] = stream.account.state
        self._capture.streams = frozenset(self._streams)

    def pause(self, paused: bool) -> None:
        """Lets frames pass, each of them a loss, or records again."""
        self._paused = paused

    def flush(self) -> None:
        """Asks for everything to be durable that was recorded until now, as soon as there is room to ask."""
        self._unflushed = not self.log.flush(self.counts["frames"], dict(self.lost))

    def roll(self) -> bool:
        """Ends the segment; False if there is no room for its end just now.

        It says which frames are accounted for, so no row may be owed.
        """
        return self._pay() and self.log.end(self.state)

    def finish(self) -> None:
        """Records what has come, ends the segment and stops: `finished` is set once that is done."""
        self._finishing = True

    def on_start(self) -> None:
        self._ears = Ears(self._pool.client, self._pool.config)
        set_priority(self._config.priority)

    def do_work(self) -> int:
        if self._disk.failure is not None:
            raise AgentTerminated
        done = 0
        while self._requests:
            self._requests.popleft()()
        for stream in tuple(self._streams.values()):
            taken = stream.poll()
            done += taken + self._record(stream)
            if self._finishing and not stream.at_hand:
                stream.last_polls += 1
                if taken < BATCH or stream.last_polls > LAST_POLLS:
                    self.remove(stream.stream_id)
        self._behind, self._stuck = self._stuck, False
        paid = self._pay()
        done += self._timers.poll()
        if self._unflushed:
            self.flush()
        if self.log.is_due:
            self.roll()
        if self._finishing and not self._streams and paid and self.roll():
            self.finished.set()
            raise AgentTerminated
        return done

    def on_close(self) -> None:
        for stream in self._streams.values():
            stream.detach()
        if self._ears is not None:
            self._ears.close()

    def statistics(self) -> dict[str, object]:
        return {
            "streams": list(self._streams),
            "behind": self._behind,
            "lost": {reason.value: count for reason, count in list(self.lost.items())},
            "repeated": sum(each.account.repeated for each in self._streams.values()),
            "messages": dict(self._capture.counts),
            **self.counts,
        }

    def _hear(self) -> None:
        if self._ears is not None:
            for aeron_stream_id, data in self._ears.hear():
                message = self._capture.hear(aeron_stream_id, data)
                if message is not None and not self.log.add_message(message):
                    self.counts["messages lost"] += 1

    def _record(self, stream: RecordedStream) -> int:
        """Records what is at hand, as far as there is room; how much was dealt with."""
        items, at = stream.at_hand, 0
        self._owe(stream.losses)
        stream.losses = []
        while at < len(items):
            if not self._pay():
                self._stuck = True
                break
            item = items[at]
            if isinstance(item, Drop):
                self._drop(stream, item, item.reason, item.detail)
                at += 1
                continue
            if self._paused:
                self._drop(stream, item, Reason.NOT_RECORDING, PAUSED)
                at += 1
                continue
            before = stream.account.expect(item.epoch, item.seq, self._cause(Reason.GAP))
            if before is None:
                at += 1
                continue
            self._owe(before)
            if before and not self._pay():
                continue
            count, code = self._add(run_of(items, at))
            if count:
                stream.account.kept(item.epoch, item.seq + count - 1)
                self.counts["frames"] += count
                at += count
            if code in OVERWRITTEN:
                self._drop(stream, items[at], OVERWRITTEN[code])
                at += 1
            elif (code == SEGMENT_FULL and not self.roll()) or (code == NO_ROOM and not self._make_room(items[at])):
                self._stuck = True
                break
        while self._stuck and at < len(items) and is_gone(items[at]):
            self._drop(stream, items[at], Reason.LAPPED)
            at += 1
        if at:
            del items[:at]
        return at

    def _drop(self, stream: RecordedStream, item: Frame | Drop, reason: Reason, detail: str = "") -> None:
        """One that cannot be recorded, and what is missing before it."""
        gap = self._cause(Reason.GAP)
        self._owe(stream.account.dropped(item.epoch, item.seq, self._cause(reason), detail, gap=gap))

    def _add(self, frames: list[Frame]) -> tuple[int, int]:
        """Adds frames that follow one another: how many, and why not more."""
        if self._compressor is None:
            return self.log.add_frames(frames)
        staging = self.log.staging
        for number, frame in enumerate(frames):
            staging.hold()  # the disk must not write it before it has its last form
            try:
                count, code = self.log.add_frames([frame])
                if not count:
                    return number, code
                self._compress(frame, self._compressor)
            finally:
                staging.publish()
        return len(frames), 0

    def _compress(self, frame: Frame, compressor: Compressor) -> None:
        """Stores the frame that was just added in fewer bytes."""
        staging = self.log.staging
        position = staging.head - form.aligned(form.FRAME_HEADER_BYTES + frame.nbytes)
        start = position + form.FRAME_HEADER_BYTES
        with staging.view(start, start + frame.nbytes) as payload:
            compressed = compressor.compress(payload, frame.dtype.itemsize)
        if compressed is not None:
            self.log.restore(position, compressed, compressor.codec)

    def _make_room(self, item: Frame | Drop) -> bool:
        """For a frame that is too long for the staging buffer: grows that, once it is empty."""
        needed = form.aligned(form.FRAME_HEADER_BYTES + (item.nbytes if isinstance(item, Frame) else 0), form.BLOCK)
        capacity = self.log.staging.capacity
        if needed + 4 * form.BLOCK <= capacity:
            return False
        self.flush()
        return self.log.staging.grow(4 * needed)

    def _cause(self, reason: Reason) -> Reason:
        """The same, unless what is lost is lost because nothing is written."""
        if reason not in (Reason.GAP, Reason.LAPPED, Reason.TORN) or not (self._behind or self._stuck):
            return reason
        return Reason.DISK_FULL if self._disk.refusal else Reason.BACKLOG

    def _owe(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            self.lost[loss.reason] += loss.frames or 0
            joined = self._owed[-1].followed_by(loss, loosely=len(self._owed) > MOST_OWED) if self._owed else None
            if joined is None:
                self._owed.append(loss)
            else:
                self._owed[-1] = joined

    def _pay(self) -> bool:
        """Writes the rows that are owed; whether none is left."""
        while self._owed and self.log.add_loss(self._owed[0]):
            self._owed.pop(0)
        return not self._owed


def is_gone(item: Frame | Drop) -> bool:
    """Whether there is nothing to wait for."""
    return isinstance(item, Drop) or not item.valid()


def run_of(items: list[Frame | Drop], start: int) -> list[Frame]:
    """The frames from `start` on that follow one another without a gap."""
    first = items[start]
    run: list[Frame] = []
    for number, item in enumerate(items[start:] if start else items):
        if isinstance(item, Drop) or item.epoch != first.epoch or item.seq != first.seq + number:
            break
        run.append(item)
    return run
