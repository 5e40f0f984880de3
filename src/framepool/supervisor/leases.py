"""Who holds which lease, as the control stream tells: requests with their answers, keepalives, and ends (Driver 4)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from framepool.clock import NANOS_PER_SECOND
from framepool.supervisor.streams import keep_newest
from framepool.wire._generated.driver_901 import (
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)

MOST_ASKED: Final = 1_024
"""Requests whose answer has not come yet."""


class LeaseView(msgspec.Struct, gc=False):
    """A lease; one that was granted before anybody listened is known by its keepalives."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    since_ns: int
    heard_ns: int
    epoch: int | None = None

    def describe(self, now_ns: int) -> dict[str, Any]:
        return {
            "lease_id": self.lease_id,
            "stream_id": self.stream_id,
            "client_id": self.client_id,
            "role": self.role.name,
            "epoch": self.epoch,
            "age_s": round((now_ns - self.since_ns) / NANOS_PER_SECOND, 3),
            "heard_ago_s": round((now_ns - self.heard_ns) / NANOS_PER_SECOND, 3),
        }


class LeaseBook:
    """The leases of a driver."""

    def __init__(self, most: int) -> None:
        self.leases: dict[int, LeaseView] = {}
        self.refused = 0
        self.forgotten = 0
        """Leases and requests that had to make room."""
        self._most = most
        self._asked: dict[int, ShmAttachRequest] = {}

    def on_request(self, request: ShmAttachRequest) -> None:
        self._asked.pop(request.correlation_id, None)
        self._asked[request.correlation_id] = request
        self.forgotten += keep_newest(self._asked, MOST_ASKED)

    def on_response(self, response: ShmAttachResponse, now_ns: int) -> None:
        """The answer says neither who asked nor in which role: the request does."""
        request = self._asked.pop(response.correlation_id, None)
        if response.code is not ResponseCode.OK:
            self.refused += 1
        elif request is not None and response.lease_id is not None:
            self._keep(
                LeaseView(
                    response.lease_id,
                    request.stream_id,
                    request.client_id,
                    request.role,
                    now_ns,
                    now_ns,
                    response.epoch,
                )
            )

    def on_keepalive(self, message: ShmLeaseKeepalive, now_ns: int) -> None:
        known = self.leases.get(message.lease_id)
        if known is not None:
            known.heard_ns = now_ns
            return
        self._keep(LeaseView(message.lease_id, message.stream_id, message.client_id, message.role, now_ns, now_ns))

    def on_revoked(self, notice: ShmLeaseRevoked) -> None:
        self.leases.pop(notice.lease_id, None)

    def forget(self, before_ns: int) -> None:
        """Lets go of leases that gave no sign of life since: their end was not heard."""
        for lease in [lease for lease in self.leases.values() if lease.heard_ns < before_ns]:
            del self.leases[lease.lease_id]

    def _keep(self, lease: LeaseView) -> None:
        self.leases[lease.lease_id] = lease
        self.forgotten += keep_newest(self.leases, self._most)
