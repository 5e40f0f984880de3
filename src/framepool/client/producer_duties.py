"""What a producer does beside publishing: it knows its consumers, reports, and tells what its frames mean.

Turned by the control plane: answers hellos and keeps the streams it granted to single consumers (Wire 5, 10.1.2,
10.1.3), agrees on how often to tell of progress (10.2.2), reports at 1 Hz (10.4.2), and repeats its metadata (10.3).
The publishing thread meets it in `tell` and in the progress of a slot, under the plane's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framepool._native.frames import Changes
from framepool.client.blobs import BlobSender
from framepool.client.hello import SHARED, Endpoint
from framepool.client.metadata import SourceMetadata
from framepool.client.plane import ControlPlane, Place
from framepool.client.progress import ProgressStream
from framepool.client.qos import ProducerQos, ProducerReading
from framepool.client.registry import ConsumerRegistry, RegistrySettings
from framepool.clock import NANOS_PER_MILLI
from framepool.config import Config
from framepool.errors import MediaDriverLost, TransportError
from framepool.transport.aeron import Client, Pending, Publication
from framepool.wire._generated.control_900 import ConsumerHello, FrameProgress, QosConsumer
from framepool.wire._generated.trace_904 import TraceLinkSet


class OwnStreams:
    """The publications of single consumers: begun when they are granted, used once the media driver has them."""

    def __init__(self, client: Client, changes: Changes) -> None:
        """Each one that comes or goes is counted in `changes`."""
        self._client = client
        self._changes = changes
        self._streams: dict[Endpoint, Publication | Pending[Publication]] = {}

    def __bool__(self) -> bool:
        return bool(self._streams)

    def open(self, endpoint: Endpoint) -> bool:
        try:
            self._streams[endpoint] = self._client.add_publication_async(endpoint.channel, endpoint.stream_id)
        except TransportError:
            return False
        self._changes.count += 1
        return True

    def close(self, endpoint: Endpoint) -> None:
        stream = self._streams.pop(endpoint, None)
        self._changes.count += 1
        if isinstance(stream, Pending):
            stream.cancel()
        elif stream is not None:
            stream.close()

    def offer(self, endpoint: Endpoint, data: bytes) -> bool:
        """Sends to one consumer; False when it cannot be sent now."""
        stream = self._streams.get(endpoint)
        try:
            if isinstance(stream, Pending):
                stream = stream.poll()
                if stream is not None:
                    self._streams[endpoint] = stream
            return stream is not None and stream.offer(data) >= 0
        except MediaDriverLost:
            return False
        except TransportError:
            self.close(endpoint)
            return False


class ProducerDuties:
    """One producer's part in the control plane."""

    def __init__(
        self,
        plane: ControlPlane,
        client: Client,
        config: Config,
        place: Place,
        *,
        current_seq: Callable[[], int],
        name: str = "",
        summary: str = "",
        attributes: Mapping[str, Any] | None = None,
        payload_fallback_uri: str = "",
        taken: set[int] | None = None,
    ) -> None:
        ids = config.stream_ids
        self._plane = plane
        self._place = place
        self._current_seq = current_seq
        self._unlisten: list[Callable[[], None]] = []
        self.own_streams = OwnStreams(client, place.changes)
        """True while `tell` has anybody to tell."""
        self.registry = ConsumerRegistry(
            place.stream_id,
            send=plane.send,
            publications=self.own_streams,
            clock=plane.clock,
            settings=RegistrySettings(
                descriptor_ids=ids.consumer_descriptor,
                control_ids=ids.consumer_control,
                payload_fallback_uri=payload_fallback_uri,
            ),
            taken=taken,
        )
        self.progress = ProgressStream(place.stream_id, send=self._send_progress, clock=plane.clock)
        self.metadata = SourceMetadata(
            place.stream_id,
            publish=lambda message: plane.say("metadata", message),
            clock=plane.clock,
            max_message_length=plane.max_message_length("metadata"),
            name=name,
            summary=summary,
            attributes=attributes,
            period_ns=config.client.metadata_period_ms * NANOS_PER_MILLI,
            changes=place.changes,
            hurry=plane.hurry,
        )
        self.blobs = BlobSender(
            lambda message: plane.say("metadata", message),
            max_message_length=plane.max_message_length("metadata"),
            hurry=plane.hurry,
        )
        self._qos = ProducerQos(
            place.stream_id,
            read=self._read,
            publish=lambda message: plane.say("qos", message),
            clock=plane.clock,
            period_ns=config.client.qos_period_ms * NANOS_PER_MILLI,
        )

    def start(self) -> None:
        self._plane.open("qos")
        self._unlisten.append(self._plane.listen("control", ConsumerHello, self._on_hello))
        self._unlisten.append(self._plane.listen("qos", QosConsumer, self.registry.on_qos))

    def do_work(self) -> int:
        identity = self._place.identity()
        if identity is None:
            self.metadata.detached()
        else:
            self.metadata.attached(*identity)
        gone = self.registry.do_work()
        if gone:
            self.progress.agree(self.registry.hellos())
        return gone + self._qos.do_work() + self.metadata.do_work() + self.blobs.do_work()

    def due_ns(self) -> int:
        return 0 if self.blobs.pending else min(self._qos.due_ns(), self.metadata.due_ns())

    def close(self) -> None:
        for stop in self._unlisten:
            stop()
        self.registry.close()

    def tell(self, descriptor: bytes) -> None:
        """Sends a descriptor to the consumers that have a stream of their own, at the rate of each."""
        with self._plane.lock():
            for endpoint in self.registry.descriptor_targets():
                self.own_streams.offer(endpoint, descriptor)

    def link(self, links: TraceLinkSet) -> bool:
        """Tells what a frame was made of; False when nobody listens or Aeron did not take it."""
        return self._plane.say("metadata", links)

    def statistics(self) -> dict[str, object]:
        return {
            "consumers": self.registry.statistics(),
            "progress": self.progress.statistics(),
            "metadata": self.metadata.statistics(),
            "qos": self._qos.statistics(),
        }

    def _on_hello(self, hello: ConsumerHello) -> None:
        if self.registry.on_hello(hello):
            self.progress.agree(self.registry.hellos())

    def _read(self) -> ProducerReading | None:
        identity = self._place.identity()
        if identity is None:
            return None
        producer_id, epoch = identity
        return ProducerReading(producer_id=producer_id, epoch=epoch, current_seq=self._current_seq())

    def _send_progress(self, message: FrameProgress) -> bool:
        """To everybody who wants progress: on the shared control stream, or on a stream of their own (Wire 5)."""
        data = message.encode()
        with self._plane.lock():
            told = [
                self._plane.send(message) if to is SHARED else self.own_streams.offer(to, data)
                for to in self.registry.progress_targets()
            ]
        return all(told)
