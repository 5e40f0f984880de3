"""Both ends of a payload channel on loopback UDP, and the transport's own fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from framepool.transport.aeron import Client
from tests.support.chunked import Link
from tests.unit.transport.conftest import client, open_for_messages, until

__all__ = ["client", "link", "until"]


@pytest.fixture
def link(client: Client, until: Callable[[Callable[[], object]], None]) -> Link:
    """A publication and a subscription of chunks that see each other."""
    link = Link.open(client)
    until(lambda: open_for_messages(link.publication) and link.subscription.is_connected)
    return link
