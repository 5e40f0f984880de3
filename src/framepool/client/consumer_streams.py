"""What one consumer subscribes to: descriptors, and progress where that has a stream of its own (Wire 5, 10.1.3)."""

from __future__ import annotations

from framepool.client.hello import Endpoint
from framepool.config import Config
from framepool.transport import channel
from framepool.transport.aeron import Client, Drain, Filter, Subscription
from framepool.wire._generated.control_900 import FrameDescriptor, FrameProgress

STREAM_ID_OFFSET = 8
"""Of a descriptor's stream id, behind the message header."""
QUEUE = 4096
"""Descriptors that wait for a consumer; the oldest go first."""


class ConsumerStreams:
    """The subscriptions of one consumer: descriptors, and progress where that has a stream of its own."""

    def __init__(self, client: Client, config: Config, stream_id: int) -> None:
        self._client = client
        self._config = config
        self._stream_id = stream_id
        self._open: list[tuple[Subscription, Drain]] = []

    def switch(self, descriptor: Endpoint, control: Endpoint) -> tuple[Drain, Drain | None]:
        """Subscribes to these, the empty one being the shared stream, and then lets go of what was before."""
        before, self._open = self._open, []
        shared = Endpoint(self._config.channels.descriptor, self._config.stream_ids.descriptor)
        descriptors = self._drain(descriptor or shared, FrameDescriptor)
        progress = self._drain(control, FrameProgress) if control else None
        self._close(before)
        return descriptors, progress

    def close(self) -> None:
        before, self._open = self._open, []
        self._close(before)

    def _drain(self, endpoint: Endpoint, kind: type[FrameDescriptor | FrameProgress]) -> Drain:
        only = Filter(
            schema_id=kind.SCHEMA_ID,
            template_id=kind.TEMPLATE_ID,
            offset=STREAM_ID_OFFSET,
            pattern=self._stream_id.to_bytes(4, "little"),
        )
        where = channel.descriptor_subscription(endpoint.channel)
        subscription = self._client.add_subscription(where, endpoint.stream_id, only=only)
        drain = subscription.drain(capacity=QUEUE, max_message=64)
        self._open.append((subscription, drain))
        return drain

    @staticmethod
    def _close(streams: list[tuple[Subscription, Drain]]) -> None:
        for subscription, drain in streams:
            drain.close()
            subscription.close()
