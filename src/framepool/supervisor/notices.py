"""What happened, in order: numbered, bounded, and each worth a line to a person (alerts among them)."""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import msgspec


class Level(StrEnum):
    """How much a notice matters."""

    INFO = "info"
    WARNING = "warning"
    ALERT = "alert"


class Kind(StrEnum):
    """What happened."""

    STREAM_NEW = "stream new"
    STREAM_SILENT = "stream silent"
    STREAM_BACK = "stream back"
    STREAM_FORGOTTEN = "stream forgotten"
    EPOCH = "epoch"
    METADATA = "metadata"
    PRODUCER_NEW = "producer new"
    PRODUCER_LEFT = "producer left"
    PRODUCER_DEAD = "producer dead"
    PRODUCER_BACK = "producer back"
    CONSUMER_NEW = "consumer new"
    CONSUMER_LEFT = "consumer left"
    CONSUMER_STALE = "consumer stale"
    CONSUMER_BACK = "consumer back"
    CONSUMER_DUPLICATE = "consumer id twice"
    CONSUMER_TOLD = "consumer told"
    CONSUMER_DEAF = "consumer does not obey"
    DROPS_HIGH = "drops high"
    DROPS_LOW = "drops low again"
    DRIVER_SHUTDOWN = "driver shutdown"
    COMMAND = "command sent"


LEVELS: Final = {
    Kind.STREAM_SILENT: Level.ALERT,
    Kind.PRODUCER_DEAD: Level.ALERT,
    Kind.CONSUMER_STALE: Level.WARNING,
    Kind.CONSUMER_DUPLICATE: Level.ALERT,
    Kind.CONSUMER_DEAF: Level.WARNING,
    Kind.DROPS_HIGH: Level.WARNING,
    Kind.DRIVER_SHUTDOWN: Level.WARNING,
}
"""Of those that are more than information."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened."""

    number: int
    """Rises by one with each notice."""
    at_ns: int
    """When, on the monotonic clock of the supervisor."""
    kind: Kind
    text: str
    stream_id: int | None = None
    client_id: int | None = None
    """Of the producer or consumer that it concerns."""

    @property
    def level(self) -> Level:
        return LEVELS.get(self.kind, Level.INFO)

    def plain(self) -> dict[str, Any]:
        """What JSON can say of it."""
        return {**msgspec.to_builtins(self), "level": self.level.value}


class Journal:
    """The last notices."""

    def __init__(self, capacity: int) -> None:
        self.counts: Counter[str] = Counter()
        """All that ever were, by kind."""
        self._notices: deque[Notice] = deque(maxlen=capacity)
        self._last = 0

    def note(
        self, kind: Kind, at_ns: int, text: str, *, stream_id: int | None = None, client_id: int | None = None
    ) -> Notice:
        """Writes a notice down."""
        self._last += 1
        notice = Notice(number=self._last, at_ns=at_ns, kind=kind, text=text, stream_id=stream_id, client_id=client_id)
        self._notices.append(notice)
        self.counts[kind] += 1
        return notice

    @property
    def last(self) -> int:
        """The number of the newest notice; 0 before the first."""
        return self._last

    def after(self, number: int) -> list[Notice]:
        """What happened after that notice, oldest first, as far as it is remembered."""
        newer = min(self._last - number, len(self._notices))
        return list(islice(self._notices, len(self._notices) - newer, None)) if newer > 0 else []
