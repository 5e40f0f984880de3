"""A client's side of a lease: attach, keep alive, notice its end, attach again (Driver 4).

A pure state machine: messages come in as calls, messages go out through a callable, time is the clock's. It never
gives up by itself: whatever ends a lease, it asks again with growing pauses until its owner detaches. What a lease
allows (mapping files, writing slots) is asked of `valid()` each time, because keepalives get no answer and a driver
can die without a word (Driver 4.12). Keepalives leave with `do_work`, or by themselves through a `Beat`: then a program
that keeps the interpreter to itself for a while keeps its lease as well.
"""

from __future__ import annotations

import enum
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol, Self

import msgspec

from framepool._native.frames import UnderLease
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock
from framepool.config import DriverConfig
from framepool.errors import RegionError
from framepool.shm.layout import StreamLayout
from framepool.transport.aeron import Heartbeat
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    Bool,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire.message import Message

log = logging.getLogger(__name__)

Send = Callable[[Message], bool]
"""Puts a message on the control stream; False when Aeron did not take it."""
MOST_ASKED = 16
"""Requests to which an answer is still taken; later ones are answered as well."""


class Beat(Protocol):
    """Keepalives that leave by themselves at their period, until they were kept from it for too long."""

    @property
    def last_sent_ns(self) -> int:
        """When the last one was taken; 0 before the first."""

    def close(self) -> None:
        """No more of them."""


StartBeat = Callable[[ShmLeaseKeepalive, int, int], Beat]
"""Begins to send a keepalive each period (ns), and gives up for good after so long (ns) without one sent: by then the
lease is lost, and to go on would be to claim that it is not. 0 never gives up."""

REQUIRED_WHEN_OK = (
    "lease_id",
    "stream_id",
    "epoch",
    "layout_version",
    "header_nslots",
    "header_slot_bytes",
    "max_dims",
)


class AttachState(enum.Enum):
    """Where an attachment stands."""

    DETACHED = "detached"
    ATTACHING = "attaching"
    ATTACHED = "attached"


class AttachSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a client is."""

    keepalive_ns: int = NANOS_PER_SECOND
    response_timeout_ns: int = NANOS_PER_SECOND
    retry_min_ns: int = 50 * NANOS_PER_MILLI
    retry_max_ns: int = 2 * NANOS_PER_SECOND
    driver_timeout_ns: int = 3 * NANOS_PER_SECOND
    """Without an announce of the stream for so long the driver counts as dead (Driver 4.12), and an announce or a
    region that is older counts for nothing (Wire 15.1)."""

    @classmethod
    def configured(cls, driver: DriverConfig) -> Self:
        """What fits a driver of this configuration (Driver 4.4): three of its announces may be missed."""
        return cls(
            keepalive_ns=driver.keepalive_interval_ms * NANOS_PER_MILLI,
            driver_timeout_ns=3 * driver.announce_period_ms * NANOS_PER_MILLI,
        )


class Grant(msgspec.Struct, frozen=True):
    """What the driver answered: a lease and the regions it is for."""

    lease_id: int
    lifetime_ns: int | None
    layout: StreamLayout


class Attachment:
    """One stream, one role, one client id, kept attached."""

    def __init__(
        self,
        stream_id: int,
        role: Role,
        *,
        send: Send,
        clock: Clock,
        client_id: int | None = None,
        create: bool = False,
        require_hugepages: bool = False,
        settings: AttachSettings | None = None,
        start_beat: StartBeat | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.role = role
        self.client_id = client_id or new_client_id()
        self.state = AttachState.DETACHED
        self.grant: Grant | None = None
        self.last_refusal = ""
        self.counts: Counter[str] = Counter()
        self._send = send
        self._clock = clock
        self._settings = settings or AttachSettings()
        self._publish_mode = PublishMode.EXISTING_OR_CREATE if create else PublishMode.REQUIRE_EXISTING
        self._hugepages = Bool.TRUE if require_hugepages else None
        self._correlation_id: int | None = None
        self._asked: deque[int] = deque(maxlen=MOST_ASKED)
        self._due_ns = 0
        self._pause_ns = self._settings.retry_min_ns
        self._keepalive_due_ns = 0
        self._start_beat = start_beat
        self._beat: Beat | None = None
        self._last_sign_ns = 0
        self._driver_deadline_ns = 0

    # What the owner asks

    def start(self) -> None:
        """Begins to attach; the first request leaves with the next `do_work`."""
        if self.state is AttachState.DETACHED:
            self._attach_again(0)

    @property
    def settled(self) -> bool:
        """Whether there is a lease whose keepalives are sent natively: nothing is to be done for it by the clock, but
        to notice within a second or so that it ended."""
        return self.state is AttachState.ATTACHED and self._beat is not None

    def valid(self) -> bool:
        """Whether the lease holds right now: to be asked before a claim and again before a commit."""
        deadline = self.deadline_ns()
        return deadline is None or self._clock.monotonic_ns() < deadline

    def deadline_ns(self) -> int | None:
        """Until when the lease holds if nothing more is heard or said; 0 without one, None if it does not expire."""
        grant = self.grant  # once: another thread may turn us meanwhile
        if grant is None:
            return 0
        return None if grant.lifetime_ns is None else self._sign_of_life_ns() + grant.lifetime_ns

    def lend(self, frames: UnderLease) -> bool:
        """Has the lease looked at natively; False if it cannot be: its keepalives are sent from Python."""
        grant, beat = self.grant, self._beat
        frames.deadline_ns = 0 if grant is None else None
        frames.follow(None)
        if grant is None or grant.lifetime_ns is None:
            return True
        if isinstance(beat, Heartbeat):
            frames.follow(beat, grant.lifetime_ns, self._last_sign_ns)
            return True
        frames.deadline_ns = self.deadline_ns()
        return False

    def detach(self) -> None:
        """Gives the lease back, as far as the driver can be told, and stays detached. What was asked for and is granted
        later is given back then, if the answer is brought here (`awaits_answer`)."""
        grant, self.grant = self.grant, None
        self._end_beat()
        self.state = AttachState.DETACHED
        self._correlation_id = None
        if grant is not None:
            self._give_back(grant.lease_id)

    @property
    def awaits_answer(self) -> bool:
        """Whether the driver was asked and has not answered yet."""
        return bool(self._asked)

    def ask_again(self, why: str) -> None:
        """Gives the lease back and asks for another one: the driver looks at the files before it grants it."""
        if self.grant is not None:
            self._given_up(why)

    # What time brings

    def do_work(self) -> int:
        """Sends what is due and notices a lease that ran out."""
        now = self._clock.monotonic_ns()
        if self.state is AttachState.ATTACHING and now >= self._due_ns:
            return self._request(now)
        if self.state is not AttachState.ATTACHED:
            return 0
        if now >= self._driver_deadline_ns:
            self._given_up("no sign of the driver")
            return 1
        if not self.valid():
            self._given_up("the lease ran out")
            return 1
        if self._beat is not None:
            return self._give_up_late_keepalives(now)
        if now >= self._keepalive_due_ns:
            return self._keepalive(now)
        return 0

    # What the driver says

    def on_attach_response(self, response: ShmAttachResponse) -> None:
        """Takes the answer to a request of ours; anybody else's is not for us (Driver 4.2).

        A grant counts also when it answers an earlier request, given up as unanswered: it is our lease, and as long
        as it lives every later request is rejected (Driver 4.8).
        """
        if response.correlation_id not in self._asked:
            return
        self._asked.remove(response.correlation_id)
        if self.state is AttachState.DETACHED:
            if response.code is ResponseCode.OK and response.lease_id is not None:
                self.counts["granted after detach"] += 1
                self._give_back(response.lease_id)
            return
        if response.code is not ResponseCode.OK and response.correlation_id != self._correlation_id:
            return
        self._correlation_id = None
        now = self._clock.monotonic_ns()
        if response.code is not ResponseCode.OK:
            self.last_refusal = f"{response.code.name}: {response.error_message}"
            self.counts[f"refused {response.code.name}"] += 1
            log.info("stream %d: attach refused: %s", self.stream_id, self.last_refusal)
            self._attach_again(self._next_pause())
            return
        try:
            grant = self._read_grant(response, now)
        except RegionError as error:
            self.counts["protocol errors"] += 1
            log.warning("stream %d: the driver's answer is unusable: %s", self.stream_id, error)
            self._attach_again(self._next_pause())
            return
        if grant.lifetime_ns is not None and grant.lifetime_ns <= 0:
            self.counts["granted too late"] += 1
            log.info("stream %d: the lease had run out before its grant was read", self.stream_id)
            self._give_back(grant.lease_id)
            self._attach_again(self._next_pause())
            return
        self.grant = grant
        self.state = AttachState.ATTACHED
        self._asked.clear()
        self.last_refusal = ""
        self.counts["attached"] += 1
        self._pause_ns = self._settings.retry_min_ns
        self._driver_deadline_ns = now + self._settings.driver_timeout_ns
        self._extend(now)
        if self._start_beat is not None:
            self._beat = self._start_beat(self._keepalive_message(grant), self._interval_ns(), grant.lifetime_ns or 0)

    def on_announce(self, announce: ShmPoolAnnounce) -> None:
        """A sign of life of the driver for this stream; of another one, if a producer's epoch is not the current one
        (Driver 4.12): within a lease only the end of that lease changes it. An older announce came late."""
        if announce.stream_id != self.stream_id:
            return
        self._driver_deadline_ns = self._clock.monotonic_ns() + self._settings.driver_timeout_ns
        if self.role is Role.PRODUCER and self.grant is not None and announce.epoch > self.grant.layout.epoch:
            self._lost(f"epoch {announce.epoch} announced, the lease is for {self.grant.layout.epoch}")

    def on_lease_revoked(self, notice: ShmLeaseRevoked) -> None:
        """Ends our lease when it is the one named (Driver 4.9); after an own detach it no longer is."""
        if self.grant is not None and notice.lease_id == self.grant.lease_id and notice.client_id == self.client_id:
            self._lost(f"revoked: {notice.reason.name} {notice.error_message}".rstrip())

    def on_driver_shutdown(self, notice: ShmDriverShutdown) -> None:
        """All leases end at once (Driver 4.12)."""
        if self.grant is not None:
            self._lost(f"the driver shut down: {notice.reason.name}")

    def statistics(self) -> dict[str, object]:
        """State, identity and counts of what happened to the lease."""
        return {
            "state": self.state.value,
            "stream_id": self.stream_id,
            "client_id": self.client_id,
            "lease_id": self.grant.lease_id if self.grant else None,
            "epoch": self.grant.layout.epoch if self.grant else None,
            "last_refusal": self.last_refusal,
            **self.counts,
        }

    # Steps

    def _request(self, now: int) -> int:
        if self._correlation_id is not None:
            self.counts["unanswered"] += 1
        self._correlation_id = _correlation_id()
        self._asked.append(self._correlation_id)
        self._due_ns = now + self._settings.response_timeout_ns
        sent = self._send(
            ShmAttachRequest(
                correlation_id=self._correlation_id,
                stream_id=self.stream_id,
                client_id=self.client_id,
                role=self.role,
                expected_layout_version=0,
                max_dims=0,
                publish_mode=self._publish_mode,
                require_hugepages=self._hugepages,
            )
        )
        if not sent:
            self._asked.pop()
            self._correlation_id = None
            self._due_ns = now + self._next_pause()
        return 1

    def _keepalive(self, now: int) -> int:
        assert self.grant is not None
        if self._send(self._keepalive_message(self.grant)):
            self._extend(now)
            return 1
        return self._give_up_late_keepalives(now)

    def _keepalive_message(self, grant: Grant) -> ShmLeaseKeepalive:
        return ShmLeaseKeepalive(
            lease_id=grant.lease_id,
            stream_id=self.stream_id,
            client_id=self.client_id,
            role=self.role,
            client_timestamp_ns=self._clock.timestamp_ns(),
        )

    def _give_up_late_keepalives(self, now: int) -> int:
        """A full log may drain again; two thirds of the lifetime without luck are a failure (Driver 4.4)."""
        lifetime = None if self.grant is None else self.grant.lifetime_ns
        patience = 3 * self._settings.keepalive_ns if lifetime is None else lifetime * 2 // 3
        if now - self._sign_of_life_ns() < patience:
            return 0
        self._given_up("keepalives could not be sent")
        return 1

    def _extend(self, now: int) -> None:
        self._last_sign_ns = now
        self._keepalive_due_ns = now + self._interval_ns()

    def _interval_ns(self) -> int:
        """Between keepalives: as configured, and at least three in a lifetime (`decisions.md` #42)."""
        lifetime = None if self.grant is None else self.grant.lifetime_ns
        return self._settings.keepalive_ns if lifetime is None else min(self._settings.keepalive_ns, lifetime // 3 or 1)

    def _sign_of_life_ns(self) -> int:
        """When the driver last heard of us, as far as we can know."""
        beat = self._beat
        return self._last_sign_ns if beat is None else max(self._last_sign_ns, beat.last_sent_ns)

    def _end_beat(self) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.close()

    def _read_grant(self, response: ShmAttachResponse, now: int) -> Grant:
        missing = [name for name in REQUIRED_WHEN_OK if getattr(response, name) is None]
        if missing or not response.header_region_uri or not response.payload_pools:
            raise RegionError(f"OK without {', '.join(missing) or 'regions'}")
        if response.stream_id != self.stream_id:
            raise RegionError(f"OK for stream {response.stream_id}, asked for was {self.stream_id}")
        expiry = response.lease_expiry_timestamp_ns
        lifetime = None if expiry is None else expiry - now
        layout = StreamLayout.from_announce(response)  # type: ignore[arg-type]  # checked: nothing is None
        return Grant(response.lease_id, lifetime, layout)  # type: ignore[arg-type]

    def _given_up(self, why: str) -> None:
        """Ends the lease by our own judgement. A driver that lives after all is told: as long as it holds the lease
        for ours it rejects every request of this client (Driver 4.8), and such a lease may never expire."""
        grant = self.grant
        self._lost(why)
        if grant is not None:
            self._give_back(grant.lease_id)

    def _give_back(self, lease_id: int) -> None:
        self._send(
            ShmDetachRequest(
                correlation_id=_correlation_id(),
                lease_id=lease_id,
                stream_id=self.stream_id,
                client_id=self.client_id,
                role=self.role,
            )
        )

    def _lost(self, why: str) -> None:
        log.info("stream %d: lease lost: %s", self.stream_id, why)
        self.counts["lost"] += 1
        self.grant = None
        self._end_beat()
        self._attach_again(0)

    def _attach_again(self, pause_ns: int) -> None:
        self.state = AttachState.ATTACHING
        self._correlation_id = None
        self._due_ns = self._clock.monotonic_ns() + pause_ns

    def _next_pause(self) -> int:
        pause = self._pause_ns
        self._pause_ns = min(pause * 2, self._settings.retry_max_ns)
        return pause


def new_client_id() -> int:
    """A random id, unique enough among the clients of a host; 0 means no client and 2^32-1 is a null."""
    return 1 + secrets.randbelow(2**32 - 2)


def _correlation_id() -> int:
    return secrets.randbelow(2**63)
