"""A place at a stream: a lease, the regions it allows, and the messages that concern both (Driver 4; Wire 15.21).

A `Seat` ties an `Attachment` to a `Mapping`: a grant maps, the end of a lease unmaps at once, and a consumer follows
the driver's announces from epoch to epoch without attaching again (`decisions.md` #41).
"""

from __future__ import annotations

from framepool._native.frames import UnderLease
from framepool.agent import Timers
from framepool.client.attach import Attachment, AttachSettings, Grant
from framepool.client.mapping import Mapping
from framepool.client.plane import ControlPlane, Place
from framepool.clock import NANOS_PER_SECOND
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.shm.region import MappedStream, map_stream
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import Role, ShmAttachResponse, ShmDriverShutdown, ShmLeaseRevoked


class Seat(Place):
    """One stream in one role."""

    def __init__(
        self,
        plane: ControlPlane,
        stream_id: int,
        role: Role,
        *,
        allowed: AllowedDirectories,
        owners: OwnerPolicy | None = None,
        create: bool = False,
        require_hugepages: bool = False,
        client_id: int | None = None,
        settings: AttachSettings | None = None,
        native_keepalives: bool = False,
    ) -> None:
        """With `native_keepalives` the lease lives as long as the process does, else as long as the plane is turned."""
        writable = role is Role.PRODUCER
        policy = owners or OwnerPolicy()
        settings = settings or AttachSettings()
        self.stream_id = stream_id
        self.role = role
        self._plane = plane
        self.attachment = Attachment(
            stream_id,
            role,
            send=plane.send,
            clock=plane.clock,
            client_id=client_id,
            create=create,
            require_hugepages=require_hugepages,
            settings=settings,
            start_beat=plane.start_beat if native_keepalives else None,
        )
        self.mapping = Mapping(
            stream_id,
            open_stream=lambda layout: map_stream(layout, allowed, writable=writable, owners=policy, ahead=True),
            clock=plane.clock,
            freshness_ns=settings.driver_timeout_ns,
        )
        self.changes = self.mapping.changes
        self._timers = Timers(plane.clock)
        self._timers.every(NANOS_PER_SECOND, self.mapping.check_activity)
        self._timers.every(NANOS_PER_SECOND, self._ask_for_regions)
        self._granted: Grant | None = None

    @property
    def granted(self) -> Grant | None:
        """The lease that the regions are used under."""
        return self._granted

    @property
    def stream(self) -> MappedStream | None:
        """The regions to use right now: none without a lease that holds."""
        return self.mapping.stream if self.attachment.valid() else None

    @property
    def awaits_answer(self) -> bool:
        return self.attachment.awaits_answer

    def start(self) -> None:
        self.attachment.start()

    def unmap(self, why: str) -> None:
        with self._plane.lock():
            self.mapping.unmap(why)

    def identity(self) -> tuple[int, int] | None:
        stream = self.stream
        return None if stream is None else (self.attachment.client_id, stream.layout.epoch)

    def lend(self, frames: UnderLease) -> bool:
        return self.attachment.lend(frames)

    def refusal(self) -> str:
        return self.attachment.last_refusal or self.mapping.last_refusal

    def rejected(self) -> str:
        return "" if self.mapping.stream is not None else self.mapping.last_refusal

    def do_work(self) -> int:
        work = self.attachment.do_work() + self._timers.poll()
        self._follow_the_lease()
        return work

    def due_ns(self) -> int:
        return self._timers.next_deadline_ns() or 0 if self.attachment.settled else 0

    def _ask_for_regions(self) -> None:
        """A producer whose regions could not be mapped, or were let go of, would keep everybody else from its stream
        for as long as it lives: it asks for new ones. A consumer follows the next announce."""
        if self.role is Role.PRODUCER and self._granted is not None and self.mapping.stream is None:
            self.attachment.ask_again(self.mapping.last_refusal or "the regions were let go of")
            self._follow_the_lease()

    @property
    def takes_long(self) -> bool:
        return self.attachment.awaits_answer or self.mapping.will_map

    def settle(self) -> int:
        work = self.mapping.settle() if self._granted is not None else 0
        if self.mapping.doubt:
            self.attachment.ask_again(self.mapping.doubt)
            self.mapping.doubt = ""
            self._follow_the_lease()
        return work

    def close(self) -> None:
        """Gives lease and regions back."""
        self.attachment.detach()
        self._follow_the_lease()

    def on_attach_response(self, response: ShmAttachResponse) -> None:
        self.attachment.on_attach_response(response)
        self._follow_the_lease()

    def on_announce(self, announce: ShmPoolAnnounce) -> None:
        self.attachment.on_announce(announce)
        self._follow_the_lease()
        if self.role is Role.CONSUMER and self._granted is not None:
            self.mapping.hear(announce)

    def on_lease_revoked(self, notice: ShmLeaseRevoked) -> None:
        self.attachment.on_lease_revoked(notice)
        self._follow_the_lease()
        if notice.role is Role.PRODUCER and notice.stream_id == self.mapping.stream_id:
            self.mapping.on_producer_revoked(notice.timestamp_ns)

    def on_driver_shutdown(self, notice: ShmDriverShutdown) -> None:
        self.attachment.on_driver_shutdown(notice)
        self._follow_the_lease()

    def statistics(self) -> dict[str, object]:
        return {"attachment": self.attachment.statistics(), "mapping": self.mapping.statistics()}

    def _follow_the_lease(self) -> None:
        """Maps what a new grant names and unmaps with the lease, at once (Driver 4.7, 4.9)."""
        if self.attachment.grant is self._granted:
            return
        self._granted = self.attachment.grant
        self.changes.count += 1
        if self._granted is None:
            self.mapping.unmap("the lease ended")
        else:
            self.mapping.on_layout(self._granted.layout)
