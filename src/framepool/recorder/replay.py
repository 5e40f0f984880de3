"""A recording into live streams again: the same bytes, the same timestamps, at the pace that is wanted.

The frames get new sequence numbers, in the epochs of the streams that they are published on; all else is as it was
recorded: payload, layout, timestamps, metadata versions with their attributes, trace ids and links. An agent, which
publishes what is due and never waits: readers that are too slow for the pace lose frames, as they do with a camera.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from framepool.agent import AgentTerminated
from framepool.client.producer import Producer
from framepool.clock import NANOS_PER_SECOND, Clock, MonotonicClock
from framepool.errors import RecordingDamaged, RecordingError
from framepool.recorder.recording import Frames, RecordedFrame, Recording
from framepool.wire._generated.trace_904 import TraceLinkSet

BATCH: Final = 64
"""Frames published in one turn, at the most."""


class _Parent(NamedTuple):
    trace_id: int


class Replay:
    """Publishes the frames of a recording. An agent that ends with the last of them, unless it loops.

    `producers` are by the id of the stream that was recorded. `speed` is a factor, 0 is as fast as it goes. `start` and
    `end` are seconds from the first frame.
    """

    role = "replay"

    def __init__(
        self,
        recording: Recording,
        producers: Mapping[int, Producer],
        *,
        speed: float = 1.0,
        start: float = 0.0,
        end: float | None = None,
        loop: bool = False,
        wait_for_readers: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if speed < 0 or start < 0 or (end is not None and end <= start):
            raise ValueError("speed and start are 0 or more, and end lies behind start")
        if not producers:
            raise ValueError("a replay needs at least one stream")
        self.counts: Counter[str] = Counter()
        self._producers = dict(producers)
        self._speed = speed
        self._loop = loop
        self._wait_for_readers = wait_for_readers
        self._clock = clock or MonotonicClock()
        self._context = _Context(recording)
        self._frames = self._chosen(recording)
        if not len(self._frames):
            raise RecordingError(f"{recording.path}: there are no frames to replay")
        self._time_of = _pace(self._producers)
        self._origin_ns = self._time_of(self._frames[0])
        self._first = self._find(start)
        self._end = len(self._frames) if end is None else self._find(end)
        self._at = self._first
        self._base: tuple[int, int] | None = None
        """A moment on our clock, and the frame's time that belongs to it."""

    @property
    def position(self) -> float:
        """Seconds from the first frame to the next one."""
        at = min(self._at, len(self._frames) - 1)
        return (self._time_of(self._frames[at]) - self._origin_ns) / NANOS_PER_SECOND

    @property
    def total(self) -> int:
        """Frames from the start to the end, once."""
        return max(0, self._end - self._first)

    @property
    def done(self) -> int:
        """Frames of this round that were dealt with."""
        return self._at - self._first

    def seek(self, seconds: float) -> None:
        """Goes on at the first frame that is not earlier than so long after the first one of all."""
        self._at = min(max(self._find(seconds), self._first), self._end)
        self._base = None

    def on_start(self) -> None:
        pass

    def do_work(self) -> int:
        if self._wait_for_readers:
            if not all(producer.has_readers for producer in self._producers.values()):
                return 0
            self._wait_for_readers = False
        done = 0
        while done < BATCH:
            if self._at >= self._end:
                if not self._loop or not self.total:
                    raise AgentTerminated
                self.counts["rounds"] += 1
                self._at, self._base = self._first, None
            frame = self._frames[self._at]
            if not self._is_due(frame):
                break
            self._publish(frame)
            self._at += 1
            done += 1
        return done

    def on_close(self) -> None:
        pass

    def statistics(self) -> dict[str, object]:
        return {"position_s": self.position, "done": self.done, "total": self.total, **self.counts}

    def _is_due(self, frame: RecordedFrame) -> bool:
        if self._speed == 0:
            return True
        now_ns, time_ns = self._clock.monotonic_ns(), self._time_of(frame)
        if self._base is None or time_ns < self._base[1]:  # the clock of the recording began anew
            self._base = (now_ns, time_ns)
            return True
        return now_ns - self._base[0] >= (time_ns - self._base[1]) / self._speed

    def _publish(self, frame: RecordedFrame) -> None:
        producer = self._producers[frame.stream_id]
        self._context.restore(producer, frame)
        seq = producer.publish_raw(
            frame.payload,
            frame.tensor_header,
            timestamp_ns=frame.timestamp_ns,
            meta_version=frame.meta_version,
            trace_id=frame.trace_id,
            parents=self._context.parents(frame),
        )
        self.counts["dropped" if seq is None else "published"] += 1

    def _chosen(self, recording: Recording) -> Frames:
        """The frames of the wanted streams, in the order in which they were recorded."""
        return recording.only(self._producers)

    def _find(self, seconds: float) -> int:
        wanted = self._origin_ns + int(seconds * NANOS_PER_SECOND)
        return bisect.bisect_left(self._frames, wanted, key=self._time_of)


def _pace(producers: Mapping[int, Producer]) -> Callable[[RecordedFrame], int]:
    """Whose time frames follow: that of their source, or of the recorder where several sources must keep together or
    where there is none."""
    if len(producers) > 1:
        return lambda frame: frame.monotonic_ns
    return lambda frame: frame.timestamp_ns or frame.monotonic_ns


class _Context:
    """What frames refer to: metadata, and the traces of the frames they were made of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._restored: dict[int, tuple[int, int, int]] = {}
        self._links: dict[int, dict[tuple[int, int, int], list[_Parent]]] = {}

    def restore(self, producer: Producer, frame: RecordedFrame) -> None:
        """Gives the producer the attributes of the frame's version, if they are not its own already."""
        key = (frame.segment.number, frame.epoch, frame.meta_version)
        if self._restored.get(producer.stream_id) == key:
            return
        self._restored[producer.stream_id] = key
        metadata = frame.metadata
        if metadata is None:
            return
        mine = producer.metadata
        if mine.version != metadata.version or mine.attributes != metadata.attributes:
            mine.restore(metadata.version, metadata.attributes)

    def parents(self, frame: RecordedFrame) -> list[_Parent]:
        if frame.trace_id is None:
            return []
        key = (frame.stream_id, frame.epoch, frame.seq)
        for number in (frame.segment.number, frame.segment.number + 1, frame.segment.number - 1):
            if found := self._links_of(number).get(key):
                return found
        return []

    def _links_of(self, number: int) -> dict[tuple[int, int, int], list[_Parent]]:
        """The trace links that were recorded in a segment; beside their frame, or just before or behind it."""
        if number not in self._links:
            if len(self._links) > 8:
                self._links.clear()
            found = self._links[number] = {}
            for segment in self._recording.segments:
                if segment.number != number:
                    continue
                for row in segment.messages:
                    if row.schema_id == TraceLinkSet.SCHEMA_ID:
                        links = segment.message(row)
                        if not isinstance(links, TraceLinkSet):
                            raise RecordingDamaged(f"{segment.path}: the message at byte {row.offset} is no trace")
                        parents = [_Parent(parent.trace_id) for parent in links.parents]
                        found[links.stream_id, links.epoch, links.seq] = parents
        return self._links[number]
