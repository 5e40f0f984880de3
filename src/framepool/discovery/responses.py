"""Answers on their way: a bounded set of response publications, opened on demand and never waited for.

Each request names its own endpoint (Discovery 4.3). Publications are added asynchronously and are kept, because the
first answer to an endpoint waits for a connection and the next ones do not; the one that was idle for longest makes
room. An answer waits a while for its reader, and is dropped then: whoever wants it asks again.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from typing import Final

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock
from framepool.config import ResponseConfig
from framepool.discovery.policy import Endpoint, TokenBucket
from framepool.errors import MediaDriverLost, TransportError
from framepool.transport.aeron import Client, ExclusivePublication, Outcome, Pending

log = logging.getLogger(__name__)

MOST_WAITING_BYTES: Final = 16 * 2**20
IDLE_NS: Final = 60 * NANOS_PER_SECOND
"""After which the publication to an endpoint that nobody asks from any more is closed."""


class Line:
    """The publication to one endpoint, from when it is asked for, and the answers that wait for it."""

    def __init__(self, pending: Pending[ExclusivePublication]) -> None:
        self.used_ns = 0
        self.bytes = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        """With the time at which each is given up."""
        self._pending = pending
        self._publication: ExclusivePublication | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: bytes, deadline_ns: int) -> None:
        self._waiting.append((deadline_ns, message))
        self.bytes += len(message)

    def flush(self) -> int:
        """Sends what Aeron takes now; how many that was. Raises what the media driver refuses."""
        sent = 0
        if self._publication is None:
            self._publication = self._pending.poll()
        while self._publication is not None and self._waiting:
            outcome = self._publication.offer(self._waiting[0][1])
            if outcome in {Outcome.CLOSED, Outcome.MAX_POSITION_EXCEEDED}:
                raise TransportError(f"{self._publication.describe()}: {Outcome(outcome).name}")
            if outcome < 0:
                break
            self._pop()
            sent += 1
        return sent

    def give_up(self, now_ns: int) -> int:
        """Drops what waited for too long; how many that was."""
        dropped = 0
        while self._waiting and now_ns > self._waiting[0][0]:
            self._pop()
            dropped += 1
        return dropped

    def close(self) -> None:
        self._pending.cancel()

    def _pop(self) -> None:
        self.bytes -= len(self._waiting.popleft()[1])


class Responses:
    """The response publications of one provider."""

    def __init__(self, client: Client, config: ResponseConfig, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._config = config
        self._clock = clock
        self._lines: OrderedDict[Endpoint, Line] = OrderedDict()
        """The one that was used last is last."""
        self._busy: dict[Endpoint, Line] = {}
        self._openings = TokenBucket(config.endpoints_per_second, clock.monotonic_ns())

    def send(self, endpoint: Endpoint, message: bytes) -> None:
        """Sends an answer now or soon, or drops and counts it."""
        now = self._clock.monotonic_ns()
        line = self._lines.get(endpoint)
        if line is None:
            line = self._open(endpoint, now)
        if line is None:
            return
        if sum(each.bytes for each in self._busy.values()) + len(message) > MOST_WAITING_BYTES:
            self.counts["answers without room"] += 1
            return
        line.used_ns = now
        self._lines.move_to_end(endpoint)
        line.put(message, now + self._config.timeout_ms * NANOS_PER_MILLI)
        self._busy[endpoint] = line
        self._flush(endpoint, line, now)

    def do_work(self) -> int:
        """Sends what can be sent, gives up what waited for too long, and closes what is not used any more."""
        now = self._clock.monotonic_ns()
        sent = sum(self._flush(endpoint, line, now) for endpoint, line in list(self._busy.items()))
        while self._lines:
            endpoint, line = next(iter(self._lines.items()))
            if now - line.used_ns <= IDLE_NS:
                break
            self._close(endpoint)
        return sent

    def clear(self) -> None:
        """Lets all of them go: when the media driver is lost, a new one is not to be asked for what strangers
        wanted of the old one."""
        for endpoint in list(self._lines):
            self._close(endpoint)

    def statistics(self) -> dict[str, int]:
        return {"endpoints": len(self._lines), "answers waiting": sum(map(len, self._busy.values())), **self.counts}

    def _open(self, endpoint: Endpoint, now_ns: int) -> Line | None:
        if not self._openings.take(now_ns):
            self.counts["endpoints over the limit"] += 1
            return None
        if len(self._lines) >= self._config.max_endpoints:
            idle = next((each for each in self._lines if each not in self._busy), None)
            self._close(idle or next(iter(self._lines)))
            self.counts["endpoints evicted"] += 1
        try:
            pending = self._client.add_exclusive_publication_async(endpoint.channel, endpoint.stream_id)
        except MediaDriverLost:
            raise
        except TransportError as error:
            self._refused(endpoint, error)
            return None
        self.counts["endpoints opened"] += 1
        line = self._lines[endpoint] = Line(pending)
        return line

    def _flush(self, endpoint: Endpoint, line: Line, now_ns: int) -> int:
        try:
            sent = line.flush()
        except MediaDriverLost:
            raise
        except TransportError as error:
            self._refused(endpoint, error)
            self._close(endpoint)
            return 0
        self.counts["answers sent"] += sent
        self.counts["answers nobody took"] += line.give_up(now_ns)
        if not len(line):
            self._busy.pop(endpoint, None)
        return sent

    def _close(self, endpoint: Endpoint) -> None:
        line = self._lines.pop(endpoint)
        self._busy.pop(endpoint, None)
        self.counts["answers nobody took"] += len(line)
        line.close()

    def _refused(self, endpoint: Endpoint, error: TransportError) -> None:
        self.counts["endpoints refused"] += 1
        if self.counts["endpoints refused"] == 1:
            log.warning("discovery cannot answer to %s: %s", endpoint.channel, error)
