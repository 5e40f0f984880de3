"""The stream of this host that a mapping writes: its place at the driver, its writer, its duties (Bridge 4, 8).

The receiver is the exclusive producer of its destination, as any producer is: it attaches, or is refused and tries
again, and writes only under a lease. A mapping that leaves the destination open gets the first id of a range that no
other producer has. Without a driver the receiver makes the files itself. Either way every beginning is a new local
epoch, which is independent of the source's (`decisions.md` #50).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from framepool._native.frames import FrameWriter
from framepool._native.seqlock import Layout, RingWriter
from framepool.bridge.receiver import StreamTarget
from framepool.client.attach import AttachSettings
from framepool.client.hello import Endpoint
from framepool.client.mapping import ring_parts
from framepool.client.plane import ControlPlane, Place
from framepool.client.pool import Pool
from framepool.client.qos import ProducerQos, ProducerReading
from framepool.client.registry import ConsumerRegistry
from framepool.client.seat import Seat
from framepool.client.standalone import OwnedPlace
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.config import IdRange, MappingConfig
from framepool.errors import FramepoolError
from framepool.shm.allocator import Allocator
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.shm.region import MappedStream
from framepool.transport import channel
from framepool.transport.aeron import Publication
from framepool.wire._generated.control_900 import ClockDomain, ConsumerHello, QosConsumer
from framepool.wire._generated.driver_901 import Role

RETRY_NS = NANOS_PER_SECOND
"""Between attempts to own a stream that is somebody else's."""
NEXT_NS = 20 * NANOS_PER_MILLI
"""Between attempts at one id of a range and the next."""


class Destination:
    """One destination, kept attached. Turned by the bridge; its place is turned by the control plane."""

    def __init__(
        self,
        pool: Pool,
        mapping: MappingConfig,
        descriptors: Publication,
        *,
        ids: IdRange | None,
        taken: set[int],
    ) -> None:
        """`ids` is where an open destination is taken from; `taken` are the destinations of this bridge, ours too."""
        self.counts: Counter[str] = Counter()
        self.target: Written | None = None
        """Where frames go now; a new one with every local epoch."""
        self.stream_id = 0
        self._pool = pool
        self._mapping = mapping
        self._descriptors = descriptors
        self._taken = taken
        self._candidates = _candidates(mapping.dest_stream_id, ids)
        self._announces: Publication | None = None
        self._place: Place | None = None
        self._duties: ProducerPart | None = None
        self._stream: MappedStream | None = None
        self._ring: RingWriter | None = None
        self._frames: FrameWriter | None = None
        self._refusal = ""
        self._due_ns = 0
        self._choose()

    @property
    def epoch(self) -> int | None:
        """The local epoch that is written now."""
        return None if self._stream is None else self._stream.layout.epoch

    @property
    def used(self) -> bool:
        """Whether anything was published in this local epoch."""
        return self._frames is not None and self._frames.committed > 0

    @property
    def refusal(self) -> str:
        """Why there is nothing to write to, as far as it is known."""
        if self._stream is not None:
            return ""
        return self._refusal or (self._place.refusal() if self._place is not None else "")

    def strides(self) -> set[int]:
        """The size classes of the present layout."""
        return set() if self._stream is None else {pool.stride_bytes for pool in self._stream.layout.pools}

    def turn(self) -> bool:
        """Follows the place; True if `target` changed."""
        now_ns = self._pool.plane.clock.monotonic_ns()
        if self._is_taken():
            self.counts["ids passed over"] += 1
            self._refusal = self._place.refusal() if self._place is not None else ""
            self._leave_place()
            self._choose()
            self._due_ns = now_ns + NEXT_NS
        if self._place is None and now_ns >= self._due_ns:
            self._take_place(now_ns)
        stream = None if self._place is None else self._place.stream
        if stream is not self._stream:
            self._close_writer()
            if stream is not None:
                self._open_writer(stream)
            return True
        if self._frames is not None and self._place is not None:
            self._place.lend(self._frames)
        return False

    def renew(self) -> None:
        """Gives the stream back and takes it anew, for a new local epoch (`decisions.md` #50)."""
        self.counts["renewed"] += 1
        self._leave_place()
        self._close_writer()
        self._take_place(self._pool.plane.clock.monotonic_ns())

    def close(self) -> None:
        self._leave_place()
        self._close_writer()
        self._taken.discard(self.stream_id)
        if self._announces is not None:
            self._announces.close()

    def statistics(self) -> dict[str, object]:
        duties = {} if self._duties is None else self._duties.statistics()
        place = {} if self._place is None else self._place.statistics()
        return {**self.counts, **duties, **place}

    def _choose(self) -> None:
        self._taken.discard(self.stream_id)
        self.stream_id = next(candidate for candidate in self._candidates if candidate not in self._taken)
        self._taken.add(self.stream_id)

    def _is_taken(self) -> bool:
        """Whether the driver refused an id that was ours to choose."""
        if self._mapping.dest_stream_id or not isinstance(self._place, Seat):
            return False
        return self._place.attachment.counts["refused REJECTED"] > 0

    def _take_place(self, now_ns: int) -> None:
        plane = self._pool.plane
        try:
            place = self._owned() if self._mapping.driverless else self._seat()
            self._place = plane.add(place)
        except FramepoolError as error:  # its files, or the media driver
            self._refusal = str(error)
            self._due_ns = now_ns + RETRY_NS
            self.counts["refused"] += 1
            return
        self._refusal = ""
        self._duties = plane.join(ProducerPart(plane, place, self._last_seq))

    def _leave_place(self) -> None:
        duties, self._duties = self._duties, None
        place, self._place = self._place, None
        if duties is not None:
            self._pool.plane.leave(duties)
        if place is not None:
            self._pool.plane.remove(place)

    def _seat(self) -> Seat:
        driver = self._pool.config.driver
        return Seat(
            self._pool.plane,
            self.stream_id,
            Role.PRODUCER,
            allowed=AllowedDirectories(filter(None, (driver.shm_base_dir, driver.hugepages_dir))),
            owners=OwnerPolicy.sharing(driver.group_id),
            create=True,
            settings=AttachSettings(keepalive_ns=driver.keepalive_interval_ms * NANOS_PER_MILLI),
            native_keepalives=True,
        )

    def _owned(self) -> OwnedPlace:
        config = self._pool.config
        allocator = Allocator(
            config.driver.shm_base_dir, f"standalone-{self.stream_id}", prefault=config.driver.prefault, sync=True
        )
        if self._announces is None:
            where = channel.control_publication(config.channels.announce, config.aeron)
            self._announces = self._pool.client.add_publication(where, config.stream_ids.announce)
        profile = config.profile(self._mapping.profile)
        return OwnedPlace(self._pool.plane, self.stream_id, profile, allocator, self._announces, config)

    def _open_writer(self, stream: MappedStream) -> None:
        self._stream = stream
        self._ring = RingWriter(*ring_parts(stream))
        realtime = self._pool.plane.clock.domain is ClockDomain.REALTIME_SYNCED
        self._frames = FrameWriter(
            self._descriptors, self._ring, self.stream_id, stream.layout.epoch, realtime=realtime
        )
        if self._place is not None:
            self._place.lend(self._frames)
        self.target = Written(self._frames)

    def _close_writer(self) -> None:
        ring, self._ring = self._ring, None
        self._stream = self._frames = self.target = None
        if ring is not None:
            ring.close()

    def _last_seq(self) -> int:
        target = self.target  # once: the plane's thread asks
        return 0 if target is None else target.last_seq


