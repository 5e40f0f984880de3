"""What one process hears and says on the control and announce streams, and the places that live on them.

A *place* is where a producer or a consumer finds the regions of its stream: a `Seat` holds a lease from a driver, the
places of `standalone` do without one. The plane hands every message to every place; each takes what is for it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from framepool.client.listener import Listener
from framepool.clock import Clock
from framepool.config import Channels, StreamIds
from framepool.errors import MediaDriverLost, TransportTimeout
from framepool.shm.region import MappedStream
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import ShmAttachResponse, ShmDriverShutdown, ShmLeaseRevoked
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import Message

log = logging.getLogger(__name__)


class Place(ABC):
    """The regions of one stream as they may be used right now. Turned by its plane."""

    stream_id: int

    @property
    @abstractmethod
    def stream(self) -> MappedStream | None:
        """The regions to use right now, or none."""

    @abstractmethod
    def unmap(self, why: str) -> None:
        """Lets go of the regions until there is reason to map them again."""

    @abstractmethod
    def refusal(self) -> str:
        """Why there are no regions, as far as it is known."""

    @abstractmethod
    def statistics(self) -> dict[str, object]:
        """What happened to it."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back."""

    def start(self) -> None:
        """Called once, when the plane takes the place in."""

    def do_work(self) -> int:
        return 0

    def on_attach_response(self, response: ShmAttachResponse) -> None: ...
    def on_announce(self, announce: ShmPoolAnnounce) -> None: ...
    def on_lease_revoked(self, notice: ShmLeaseRevoked) -> None: ...
    def on_driver_shutdown(self, notice: ShmDriverShutdown) -> None: ...


class ControlPlane:
    """The control and announce streams of one process, and the places that live on them. An agent.

    A runner turns it while its owner takes places and gives them up, so a lock keeps the two apart.
    """

    role = "control plane"

    def __init__(
        self, client: Client, clock: Clock, ids: StreamIds | None = None, channels: Channels | None = None
    ) -> None:
        ids = ids or StreamIds()
        channels = channels or Channels()
        self.clock = clock
        self.places: list[Place] = []
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
        self._dispatch.on(ShmAttachResponse, self._on_attach_response)
        self._dispatch.on(ShmPoolAnnounce, self._on_announce)
        self._dispatch.on(ShmLeaseRevoked, self._on_lease_revoked)
        self._dispatch.on(ShmDriverShutdown, self._on_driver_shutdown)

    def add[P: Place](self, place: P) -> P:
        """Takes a place in; it begins to attach or to listen."""
        with self._turn:
            place.start()
            self.places.append(place)
        return place

    def remove(self, place: Place) -> None:
        """Lets a place go, with what it holds."""
        with self._turn:
            if place in self.places:
                self.places.remove(place)
                place.close()

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
            return heard + sum(place.do_work() for place in self.places)

    def statistics(self) -> dict[str, int]:
        """How often the media driver came back, and how often messages were missed for being too slow."""
        left_behind = self._answers.left_behind + self._announces.left_behind
        return {"reconnects": self._reconnects, "left_behind": left_behind, **self._dispatch.statistics()}

    def on_close(self) -> None:
        for place in list(self.places):
            self.remove(place)

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

    def _on_attach_response(self, response: ShmAttachResponse) -> None:
        for place in self.places:
            place.on_attach_response(response)

    def _on_announce(self, announce: ShmPoolAnnounce) -> None:
        for place in self.places:
            place.on_announce(announce)

    def _on_lease_revoked(self, notice: ShmLeaseRevoked) -> None:
        for place in self.places:
            place.on_lease_revoked(notice)

    def _on_driver_shutdown(self, notice: ShmDriverShutdown) -> None:
        for place in self.places:
            place.on_driver_shutdown(notice)
