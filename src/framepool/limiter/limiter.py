"""The rate limiter: reads a stream as any consumer does and republishes it on another one, at most so often.

For displays and other readers that want a picture now and then and not every frame. It samples: whenever a frame is due
it takes the newest one, so its output is even and never older than one interval, however unsteady the source is, and
a source of any speed costs it the same. A frame keeps its timestamp, shape, dtype and trace id; the stream keeps name,
summary and attributes of its source.

It is a service: `set:rate`, `pause`, `resume`, `stop` (gives both leases back), `start`, `state`. Consumer and producer
attach by themselves, so the order of start does not matter, and restarts of source, driver or media driver heal.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec

from framepool.agent import Runner, Sleeping
from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.pool import Pool
from framepool.client.producer import Producer
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.errors import ConfigurationError, FrameOverwritten, NoPoolFits, NotAttached
from framepool.service import Parameter, Service, ServiceState
from framepool.wire.attributes import Metadata

FASTEST = 100_000.0


class Limiter(Service):
    """Republishes a stream at a lower rate. An agent; in a `with` block it runs on a thread of its own.

    >>> with Limiter(pool, 10_000, 20_000, rate=25):           # doctest: +SKIP
    ...     show(pool.consumer(20_000))
    """

    rate = Parameter(
        Annotated[float, msgspec.Meta(ge=0, le=FASTEST)], 25.0, "Frames a second at the most; 0 is all of them."
    )

    def __init__(
        self,
        pool: Pool,
        source: int,
        dest: int,
        *,
        rate: float = 25.0,
        name: str | None = None,
        instance: str = "",
        clock: Clock | None = None,
    ) -> None:
        """`name` is that of the new stream, by default the name of the source; `instance` that of the service, by
        default the id of the new stream."""
        if source == dest:
            raise ConfigurationError(f"stream {source} cannot be limited into itself: name another one for the output")
        super().__init__(pool.client, pool.config, name="limiter", instance=instance or str(dest), clock=clock)
        self.source = source
        self.dest = dest
        self.rate = rate
        self._pool = pool
        self._name = name
        self._due_ns = self.clock.monotonic_ns()
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._copied = ("", "")
        self._copied_metadata: Metadata | None = None
        self._runner: Runner | None = None

    def __enter__(self) -> Self:
        self._runner = Runner(self, idle=Sleeping()).start()
        try:
            self._runner.wait_started()
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self._runner.close()

    # The service

    def on_start(self) -> None:
        super().on_start()
        self._attach()

    def on_close(self) -> None:
        self._detach()
        super().on_close()

    def on_state(self, state: ServiceState) -> None:
        if state is ServiceState.STOPPED:
            self._detach()
        elif self.state is ServiceState.STOPPED:
            self._attach()
        elif state is ServiceState.RUNNING and self._consumer is not None:
            self._consumer.pass_over()  # of what came during a pause, nothing is shown

    def on_set(self, name: str, value: Any) -> None:
        self._due_ns = self.clock.monotonic_ns()  # a long interval does not outlive its rate

    def work(self) -> int:
        if self._consumer is None or self._producer is None:
            return 0
        frames = self._taken(self._consumer)
        for frame in frames:
            self._republish(frame, self._producer)
        return len(frames)

    def report(self) -> dict[str, Any]:
        said: dict[str, Any] = {"source": self.source, "dest": self.dest}
        if self._consumer is not None and self._producer is not None:
            said["source_attached"] = self._consumer.ready
            said["dest_attached"] = self._producer.attached
            said["consumer"] = dict(self._consumer.counts)
            said["producer"] = dict(self._producer.counts)
        return said

    # Frames

    def _attach(self) -> None:
        """Asks for both leases without waiting for them."""
        self._copied, self._copied_metadata = (self._name or "", ""), None
        self._consumer = self._pool.consumer(self.source, timeout=0)
        try:
            self._producer = self._pool.producer(self.dest, name=self._name or "", timeout=0)
        except BaseException:
            self._detach()
            raise

    def _detach(self) -> None:
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        for each in (consumer, producer):
            if each is not None:
                each.close()

    def _taken(self, consumer: Consumer) -> Sequence[Frame]:
        """What is due now: the newest frame once an interval, or all of them without a limit."""
        if self.rate == 0:
            return consumer.poll()
        now = self.clock.monotonic_ns()
        if now < self._due_ns:
            return ()
        frame = consumer.newest()
        if frame is None:
            return ()
        interval_ns = round(NANOS_PER_SECOND / self.rate)
        self._due_ns = max(self._due_ns, now - interval_ns) + interval_ns
        return (frame,)

    def _republish(self, frame: Frame, producer: Producer) -> None:
        """One copy, from slot to slot; a frame that was lapped meanwhile is given up and counted."""
        self._copy_metadata(frame, producer)
        try:
            with frame as image:
                shape, dtype = image.shape, image.dtype
            slot = producer.claim(
                shape, dtype, order=frame.order, timestamp_ns=frame.timestamp_ns, trace_id=frame.trace_id
            )
            with slot:
                frame.copy_into(slot.array)
        except FrameOverwritten:
            self.counts["overwritten"] += 1
        except NotAttached:
            self.counts["not attached"] += 1
        except NoPoolFits as error:
            self._count_bad("no pool fits", error)
        else:
            self.counts["republished"] += 1

    def _copy_metadata(self, frame: Frame, producer: Producer) -> None:
        """What the source says of itself, said of the new stream too, before the frames that it is about."""
        source, metadata = self._pool.metadata.source(self.source), frame.metadata
        name = self._name if self._name is not None else source.name if source else ""
        summary = source.summary if source else ""
        if (name, summary) == self._copied and metadata is self._copied_metadata:
            return
        self._copied, self._copied_metadata = (name, summary), metadata
        with producer.metadata.edit() as target:
            target.name, target.summary = name, summary
            if metadata is not None:
                target.clear()
                for key in metadata:
                    target.set(key, metadata.raw(key), format=metadata.format(key))