class Written(StreamTarget):
    """A local stream that knows what was written last."""

    last_seq = 0
    """0 before there is any frame, as of every producer."""

    def publish(self, seq: int, layout: Layout, timestamp_ns: int, meta_version: int, trace_id: int) -> bool:
        done = super().publish(seq, layout, timestamp_ns, meta_version, trace_id)
        self.last_seq = seq
        return done


class ProducerPart:
    """What a receiver does in the control plane as the producer of its destination: it reports (Wire 10.4.2), and
    answers consumers that ask for streams of their own that there are none (Bridge 4)."""

    def __init__(self, plane: ControlPlane, place: Place, current_seq: Callable[[], int]) -> None:
        self._plane = plane
        self._place = place
        self._current_seq = current_seq
        self._unlisten: list[Callable[[], None]] = []
        self._registry = ConsumerRegistry(place.stream_id, send=plane.send, publications=NoStreams(), clock=plane.clock)
        self._qos = ProducerQos(
            place.stream_id, read=self._read, publish=lambda message: plane.say("qos", message), clock=plane.clock
        )

    def start(self) -> None:
        self._plane.open("qos")
        self._unlisten.append(self._plane.listen("control", ConsumerHello, self._registry.on_hello))
        self._unlisten.append(self._plane.listen("qos", QosConsumer, self._registry.on_qos))

    def do_work(self) -> int:
        return self._registry.do_work() + self._qos.do_work()

    def due_ns(self) -> int:
        return self._qos.due_ns()

    def close(self) -> None:
        for stop in self._unlisten:
            stop()

    def statistics(self) -> dict[str, object]:
        return {"consumers": self._registry.statistics(), "qos": self._qos.statistics()}

    def _read(self) -> ProducerReading | None:
        identity = self._place.identity()
        if identity is None:
            return None
        producer_id, epoch = identity
        return ProducerReading(producer_id=producer_id, epoch=epoch, current_seq=self._current_seq())


class NoStreams:
    """No consumer gets a stream of its own from a bridge."""

    def open(self, endpoint: Endpoint) -> bool:
        return False

    def close(self, endpoint: Endpoint) -> None:
        pass


def _candidates(dest_stream_id: int, ids: IdRange | None) -> Iterator[int]:
    """The ids to try, for ever: the configured one, or those of the range in turn."""
    if dest_stream_id:
        return itertools.repeat(dest_stream_id)
    assert ids is not None, "checked with the configuration"
    return itertools.cycle(range(ids[0], ids[1] + 1))
