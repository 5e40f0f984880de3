"""A place at a stream: a lease, the regions it allows, and the messages that concern both (Driver 4; Wire 15.21).

`ControlPlane` is what one process hears and says on the control and announce streams, shared by all its seats. A
`Seat` ties an `Attachment` to a `Mapping`: a grant maps, the end of a lease unmaps at once, and a consumer follows the
driver's announces from epoch to epoch without attaching again (`decisions.md` #41).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from framepool.agent import Timers
from framepool.client.attach import Attachment, AttachSettings, Grant
from framepool.client.listener import Listener
from framepool.client.mapping import Mapping
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import Channels, StreamIds
from framepool.errors import MediaDriverLost, TransportTimeout
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.shm.region import MappedStream, map_stream
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import Role, ShmAttachResponse, ShmDriverShutdown, ShmLeaseRevoked
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import Message

log = logging.getLogger(__name__)


class Seat:
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
    ) -> None:
        writable = role is Role.PRODUCER
        policy = owners or OwnerPolicy()
        settings = settings or AttachSettings()
        self.role = role
        self.attachment = Attachment(
            stream_id,
            role,
            send=plane.send,
            clock=plane.clock,
            client_id=client_id,
            create=create,
            require_hugepages=require_hugepages,
            settings=settings,
        )
        self.mapping = Mapping(
            stream_id,
            open_stream=lambda layout: map_stream(layout, allowed, writable=writable, owners=policy),
            clock=plane.clock,
            freshness_ns=settings.driver_timeout_ns,
        )
        self._timers = Timers(plane.clock)
        self._timers.every(NANOS_PER_SECOND, self.mapping.check_activity)
        self._granted: Grant | None = None

    @property
    def stream(self) -> MappedStream | None:
        """The regions to use right now: none without a lease that holds."""
        return self.mapping.stream if self.attachment.valid() else None

    def do_work(self) -> int:
        work = self.attachment.do_work() + self._timers.poll()
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
            self.mapping.on_announce(announce)

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
        if self._granted is None:
            self.mapping.unmap("the lease ended")
        else:
            self.mapping.on_layout(self._granted.layout)


class ControlPlane:
    """The control and announce streams of one process, and the seats that live on them. An agent.

    A runner turns it while its owner takes seats and gives them up, so a lock keeps the two apart.
    """

    role = "control plane"

    def __init__(
        self, client: Client, clock: Clock, ids: StreamIds | None = None, channels: Channels | None = None
    ) -> None:
        ids = ids or StreamIds()
        channels = channels or Channels()
        self.clock = clock
        self.seats: list[Seat] = []
        self._client = client
        self._turn = threading.RLock()
        self._lost = False
        self._reconnects = 0
        settings = client.settings
        self._requests = client.add_publication(channel.control_publication(channels.control, settings), ids.control)
        self._answers = Listener(client.add_subscription(channel.control_subscription(channels.control), ids.control))
        self._announces = Listener(
            client.add_subscription(channel.control_subscription(channels.announce), ids.announce)
        )
        self._dispatch = Dispatcher()
        self._dispatch.on(ShmAttachResponse, lambda message: self._each(Seat.on_attach_response, message))
        self._dispatch.on(ShmPoolAnnounce, lambda message: self._each(Seat.on_announce, message))
        self._dispatch.on(ShmLeaseRevoked, lambda message: self._each(Seat.on_lease_revoked, message))
        self._dispatch.on(ShmDriverShutdown, lambda message: self._each(Seat.on_driver_shutdown, message))

    def add(self, seat: Seat) -> Seat:
        """Takes a seat in and begins to attach it."""
        with self._turn:
            self.seats.append(seat)
            seat.attachment.start()
        return seat

    def remove(self, seat: Seat) -> None:
        """Lets a seat go, with its lease."""
        with self._turn:
            self.seats.remove(seat)
            seat.close()

    def send(self, message: Message) -> bool:
        """Puts a message on the control stream; False when Aeron did not take it."""
        try:
            return self._requests.offer(message.encode()) >= 0
        except MediaDriverLost:
            self._lost = True
            return False

    def on_start(self) -> None:
        pass

    def do_work(self) -> int:
        with self._turn:
            heard = self._hear()
            return heard + sum(seat.do_work() for seat in self.seats)

    def statistics(self) -> dict[str, int]:
        """How often the media driver came back, and how often messages were missed for being too slow."""
        left_behind = self._answers.left_behind + self._announces.left_behind
        return {"reconnects": self._reconnects, "left_behind": left_behind, **self._dispatch.statistics()}

    def on_close(self) -> None:
        for seat in list(self.seats):
            self.remove(seat)

    def _hear(self) -> int:
        """Hands over what came; while there is no media driver, tries to get back to one."""
        try:
            if self._lost:
                if not self._client.try_reconnect():
                    return 0
                log.info("media driver is back")
                self._lost = False
                self._reconnects += 1
            messages = self._answers.poll() + self._announces.poll()
        except MediaDriverLost as error:
            log.warning("media driver lost, waiting for it: %s", error)
            self._lost = True
            return 0
        except TransportTimeout as error:
            log.warning("media driver does not answer, trying again: %s", error)
            return 0
        for message in messages:
            self._dispatch(message)
        return len(messages)

    def _each[M: Message](self, handler: Callable[[Seat, M], None], message: M) -> None:
        for seat in self.seats:
            handler(seat, message)
