"""Who listens to a driver and tells the journal what it granted, ended and announced, in the driver's own order.

Requests and answers come from different publishers, and a grant does not say to whom: an answer waits for the request
that it names, and what the driver said later waits behind it.
"""

from __future__ import annotations

from collections import deque

from framepool.client.plane import ControlPlane
from framepool.clock import NANOS_PER_SECOND
from framepool.testing.journal import Journal
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    ResponseCode,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseRevoked,
)

PATIENCE_NS = 2 * NANOS_PER_SECOND
"""For a request that was answered already."""
KEPT_REQUESTS = 10_000
INSTANCE_BITS = 32
"""Lease ids of one driver have their upper half in common (`driver.leases`)."""

Said = ShmAttachResponse | ShmLeaseRevoked | ShmDriverShutdown


class Witness:
    """Hears what a driver says. Turned by the plane that it listens on."""

    def __init__(self, plane: ControlPlane, journal: Journal) -> None:
        self.heard = 0
        self._plane = plane
        self._journal = journal
        self._requests: dict[int, ShmAttachRequest] = {}
        self._answered: dict[int, int] = {}
        self._said: deque[tuple[Said, int]] = deque()
        self._announced: dict[int, ShmPoolAnnounce] = {}
        self._instance: int | None = None
        self._missed = (0, 0)
        with plane.lock():
            plane.listen("control", ShmAttachRequest, self._on_request)
            plane.listen("control", ShmAttachResponse, self._on_said)
            plane.listen("control", ShmLeaseRevoked, self._on_said)
            plane.listen("control", ShmDriverShutdown, self._on_said)
            plane.listen("announce", ShmPoolAnnounce, self._on_announce)
            plane.join(self)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def do_work(self) -> int:
        """Tells what can be told by now."""
        self._note_deafness()
        told = 0
        while self._said and self._tell(*self._said[0]):
            self._said.popleft()
            told += 1
        self.heard += told
        return told

    def due_ns(self) -> int:
        return 0

    def _note_deafness(self) -> None:
        """Before anything else that comes then, because it may be what was heard already."""
        statistics = self._plane.statistics()
        missed = (statistics["reconnects"], statistics["left_behind"])
        if missed != self._missed:
            self._missed = missed
            self._said.clear()
            self._journal.deaf()

    def _tell(self, said: Said, heard_ns: int) -> bool:
        """Puts it into the journal; False if that has to wait."""
        if isinstance(said, ShmDriverShutdown):
            self._journal.shutdown()
        elif isinstance(said, ShmLeaseRevoked):
            self._journal.ended(said.lease_id, said.stream_id)
        else:
            request = self._requests.get(said.correlation_id)
            if request is None:
                if self._plane.clock.monotonic_ns() - heard_ns < PATIENCE_NS:
                    return False
                self._journal.deaf()
                return True
            assert said.lease_id is not None
            assert said.stream_id is not None
            assert said.epoch is not None
            if self._instance != said.lease_id >> INSTANCE_BITS:
                self._instance = said.lease_id >> INSTANCE_BITS
                self._journal.deaf()  # another driver: the leases of the one before ended with it
            self._journal.granted(said.lease_id, request.client_id, request.role, said.stream_id, said.epoch)
        return True

    def _on_request(self, request: ShmAttachRequest) -> None:
        if len(self._requests) >= KEPT_REQUESTS:
            del self._requests[next(iter(self._requests))]
        self._requests[request.correlation_id] = request

    def _on_said(self, said: Said) -> None:
        self._note_deafness()
        if isinstance(said, ShmAttachResponse):
            if said.code is not ResponseCode.OK or said.lease_id is None:
                return
            if self._answered.get(said.correlation_id) == said.lease_id:  # heard again after joining again
                return
            if len(self._answered) >= KEPT_REQUESTS:
                del self._answered[next(iter(self._answered))]
            self._answered[said.correlation_id] = said.lease_id
        self._said.append((said, self._plane.clock.monotonic_ns()))

    def _on_announce(self, announce: ShmPoolAnnounce) -> None:
        """Epochs as they change. A killed driver and the next one have logs of their own: what the first said last may
        be heard after the second, and is told from a fall by its time."""
        self._note_deafness()
        last = self._announced.get(announce.stream_id)
        if last is not None:
            earlier = announce.announce_timestamp_ns < last.announce_timestamp_ns
            if announce.epoch < last.epoch and earlier:
                return
        self._announced[announce.stream_id] = announce
        if last is None or announce.epoch != last.epoch:
            self._journal.announced(announce.stream_id, announce.epoch)
