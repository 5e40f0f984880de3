"""How producers and consumers fare, as Aeron counters that anybody on the host may read (Wire 15.16).

QoS reports say how far everybody came and what was lost, and have no room for more. How large frames are and how old
they were when they were read is told here: renewed each second, without a message, at no cost to a stream. Whoever
watches reads them out of the media driver's file, `read` says how.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from framepool.agent import Timers
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.errors import MediaDriverLost, TransportError
from framepool.transport import cnc
from framepool.transport.aeron import Client, Counter, Pending
from framepool.wire._generated.driver_901 import Role

TYPES: Final = {
    "frames": 2111,
    "frame_bytes": 2112,
    "latency_p50_ns": 2113,
    "latency_p90_ns": 2114,
    "latency_p99_ns": 2115,
}
NAMES: Final = {type_id: name for name, type_id in TYPES.items()}
KEY: Final = struct.Struct("<III")
"""Role, stream id, client id."""
UNKNOWN: Final = -1
"""What a counter says while there is nothing to tell."""

Values = Mapping[str, int | None]


class Gauge(msgspec.Struct, frozen=True):
    """One number of one producer or consumer."""

    role: Role
    stream_id: int
    client_id: int
    name: str
    value: int


class Gauges:
    """The counters of one producer or consumer. A member of the control plane."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        role: Role,
        stream_id: int,
        *,
        identity: Callable[[], int | None],
        read: Callable[[], Values],
    ) -> None:
        """`identity` is the id under which it is known now, None while there is none; `read` gives the numbers."""
        self._client = client
        self._role = role
        self._stream_id = stream_id
        self._identity = identity
        self._read = read
        self._known_as: int | None = None
        self._pending: dict[str, Pending[Counter]] = {}
        self._counters: dict[str, Counter] = {}
        self._timers = Timers(clock)
        self._timers.every(NANOS_PER_SECOND, self._renew, first_ns=0)

    def start(self) -> None:
        pass

    def do_work(self) -> int:
        for name, pending in list(self._pending.items()):
            with contextlib.suppress(TransportError):
                if (counter := pending.poll()) is not None:
                    counter.set(UNKNOWN)
                    self._counters[name] = counter
                    del self._pending[name]
        return self._timers.poll()

    def due_ns(self) -> int:
        return 0 if self._pending else self._timers.next_deadline_ns() or 0

    def close(self) -> None:
        for pending in self._pending.values():
            pending.cancel()
        for counter in self._counters.values():
            counter.close()
        self._pending.clear()
        self._counters.clear()

    def _renew(self) -> None:
        """Sets what is there; a lost media driver gives the counters back with everything else."""
        values = self._read()
        with contextlib.suppress(TransportError):
            identity = self._identity()
            if identity != self._known_as:
                self.close()
                self._known_as = identity
                if identity is not None:
                    self._add(identity, values)
        with contextlib.suppress(MediaDriverLost):
            for name, counter in self._counters.items():
                value = values.get(name)
                counter.set(UNKNOWN if value is None else value)

    def _add(self, identity: int, values: Values) -> None:
        key = KEY.pack(self._role, self._stream_id, identity)
        for name in values:
            label = f"framepool {self._role.name.lower()} {self._stream_id}/{identity} {name}"
            self._pending[name] = self._client.add_counter_async(TYPES[name], label, key)


def read(directory: str) -> Iterator[Gauge]:
    """Every gauge of the media driver in that directory; none while there is none."""
    try:
        records = cnc.counters(directory)
    except TransportError:
        return
    for record in records:
        if record.type_id not in NAMES or record.state != "allocated" or record.value == UNKNOWN:
            continue
        role, stream_id, client_id = KEY.unpack_from(record.key)
        if role in Role:
            yield Gauge(Role(role), stream_id, client_id, NAMES[record.type_id], record.value)
