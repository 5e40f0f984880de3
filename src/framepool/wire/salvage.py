"""What can still be said of a request that cannot be decoded: who asked, and what is wrong with it.

A requester whose message is of a newer version or holds an invalid value deserves an answer (Driver 4.6), and
`correlationId` is the first field of every request that has one.
"""

from __future__ import annotations

from collections.abc import Buffer, Sequence
from typing import NamedTuple

from framepool.errors import DecodeError
from framepool.wire.dispatch import peek_header
from framepool.wire.message import MESSAGE_HEADER, Message

CORRELATION_ID_BYTES = 8


class Salvaged(NamedTuple):
    """A request that was recognised by its header only."""

    message: type[Message]
    correlation_id: int
    reason: str
    field: str | None
    """The field with the invalid value, if that is what is wrong."""


def salvage(buffer: Buffer, requests: Sequence[type[Message]]) -> Salvaged | None:
    """The request in the buffer, if it is one of `requests` by schema and template and long enough to be answered."""
    data = bytes(memoryview(buffer)[: MESSAGE_HEADER.size + CORRELATION_ID_BYTES])
    try:
        header = peek_header(data)
    except DecodeError:
        return None
    for message in requests:
        if (header.schema_id, header.template_id) != (message.SCHEMA_ID, message.TEMPLATE_ID):
            continue
        if len(data) < MESSAGE_HEADER.size + CORRELATION_ID_BYTES:
            return None
        correlation_id = int.from_bytes(data[MESSAGE_HEADER.size :], "little", signed=True)
        return Salvaged(message, correlation_id, *_what_is_wrong(message, buffer))
    return None


def _what_is_wrong(message: type[Message], buffer: Buffer) -> tuple[str, str | None]:
    try:
        message.decode(buffer)
    except DecodeError as error:
        text = str(error)
        for field in message.FIELDS:
            if text.startswith(f"{message.__name__}.{field.name}:"):
                return text, field.name
        return text, None
    return "", None
