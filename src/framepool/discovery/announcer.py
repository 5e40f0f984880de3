"""What a driver tells registries: its announces and the metadata of its streams, again on channels for them.

Of each stream the newest message of a kind waits, so that a registry that is slow or away costs a bounded memory, and
what it hears next is the truth. Messages leave at a pace: a driver of a thousand streams announces them all at once,
and a burst of that size is what a receiver's socket loses. The channel is what tells a registry whose messages these
are (Discovery 6.4; `decisions.md` #46).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock
from framepool.config import Config
from framepool.errors import MediaDriverLost
from framepool.transport import channel
from framepool.transport.aeron import Client, ExclusivePublication, Outcome
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce

SLOWEST: Final = 1_000
"""Messages a second that leave at least while there are any."""
SHARES: Final = 8
"""A backlog would leave within this part of a period, did it not shrink; in all, half a period is enough."""
LONGEST_STEP_NS: Final = 5 * NANOS_PER_MILLI
"""An agent that was held up does not make up for it with a burst."""

Told = ShmPoolAnnounce | DataSourceAnnounce | DataSourceMeta


class Pace:
    """How many messages of a backlog may leave now."""

    def __init__(self, period_ns: int, now_ns: int) -> None:
        self._period_ns = period_ns
        self._last_ns = now_ns
        self._due = 0.0

    def step(self, backlog: int, now_ns: int) -> int:
        """So many since the last time; what could not leave then is not owed."""
        rate = max(SLOWEST / NANOS_PER_SECOND, SHARES * backlog / self._period_ns)
        elapsed = min(now_ns - self._last_ns, LONGEST_STEP_NS)
        self._last_ns = now_ns
        due = self._due % 1 + elapsed * rate
        self._due = due
        return min(int(due), backlog)


class Lane:
    """One publication and the newest messages that wait for it, in the order in which their streams came."""

    def __init__(self, publication: ExclusivePublication, pace: Pace, counts: Counter[str]) -> None:
        self._publication = publication
        self._pace = pace
        self._counts = counts
        self._waiting: dict[tuple[int, int], bytes] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, stream_id: int, template_id: int, message: bytes) -> None:
        if len(message) > self._publication.max_message_length:
            self._counts["registry messages too long"] += 1
            return
        self._waiting[stream_id, template_id] = message

    def flush(self, now_ns: int) -> int:
        """Sends as many as the pace allows and Aeron takes; how many that was."""
        if not self._waiting:
            return 0
        sent = 0
        for key in list(islice(self._waiting, self._pace.step(len(self._waiting), now_ns))):
            outcome = self._publication.offer(self._waiting[key])
            if outcome in {Outcome.BACK_PRESSURED, Outcome.ADMIN_ACTION}:
                self._counts["registry back pressure"] += 1
                break
            self._counts["registry messages" if outcome >= 0 else "registry messages nobody heard"] += 1
            del self._waiting[key]
            sent += 1
        return sent

    def clear(self) -> None:
        self._waiting.clear()


class Announcer:
    """Repeats what concerns the streams of one driver on the configured channels."""

    def __init__(self, config: Config, client: Client, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._config = config
        self._client = client
        self._clock = clock
        self._announces: Sequence[Lane] = ()
        self._metadata: Sequence[Lane] = ()

    def on_start(self) -> None:
        """Opens the channels; raises where the media driver refuses one."""
        ids = self._config.stream_ids
        self._announces = [self._lane(each, ids.announce) for each in self._config.discovery.announce_channels]
        self._metadata = [self._lane(each, ids.metadata) for each in self._config.discovery.announce_channels]

    def put(self, message: Told, encoded: bytes) -> None:
        """Repeats a message, unless a newer one of its kind and stream comes first."""
        lanes = self._announces if isinstance(message, ShmPoolAnnounce) else self._metadata
        for lane in lanes:
            lane.put(message.stream_id, message.TEMPLATE_ID, encoded)

    def do_work(self) -> int:
        now = self._clock.monotonic_ns()
        try:
            return sum(lane.flush(now) for lane in (*self._announces, *self._metadata))
        except MediaDriverLost:  # the driver waits for it
            return 0

    def clear(self) -> None:
        """Forgets what waits: it is not true any more."""
        for lane in (*self._announces, *self._metadata):
            lane.clear()

    def statistics(self) -> dict[str, int]:
        waiting = sum(len(lane) for lane in (*self._announces, *self._metadata))
        return {"registry messages waiting": waiting, **self.counts}

    def _lane(self, name: str, stream_id: int) -> Lane:
        where = channel.control_publication(name, self._config.aeron)
        period_ns = self._config.driver.announce_period_ms * NANOS_PER_MILLI
        publication = self._client.add_exclusive_publication(where, stream_id)  # a session of its own, if it names one
        return Lane(publication, Pace(period_ns, self._clock.monotonic_ns()), self.counts)
