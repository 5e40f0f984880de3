"""Hears all that is said on a host and folds it into a state; says and decides nothing (Wire 10.5, 15.14).

It listens as one of many who may be left behind, so that an observer that is stopped stalls nobody; what it missed it
hears again, for everything that it lives on is repeated. The supervisor acts on what its observer knows; a console
shows it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from framepool.agent import Timers
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config
from framepool.errors import MediaDriverLost
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.supervisor.activity import ActivityReader
from framepool.supervisor.state import State, Thresholds
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener

Topic = Literal["control", "announce", "qos", "metadata", "service_status"]
"""The streams that everything is folded from; what is asked comes before what is announced in answer."""

MESSAGES_PER_CYCLE: Final = 256
TICK_NS: Final = 100 * NANOS_PER_MILLI
READINGS_PER_PERIOD: Final = 2


class Observer:
    """What is known, kept up to date by `do_work` from `listen` to `close`.

    It uses a client that somebody else brings back when it is lost.
    """

    def __init__(self, client: Client, config: Config, clock: Clock) -> None:
        self.state = State(Thresholds.of(config))
        self._client = client
        self._config = config
        self._clock = clock
        self._timers = Timers(clock)
        self._ears: dict[Topic, Listener] = {}
        self._reader: ActivityReader | None = None
        if config.supervisor.read_activity and channel.parse(config.channels.announce)[0] == "ipc":
            bases = [config.driver.shm_base_dir, config.driver.hugepages_dir]
            allowed = AllowedDirectories([base for base in bases if base])
            self._reader = ActivityReader(allowed, clock, OwnerPolicy.sharing(config.driver.group_id))
        self._timers.every(TICK_NS, lambda: self.state.tick(self._clock.monotonic_ns()), first_ns=0)
        period_ns = config.driver.announce_period_ms * NANOS_PER_MILLI
        self._timers.every(max(1, period_ns // READINGS_PER_PERIOD), self._begin_readings)

    def listen(self) -> None:
        """Hears from now on."""
        ids, channels = self._config.stream_ids, self._config.channels
        for topic in get_args(Topic):
            where = channel.control_subscription(getattr(channels, topic))
            self._ears[topic] = Listener(self._client.add_subscription(where, getattr(ids, topic)))

    def do_work(self) -> int:
        """Takes in what was said, and reads what is due; never waits."""
        return self._hear() + self._read() + self._timers.poll()

    def close(self) -> None:
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()
        if self._reader is not None:
            self._reader.close()

    def statistics(self) -> dict[str, int]:
        """How often it was left behind, what became of readings, and what is known."""
        readings = {} if self._reader is None else self._reader.counts
        return {
            "left_behind": sum(ear.left_behind for ear in self._ears.values()),
            **{f"activity {kind}": count for kind, count in readings.items()},
            **self.state.statistics(),
        }

    def _hear(self) -> int:
        heard = 0
        for ear in self._ears.values():
            try:
                messages = ear.poll(MESSAGES_PER_CYCLE)
            except MediaDriverLost:
                return heard
            now = self._clock.monotonic_ns()
            for message in messages:
                self.state.receive(message, now)
            heard += len(messages)
        return heard

    def _begin_readings(self) -> None:
        if self._reader is not None:
            self._reader.begin(self.state.streams.values())

    def _read(self) -> int:
        if self._reader is None:
            return 0
        readings = list(self._reader.read())
        for reading in readings:
            self.state.on_activity(reading, self._clock.monotonic_ns())
        return len(readings)
