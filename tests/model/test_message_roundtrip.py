"""Every valid message survives its bytes and its description, for every class."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.wire import dispatch
from framepool.wire.describe import build, describe
from framepool.wire.dispatch import MESSAGES
from framepool.wire.message import Message
from tests.model.message_strategies import messages


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_message_survives_its_bytes_and_its_description(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    encoded = message.encode()
    assert kind.decode(encoded) == message
    assert dispatch.decode(encoded) == message
    assert kind.decode_body(encoded, 8) == message
    assert build(kind, describe(message)) == message
    assert kind.decode(encoded).encode() == encoded
