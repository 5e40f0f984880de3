"""Every message of every schema: whatever the bytes, `DecodeError` or a message that fits them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from framepool.bridge.chunks import ChunkDrop, decode_chunk
from framepool.driver.conductor import REQUESTS, refusal
from framepool.errors import DecodeError, EncodeError
from framepool.service.events import Event
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import DataSourceMeta
from framepool.wire._generated.driver_901 import ResponseCode
from framepool.wire._generated.event_905 import EventMessage
from framepool.wire.attributes import Metadata
from framepool.wire.describe import build, describe, redacted
from framepool.wire.discovery import salvage_request
from framepool.wire.dispatch import MESSAGES, Dispatcher
from framepool.wire.message import Message
from framepool.wire.salvage import salvage
from tests.golden.vectors import ALL

_dispatcher = Dispatcher()
for _kind in MESSAGES:
    _dispatcher.on(_kind, lambda message: None)


def one(data: bytes) -> None:
    """The gate, the class that the header names, bodies without a header, and what can be saved of a request."""
    message = _attempt(dispatch.decode, data)
    assert (_dispatcher(data) is None) == (message is not None)
    assert isinstance(decode_chunk(data), ChunkDrop) or message is not None
    if message is not None:
        _check(message, data)
    if data:
        body = _attempt(MESSAGES[data[0] % len(MESSAGES)].decode_body, data[1:])
        if body is not None:
            _check(body, data[1:])
    if (saved := salvage(data, REQUESTS)) is not None:
        answer = refusal(saved, ResponseCode.INVALID_PARAMS).encode()
        assert len(answer) < 2_000, "an answer repeats what it answers"
    asked = salvage_request(data)
    assert asked is None or (message is None and asked.reason)


def seeds() -> Iterator[bytes]:
    for vector in ALL:
        if vector.with_header:
            yield vector.encoded
        else:
            yield bytes([MESSAGES.index(vector.message)]) + vector.encoded
    for message in MESSAGES:
        yield message.HEADER_BYTES


def _attempt(decode: Callable[[bytes], Message], data: bytes) -> Message | None:
    try:
        return decode(data)
    except DecodeError:
        return None


def _check(message: Message, data: bytes) -> None:
    assert build(type(message), describe(message)) == message
    if not isinstance(message, EventMessage):  # a newer one says more than we can encode
        assert message.encode_body() in data
    describe(redacted(message))
    if isinstance(message, DataSourceMeta):
        read_metadata(Metadata(message.stream_id, message.meta_version, message.timestamp_ns, message.attributes))
    if isinstance(message, EventMessage):
        read_event(message)


def read_metadata(metadata: Metadata) -> None:
    """Everything that programs ask of metadata."""
    assert len(dict(metadata)) == len(metadata)
    repr(metadata)
    assert metadata.data_source_id is None or 0 <= metadata.data_source_id < 2**64
    assert all(tag.isascii() for tag in metadata.tags)


def read_event(message: EventMessage) -> Event | None:
    """The event of a message, and that it says the same when it is sent again."""
    try:
        event = Event.of(message)
    except DecodeError:
        return None
    event.plain()
    try:
        again = event.message()
    except EncodeError:  # an empty value beside a reference: heard, never said
        return event
    assert again.value == message.value or event.ref is not None
    return event
