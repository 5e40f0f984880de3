"""The compiled core is tested with the ends of the transport's own tests."""

from tests.unit.transport.conftest import client, ends, send, until

__all__ = ["client", "ends", "send", "until"]
