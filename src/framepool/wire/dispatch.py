"""The gate: which message a buffer holds, by schemaId, version, templateId and blockLength, in this order.

Template 1 exists in every schema and streams are shared (decisions.md #11), so nothing is decoded before its
header is known. `decode` raises, for callers who ask about one buffer; a `Dispatcher` drops and counts, for
agents, because bad input from outside must not stop them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Buffer, Callable
from enum import StrEnum
from typing import Any, Final

from framepool.errors import DecodeError, UnsupportedMessage
from framepool.wire._generated import (
    bridge_902,
    control_900,
    discovery_910,
    driver_901,
    event_905,
    trace_904,
)
from framepool.wire.message import MALFORMED, MESSAGE_HEADER, Message, MessageHeader

MESSAGES: Final[tuple[type[Message], ...]] = (
    *control_900.MESSAGES,
    *driver_901.MESSAGES,
    *bridge_902.MESSAGES,
    *trace_904.MESSAGES,
    *event_905.MESSAGES,
    *discovery_910.MESSAGES,
)
"""Every message of every schema."""


class Drop(StrEnum):
    """Why a buffer was not handled."""

    SCHEMA = "unsupported schema"
    VERSION = "unsupported version"
    TEMPLATE = "unsupported template"
    DIALECT = "unsupported dialect"
    MALFORMED = "malformed"
    UNHANDLED = "unhandled"
    """Known and well-formed as far as its header goes, but nobody here asked for it; not decoded."""


_SCHEMAS = {message.SCHEMA_ID: message for message in MESSAGES}
_TEMPLATES = {(message.SCHEMA_ID, message.TEMPLATE_ID): message for message in MESSAGES}
_HEADERS = {message.HEADER: message for message in MESSAGES}


def peek_header(buffer: Buffer) -> MessageHeader:
    """The message header at the start of the buffer, whatever it says."""
    try:
        return MessageHeader._make(MESSAGE_HEADER.unpack_from(buffer))
    except MALFORMED:
        size = memoryview(buffer).nbytes
        raise DecodeError(f"a message header needs 8 contiguous bytes, the buffer has {size}") from None


def message_of(header: MessageHeader) -> type[Message] | Drop:
    """The class that decodes messages with this header, or why there is none."""
    if known := _HEADERS.get(header):
        return known
    of_schema = _SCHEMAS.get(header.schema_id)
    if of_schema is None:
        return Drop.SCHEMA
    newer = of_schema.EXTENSIBLE and header.version > of_schema.SCHEMA_VERSION
    if header.version != of_schema.SCHEMA_VERSION and not newer:
        return Drop.VERSION
    message = _TEMPLATES.get((header.schema_id, header.template_id))
    if message is None:
        return Drop.TEMPLATE
    longer = message.EXTENSIBLE and header.block_length > message.BLOCK_LENGTH
    return message if longer or header.block_length == message.BLOCK_LENGTH else Drop.DIALECT


def decode(buffer: Buffer) -> Message:
    """The message in the buffer, of whatever schema it is."""
    header = peek_header(buffer)
    found = message_of(header)
    if isinstance(found, Drop):
        said = ", ".join(f"{name} {value}" for name, value in header._asdict().items())
        raise UnsupportedMessage(f"{found}: {said}")
    return found.decode(buffer)


class Dispatcher:
    """Handlers by message class; what has none, or cannot be decoded, is dropped and counted by kind."""

    def __init__(self) -> None:
        self._handlers: dict[type[Message], Callable[[Any], object]] = {}
        self._drops: Counter[Drop] = Counter()
        self._handled = 0

    def on[Known: Message](self, message: type[Known], handler: Callable[[Known], object]) -> None:
        """Calls the handler for each message of this class; what it raises is the caller's."""
        self._handlers[message] = handler

    def __call__(self, buffer: Buffer) -> Drop | None:
        """Decodes and hands over one buffer; says why if it was dropped."""
        try:
            found = message_of(MessageHeader._make(MESSAGE_HEADER.unpack_from(buffer)))
            if isinstance(found, Drop):
                return self._drop(found)
            handler = self._handlers.get(found)
            if handler is None:
                return self._drop(Drop.UNHANDLED)
            message = found.decode(buffer)
        except UnsupportedMessage:  # the header was known: a group is of another dialect
            return self._drop(Drop.DIALECT)
        except (DecodeError, struct.error, BufferError):
            return self._drop(Drop.MALFORMED)
        self._handled += 1
        handler(message)
        return None

    def _drop(self, kind: Drop) -> Drop:
        self._drops[kind] += 1
        return kind

    def statistics(self) -> dict[str, int]:
        """How many buffers were handled, and how many dropped by kind."""
        return {"handled": self._handled, **{kind.value: self._drops[kind] for kind in Drop}}
