"""The public face: a connection to a driver, and the producers and consumers that live on it (`design.md`).

A thread keeps leases alive and mappings current; everything a program calls runs on its own thread and never waits
for that one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from framepool.agent import Runner
from framepool.client.attach import AttachSettings
from framepool.client.blobs import BlobReceiver
from framepool.client.consumer import MAX_OUTSTANDING_SEQ_GAP, Consumer, Watcher
from framepool.client.consumer_duties import ConsumerDuties
from framepool.client.consumer_streams import ConsumerStreams
from framepool.client.fallback import Elsewhere, NoPlace, OpenSource, PayloadSource, SourceRequest
from framepool.client.gauges import Gauges
from framepool.client.hello import SHARED, ConsumerWishes, Endpoint, Fallback
from framepool.client.lookup import Lookup, not_local
from framepool.client.metadata import with_identity
from framepool.client.metadata_cache import MetadataCache
from framepool.client.plane import ControlPlane, Place
from framepool.client.producer import Producer
from framepool.client.producer_duties import ProducerDuties
from framepool.client.seat import Seat
from framepool.client.standalone import AnnouncedPlace, OwnedPlace
from framepool.clock import NANOS_PER_MILLI, Clock, MonotonicClock
from framepool.config import Config
from framepool.discovery.query import Query
from framepool.discovery.stream import Stream
from framepool.errors import AttachRefused, ConfigurationError, NotLocal
from framepool.shm.allocator import Allocator
from framepool.shm.paths import AllowedDirectories, OwnerPolicy
from framepool.transport import channel
from framepool.transport.aeron import Client, ExclusivePublication
from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    MetaBlobAnnounce,
    MetaBlobChunk,
    MetaBlobComplete,
    Mode,
)
from framepool.wire._generated.driver_901 import Role
from framepool.wire.message import Message

LEAST_PATIENCE = 0.5
"""Seconds for a driver to answer, however long it took to find out which one to ask."""

_OPEN: dict[Pool, int] = {}
"""Those that nobody closed yet, the oldest first, and the process that opened them."""


class Pool:
    """A connection to a driver. Make one with `framepool.connect()` or `framepool.serve()`.

    A thread of its own keeps leases alive and mappings current. `config` is what it was made with, `metadata` and
    `blobs` are what the sources of the streams that are consumed here say of themselves.

    >>> with fp.connect() as other:
    ...     with other.consumer("camera") as reader:
    ...         reader.epoch == eye.epoch
    True
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        owned: contextlib.ExitStack | None = None,
        open_source: OpenSource | None = None,
        timeout: float | None = None,
    ) -> None:
        """`open_source` brings payloads another way than through shared memory, to consumers that need it."""
        self.config = config
        self._open_source = open_source
        self._clock = clock or MonotonicClock()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            if owned is not None:
                undo.push(owned)
            self._allowed = AllowedDirectories(filter(None, (config.driver.shm_base_dir, config.driver.hugepages_dir)))
            self._owners = OwnerPolicy.sharing(config.driver.group_id)
            client = Client.connect(config.aeron, name="framepool client", timeout=timeout)
            self._client = undo.enter_context(client)
            self._plane = ControlPlane(self._client, self._clock, config.stream_ids, config.channels)
            undo.enter_context(tended(self._plane).start())
            undo.callback(_OPEN.pop, self, None)
            self._open = undo.pop_all()
        _OPEN[self] = os.getpid()
        self.metadata = MetadataCache(self._clock)
        """What the sources of the streams that are consumed here say of themselves."""
        self.blobs = BlobReceiver(self._clock)
        """Large metadata of these sources, such as flat fields and masks."""
        self._hears_metadata = False
        self._granted_ids: set[int] = set()
        self._publication: ExclusivePublication | None = None
        self._lookup: Lookup | None = None
        self._planes = {(channel.place(config.channels.control), config.stream_ids.control): self._plane}
        self._attach_settings = AttachSettings(keepalive_ns=config.driver.keepalive_interval_ms * NANOS_PER_MILLI)

    @property
    def client(self) -> Client:
        """The Aeron client of this connection, for roles that have streams of their own on it.

        >>> pool.client.connected
        True
        """
        return self._client

    @property
    def plane(self) -> ControlPlane:
        """The control plane of this connection, for roles that have places or duties of their own on it.

        >>> [place.stream_id for place in pool.plane.places]
        [10000, 10000]
        """
        return self._plane

    def producer(
        self,
        stream_id: int,
        *,
        name: str = "",
        summary: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        data_source_id: int | None = None,
        create: bool = True,
        require_hugepages: bool = False,
        publish_timestamps: bool = False,
        payload_fallback_uri: str = "",
        timeout: float = 10.0,
    ) -> Producer:
        """Attaches as the producer of a stream, making it if it does not exist.

        `name`, `summary` and `metadata` tell others what the stream is; `Producer.metadata` changes them later. By
        `name`, `tags` and `data_source_id` it is found (`discover`).
        With `publish_timestamps` descriptors say when they were sent, beside when the frame was begun (Wire 10.2.1).
        Consumers without shared memory are told to take their payloads from `payload_fallback_uri` (Wire 10.1.3).

        Raises `AttachRefused` with the driver's reason if there is no lease within `timeout` seconds. Afterwards the
        producer keeps itself attached, whatever happens to the driver.

        >>> with pool.producer(10_001, name="gauge", tags=["lab:3"], metadata={"unit": "hPa"}) as gauge:
        ...     gauge.publish([1013.25])
        0
        """
        attributes = with_identity(metadata or {}, tags, data_source_id)
        seat = self._seat(self._plane, stream_id, Role.PRODUCER, create=create, require_hugepages=require_hugepages)
        self._attach(seat, timeout)
        return self._producer(
            seat,
            publish_timestamps,
            name=name,
            summary=summary,
            attributes=attributes,
            payload_fallback_uri=payload_fallback_uri,
        )

    def discover(
        self,
        name: str | None = None,
        *,
        tags: Iterable[str] = (),
        stream_id: int | None = None,
        producer_id: int | None = None,
        data_source_id: int | None = None,
        timeout: float = 10.0,
    ) -> list[Stream]:
        """The streams that are known, of this host and of others; all that is given must match, byte for byte.

        What comes back is a snapshot and grants nothing: give one of them to `consumer`, which asks its driver. Raises
        `DiscoveryError` if nobody answers within `timeout` seconds, or only with errors.

        >>> for stream in pool.discover(tags=["lab:3"]):
        ...     print(stream.stream_id, stream.name, stream.nslots, stream.local)
        10000 camera 64 True
        """
        query = Query(
            name=name, tags=tuple(tags), stream_id=stream_id, producer_id=producer_id, data_source_id=data_source_id
        )
        return self._discovery().find(query, timeout)

    def consumer(
        self,
        stream: int | str | Stream,
        *,
        max_rate_hz: int = 0,
        own_stream: bool = False,
        progress: bool = False,
        shared_memory: bool = True,
        payload_fallback_uri: str = "",
        max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP,
        watcher: Watcher | None = None,
        consumer_id: int | None = None,
        timeout: float = 10.0,
    ) -> Consumer:
        """Attaches as a consumer of a stream. Raises `AttachRefused` if there is no lease within `timeout` seconds;
        with a `timeout` of 0 it does not wait, and the consumer attaches by itself when it can.

        The stream is given by its id, by its name, or as `discover` found it. A name is looked up, waiting for it, and
        stands for the stream of this host: `StreamNotFound`, `AmbiguousStream`, and `NotLocal` if it is on another host
        and no bridge makes it appear on this one.

        With `max_rate_hz` it gets fewer frames, evenly spread; with `own_stream` the producer itself sends it fewer
        descriptors, if it agrees. With `progress` it hears of frames while they are written (`Consumer.partial`).

        Without `shared_memory` it needs no driver: its payloads come from `payload_fallback_uri`, or from where it is
        told (Wire 10.1.3). With shared memory it turns there if the regions must not be mapped.

        A `watcher` is told of every frame that is not handed over. It goes by a `consumer_id` that a supervisor gave
        out, or by one at random, until somebody else goes by it too (Wire 10.1.2).

        >>> with pool.consumer("camera", max_rate_hz=30) as display:
        ...     display.stream_id
        10000
        """
        end = time.monotonic() + timeout
        if isinstance(stream, str):
            stream = self._discovery().choose(stream, timeout)
            timeout = max(end - time.monotonic(), LEAST_PATIENCE) if timeout else 0
        plane = self._plane
        if isinstance(stream, int):
            stream_id = stream
        else:
            stream_id = stream.stream_id
            if stream.local:
                plane = self._plane_at(stream.control_channel, stream.control_stream_id)
            else:
                shared_memory = False
                payload_fallback_uri = payload_fallback_uri or self.config.discovery.payload_fallback_uri
                if not payload_fallback_uri:
                    raise NotLocal(not_local(stream))
        ids = self.config.stream_ids
        wishes = ConsumerWishes(
            mode=Mode.RATE_LIMITED if max_rate_hz else Mode.STREAM,
            max_rate_hz=max_rate_hz,
            supports_shm=shared_memory,
            supports_progress=progress,
            descriptor=Endpoint.within(ids.consumer_descriptor) if own_stream else SHARED,
            control=Endpoint.within(ids.consumer_control) if own_stream and progress else SHARED,
            consumer_id=consumer_id,
        )
        fallback = Fallback.of(payload_fallback_uri) if payload_fallback_uri else None
        if fallback is not None and not fallback.supported:
            raise ConfigurationError(f"payload_fallback_uri {payload_fallback_uri!r}: {fallback.unsupported}")
        place = self._seat(plane, stream_id, Role.CONSUMER) if shared_memory else NoPlace(stream_id)
        return self._consumer(plane, place, timeout, max_outstanding_seq_gap, wishes, fallback, watcher)

    def announced(
        self, stream_id: int, *, max_outstanding_seq_gap: int = MAX_OUTSTANDING_SEQ_GAP, timeout: float = 10.0
    ) -> Consumer:
        """A consumer without a lease, that maps what is announced: for streams that no driver owns.

        Raises `AttachRefused` if nothing usable is announced within `timeout` seconds.

        >>> with pool.announced(10_000) as reader:          # a driver's streams are announced too
        ...     reader.epoch == eye.epoch
        True
        """
        place = AnnouncedPlace(self._plane, stream_id, allowed=self._allowed, owners=self._owners)
        return self._consumer(self._plane, place, timeout, max_outstanding_seq_gap, ConsumerWishes())

    def standalone(self, stream_id: int, *, name: str = "", profile: str = "default") -> Producer:
        """A producer without a driver: it owns its files, in a namespace of its own, and announces them itself.

        >>> with pool.standalone(10_002) as own, pool.announced(10_002) as reader:
        ...     own.publish(image)
        ...     (next(reader).copy() == image).all()
        0
        np.True_
        """
        driver = self.config.driver
        allocator = Allocator(driver.shm_base_dir, f"standalone-{stream_id}", prefault=driver.prefault, sync=True)
        announces = self._client.add_publication(
            channel.control_publication(self.config.channels.announce, self.config.aeron),
            self.config.stream_ids.announce,
        )
        place = OwnedPlace(self._plane, stream_id, self.config.profile(profile), allocator, announces, self.config)
        self._plane.add(place)
        return self._producer(place, name=name)

    def close(self) -> None:
        """Gives every lease back and disconnects; what `serve` started ends with it.

        >>> other = fp.connect()
        >>> other.close()
        """
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def statistics(self) -> dict[str, object]:
        """The connection and every place on it.

        >>> pool.statistics()["connected"], len(pool.statistics()["places"])
        (True, 2)
        """
        places = [place.statistics() for plane in self._planes.values() for place in plane.places]
        asked = {"discovery": self._lookup.statistics()} if self._lookup else {}
        return {**self._client.statistics(), **self._plane.statistics(), "places": places, **asked}

    def _discovery(self) -> Lookup:
        """Made when it is first needed: it has streams of its own."""
        with self._plane.lock():
            if self._lookup is None:
                self._lookup = Lookup(self._plane, self._client, self.config)
            return self._lookup

    def _plane_at(self, control_channel: str, control_stream_id: int) -> ControlPlane:
        """The control plane of a driver that takes its requests there (Discovery 5.2): the same for all of them but
        for its control stream."""
        key = (channel.place(control_channel), control_stream_id)
        with self._plane.lock():
            plane = self._planes.get(key)
            if plane is None:
                ids, channels = self.config.stream_ids, self.config.channels
                where = (control_channel, control_stream_id)
                plane = ControlPlane(self._client, self._clock, ids, channels, control=where)
                self._open.enter_context(tended(plane).start())
                self._planes[key] = plane
            return plane

    def _seat(
        self,
        plane: ControlPlane,
        stream_id: int,
        role: Role,
        *,
        create: bool = False,
        require_hugepages: bool = False,
    ) -> Seat:
        if not isinstance(stream_id, int):
            raise TypeError(f"a stream is made under a number, and may have a name beside it: not {stream_id!r}")
        if not 0 <= stream_id < 2**32:
            raise ValueError(f"the number of a stream has 32 bits: {stream_id} has not")
        return Seat(
            plane,
            stream_id,
            role,
            allowed=self._allowed,
            owners=self._owners,
            create=create,
            require_hugepages=require_hugepages,
            settings=self._attach_settings,
            native_keepalives=True,
        )

    def _attach(self, place: Place, timeout: float) -> None:
        """Takes the place in and waits until it has regions."""
        self._plane.add(place)
        try:
            self._wait_for(lambda: place.stream is not None, place.refusal, place.stream_id, timeout)
        except AttachRefused:
            self._plane.remove(place)
            raise

    @staticmethod
    def _wait_for(ready: Callable[[], bool], refusal: Callable[[], str], stream_id: int, timeout: float) -> None:
        if timeout == 0 or wait_until(ready, timeout):
            return
        why = refusal() or "no answer; is a driver running? Start one with: framepool driver"
        raise AttachRefused(f"stream {stream_id}: not attached within {timeout} s: {why}")

    def _producer(self, place: Place, publish_timestamps: bool = False, **source: Any) -> Producer:
        """A producer on the one descriptor publication of this pool, with its duties in the control plane.

        The publication is exclusive, which is one writer's at a time: the interpreter's lock sees to that, because
        frames are told of with the lock held. A shared one costs each frame an atomic step that waits for its copy.
        """
        if self._publication is None:
            where = channel.descriptor_publication(self.config.channels.descriptor, self.config.aeron)
            self._publication = self._client.add_exclusive_publication(where, self.config.stream_ids.descriptor)

        def close() -> None:
            self._plane.leave(gauges)
            if producer.duties is not None:
                self._plane.leave(producer.duties)
            self._plane.remove(place)

        producer = Producer(
            place, self._publication, self._clock, publish_timestamps=publish_timestamps, on_close=close
        )
        gauges = Gauges(
            self._client,
            self._clock,
            Role.PRODUCER,
            place.stream_id,
            identity=lambda: known[0] if (known := place.identity()) else None,
            read=producer.gauges,
        )
        try:
            duties = ProducerDuties(
                self._plane,
                self._client,
                self.config,
                place,
                current_seq=lambda: producer.current_seq,
                taken=self._granted_ids,
                **source,
            )
            producer.duties = self._plane.join(duties)
            self._plane.join(gauges)
            producer._ears = self._plane.ears
        except BaseException:
            producer.close()
            raise
        return producer

    def _consumer(
        self,
        plane: ControlPlane,
        place: Place,
        timeout: float,
        max_outstanding_seq_gap: int,
        wishes: ConsumerWishes,
        fallback: Fallback | None = None,
        watcher: Watcher | None = None,
    ) -> Consumer:
        """A consumer with a native queue of its own for the descriptors of its stream."""
        self._hear_metadata()
        self.metadata.follow(place.stream_id)
        streams = ConsumerStreams(self._client, self.config, place.stream_id)
        drain, _ = streams.switch(SHARED, SHARED)

        def close() -> None:
            plane.leave(gauges)
            if consumer.duties is not None:
                plane.leave(consumer.duties)
            streams.close()
            plane.remove(place)

        consumer = Consumer(
            place,
            drain,
            clock=self._clock,
            max_outstanding_seq_gap=max_outstanding_seq_gap,
            lookup=self.metadata.get,
            watcher=watcher,
            on_close=close,
        )
        consumer.switch = streams.switch
        consumer._ears = plane.ears
        consumer.elsewhere = Elsewhere(plane, lambda uri: self._payload_source(plane, uri, place.stream_id))
        consumer.configured_fallback = fallback
        low, high = self.config.stream_ids.bridge_destinations
        bridged = low <= place.stream_id <= high
        if bridged:  # its timestamps are of another host's clock (`decisions.md` #56)
            consumer.latency.domain = None
        consumer.duties = ConsumerDuties(
            plane,
            place.stream_id,
            read=consumer.reading,
            tend=consumer.tend,
            wishes=wishes,
            forwarded=bridged,
            rejected=place.rejected,
            qos_period_ns=self.config.client.qos_period_ms * NANOS_PER_MILLI,
            changes=place.changes,
        )
        consumer.limit(consumer.duties.assignment.local_rate_hz)
        introduction = consumer.duties.introduction
        gauges = Gauges(
            self._client,
            self._clock,
            Role.CONSUMER,
            place.stream_id,
            identity=lambda: introduction.consumer_id,
            read=consumer.gauges,
        )
        plane.join(consumer.duties)
        plane.join(gauges)
        try:
            plane.add(place)
            self._wait_for(lambda: consumer.ready, lambda: consumer.refusal, place.stream_id, timeout)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def _payload_source(self, plane: ControlPlane, uri: str, stream_id: int) -> PayloadSource:
        """Opens what brings the payloads of a stream another way."""
        if self._open_source is None:
            raise ConfigurationError("this pool was made without a way to bring payloads; use framepool.connect()")
        return self._open_source(SourceRequest(uri, stream_id, self._client, plane, self.config, self._take_metadata))

    def _take_metadata(self, message: Message) -> None:
        """What a source says of itself, however it came here."""
        match message:
            case DataSourceAnnounce():
                self.metadata.on_announce(message)
            case DataSourceMeta():
                self.metadata.on_meta(message)
            case MetaBlobAnnounce():
                self.blobs.on_announce(message)
            case MetaBlobChunk():
                self.blobs.on_chunk(message)
            case MetaBlobComplete():
                self.blobs.on_complete(message)

    def _hear_metadata(self) -> None:
        """Listens to what sources say of themselves, from the first consumer on."""
        blobs: tuple[type[Message], ...] = (MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete)
        kinds: tuple[type[Message], ...] = (DataSourceAnnounce, DataSourceMeta, *blobs)
        with self._plane.lock():
            if not self._hears_metadata:
                for kind in kinds:
                    self._plane.listen("metadata", kind, self._take_metadata)
                self._hears_metadata = True


class Attended:
    """A control plane as an agent that is turned all the time."""

    def __init__(self, plane: ControlPlane) -> None:
        self.role = plane.role
        self.on_start = plane.on_start
        self.do_work = plane.attend
        self.on_close = plane.on_close


def tended(plane: ControlPlane) -> Runner:
    """A thread for a control plane: quick while something goes on, and never in the way of a thread with frames."""
    return Runner(Attended(plane), idle=plane, stands_back=True, wake=plane.nudge)


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Looks often at first, then less so."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


@atexit.register
def _close_what_is_open() -> None:
    """A program that ends without closing its pools gives its leases back all the same."""
    for pool, process in reversed(tuple(_OPEN.items())):
        if process == os.getpid():
            pool.close()
