"""Attributes of a data source: Python values to key, format and bytes, and back (Wire 10.3.2).

The format says what the bytes are. Text, JSON, MessagePack, plain bytes and SBE messages are known here; any other
format is carried as it is, and its values are bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from framepool.errors import DecodeError, EncodeError
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import Attribute
from framepool.wire.cursor import byte_view
from framepool.wire.message import Message

TEXT: Final = "text/plain"
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
BYTES: Final = "application/octet-stream"
SBE: Final = re.compile(r"sbe:(\d{1,5})\.(\d{1,5})")
"""`sbe:<schemaId>.<templateId>`: a message with its header."""

KEY_LIMIT: Final = 255
FORMAT_LIMIT: Final = 255

ATTRIBUTE_COST: Final = 256
"""What Python adds to the bytes of one attribute, roughly."""

MALFORMED: Final = (ValueError, RecursionError, OverflowError, msgspec.MsgspecError)


def attribute_of(key: str, value: Any, format: str | None = None) -> Attribute:
    """The attribute that carries a value; `EncodeError` says why none does.

    Without a format, `str` is text, bytes are bytes, a message is SBE, and what JSON has, numpy arrays included, is
    JSON. With a format, bytes are taken as they are, if they are of that format.
    """
    check_text("the key of an attribute", key, KEY_LIMIT)
    if not key:
        raise EncodeError("an attribute needs a key")
    chosen = _format_of(key, value) if format is None else format
    check_text(f"the format of {key!r}", chosen, FORMAT_LIMIT)
    if not chosen or (chosen.startswith("sbe:") and not SBE.fullmatch(chosen)):
        raise EncodeError(f"{key!r}: {chosen!r} is no format; say {TEXT}, {JSON}, sbe:<schemaId>.<templateId> or so")
    try:
        attribute = Attribute(key=key, format=chosen, value=_encoded(value, chosen))
        value_of(attribute)
    except (TypeError, DecodeError, *MALFORMED) as error:
        raise EncodeError(f"{key!r}: {type(value).__name__} does not go into {chosen}: {error}") from None
    return attribute


def value_of(attribute: Attribute) -> Any:
    """The value of an attribute, by its format; `DecodeError` when the bytes are not of it.

    A new object each time. A message of a schema unknown here comes as its bytes, as does any unknown format.
    """
    data = attribute.value
    try:
        match _media_type(attribute.format):
            case "text/plain":
                return data.decode()
            case "application/json":
                return json.loads(data.decode(), parse_constant=_no_constant)
            case "application/msgpack":
                return msgspec.msgpack.decode(data)
            case _:
                return _message_of(attribute) or data
    except MALFORMED as error:
        raise DecodeError(f"{attribute.key!r} is not {attribute.format}: {error}") from None


def check_text(what: str, text: str, limit: int) -> None:
    """Text on the wire is US-ASCII; ours is printable and of bounded length as well."""
    if not isinstance(text, str) or not text.isascii() or not (text.isprintable() or not text):
        raise EncodeError(f"{what} is printable US-ASCII, {text!r:.60} is not")
    if len(text) > limit:
        raise EncodeError(f"{what} has {len(text)} characters, at most {limit} are allowed")


class Metadata(Mapping[str, Any]):
    """One version of the metadata of a source: values by key. It never changes.

    An attribute whose bytes are not of its format is left out of the mapping; `attributes` has all of them as they
    came. Of a key that comes twice, the last one counts.
    """

    def __init__(self, stream_id: int, version: int, timestamp_ns: int, attributes: tuple[Attribute, ...]) -> None:
        self.stream_id = stream_id
        self.version = version
        self.timestamp_ns = timestamp_ns
        """When this version was made, by the clock of its producer."""
        self.attributes = attributes
        self._by_key = {attribute.key: attribute for attribute in attributes if _is_sound(attribute)}

    def __getitem__(self, key: str) -> Any:
        return value_of(self._by_key[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def format(self, key: str) -> str:
        """The format of an attribute; `KeyError` when there is none of this key."""
        return self._by_key[key].format

    def raw(self, key: str) -> bytes:
        """The bytes of an attribute; `KeyError` when there is none of this key."""
        return self._by_key[key].value

    @property
    def data_source_id(self) -> int | None:
        """The attribute of that key, a number in JSON or decimal text (`decisions.md` #46)."""
        value = self.get("data_source_id")
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
            value = int(value)
        if type(value) is not int or not 0 <= value < 2**64 - 1:
            return None
        return value

    @property
    def tags(self) -> tuple[str, ...]:
        """The attribute of that key, a list in JSON or text with commas (`decisions.md` #46)."""
        value = self.get("tags")
        found = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
        tags = [tag.strip() for tag in found if isinstance(tag, str) and tag.isascii()]
        return tuple(dict.fromkeys(tag for tag in tags if tag))

    def __repr__(self) -> str:
        return f"<Metadata version {self.version} of stream {self.stream_id}: {', '.join(self) or 'empty'}>"


def _is_sound(attribute: Attribute) -> bool:
    try:
        value_of(attribute)
    except DecodeError:
        return False
    return True


def _format_of(key: str, value: object) -> str:
    match value:
        case str():
            return TEXT
        case bytes() | bytearray() | memoryview():
            return BYTES
        case Message():
            return f"sbe:{value.SCHEMA_ID}.{value.TEMPLATE_ID}"
        case None | bool() | int() | float() | dict() | list() | tuple() | np.ndarray() | np.generic():
            return JSON
    raise EncodeError(f"{key!r}: no format is known for {type(value).__name__}; encode it and say its format")


def _encoded(value: Any, format: str) -> bytes:
    kind = _media_type(format)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(byte_view(value))
    if isinstance(value, Message):
        encoded = value.encode()
        if format != f"sbe:{value.SCHEMA_ID}.{value.TEMPLATE_ID}":
            raise ValueError("that is another message")
        return encoded
    if kind == JSON:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    if kind == MSGPACK:
        return msgspec.msgpack.encode(value, enc_hook=_plain)
    if isinstance(value, str) and not format.startswith("sbe:") and kind != BYTES:
        return value.encode()
    raise TypeError("give bytes")


def _plain(value: object) -> Any:
    """What JSON and MessagePack make of numpy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no place in it")


def _media_type(format: str) -> str:
    """The format without parameters such as a charset; text is UTF-8 here."""
    return format.partition(";")[0].strip().lower()


def _message_of(attribute: Attribute) -> Message | None:
    """The SBE message that the format promises, if we know such messages; bytes of any other are not judged."""
    named = SBE.fullmatch(attribute.format)
    if named is None:
        return None
    try:
        message = dispatch.decode(attribute.value)
    except DecodeError:
        return None
    promised = int(named[1]), int(named[2])
    return message if promised == (message.SCHEMA_ID, message.TEMPLATE_ID) else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def size_of(attributes: tuple[Attribute, ...]) -> int:
    """About how much memory attributes take, so that many small ones count as well."""
    return sum(len(one.key) + len(one.format) + len(one.value) + ATTRIBUTE_COST for one in attributes)
