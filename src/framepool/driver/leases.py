"""The lease table: who may touch which stream, and until when (Driver 4.1, 4.4, 4.7 to 4.9, 5).

Pure bookkeeping with time as an argument. It decides which requests are valid and which leases end; what an end
means for epochs and announces is `streams`' business, and messages are the conductor's.
"""

from __future__ import annotations

import enum
import heapq
import secrets
from collections.abc import Iterator

import msgspec

from framepool.wire._generated.driver_901 import LeaseRevokeReason, Role


class LeaseState(enum.Enum):
    """Driver 4.7: a lease ends in exactly one of the last three and never leaves it."""

    ATTACHED = "attached"
    ACTIVE = "active"
    DETACHED = "detached"
    EXPIRED = "expired"
    REVOKED = "revoked"


END_STATES = {
    LeaseRevokeReason.DETACHED: LeaseState.DETACHED,
    LeaseRevokeReason.EXPIRED: LeaseState.EXPIRED,
    LeaseRevokeReason.REVOKED: LeaseState.REVOKED,
}


SPARE_DEADLINES = 64


class LeaseRefused(Exception):
    """The attach is valid but denied by state: another producer, or the client's own older lease."""


class Lease(msgspec.Struct, gc=False):
    """One client's right to one stream in one role. `epoch` is the one it was granted for; a consumer's follows."""

    lease_id: int
    stream_id: int
    client_id: int
    role: Role
    epoch: int
    attached_ns: int
    expiry_ns: int | None
    keepalive_ns: int
    state: LeaseState = LeaseState.ATTACHED

    def held_by(self, stream_id: int, client_id: int, role: Role) -> bool:
        """Whether a request that names this lease may act on it (Driver 4.1, 4.9)."""
        return self.stream_id == stream_id and self.client_id == client_id and self.role == role


class LeaseTable:
    """All active leases of one driver instance.

    Ids are never reused within an instance, and an id of an earlier instance is unknown to this one (Driver 4.8,
    10): the upper half is drawn at random once, the lower half counts.
    """

    def __init__(self, lifetime_ns: int | None) -> None:
        self._lifetime_ns = lifetime_ns
        self._next_id = secrets.randbelow(2**31) << 32
        self._active: dict[int, Lease] = {}
        self._by_client: dict[int, int] = {}
        self._producers: dict[int, int] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._active.values())

    def get(self, lease_id: int) -> Lease | None:
        """The active lease of that id."""
        return self._active.get(lease_id)

    def producer_of(self, stream_id: int) -> Lease | None:
        """The one producer lease of a stream (Driver 5)."""
        lease_id = self._producers.get(stream_id)
        return None if lease_id is None else self._active[lease_id]

    def refuse_if_taken(self, stream_id: int, client_id: int, role: Role) -> None:
        """Raises `LeaseRefused` when `grant` would: to be asked before regions are made for the lease."""
        if client_id in self._by_client:
            raise LeaseRefused(f"client {client_id} holds a lease already; use one client id per attachment")
        if role is Role.PRODUCER and stream_id in self._producers:
            holder = self._active[self._producers[stream_id]]
            raise LeaseRefused(f"stream {stream_id} has a producer already: client {holder.client_id}")

    def grant(self, stream_id: int, client_id: int, role: Role, now_ns: int, epoch: int = 0) -> Lease:
        """A new lease, or `LeaseRefused`; an older lease stays as it was (Driver 4.8, 5)."""
        self.refuse_if_taken(stream_id, client_id, role)
        self._next_id += 1
        expiry_ns = None if self._lifetime_ns is None else now_ns + self._lifetime_ns
        lease = Lease(self._next_id, stream_id, client_id, role, epoch, now_ns, expiry_ns, now_ns)
        self._active[lease.lease_id] = lease
        self._by_client[client_id] = lease.lease_id
        if role is Role.PRODUCER:
            self._producers[stream_id] = lease.lease_id
        if expiry_ns is not None:
            heapq.heappush(self._deadlines, (expiry_ns, lease.lease_id))
        return lease

    def keepalive(self, lease_id: int, stream_id: int, client_id: int, role: Role, now_ns: int) -> bool:
        """Extends the lease; False, and nothing changes, when the message does not fit it (Driver 4.4)."""
        lease = self._active.get(lease_id)
        if lease is None or not lease.held_by(stream_id, client_id, role):
            return False
        lease.keepalive_ns = now_ns
        lease.state = LeaseState.ACTIVE
        if self._lifetime_ns is not None:
            lease.expiry_ns = now_ns + self._lifetime_ns
        return True

    def detach(self, lease_id: int, stream_id: int, client_id: int, role: Role) -> Lease | None:
        """Ends a lease at its holder's wish; None when the request does not fit an active lease (Driver 4.9)."""
        lease = self._active.get(lease_id)
        if lease is None or not lease.held_by(stream_id, client_id, role):
            return None
        return self.end(lease, LeaseRevokeReason.DETACHED)

    def expired(self, now_ns: int) -> list[Lease]:
        """Ends and returns every lease whose time has run out, oldest deadline first.

        The heap holds one entry a lease: an entry whose lease was extended since is put back at the new time,
        so a keepalive costs no heap operation.
        """
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, lease_id = heapq.heappop(self._deadlines)
            lease = self._active.get(lease_id)
            if lease is None or lease.expiry_ns is None:
                continue
            if lease.expiry_ns > now_ns:
                heapq.heappush(self._deadlines, (lease.expiry_ns, lease_id))
            else:
                ended.append(self.end(lease, LeaseRevokeReason.EXPIRED))
        return ended

    def end(self, lease: Lease, reason: LeaseRevokeReason) -> Lease:
        """Takes the lease out of the table in its final state."""
        del self._active[lease.lease_id]
        del self._by_client[lease.client_id]
        if lease.role is Role.PRODUCER:
            del self._producers[lease.stream_id]
        if len(self._deadlines) > 2 * len(self._active) + SPARE_DEADLINES:  # of leases that were given back
            self._deadlines = [each for each in self._deadlines if each[1] in self._active]
            heapq.heapify(self._deadlines)
        lease.state = END_STATES[reason]
        return lease
