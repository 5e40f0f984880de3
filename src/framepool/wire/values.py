"""The values of events: Python's to a format and bytes, and back (Service 5.1, 5.2).

A value chooses its format by what it is, not by how large it is, so that a number that grows does not change its
format on the way: None is NOTHING, bool BOOLEAN, int INT64 (UINT64 above its range), float FLOAT64, str STRING in
UTF-8, bytes BYTES, a tuple of bools BIT, a `Ref` REF, and a scalar of numpy is of the format of its type. Whoever wants
another one names it.

BIT is packed like a tensor of bits (`decisions.md` #31), the first bit lowest, and filled up with zeros to whole bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from framepool.errors import DecodeError, EncodeError, TensorError
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.dtypes import from_numpy


class Ref(msgspec.Struct, frozen=True):
    """A frame that an event speaks of (Service 5.2)."""

    stream_id: int
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.stream_id}/{self.epoch}/{self.seq}"


Value = None | bool | int | float | str | bytes | tuple[bool, ...] | Ref

NUMBERS: Final = {
    Format.UINT8: struct.Struct("<B"),
    Format.INT8: struct.Struct("<b"),
    Format.UINT16: struct.Struct("<H"),
    Format.INT16: struct.Struct("<h"),
    Format.UINT32: struct.Struct("<I"),
    Format.INT32: struct.Struct("<i"),
    Format.UINT64: struct.Struct("<Q"),
    Format.INT64: struct.Struct("<q"),
    Format.FLOAT32: struct.Struct("<f"),
    Format.FLOAT64: struct.Struct("<d"),
}
FLOATS: Final = frozenset({Format.FLOAT32, Format.FLOAT64})
LARGEST_INT64: Final = 2**63 - 1


def format_of(value: object) -> Format:
    """The format that a value chooses by itself; `EncodeError` for one that has none."""
    match value:
        case None:
            return Format.NOTHING
        case bool():
            return Format.BOOLEAN
        case np.generic():
            return _numpy_format(value)
        case int():
            return Format.UINT64 if value > LARGEST_INT64 else Format.INT64
        case float():
            return Format.FLOAT64
        case str():
            return Format.STRING
        case bytes() | bytearray() | memoryview():
            return Format.BYTES
        case Ref():
            return Format.REF
        case tuple() | list() if all(isinstance(bit, bool) for bit in value):
            return Format.BIT
    raise EncodeError(f"{_brief(value)} of type {type(value).__name__} is no value of an event")


def encode_value(value: Any, format: Format | None = None) -> tuple[Format, bytes]:
    """Format and bytes of a value; those of a `Ref` are empty, because it goes into the reference fields alone."""
    chosen = format_of(value) if format is None else format
    try:
        return chosen, _ENCODERS[chosen](chosen, value.item() if isinstance(value, np.generic) else value)
    except (struct.error, OverflowError):
        raise EncodeError(f"{_brief(value)} is out of the range of {chosen.name}") from None
    except (TypeError, ValueError):
        raise EncodeError(f"{_brief(value)} of type {type(value).__name__} is no {chosen.name}") from None


def decode_value(format: Format, data: bytes) -> Value:
    """The value of a format, but for REF, whose value is not in the bytes; `DecodeError` if they are not of it."""
    if format in NUMBERS:
        layout = NUMBERS[format]
        if len(data) != layout.size:
            raise DecodeError(f"{format.name} has {layout.size} bytes, not {len(data)}")
        number: int | float = layout.unpack(data)[0]
        return number
    match format:
        case Format.STRING:
            try:
                return data.decode()
            except UnicodeDecodeError as error:
                raise DecodeError(f"STRING is not UTF-8: {error}") from None
        case Format.BYTES:
            return data
        case Format.BIT:
            return tuple(bool(byte >> bit & 1) for byte in data for bit in range(8))
        case Format.BOOLEAN if data in (b"\0", b"\1"):
            return data == b"\1"
        case Format.NOTHING if not data:
            return None
    raise DecodeError(f"{_brief(data)} is no {format.name}")


def reference_of(message: EventMessage) -> Ref | None:
    """The frame that a message speaks of, if it names all of it."""
    if message.ref_stream_id is None or message.ref_epoch is None or message.ref_seq is None:
        return None
    return Ref(message.ref_stream_id, message.ref_epoch, message.ref_seq)


def value_of(message: EventMessage) -> Value:
    """The value of a message. No bytes and a whole reference are that reference, whatever the format; without one they
    are not (`decisions.md` #64)."""
    reference = reference_of(message)
    if reference is not None and (not message.value or message.format is Format.REF):
        return reference
    if message.format is Format.REF:
        raise DecodeError("REF without stream, epoch and seq is no reference")
    return decode_value(message.format, message.value)


def _numpy_format(value: np.generic) -> Format:
    try:
        return Format[from_numpy(value.dtype).name]
    except TensorError as error:
        raise EncodeError(str(error)) from None


def _encode_number(format: Format, value: object) -> bytes:
    if isinstance(value, bool) or (isinstance(value, float) and format not in FLOATS):
        raise TypeError(value)
    return NUMBERS[format].pack(value)


def _encode_bits(_: Format, value: object) -> bytes:
    if not isinstance(value, tuple | list) or not all(isinstance(bit, bool) for bit in value):
        raise TypeError(value)
    number: int = sum(bit << index for index, bit in enumerate(value))
    return number.to_bytes((len(value) + 7) // 8, "little")


def _encode_instance(kind: Any, encode: Callable[[Any], bytes]) -> Callable[[Format, Any], bytes]:
    def encoded(_: Format, value: Any) -> bytes:
        if not isinstance(value, kind):
            raise TypeError(value)
        return encode(value)

    return encoded


_ENCODERS: Final[dict[Format, Callable[[Format, Any], bytes]]] = {
    **dict.fromkeys(NUMBERS, _encode_number),
    Format.NOTHING: _encode_instance(type(None), lambda _: b""),
    Format.BOOLEAN: _encode_instance(bool, lambda value: b"\1" if value else b"\0"),
    Format.STRING: _encode_instance(str, str.encode),
    Format.BYTES: _encode_instance(bytes | bytearray | memoryview, bytes),
    Format.BIT: _encode_bits,
    Format.REF: _encode_instance(Ref, lambda _: b""),
}


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
