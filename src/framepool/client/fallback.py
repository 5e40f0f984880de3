"""Payloads that come another way than through shared memory: the seam to whoever brings them (Wire 10.1.3, 15.12).

The client decides when to leave shared memory and knows the URI to turn to. How payloads travel is known to the bridge,
which stands above the client; so a pool is given an `OpenSource`, and `framepool.connect` and `serve` give it the
bridge's. What comes back is slots in private memory, of which frames are made as of any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from framepool._native.frames import Changes
from framepool._native.seqlock import CheckedSlot, RingReader
from framepool.client.hello import Fallback
from framepool.client.plane import ControlPlane, Place
from framepool.config import Config
from framepool.errors import FramepoolError
from framepool.shm.region import MappedStream
from framepool.transport.aeron import Client
from framepool.wire.message import Message

log = logging.getLogger(__name__)


class Arrived(NamedTuple):
    """A frame that came another way."""

    ring: RingReader
    checked: CheckedSlot
    epoch: int
    """The source's."""
    trace_id: int | None


class PayloadSource(Protocol):
    """The frames of one stream, wherever they come from. A member of the control plane, which turns it."""

    def start(self) -> None: ...
    def do_work(self) -> int: ...
    def due_ns(self) -> int: ...
    def close(self) -> None: ...

    def take(self, limit: int) -> list[Arrived]:
        """What came since the last call, oldest first; never waits. From the consumer's thread."""

    def wait(self, timeout: float) -> bool:
        """Whether there is something to take, waiting for it up to `timeout` seconds. From the consumer's thread."""

    @property
    def epoch(self) -> int | None:
        """The epoch of the source whose frames come."""

    def statistics(self) -> dict[str, int]:
        """Frames and chunks by what became of them."""


class SourceRequest(NamedTuple):
    """What an opener needs."""

    uri: str
    """As it was told: `aeron:…|stream-id=N` or `bridge://ID`."""
    stream_id: int
    client: Client
    plane: ControlPlane
    config: Config
    tell: Callable[[Message], object]
    """Takes the metadata of the stream that comes along with the payloads."""


OpenSource = Callable[[SourceRequest], PayloadSource]
"""Raises `FramepoolError` for a URI that leads nowhere."""


class Elsewhere:
    """The source that one consumer takes its payloads from while it cannot, or may not, read shared memory."""

    def __init__(self, plane: ControlPlane, open_source: Callable[[str], PayloadSource]) -> None:
        self._plane = plane
        self._open_source = open_source
        self._wanted: Fallback | None = None
        self._source: PayloadSource | None = None
        self.refusal = ""
        """Why nothing comes from where it was to come."""

    def follow(self, wanted: Fallback | None) -> PayloadSource | None:
        """Turns to this source and away from the one before; None if there is none to take from."""
        if wanted != self._wanted:
            self.close()
            self._wanted = wanted
            if wanted is not None and wanted.supported:
                self._open(wanted.uri)
        return self._source

    def close(self) -> None:
        source, self._source = self._source, None
        self._wanted = None
        self.refusal = ""
        if source is not None:
            self._plane.leave(source)

    def _open(self, uri: str) -> None:
        try:
            self._source = self._plane.join(self._open_source(uri))
        except FramepoolError as error:
            self.refusal = f"{uri}: {error}"
            log.warning("payloads cannot come from %s", self.refusal)


class NoPlace(Place):
    """The place of a consumer that does not use shared memory at all: it never has regions."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.changes = Changes()

    @property
    def stream(self) -> MappedStream | None:
        return None

    def unmap(self, why: str) -> None:
        pass

    def identity(self) -> tuple[int, int] | None:
        return None

    def refusal(self) -> str:
        return "nobody said where its payloads come from"

    def rejected(self) -> str:
        return "shared memory is not used"

    def statistics(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass
