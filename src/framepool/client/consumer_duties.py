"""What a consumer does beside reading: it says hello, reports, and hears what it is told (Wire 5, 10.1.2 to 10.4.1).

Turned by the control plane. What concerns the reading thread is left for it to pick up: a stream of its own to switch
to, a rate to keep, the progress of frames that are not there yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from framepool._native.frames import Changes
from framepool.client.hello import Assignment, ConsumerWishes, Introduction
from framepool.client.partial import Partial, PartialFrames, PartialSlots
from framepool.client.plane import ControlPlane
from framepool.client.qos import ConsumerQos, ConsumerReading
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.wire._generated.control_900 import ConsumerConfig, FrameProgress, QosConsumer

log = logging.getLogger(__name__)

TEND_NS = 100 * NANOS_PER_MILLI
"""Between looks at the descriptor stream."""
JOIN_NS = 20 * NANOS_PER_MILLI
"""The same while it joins again."""


class ConsumerDuties:
    """One consumer's part in the control plane."""

    def __init__(
        self,
        plane: ControlPlane,
        stream_id: int,
        *,
        read: Callable[[], ConsumerReading | None],
        tend: Callable[[], bool] = lambda: False,
        wishes: ConsumerWishes | None = None,
        forwarded: bool = False,
        rejected: Callable[[], str] = lambda: "",
        qos_period_ns: int = NANOS_PER_SECOND,
        changes: Changes | None = None,
    ) -> None:
        """`tend` looks after the descriptor stream and says whether that is to be done again soon. `rejected` says why
        shared memory must not be used, if it is so. Every new assignment is counted in `changes`."""
        self._plane = plane
        self._changes = changes or Changes()
        self._rejected = rejected
        self._unlisten: list[Callable[[], None]] = []
        consumer_id = None if wishes is None else wishes.consumer_id
        self.introduction = Introduction(
            stream_id, send=plane.send, clock=plane.clock, wishes=wishes, consumer_id=consumer_id
        )
        self._tend = tend
        self._tend_due_ns = 0
        self.assigned = 0
        """How often the assignment changed: the reading thread compares and follows."""
        self.partials = PartialFrames(stream_id, forwarded=forwarded) if self.wishes.supports_progress else None
        self._qos = ConsumerQos(
            stream_id,
            self.introduction.consumer_id,
            read=read,
            publish=lambda message: plane.say("qos", message),
            clock=plane.clock,
            on_collision=self._on_collision,
            period_ns=qos_period_ns,
        )

    @property
    def wishes(self) -> ConsumerWishes:
        return self.introduction.wishes

    @property
    def assignment(self) -> Assignment:
        return self.introduction.assignment

    def start(self) -> None:
        self._plane.open("qos")
        self._unlisten.append(self._plane.listen("control", ConsumerConfig, self._on_config))
        self._unlisten.append(self._plane.listen("qos", QosConsumer, self._qos.on_qos_consumer))
        if self.partials is not None:
            self._unlisten.append(self._plane.listen("control", FrameProgress, self.on_progress))
        self.introduction.start()

    def do_work(self) -> int:
        if self.introduction.reject(bool(self._rejected())):
            self._reassign()
        now = self._plane.clock.monotonic_ns()
        if now >= self._tend_due_ns:  # routine, and no reason for the control plane to stay awake
            self._tend_due_ns = now + (JOIN_NS if self._tend() else TEND_NS)
        return self.introduction.do_work() + self._qos.do_work()

    def due_ns(self) -> int:
        return min(self.introduction.due_ns(), self._qos.due_ns(), self._tend_due_ns)

    def close(self) -> None:
        self.introduction.stop()
        for stop in self._unlisten:
            stop()

    def on_progress(self, message: FrameProgress) -> None:
        """From the shared control stream, or handed over by the reading thread from one of its own."""
        if self.partials is not None:
            with self._plane.lock():
                self.partials.on_progress(message)

    def on_descriptor(self, seq: int) -> None:
        """The frame is there: its progress is history."""
        if self.partials is not None:
            with self._plane.lock():
                self.partials.on_descriptor(seq)

    def follow(self, slots: PartialSlots | None, epoch: int) -> None:
        """The regions that progress is read from."""
        if self.partials is not None:
            with self._plane.lock():
                self.partials.follow(slots, epoch)

    def partial(self, seq: int | None = None) -> Partial | None:
        """What is readable of a frame that is being written: of `seq`, or of the newest."""
        if self.partials is None:
            raise ValueError("this consumer did not ask for progress: make it with progress=True")
        with self._plane.lock():
            return self.partials.read(seq)

    def statistics(self) -> dict[str, object]:
        said: dict[str, object] = {"hello": self.introduction.statistics(), "qos": self._qos.statistics()}
        return said if self.partials is None else {**said, "partial": self.partials.statistics()}

    def _on_config(self, config: ConsumerConfig) -> None:
        if self.introduction.on_config(config):
            self._reassign()

    def _on_collision(self, consumer_id: int) -> None:
        renewed = self.introduction.renew()
        log.warning("consumer id %d is somebody else's too; going on as %d", consumer_id, renewed)
        self._qos.renew(renewed)
        self._reassign()

    def _reassign(self) -> None:
        self.assigned += 1
        self._changes.count += 1
