"""Events: what is said on the control and status streams, with typed values (Service 5).

`wire.values` says which Python value is which format. What is added here is the event around the value: whom it
addresses or who speaks, what it is about, and the frame that it may speak of.
"""

from __future__ import annotations

from collections.abc import Buffer
from typing import Any, Self

import msgspec

from framepool.errors import EncodeError
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.values import Ref, Value, encode_value, reference_of, value_of

__all__ = ["Event", "Format", "Ref", "Value"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One EventMessage.

    >>> Event.decode(Event(tag="service:limiter", key="set:rate", value=25).encode()).value
    25
    """

    tag: str
    """The service that it is for, or that says it."""
    key: str
    """The command, or what the status is about."""
    value: Value = None
    format: Format | None = None
    """On the wire; None lets the value choose."""
    ref: Ref | None = None
    """The frame that it speaks of; of a value that is a `Ref`, that one."""
    correlation_id: int = 0
    """Of the command and of everything that answers it; 0 is none."""
    timestamp_ns: int = 0

    @classmethod
    def of(cls, message: EventMessage) -> Self:
        """The event in a message; `DecodeError` if its value is not of its format."""
        return cls(
            tag=message.tag,
            key=message.key,
            value=value_of(message),
            format=message.format,
            ref=reference_of(message),
            correlation_id=message.correlation_id,
            timestamp_ns=message.timestamp_ns,
        )

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        """The event in a buffer; `DecodeError` for anything else."""
        return cls.of(EventMessage.decode(buffer))

    def message(self) -> EventMessage:
        """The message that carries it; `EncodeError` says what does not fit.

        The reference stands in its three fields and nowhere else (Service 5.2).
        """
        format, data = encode_value(self.value, self.format)
        reference = self.value if isinstance(self.value, Ref) else self.ref
        if reference is not None and self.ref not in (None, reference):
            raise EncodeError(f"the value is the reference {reference}, and {self.ref} cannot stand beside it")
        if reference is not None and not data and not isinstance(self.value, Ref):
            raise EncodeError("an empty value beside a reference reads as the reference: give that as the value")
        return EventMessage(
            timestamp_ns=self.timestamp_ns,
            correlation_id=self.correlation_id,
            format=format,
            ref_stream_id=None if reference is None else reference.stream_id,
            ref_epoch=None if reference is None else reference.epoch,
            ref_seq=None if reference is None else reference.seq,
            tag=self.tag,
            key=self.key,
            value=data,
        )

    def encode(self) -> bytes:
        """The bytes of the message."""
        return self.message().encode()

    def plain(self) -> dict[str, Any]:
        """What JSON can say of it: bytes hexadecimal, bits as ones and zeros, references by their parts."""
        format = self.message().format if self.format is None else self.format
        return {
            "tag": self.tag,
            "key": self.key,
            "format": format.name,
            "value": plain_value(self.value),
            "ref": None if self.ref is None else msgspec.structs.asdict(self.ref),
            "correlation_id": self.correlation_id,
            "timestamp_ns": self.timestamp_ns,
        }


def plain_value(value: Value) -> Any:
    """A value as JSON has it."""
    match value:
        case bytes():
            return value.hex()
        case tuple():
            return "".join("1" if bit else "0" for bit in value)
        case Ref():
            return msgspec.structs.asdict(value)
    return value
