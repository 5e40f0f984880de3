"""Who is there: the services that say so on the status stream, with their last word and its age.

A fold over status events. A status may be heard long after it was said, because a new reader of a local stream begins
where the slowest one is; so its age is told by its stamp, if that can be one of this host's clock. What comes from
another host is as old as its arrival here (`decisions.md` #56). Bounded: whoever was silent longest goes first, and
whoever is silent for long is forgotten.
"""

from __future__ import annotations

import platform
from collections import Counter

import msgspec

from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.service.events import Event
from framepool.service.service import STATUS, ServiceState

FORGOTTEN_NS = 60 * NANOS_PER_SECOND
MOST = 4_096
LONGEST = 4_096
"""Characters of tag and status that are taken from others."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The last word of one service."""

    state: str
    uptime_s: float = 0.0
    version: str = ""
    host: str = ""
    pid: int = 0
    tag: str = ""
    heard_ns: int = 0
    """When that was, on the monotonic clock of whoever listened."""


class Directory:
    """The services that were heard, by tag and by process: two of the same tag are both there to be seen."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._known: dict[tuple[str, str, int], ServiceStatus] = {}

    def on_event(self, event: Event) -> None:
        """Takes a status in; other events are none."""
        if event.key != STATUS:
            return
        text = str(event.value)
        try:
            if len(event.tag) + len(text) > LONGEST:
                raise ValueError(text)
            said = msgspec.json.decode(text, type=ServiceStatus)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.counts["unreadable status"] += 1
            return
        where = (event.tag, said.host, said.pid)
        self._known.pop(where, None)
        if said.state == ServiceState.GONE:
            return
        age_ns = self._clock.timestamp_ns() - event.timestamp_ns if said.host == platform.node() else 0
        heard_ns = self._clock.monotonic_ns() - (age_ns if 0 < age_ns < 2 * FORGOTTEN_NS else 0)
        self._known[where] = msgspec.structs.replace(said, tag=event.tag, heard_ns=heard_ns)
        if len(self._known) > MOST:
            self.counts["too many services"] += 1
            del self._known[next(iter(self._known))]

    def knows(self, tag: str) -> bool:
        """Whether a service of this tag was heard."""
        return any(where[0] == tag for where in self._known)

    def services(self) -> list[ServiceStatus]:
        """All that were heard lately, by tag."""
        oldest = self._clock.monotonic_ns() - FORGOTTEN_NS
        self._known = {where: said for where, said in self._known.items() if said.heard_ns >= oldest}
        return sorted(self._known.values(), key=lambda said: (said.tag, said.host, said.pid))

    def age_s(self, service: ServiceStatus) -> float:
        """Seconds since a service was heard."""
        return (self._clock.monotonic_ns() - service.heard_ns) / NANOS_PER_SECOND
