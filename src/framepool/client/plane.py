"""What one process hears and says on the streams of the control plane, and who lives on them (Wire 5).

A *member* is turned by the plane and hears what it listens to. A *place* is the member where a producer or a consumer
finds the regions of its stream: a `Seat` holds a lease from a driver, the places of `standalone` do without one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

from framepool._native.frames import Changes, UnderLease
from framepool.agent.agent import log_error
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Channels, StreamIds
from framepool.errors import MediaDriverLost, TransportError, TransportTimeout
from framepool.shm.region import MappedStream
from framepool.transport import channel
from framepool.transport.aeron import Client, Ears, Heartbeat, Pending, Publication
from framepool.transport.listener import Listener
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    ShmAttachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import MESSAGE_HEADER, Message

log = logging.getLogger(__name__)


KEEPALIVE_STAMP_OFFSET = MESSAGE_HEADER.size + next(
    field.offset for field in ShmLeaseKeepalive.FIELDS if field.name == "clientTimestampNs"
)

Topic = Literal["control", "announce", "qos", "metadata"]
"""The streams of Wire 5 that every process shares."""

SETTLE_NS = 20 * NANOS_PER_MILLI
"""Of a duty cycle for mapping: leases and messages are not to wait for files."""
REST_NS = 20 * NANOS_PER_MILLI
"""Between two looks at the members and places of an attended plane that has heard nothing, where one of them cannot say
when it will have something to do."""
CALM_NS = 100 * NANOS_PER_MILLI
"""The same at the most, where they can."""
LOOKS_NS = 32 * NANOS_PER_MILLI
"""Between two looks at the streams, once nothing was heard for a while."""
MAX_ANNOUNCED = 4_096
"""Streams whose last announce is remembered."""
MAX_LEAVING = 64
"""Places that were given up while the driver had not answered them yet: what it grants them is given back."""


class Member(Protocol):
    """Something with duties in the control plane."""

    def start(self) -> None:
        """Called once, when the plane takes it in."""

    def do_work(self) -> int:
        """What is due; never waits."""

    def due_ns(self) -> int:
        """When it will have something to do, on the monotonic clock, unless it hears something; 0 if it cannot
        say. Who is given something to do by another thread tells the plane: `hurry`."""

    def close(self) -> None:
        """Gives everything back."""


class Place(ABC):
    """The regions of one stream as they may be used right now. Turned by its plane."""

    stream_id: int
    changes: Changes
    """Counts what may change `stream`, except that the lease runs out: who has seen the count knows the stream."""

    @property
    @abstractmethod
    def stream(self) -> MappedStream | None:
        """The regions to use right now, or none."""

    @abstractmethod
    def unmap(self, why: str) -> None:
        """Lets go of the regions until there is reason to map them again."""

    @abstractmethod
    def identity(self) -> tuple[int, int] | None:
        """The client id and the epoch under which the regions are used, or None without regions."""

    @abstractmethod
    def refusal(self) -> str:
        """Why there are no regions, as far as it is known."""

    def rejected(self) -> str:
        """Why its regions must not be mapped, while that is what keeps it from them (Wire 15.22)."""
        return ""

    @abstractmethod
    def statistics(self) -> dict[str, object]:
        """What happened to it."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back."""

    @property
    def awaits_answer(self) -> bool:
        """Whether it is to be told of answers to requests even after it was closed."""
        return False

    def start(self) -> None:
        """Called once, when the plane takes the place in."""

    def lend(self, frames: UnderLease) -> bool:
        """Lets frames be written or read natively under the lease of this place; False if its end cannot be seen
        there, and then the place is to be asked each time."""
        return True

    def do_work(self) -> int:
        return 0

    def due_ns(self) -> int:
        return 0

    @property
    def takes_long(self) -> bool:
        """Whether the next turn may map files: not for a thread with frames."""
        return False

    def settle(self) -> int:
        """Maps what was announced last, which takes a while: called after all leases were seen to."""
        return 0

    def on_attach_response(self, response: ShmAttachResponse) -> None: ...
    def on_announce(self, announce: ShmPoolAnnounce) -> None: ...
    def on_lease_revoked(self, notice: ShmLeaseRevoked) -> None: ...
    def on_driver_shutdown(self, notice: ShmDriverShutdown) -> None: ...


