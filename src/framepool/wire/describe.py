"""Messages as plain dictionaries and back, in the shape of `tests/golden/sbe-vectors.json`.

Names are the wire's, enumerations their names, bytes hexadecimal, absent values None. The TensorHeader inside a
SlotHeader is spelled out. What is shown to people passes `redacted` first (decisions.md #15).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any, get_args

import msgspec

from framepool.errors import DecodeError, EncodeError
from framepool.wire._generated.control_900 import SlotHeader, TensorHeader
from framepool.wire._generated.driver_901 import ShmDriverShutdownRequest
from framepool.wire._generated.event_905 import EventMessage, Format
from framepool.wire.message import Block, Message

SECRET_KEY = "stop"
"""Of the command whose value, where it has one, is a shutdown token (Driver 4.12)."""


def describe(block: Block) -> dict[str, Any]:
    """The fields of a message by their names on the wire."""
    names = zip(block.__struct_fields__, block.__struct_encode_fields__, strict=True)
    fields = {wire: _plain(getattr(block, name)) for name, wire in names}
    if isinstance(block, SlotHeader):
        fields["headerBytes"] = _embedded(block.header_bytes)
    return fields


def vector(message: Message, *, with_header: bool = True) -> dict[str, Any]:
    """What a golden vector says of a message, but for the name of its case."""
    encoded = message.encode() if with_header else message.encode_body()
    return {
        "schema": message.SCHEMA,
        "schema_id": message.SCHEMA_ID,
        "version": message.SCHEMA_VERSION,
        "message": type(message).__name__,
        "template_id": message.TEMPLATE_ID,
        "with_header": with_header,
        "block_length": message.BLOCK_LENGTH,
        "length": len(encoded),
        "fields": describe(message),
        "hex": encoded.hex(),
    }


def redacted[Any_: Message](message: Any_) -> Any_:
    """The message with its secrets starred out, each as long as it was; the others as they are."""
    if isinstance(message, ShmDriverShutdownRequest):
        return msgspec.structs.replace(message, token="*" * len(message.token))
    if isinstance(message, EventMessage) and message.key == SECRET_KEY and message.value:
        return msgspec.structs.replace(message, format=Format.STRING, value=b"*" * len(message.value))
    return message


def build[Any_: Block](kind: type[Any_], fields: Mapping[str, Any]) -> Any_:
    """The message that `describe` describes so."""
    known = _fields(kind)
    if difference := known.keys() ^ fields.keys():
        raise EncodeError(f"{kind.__name__}: unknown or missing fields {sorted(difference)}")
    values = {info.name: _value(info.type, fields[name]) for name, info in known.items()}
    return kind(**values)


@cache
def _fields(kind: type[Block]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields by their names on the wire; `msgspec` evaluates annotations each time it is asked."""
    return {info.encode_name: info for info in msgspec.structs.fields(kind)}


def _plain(value: object) -> Any:
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return describe(value) if isinstance(value, Block) else value


def _embedded(header_bytes: bytes) -> Any:
    """The TensorHeader message inside a slot, or the bytes where there is none."""
    try:
        tensor = TensorHeader.decode(header_bytes)
    except DecodeError:
        return header_bytes.hex()
    names = ("blockLength", "templateId", "schemaId", "version")
    return {"messageHeader": dict(zip(names, tensor.HEADER, strict=True)), "TensorHeader": describe(tensor)}


def _value(kind: Any, plain: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return None if plain is None else _value(get_args(kind)[0], plain)
    if kind is bytes:
        if isinstance(plain, dict):
            return build(TensorHeader, plain["TensorHeader"]).encode()
        return bytes.fromhex(plain)
    if isinstance(plain, list):
        return tuple(_value(get_args(kind)[0], each) for each in plain)
    if isinstance(plain, dict):
        return build(kind, plain)
    return kind[plain] if issubclass(kind, IntEnum) else plain
