"""The recorder as a program has it: three agents on threads of their own, and a service of the control plane.

>>> with fp.Recorder(pool, "flight-7", streams=[10_000, 10_001]) as recorder:     # doctest: +SKIP
...     time.sleep(60)
>>> fp.Recording("flight-7")                                                      # doctest: +SKIP

A recording that exists is continued: what a killed recorder left is sealed first, and what was published meanwhile is
in the loss table.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from framepool._native.recording import Staging
from framepool.agent import CompositeAgent, Runner, Sleeping, State
from framepool.client.pool import Pool
from framepool.clock import Clock, MonotonicClock
from framepool.config import RecorderConfig, StreamId
from framepool.discovery.stream import Stream
from framepool.errors import CommandRefused, RecordingError
from framepool.recorder.capture import Capture
from framepool.recorder.codecs import compressor
from framepool.recorder.disk import Disk
from framepool.recorder.manifest import Activity, Manifest
from framepool.recorder.recording_agent import RecordingAgent
from framepool.recorder.recovery import Continuation, take_over
from framepool.recorder.sealing import Frontier, Sealer
from framepool.recorder.segments import SegmentLog
from framepool.service import Service, ServiceState, command

STOP_TIMEOUT: Final = 30.0
PAUSE: Final = 0.002
IDLE: Final = 0.0003
"""Seconds between looks at streams and disk: short beside the time that frames stay in a ring, and no load."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a recorder does."""

    frames: int
    """Recorded."""
    bytes: int
    """Written, with headers."""
    lost: dict[str, int]
    """Frames by reason."""
    ordinal: int
    """Frames below it are durable."""
    waiting_bytes: int
    """Between the streams and the disk."""
    refusal: str
    """What the disk says, while it takes nothing."""
    segments: int
    """Sealed."""