class ControlPlane:
    """The control and announce streams of one process, and the places that live on them. An agent.

    A runner turns it while its owner takes places and gives them up, so a lock keeps the two apart. `control` is where
    a driver takes its requests, if that is elsewhere than configured (Discovery 5.2).
    """

    role = "control plane"

    def __init__(
        self,
        client: Client,
        clock: Clock,
        ids: StreamIds | None = None,
        channels: Channels | None = None,
        *,
        control: tuple[str, int] | None = None,
    ) -> None:
        self.clock = clock
        self.places: list[Place] = []
        self._members: list[Member] = []
        self._client = client
        ids, channels = ids or StreamIds(), channels or Channels()
        self._where: dict[Topic, tuple[str, int]] = {
            topic: (getattr(channels, topic), getattr(ids, topic)) for topic in get_args(Topic)
        }
        if control is not None:
            self._where["control"] = control
        self._turn = threading.RLock()
        self._lost = False
        self._reconnects = 0
        self._ears: dict[Topic, Listener] = {}
        self.ears = Ears(most_ns=LOOKS_NS)
        """Where producers and consumers find turns to take between two frames, while a runner attends the plane."""
        self.ears.offer(self._take_turn, self._turn)
        self._mouths: dict[Topic, Publication] = {}
        self._opening: dict[Topic, Pending[Publication]] = {}
        self._promised: set[Topic] = set()
        """Topics on which members will say something: what `open` was called for."""
        self._handlers: dict[type[Message], list[Callable[[Any], object]]] = {}
        self._dispatch = Dispatcher()
        self._announced: dict[int, tuple[ShmPoolAnnounce, int]] = {}
        self._forgotten = 0
        self._unsettled: deque[Place] = deque()
        self._leaving: deque[Place] = deque(maxlen=MAX_LEAVING)
        self._rests_until_ns = 0
        self._hurried = False
        self.listen("control", ShmAttachResponse, self._on_attach_response)
        self.listen("announce", ShmPoolAnnounce, self._on_announce)
        self.listen("control", ShmLeaseRevoked, self._on_lease_revoked)
        self.listen("control", ShmDriverShutdown, self._on_driver_shutdown)
        self._mouth("control")

    def lock(self) -> threading.RLock:
        """Held while the plane is turned: for whoever shares state with its members."""
        return self._turn

    def listen[M: Message](self, topic: Topic, kind: type[M], handler: Callable[[M], object]) -> Callable[[], None]:
        """Calls `handler` for each message of a kind, until the function that comes back is called."""
        with self._turn:
            if topic not in self._ears:
                where, stream_id = self._where[topic]
                subscription = self._client.add_subscription(channel.control_subscription(where), stream_id)
                self._ears[topic] = Listener(subscription)
                self.ears.add(subscription)
                self.ears.nudge()
            handlers = self._handlers.get(kind)
            if handlers is None:
                handlers = self._handlers[kind] = []
                self._dispatch.on(kind, lambda message: [handle(message) for handle in tuple(handlers)])
            handlers.append(handler)

        def stop() -> None:
            with self._turn:
                handlers.remove(handler)

        return stop

    def say(self, topic: Topic, message: Message) -> bool:
        """Sends a message on a shared stream; False when Aeron did not take it."""
        try:
            return self._mouth(topic).offer(message.encode()) >= 0
        except MediaDriverLost:
            self._lost = True
            return False

    def start_beat(self, message: ShmLeaseKeepalive, period_ns: int, give_up_ns: int) -> Heartbeat:
        """Sends a keepalive each period from a native thread, whatever the interpreter is busy with."""
        return Heartbeat(self._mouth("control"), message.encode(), period_ns, KEEPALIVE_STAMP_OFFSET, give_up_ns)

    def open(self, topic: Topic) -> None:
        """Asks for a stream on which something is going to be said, without waiting for it."""
        with self._turn:
            self._promised.add(topic)
            if topic not in self._mouths and topic not in self._opening:
                self._opening[topic] = self._client.add_publication_async(*self._mouth_of(topic))

    def max_message_length(self, topic: Topic) -> int:
        """The longest message that the stream takes."""
        return self._mouth(topic).max_message_length

    def join[M: Member](self, member: M) -> M:
        """Takes a member in."""
        with self._turn:
            member.start()
            self._members.append(member)
            self._disturb()
        return member

    def leave(self, member: Member) -> None:
        """Lets a member go."""
        with self._turn:
            if member in self._members:
                self._members.remove(member)
                member.close()

    def add[P: Place](self, place: P) -> P:
        """Takes a place in; it begins to attach or to listen."""
        with self._turn:
            place.start()
            self.places.append(place)
            self._disturb()
        return place

    def remove(self, place: Place) -> None:
        """Lets a place go, with what it holds."""
        with self._turn:
            if place in self.places:
                self.places.remove(place)
                with contextlib.suppress(ValueError):
                    self._unsettled.remove(place)
                place.close()
                if place.awaits_answer:
                    self._leaving.append(place)

    def send(self, message: Message) -> bool:
        """Puts a message on the control stream; False when Aeron did not take it."""
        return self.say("control", message)

    def on_start(self) -> None:
        pass

    def do_work(self) -> int:
        with self._turn:
            return self._work(self._hear())

    def attend(self, *, between_frames: bool = False) -> int:
        """`do_work` for who turns it all the time: nobody but the clock is asked while nothing was heard, nobody came
        and the members had nothing to do a moment ago. Between frames no files are mapped."""
        with self._turn:
            heard = self._hear()
            if not heard and not self._hurried and self.clock.monotonic_ns() < self._rests_until_ns:
                return 0
            return self._work(heard, between_frames=between_frames)

    def _take_turn(self) -> tuple[int, bool, bool]:
        """`attend` by a thread with frames, which has the lock and waits neither for a media driver nor for files: that
        is left to the plane's own thread."""
        try:
            if self._lost or not self._is_open() or any(place.takes_long for place in self.places):
                return 0, False, True
            work = self.attend(between_frames=True)
        except Exception as error:
            log_error(self.role, error)
            return 0, False, True
        return self._rest_ns(), work > 0, self._lost or bool(self._unsettled)

    def idle(self, work: int) -> None:
        """The wait between two calls of `attend`, without the interpreter: until something is heard or it is time to
        ask the members again. What is heard all the time, such as QoS, is no reason to listen more often; that a member
        did something is: an answer may come."""
        if work:
            if not self._rests_until_ns:
                self.ears.rouse()
        else:
            self.ears.wait(max(NANOS_PER_MILLI, self._rest_ns()))

    def nudge(self) -> None:
        """Ends such a wait."""
        self.ears.nudge()

    def _rest_ns(self) -> int:
        rest_ns = max(0, self._rests_until_ns - self.clock.monotonic_ns())
        return min(rest_ns, REST_NS) if self._hurried else rest_ns

    def hurry(self) -> None:
        """A member was given something to do: it is asked as soon as one who does not know when. Waits for nobody: the
        plane may be waiting for a media driver."""
        self._hurried = True
        self.ears.hurry(REST_NS)

    def _disturb(self) -> None:
        """Somebody came: the members are to be asked at once."""
        self._rests_until_ns = 0
        self.ears.nudge()

    def _work(self, heard: int, *, between_frames: bool = False) -> int:
        members = (*self.places, *self._members)
        self._hurried = False  # whatever they are given from here on is for the next turn
        work = sum(member.do_work() for member in members) + self._settle(between_frames)
        now_ns = self.clock.monotonic_ns()
        due_ns = min((member.due_ns() for member in members), default=now_ns + CALM_NS)
        self._rests_until_ns = 0 if work or self._unsettled else min(max(due_ns, now_ns + REST_NS), now_ns + CALM_NS)
        return heard + work

    def announced(self, stream_id: int) -> tuple[ShmPoolAnnounce, int] | None:
        """The last announce of a stream and when it was heard, on the monotonic clock; None if it never was."""
        return self._announced.get(stream_id)

    def statistics(self) -> dict[str, int]:
        """How often the media driver came back, how often messages were missed for being too slow, and how many
        announces had to make room for others."""
        return {
            "reconnects": self._reconnects,
            "left_behind": sum(ear.left_behind for ear in self._ears.values()),
            "announces_forgotten": self._forgotten,
            **self._dispatch.statistics(),
        }

    def on_close(self) -> None:
        for member in list(self._members):
            self.leave(member)
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
            messages = [message for ear in self._ears.values() for message in ear.poll()]
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

    def _mouth(self, topic: Topic) -> Publication:
        publication = self._mouths.get(topic)
        if publication is None:
            with self._turn:
                pending = self._opening.pop(topic, None)
                if pending is None:
                    pending = self._client.add_publication_async(*self._mouth_of(topic))
                publication = self._mouths[topic] = pending.wait(self._client.settings.driver_timeout)
        return publication

    def _mouth_of(self, topic: Topic) -> tuple[str, int]:
        where, stream_id = self._where[topic]
        return channel.control_publication(where, self._client.settings), stream_id

    def _is_open(self) -> bool:
        """Whether whatever was asked for by `open` is there. Who says something there is told why it was refused."""
        for topic, pending in list(self._opening.items()):
            try:
                publication = pending.poll()
            except TransportError:
                del self._opening[topic]
                continue
            if publication is not None:
                del self._opening[topic]
                self._mouths[topic] = publication
        return self._promised <= self._mouths.keys()

    def _on_attach_response(self, response: ShmAttachResponse) -> None:
        for place in itertools.chain(self.places, self._leaving):
            place.on_attach_response(response)
        while self._leaving and not self._leaving[0].awaits_answer:
            self._leaving.popleft()

    def _on_announce(self, announce: ShmPoolAnnounce) -> None:
        self._announced.pop(announce.stream_id, None)  # the last one heard stands last
        if len(self._announced) >= MAX_ANNOUNCED:
            self._forgotten += 1
            del self._announced[next(iter(self._announced))]
        self._announced[announce.stream_id] = (announce, self.clock.monotonic_ns())
        for place in self.places:
            if place.stream_id == announce.stream_id:
                place.on_announce(announce)

    def _settle(self, between_frames: bool) -> int:
        """Lets places map, one after the other, until the time for it is over; the others come first next time."""
        if not self._unsettled:
            self._unsettled.extend(self.places)
        work, end_ns = 0, self.clock.monotonic_ns() + SETTLE_NS
        for _ in range(len(self._unsettled)):
            place = self._unsettled.popleft()
            if between_frames and place.takes_long:
                self._unsettled.append(place)
                continue
            work += place.settle()
            if self.clock.monotonic_ns() >= end_ns:
                break
        return work

    def _on_lease_revoked(self, notice: ShmLeaseRevoked) -> None:
        for place in self.places:
            place.on_lease_revoked(notice)

    def _on_driver_shutdown(self, notice: ShmDriverShutdown) -> None:
        for place in self.places:
            place.on_driver_shutdown(notice)
