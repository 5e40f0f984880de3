"""How providers hear: on this host as one of many who may be left behind, over the network as Aeron has it."""

from __future__ import annotations

from typing import Protocol

from framepool.transport import channel
from framepool.transport.aeron import Client, Filter
from framepool.transport.listener import Listener
from framepool.wire._generated.discovery_910 import DiscoveryRequest


class Ear(Protocol):
    """Something that is polled for messages."""

    def poll(self, limit: int = ..., /) -> list[bytes]:
        """What came, oldest first."""

    def close(self) -> None:
        """Hears nothing more."""


REQUESTS = Filter(schema_id=DiscoveryRequest.SCHEMA_ID)
"""What is not of the schema never becomes an object: the driver's control stream is busy (Discovery 4.2)."""


def listen(client: Client, name: str, stream_id: int, *, only: Filter | None = None) -> Ear:
    """Listens on a channel; raises what the media driver refuses."""
    if channel.parse(name)[0] == "ipc":
        return Listener(client.add_subscription(channel.control_subscription(name), stream_id, only=only))
    return client.add_subscription(name, stream_id, only=only)