class Recorder:
    """Records streams into a directory, from now until it is closed.

    `streams` are ids, names, or as `pool.discover` found them. Settings are those of `[recorder]` in the configuration
    of the pool, unless they are given here by the same names (`segment_bytes=2**30`). Raises `AttachRefused` if a
    stream gives no lease within `timeout` seconds (0 does not wait: streams are recorded once they are there),
    `RecordingInUse` if another recorder writes there, `LibraryMissing` for a compression that is not installed.

    >>> with fp.Recorder(pool, "morning", [10_000]):
    ...     sent = camera.publish_batch([image, image + 1])
    >>> len(fp.Recording("morning"))
    2
    """

    def __init__(
        self,
        pool: Pool,
        path: str | os.PathLike[str],
        streams: Iterable[int | str | Stream],
        *,
        instance: str = "",
        timeout: float = 10.0,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.config = msgspec.convert({**msgspec.structs.asdict(pool.config.recorder), **settings}, RecorderConfig)
        self.path = os.fspath(path)
        self._clock = clock or MonotonicClock()
        self._closed = False
        compress = compressor(self.config.compression, self.config.compression_level)
        with contextlib.ExitStack() as undo:
            self._manifest = Manifest(path)
            self.continued = take_over(self._manifest)
            """What was there before."""
            undo.callback(self._manifest.unlock)
            self._build(pool, self.continued, compress)
            undo.callback(self._agent.on_close)
            for stream in streams:
                self._agent.add(stream, timeout=timeout)
            self.service = RecorderService(self, self._agent, pool, instance)
            self._run(undo)
            self._frontier.tell(Activity.RECORDING, 0, {})
            undo.pop_all()

    @property
    def streams(self) -> tuple[int, ...]:
        """What is recorded."""
        return tuple(self._agent.streams)

    @property
    def attached(self) -> tuple[int, ...]:
        """Of these, the ones that frames can come from now."""
        return tuple(self._agent.attached)

    @property
    def running(self) -> bool:
        """Whether it records; not any more once it is closed, or when the disk lost what it was given."""
        return self._threads[-1].state is State.RUNNING

    @property
    def failure(self) -> str:
        """What the disk said when it lost what it was given; nothing is recorded after that."""
        return str(self._disk.failure or "")

    def progress(self) -> Progress:
        """How it does."""
        return Progress(
            frames=self._agent.counts["frames"],
            bytes=self._disk.counts["bytes"],
            lost={reason.value: count for reason, count in list(self._agent.lost.items())},
            ordinal=self._frontier.ordinal,
            waiting_bytes=self._log.staging.ready - self._log.staging.tail,
            refusal=self._disk.refusal,
            segments=self._sealer.counts["sealed"],
        )

    def flush(self, timeout: float = 10.0) -> int:
        """Waits until everything that was recorded before the call is durable and there to be read by other processes:
        the ordinal up to which it is."""
        wanted: list[int] = []

        def ask() -> None:
            self._agent.flush()
            wanted.append(self._log.next_ordinal)

        self._agent.request(ask)
        if not self._wait(lambda: bool(wanted) and self._frontier.ordinal >= wanted[0], timeout):
            raise RecordingError(f"{self.path}: not durable within {timeout} s: {self._disk.refusal or 'no answer'}")
        return self._frontier.ordinal

    def close(self, timeout: float = STOP_TIMEOUT) -> None:
        """Records what has come, seals everything and lets go of the streams and the directory.

        Raises `RecordingError` if not all of it could be written, and for `timeout` seconds nothing was; the next
        recorder accounts for it.
        """
        if self._closed:
            return
        self._closed = True
        self._agent.finish()
        done = self._wait_done(timeout)
        activity = Activity.STOPPED if done else Activity.STALLED
        with (
            contextlib.ExitStack() as ending
        ):  # the threads, the last word, the lock: each whatever became of the others
            ending.callback(self._manifest.unlock)
            ending.callback(lambda: self._frontier.tell(activity, self._agent.counts["frames"], dict(self._agent.lost)))
            for thread in self._threads:
                ending.callback(thread.close)
        if not done:
            said = self._disk.failure or self._disk.refusal or self._sealer.refusal or "the disk is too slow"
            raise RecordingError(f"{self.path}: not everything could be written, nothing for {timeout} s: {said}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """How it does, and what each of its agents counted."""
        return {
            "path": self.path,
            "progress": msgspec.to_builtins(self.progress()),
            "recorder": self._agent.statistics(),
            "disk": self._disk.statistics(),
            "sealer": self._sealer.statistics(),
            "service": self.service.statistics(),
        }

    def _build(self, pool: Pool, begin: Continuation, compress: Any) -> None:
        config, clock = self.config, self._clock
        capture = Capture((), carried_bytes=min(config.segment_bytes, config.staging_bytes) // 8)
        self._log = SegmentLog(
            Staging(config.staging_bytes),
            begin.info,
            config,
            clock,
            next_number=begin.next_number,
            next_ordinal=begin.next_ordinal,
            carried=capture.carried,
        )
        self._frontier = Frontier(self._manifest, clock, begin.next_ordinal)
        self._sealer = Sealer(self._manifest, config, clock, self._frontier)
        self._disk = Disk(
            self._manifest.segments,
            self._log,
            clock,
            reserve_bytes=config.segment_bytes,
            direct=config.direct_io == "auto",
            priority=config.priority,
            on_flushed=self._frontier.flushed,
            on_ended=self._sealer.take,
            on_refused=self._frontier.stalled,
        )
        self._agent = RecordingAgent(pool, self._log, self._disk, config, clock, capture, compress)
        self._agent.keep(begin.state)

    def _run(self, undo: contextlib.ExitStack) -> None:
        """Gives the agents their threads; the recorder's last, when all others are there to take from it."""
        recording = CompositeAgent(self._agent, self.service, until=self._agent)
        self._threads = [
            Runner(self._sealer, idle=Sleeping(0.01)),
            Runner(self._disk, idle=Sleeping(IDLE)),
            Runner(recording, idle=Sleeping(IDLE)),
        ]
        for thread in self._threads:
            undo.enter_context(thread.start())
            thread.wait_started()

    def _wait_done(self, timeout: float) -> bool:
        """Waits until all is written and sealed, as long as it goes on."""

        def moved() -> bool:
            return (self._log.staging.tail, self._sealer.counts["sealed"]) != before

        def done() -> bool:
            return self._agent.finished.is_set() and self._disk.is_idle and self._sealer.is_idle

        while not done():
            before = (self._log.staging.tail, self._sealer.counts["sealed"])
            if not self._wait(lambda: done() or moved(), timeout):
                return False
        return True

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() >= deadline or self._disk.failure is not None:
                return condition()
            time.sleep(PAUSE)
        return True


class RecorderService(Service):
    """`service:recorder[:instance]`: what a recorder can be told. On its thread."""

    def __init__(self, recorder: Recorder, agent: RecordingAgent, pool: Pool, instance: str) -> None:
        super().__init__(pool.client, pool.config, name="recorder", instance=instance)
        self._recorder = recorder
        self._agent = agent
        self._stopped: tuple[int, ...] = ()

    @command
    def flush(self) -> None:
        """Make everything durable that was recorded until now."""
        self._agent.flush()

    @command
    def roll(self) -> None:
        """End the segment, so that its index is there soon."""
        if not self._agent.roll():
            raise CommandRefused("the disk is behind: try again")

    @command
    def record(self, stream_id: StreamId) -> None:
        """Record this stream too."""
        if self.state is ServiceState.STOPPED:
            raise CommandRefused("it is stopped: start it")
        self._agent.add(stream_id)

    @command
    def forget(self, stream_id: StreamId) -> None:
        """Record this stream no more."""
        if stream_id not in self._agent.streams:
            raise CommandRefused(f"stream {stream_id} is not recorded")
        self._agent.remove(stream_id)

    def on_state(self, state: ServiceState) -> None:
        """A pause lets frames pass, each a loss; a stop gives the streams back and ends the segment."""
        self._agent.pause(state is ServiceState.PAUSED)
        if state is ServiceState.STOPPED:
            self._stopped = tuple(self._agent.streams)
            for stream_id in self._stopped:
                self._agent.remove(stream_id)
            self._agent.roll()
        elif self.state is ServiceState.STOPPED:
            for stream_id in self._stopped:
                self._agent.add(stream_id)

    def report(self) -> dict[str, Any]:
        return {
            "path": self._recorder.path,
            "streams": list(self._agent.streams),
            "attached": list(self._agent.attached),
            **msgspec.to_builtins(self._recorder.progress()),
        }
