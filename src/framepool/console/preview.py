"""Previews: readers that look at a stream a few times a second for as long as somebody looks at them.

A preview is a rate-limited consumer like any other, and the least demanding one: it passes over all frames but the
newest when its turn comes, thins that one out while it stands in shared memory, and gives the picture away only if
the one who asked for it has drawn the last. So neither a fast stream nor a slow page costs the producer anything.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock, MonotonicClock
from framepool.console.picture import Wish, encoded, picture
from framepool.errors import FrameOverwritten, FramepoolError

log = logging.getLogger(__name__)

LINGER_NS = 3 * NANOS_PER_SECOND
"""How long a reader outlives the last who watched: a page that is loaded again finds it still there."""
RETRY_NS = 2 * NANOS_PER_SECOND
LATE_NS = 20 * NANOS_PER_MILLI
"""Between two looks at a stream that is due and has no new frame, or nobody who would draw it yet."""
LONGEST_NS = NANOS_PER_SECOND
FULL_RATE_STREAMS = 4
"""That are shown at the configured rate; where more are watched, all of them share what these would take."""
MOST_STREAMS = 1_024
"""That are watched, or were a moment ago: pages ask for whatever they like."""


class Shown(Protocol):
    """What a preview needs of a frame."""

    @property
    def seq(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...


class Source(Protocol):
    """What a preview needs of a consumer."""

    @property
    def consumer_id(self) -> int | None: ...
    def newest(self) -> Shown | None: ...
    def close(self) -> None: ...


type Pictures = dict[int, bytes]
"""By stream, as `picture.encoded` made them."""


class Viewer(Protocol):
    """Somebody who watches. Asked and told on the thread of the previews; must not wait."""

    def wishes(self, stream_id: int) -> Wish | None:
        """What it would take of that stream right now; None while it has not drawn the last picture."""

    def show(self, pictures: Pictures) -> None:
        """What its streams look like now."""


class Watched:
    """A stream that is watched: its reader once there is one, and when its next turn comes."""

    def __init__(self, stream_id: int, now_ns: int) -> None:
        self.stream_id = stream_id
        self.viewers: set[Viewer] = set()
        self.source: Source | None = None
        self.refusal = ""
        self.attach_ns = now_ns
        self.due_ns = now_ns
        self.unwatched_ns = now_ns
        self.frame_bytes: int | None = None
        self.shape: tuple[int, ...] = ()
        self.dtype = ""


class Previews:
    """Turns the readers of all streams that are watched. An agent; `watch` and `leave` may be called by others."""

    role = "previews"

    def __init__(
        self, attach: Callable[[int], Source], *, rate_hz: int, clock: Clock | None = None, largest: int = 1_024
    ) -> None:
        """`attach` makes the reader of a stream, or raises what keeps it from it; it may take its time, and is
        called by `attach_due` alone."""
        self.counts: Counter[str] = Counter()
        self._attach = attach
        self._period_ns = NANOS_PER_SECOND // rate_hz
        self._shares = 1
        self._largest = largest
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._streams: dict[int, Watched] = {}
        self._roused = threading.Event()

    def watch(self, viewer: Viewer, stream_ids: Iterable[int]) -> None:
        """Shows these streams to this viewer from now on, and no others."""
        wanted = set(stream_ids)
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            for stream_id in wanted:
                watched = self._streams.get(stream_id)
                if watched is None:
                    if len(self._streams) >= MOST_STREAMS and not self._make_room():
                        self.counts["too many streams"] += 1
                        continue
                    watched = self._streams[stream_id] = Watched(stream_id, now_ns)
                watched.viewers.add(viewer)
            for stream_id, watched in self._streams.items():
                if stream_id not in wanted and viewer in watched.viewers:
                    watched.viewers.remove(viewer)
                    watched.unwatched_ns = now_ns
        self.rouse()

    def leave(self, viewer: Viewer) -> None:
        """Shows this viewer nothing more."""
        self.watch(viewer, ())

    def on_start(self) -> None:
        pass

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        shown: dict[Viewer, Pictures] = {}
        streams = self.streams()
        self._shares = -(-sum(bool(watched.viewers) for watched in streams) // FULL_RATE_STREAMS)
        done = sum(self._turn(watched, now_ns, shown) for watched in streams)
        for viewer, pictures in shown.items():
            viewer.show(pictures)
        return done

    def idle(self, work: int) -> None:
        """The wait between two turns: until a picture is due, or `rouse`."""
        if work == 0:
            self._roused.wait(self.rest_ns() / NANOS_PER_SECOND)
        self._roused.clear()

    def rouse(self) -> None:
        """Ends that wait: somebody came."""
        self._roused.set()

    def rest_ns(self) -> int:
        """How long there is nothing to do, as far as is known now."""
        now_ns = self._clock.monotonic_ns()
        next_ns = min((_next_look(watched, now_ns) for watched in self.streams()), default=now_ns + LONGEST_NS)
        return min(max(0, next_ns - now_ns), LONGEST_NS)

    def attach_due(self) -> int:
        """Makes the readers that are missing. Waits for leases, so it has a thread of its own."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            missing = [each for each in self._streams.values() if each.source is None and each.viewers]
        made = 0
        for watched in missing:
            if watched.attach_ns > now_ns:
                continue
            try:
                source = self._attach(watched.stream_id)
            except FramepoolError as error:
                watched.refusal = str(error)
                watched.attach_ns = self._clock.monotonic_ns() + RETRY_NS
                self.counts["refused"] += 1
                continue
            made += self._seat(watched, source)
        return made

    def on_close(self) -> None:
        with self._lock:
            streams, self._streams = self._streams, {}
        for watched in streams.values():
            _close(watched)

    def statistics(self) -> dict[str, object]:
        with self._lock:
            open_now = sum(watched.source is not None for watched in self._streams.values())
            return {"watched": len(self._streams), "open": open_now, **self.counts}

    def streams(self) -> list[Watched]:
        """All that are watched now."""
        with self._lock:
            return list(self._streams.values())

    def known(self, stream_id: int) -> Watched | None:
        """What was seen of a stream while it was watched."""
        return self._streams.get(stream_id)

    def _turn(self, watched: Watched, now_ns: int, shown: dict[Viewer, Pictures]) -> int:
        """Adds what this stream gives to what is shown."""
        if not watched.viewers:
            if now_ns - watched.unwatched_ns > LINGER_NS:
                self._forget(watched)
            return 0
        if watched.source is None or now_ns < watched.due_ns:
            return 0
        wishes = {viewer: wish for viewer in list(watched.viewers) if (wish := viewer.wishes(watched.stream_id))}
        if not wishes:
            return 0
        frame = watched.source.newest()
        if frame is None:
            return 0
        watched.due_ns = self._next_due(now_ns)
        self._show(watched, frame, wishes, shown)
        return 1

    def _next_due(self, now_ns: int) -> int:
        """All streams are shown at the same times, half a period from now at least, so that a page gets them in one
        message and composes itself anew once."""
        period_ns = self._period_ns * self._shares
        return ((now_ns + period_ns // 2) // period_ns + 1) * period_ns

    def _show(self, watched: Watched, frame: Shown, wishes: dict[Viewer, Wish], shown: dict[Viewer, Pictures]) -> None:
        """One picture for each kind of wish; none at all of a frame that was overwritten meanwhile."""
        sizes = {wish: Wish(min(wish.size, self._largest), wish.region) for wish in set(wishes.values())}
        try:
            with frame as image:
                found = {wish: picture(image, size) for wish, size in sizes.items()}
                frame_bytes = int(image.nbytes)
        except FrameOverwritten:
            self.counts["overwritten"] += 1
            return
        watched.frame_bytes, watched.shape, watched.dtype = frame_bytes, tuple(frame.shape), str(frame.dtype)
        about = {
            "stream": watched.stream_id,
            "seq": frame.seq,
            "epoch": frame.epoch,
            "timestamp_ns": frame.timestamp_ns,
            "shape": watched.shape,
            "dtype": watched.dtype,
        }
        messages = {wish: encoded(each, **about) for wish, each in found.items()}
        for viewer, wish in wishes.items():
            shown.setdefault(viewer, {})[watched.stream_id] = messages[wish]
        self.counts["shown"] += len(wishes)

    def _seat(self, watched: Watched, source: Source) -> bool:
        """Gives a stream its reader, unless everybody left while it was made."""
        with self._lock:
            wanted = self._streams.get(watched.stream_id) is watched
            if wanted:
                watched.refusal = ""
                watched.source = source
                self.rouse()
        if not wanted:
            source.close()
        return wanted

    def _make_room(self) -> bool:
        """Lets go of a stream that nobody watches any more and that has no reader yet. With the lock held."""
        idle = [each for each in self._streams.values() if not each.viewers and each.source is None]
        for watched in idle:
            del self._streams[watched.stream_id]
        return bool(idle)

    def _forget(self, watched: Watched) -> None:
        with self._lock:
            if watched.viewers or self._streams.get(watched.stream_id) is not watched:
                return
            del self._streams[watched.stream_id]
        _close(watched)


def _next_look(watched: Watched, now_ns: int) -> int:
    """When a turn may do something for a stream, if nobody says so earlier."""
    if not watched.viewers:
        return watched.unwatched_ns + LINGER_NS + 1
    if watched.source is None:
        return now_ns + LONGEST_NS
    return watched.due_ns if watched.due_ns > now_ns else now_ns + LATE_NS


def _close(watched: Watched) -> None:
    source, watched.source = watched.source, None
    if source is not None:
        with contextlib.suppress(FramepoolError):
            source.close()
