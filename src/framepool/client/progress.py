"""How a producer tells of a frame while it fills it: STARTED, PROGRESS now and then, COMPLETE (Wire 10.2.2).

`ProgressPolicy` is how often that is, agreed with the consumers within the producer's own minima. `ProgressStream` is
what all frames of one stream share: whether anybody listens, the policy of the moment and the rate of the stream. A
`ProgressReporter` is one frame. Whom a message goes to, and the slot itself, are the owner's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, Self

import msgspec

from framepool.client.rate import Pace
from framepool.clock import Clock
from framepool.wire._generated.control_900 import Bool, ConsumerHello, FrameProgress, FrameProgressState, ProgressUnit

NANOS_PER_MICRO = 1_000

Send = Callable[[FrameProgress], bool]
"""Puts a message on the streams of those who listen; False when Aeron did not take it."""


class ProgressPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a PROGRESS is due: after an interval, if enough bytes or rows came since the last."""

    interval_us: int = 250
    """Least time between two PROGRESS of a frame, for consumers that ask for none."""
    bytes_delta: int = 65_536
    """Bytes to have come since the last one, for consumers that ask for none."""
    major_delta_units: int = 0
    """Or rows (columns) to have come; 0 is unset."""
    tick_us: int = 10_000
    """After so long a silence anything new is told of, however little (Wire 10.2.2: no long silences)."""
    min_interval_us: int = 200
    """No consumer gets less than this interval, whatever it asks for."""
    min_bytes_delta: int = 4_096
    """No consumer gets less than this delta."""
    min_major_delta_units: int = 1
    """No consumer gets less than this many rows."""
    max_rate_hz: int = 2_000
    """Messages of the whole stream on the average."""
    burst: int = 8
    """Messages of the whole stream at once."""

    def __post_init__(self) -> None:
        for name in ("interval_us", "bytes_delta", "tick_us", "min_major_delta_units", "max_rate_hz", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        for name in ("major_delta_units", "min_interval_us", "min_bytes_delta"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must not be negative")

    def agreed(self, consumers: Iterable[ConsumerHello]) -> Self | None:
        """The policy for these live consumers: the smallest interval and deltas that those who want progress offer, not
        below the minima (Wire 10.1.2). None if nobody wants it.

        A consumer without a hint counts as offering the default, so that nobody is slowed down by another's patience.
        """
        listeners = [hello for hello in consumers if hello.supports_progress is Bool.TRUE]
        if not listeners:
            return None
        intervals = [_offered(hello.progress_interval_us, self.interval_us) for hello in listeners]
        deltas = [_offered(hello.progress_bytes_delta, self.bytes_delta) for hello in listeners]
        units = [hello.progress_major_delta_units or self.major_delta_units for hello in listeners]
        rows = min((unit for unit in units if unit), default=0)
        return msgspec.structs.replace(
            self,
            interval_us=max(min(intervals), self.min_interval_us, 1),
            bytes_delta=max(min(deltas), self.min_bytes_delta, 1),
            major_delta_units=max(rows, self.min_major_delta_units) if rows else 0,
        )


def _offered(hint: int | None, default: int) -> int:
    return default if hint is None else hint


class Strided(Protocol):
    """What is asked of a tensor's layout: `TensorLayout` and the compiled `Layout` both have it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def extent(self) -> int: ...
    @property
    def progress_unit(self) -> int: ...
    @property
    def progress_stride_bytes(self) -> int: ...


def filled_bytes(layout: Strided, unit: ProgressUnit, count: int) -> int:
    """The prefix that is filled once `count` rows or columns are (`decisions.md` #30): their stride each, and with the
    last one all there is, as nothing needs to follow it. ValueError if the layout has no such unit or fewer of them.
    """
    axis = unit - ProgressUnit.ROWS
    if layout.progress_unit == unit:
        stride = layout.progress_stride_bytes
    elif axis < len(layout.strides):
        stride = layout.strides[axis]
    else:
        raise ValueError(f"progress in {unit.name}: a tensor of shape {layout.shape} has none to count in whole bytes")
    if not 0 <= count <= layout.shape[axis]:
        raise ValueError(f"{count} {unit.name} of a tensor of shape {layout.shape}")
    return layout.extent if count == layout.shape[axis] else count * stride


class ProgressStream:
    """What the frames of one stream have in common. Silent until a consumer that wants progress is known."""

    def __init__(self, stream_id: int, *, send: Send, clock: Clock, policy: ProgressPolicy | None = None) -> None:
        self.stream_id = stream_id
        self.policy: ProgressPolicy | None = None
        """What is in force; None while nobody listens."""
        self.counts: Counter[str] = Counter()
        self._send = send
        self._clock = clock
        self._default = policy or ProgressPolicy()
        self._pace = Pace(self._default.max_rate_hz, self._default.burst)

    def agree(self, consumers: Iterable[ConsumerHello]) -> None:
        """Takes the consumers that live now; frames under way follow at once, but one that began unheard stays so."""
        self.policy = self._default.agreed(consumers)

    def frame(
        self,
        epoch: int,
        seq: int,
        layout: Strided,
        values_len_bytes: int,
        *,
        write_header: Callable[[], object] | None = None,
    ) -> ProgressReporter:
        """The reporter of a frame whose slot was just claimed. `write_header` is called once, before the first
        PROGRESS: from then on consumers may read the slot's header (`decisions.md` #29)."""
        return ProgressReporter(self, epoch, seq, layout, values_len_bytes, write_header)

    def statistics(self) -> dict[str, int]:
        return dict(self.counts)

    def now_ns(self) -> int:
        return self._clock.monotonic_ns()

    def may_send(self, now_ns: int) -> bool:
        """Whether the rate of the stream leaves room for one PROGRESS; if so it is taken."""
        return self._pace.admits(now_ns)

    def spend(self, now_ns: int) -> None:
        """STARTED and COMPLETE go in any case, and count."""
        self._pace.spend(now_ns)

    def send(self, epoch: int, seq: int, filled: int, state: FrameProgressState) -> bool:
        """Sends, and counts what Aeron did not take: it is never waited for."""
        taken = self._send(
            FrameProgress(stream_id=self.stream_id, epoch=epoch, seq=seq, payload_bytes_filled=filled, state=state)
        )
        self.counts[state.name if taken else "lost"] += 1
        return taken


class ProgressReporter:
    """One frame: `start`, any number of updates, `complete`; what is not due is dropped, the latest is kept.

    It speaks from start to end or not at all: whoever begins to listen in the middle hears of the next frame.
    """

    def __init__(
        self,
        stream: ProgressStream,
        epoch: int,
        seq: int,
        layout: Strided,
        values_len_bytes: int,
        write_header: Callable[[], object] | None,
    ) -> None:
        self.seq = seq
        self.filled = 0
        """Bytes of the payload that are there, told or not."""
        self._stream = stream
        self._epoch = epoch
        self._layout = layout
        self._values_len_bytes = values_len_bytes
        self._write_header = write_header
        self._state = FrameProgressState.UNKNOWN
        self._speaking = False
        self._told = 0
        self._told_ns = 0

    def start(self) -> None:
        """Acquisition begins: STARTED, once."""
        if self._state is not FrameProgressState.UNKNOWN:
            raise ValueError(f"frame {self.seq} has started already")
        self._speaking = self._stream.policy is not None
        self._told_ns = self._stream.now_ns()
        self._say(FrameProgressState.STARTED)

    def update(self, filled: int | None = None, *, rows: int | None = None, columns: int | None = None) -> bool:
        """So many bytes, rows or columns are there now; says whether anybody was told.

        Raises ValueError if that is less than before or more than there is.
        """
        self._require_open()
        filled = self._in_bytes(filled, rows, columns)
        if not self.filled <= filled <= self._values_len_bytes:
            known = f"{self.filled} are filled of {self._values_len_bytes}"
            raise ValueError(f"frame {self.seq}: progress of {filled} bytes, but {known}")
        self.filled = filled
        return self.poll()

    def poll(self) -> bool:
        """Tells of the latest update if that is due by now; to be called while the filler is busy elsewhere."""
        policy = self._stream.policy
        if not self._is_open() or not self._speaking or policy is None:
            return False
        now_ns = self._stream.now_ns()
        if not self._is_due(policy, now_ns):
            return False
        if not self._stream.may_send(now_ns):
            self._stream.counts["held back"] += 1
            return False
        self._promise_header()
        self._told_ns = now_ns
        self._state = FrameProgressState.PROGRESS
        if self._stream.send(self._epoch, self.seq, self.filled, self._state):
            self._told = self.filled
            return True
        return False

    def complete(self) -> None:
        """The frame is whole and its slot committed: COMPLETE, and nothing after it (Wire 8.3)."""
        self._require_open()
        self.filled = self._values_len_bytes
        self._say(FrameProgressState.COMPLETE)

    def abandon(self) -> None:
        """The frame will not come: nothing is said any more."""
        self._state = FrameProgressState.COMPLETE

    def _say(self, state: FrameProgressState) -> None:
        self._state = state
        if self._speaking:
            self._stream.spend(self._stream.now_ns())
            self._stream.send(self._epoch, self.seq, self.filled, state)

    def _promise_header(self) -> None:
        write_header, self._write_header = self._write_header, None
        if write_header is not None:
            write_header()

    def _is_open(self) -> bool:
        return self._state in (FrameProgressState.STARTED, FrameProgressState.PROGRESS)

    def _require_open(self) -> None:
        if not self._is_open():
            ended = self._state is FrameProgressState.COMPLETE
            raise ValueError(f"frame {self.seq} is {'complete' if ended else 'not started'}: no progress to tell")

    def _in_bytes(self, filled: int | None, rows: int | None, columns: int | None) -> int:
        given = [value for value in (filled, rows, columns) if value is not None]
        if len(given) != 1:
            raise ValueError("progress is either bytes, rows or columns")
        if rows is not None:
            return filled_bytes(self._layout, ProgressUnit.ROWS, rows)
        if columns is not None:
            return filled_bytes(self._layout, ProgressUnit.COLUMNS, columns)
        return given[0]

    def _is_due(self, policy: ProgressPolicy, now_ns: int) -> bool:
        """Interval and delta, or anything new after a tick (Wire 10.2.2)."""
        new = self.filled - self._told
        silence_us = (now_ns - self._told_ns) // NANOS_PER_MICRO
        if new == 0 or silence_us < policy.interval_us:
            return False
        return new >= self._delta(policy) or silence_us >= policy.tick_us

    def _delta(self, policy: ProgressPolicy) -> int:
        """The smaller of the two thresholds, in bytes; without a unit in the layout rows are not counted."""
        if policy.major_delta_units == 0 or self._layout.progress_unit == ProgressUnit.NONE:
            return policy.bytes_delta
        return min(policy.bytes_delta, policy.major_delta_units * self._layout.progress_stride_bytes)
