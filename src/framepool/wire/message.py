"""What every generated message stands on: the header check, ways to encode, errors that name a field.

A message is a frozen `msgspec.Struct`. Its block is packed and unpacked by one `struct.Struct` in
straight-line generated code; `Block.FIELDS` repeats the layout as data, for the slow path that explains what
is wrong and for tests. Checks come in the order of decisions.md #11: schemaId, version, templateId,
blockLength.
"""

from __future__ import annotations

import struct
from collections.abc import Buffer, Mapping
from enum import IntEnum
from typing import ClassVar, NamedTuple, NoReturn, Self

import msgspec

from framepool.errors import DecodeError, EncodeError, UnsupportedMessage
from framepool.wire.cursor import DATA_LENGTH, GROUP_DIMENSIONS, Cursor, byte_view

MESSAGE_HEADER = struct.Struct("<HHHH")

INT8_NULL = -(2**7)
INT16_NULL = -(2**15)
INT32_NULL = -(2**31)
INT64_NULL = -(2**63)
UINT8_NULL = 0xFF
UINT16_NULL = 0xFFFF
UINT32_NULL = 0xFFFF_FFFF
UINT64_NULL = 0xFFFF_FFFF_FFFF_FFFF

UNFIT = (struct.error, LookupError, TypeError, ValueError, OverflowError)
"""What packing a block raises for a value that its field cannot hold."""

MALFORMED = (struct.error, LookupError, ValueError, BufferError)
"""What unpacking a block raises for bytes that are not such a block."""


class MessageHeader(NamedTuple):
    """The first eight bytes of every message (Wire 16)."""

    block_length: int
    template_id: int
    schema_id: int
    version: int

    def encode(self) -> bytes:
        return MESSAGE_HEADER.pack(*self)


class Field(NamedTuple):
    """A fixed field as the schema has it; `code` is its `struct` format."""

    name: str
    offset: int
    code: str
    null: int | None = None
    maximum: int | None = None
    values: Mapping[int, IntEnum] | None = None

    @property
    def size(self) -> int:
        return struct.calcsize(f"<{self.code}")


class Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Fixed fields, then groups, then data: a message, or an entry of a group."""

    BLOCK: ClassVar[struct.Struct]
    BLOCK_LENGTH: ClassVar[int]
    MINIMUM_LENGTH: ClassVar[int]
    FIELDS: ClassVar[tuple[Field, ...]]

    def encode_body(self) -> bytes:
        """The bytes without a message header; `EncodeError` names a value that does not fit."""
        raise NotImplementedError

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        """The block at the cursor, with its groups and data."""
        raise NotImplementedError


class Message(Block, frozen=True, kw_only=True, rename="camel"):
    """A message with groups or data, or both."""

    SCHEMA: ClassVar[str]
    SCHEMA_ID: ClassVar[int]
    SCHEMA_VERSION: ClassVar[int]
    TEMPLATE_ID: ClassVar[int]
    HEADER: ClassVar[MessageHeader]
    HEADER_BYTES: ClassVar[bytes]
    EXTENSIBLE: ClassVar[bool] = False
    """A longer block or a newer version is read as far as it is known (Service 5.1)."""

    def encode(self) -> bytes:
        """The message with its header."""
        return self.HEADER_BYTES + self.encode_body()

    def encode_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Writes the message into a writable buffer and gives its length."""
        encoded = self.encode()
        target = byte_view(buffer)
        end = offset + len(encoded)
        if target.readonly or offset < 0 or end > len(target):
            need = f"{type(self).__name__} needs {len(encoded)} writable bytes"
            raise EncodeError(f"{need} at offset {offset} of {len(target)}")
        target[offset:end] = encoded
        return len(encoded)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        """The message that the buffer holds, header first, nothing after it."""
        cursor = Cursor(buffer)
        header = MessageHeader._make(cursor.block(MESSAGE_HEADER, "messageHeader"))
        if header != cls.HEADER:
            cls.check_header(header)
            cursor.extension = header.block_length - cls.BLOCK_LENGTH
        message = cls.read(cursor)
        if header.version == cls.SCHEMA_VERSION:  # a newer one may have more data at its end
            cursor.finish(cls.__name__)
        return message

    @classmethod
    def decode_body(cls, buffer: Buffer, offset: int = 0) -> Self:
        """The message whose block starts at `offset`, without a header; what follows it is not looked at."""
        return cls.read(Cursor(buffer, offset))

    @classmethod
    def check_header(cls, header: MessageHeader) -> None:
        """Raises `UnsupportedMessage` for the first part of the header that is not this class's."""
        name, schema = cls.__name__, cls.SCHEMA_ID
        if header.schema_id != schema:
            raise UnsupportedMessage(f"unsupported schema {header.schema_id}: {name} is of schema {schema}")
        newer = cls.EXTENSIBLE and header.version > cls.SCHEMA_VERSION
        if header.version != cls.SCHEMA_VERSION and not newer:
            ours = f"we speak version {cls.SCHEMA_VERSION}"
            raise UnsupportedMessage(f"unsupported version {header.version} of schema {schema}: {ours}")
        if header.template_id != cls.TEMPLATE_ID:
            ours = f"{name} is {cls.TEMPLATE_ID}"
            raise UnsupportedMessage(f"unsupported template {header.template_id} of schema {schema}: {ours}")
        longer = cls.EXTENSIBLE and header.block_length > cls.BLOCK_LENGTH
        if header.block_length != cls.BLOCK_LENGTH and not longer:
            found = f"{name} with a block of {header.block_length} bytes"
            raise UnsupportedMessage(f"unsupported dialect: {found}, not of {cls.BLOCK_LENGTH}")


class FixedMessage(Message, frozen=True, kw_only=True, rename="camel"):
    """A message that is its block and nothing else: header and block are unpacked in one step."""

    MESSAGE: ClassVar[struct.Struct]

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        return cls.decode(cls.HEADER_BYTES + cursor.take(cls.BLOCK_LENGTH, cls.__name__))


def optional(value: int | None, null: int) -> int:
    """The wire's value of an optional field; its null value itself is no value."""
    if value is None:
        return null
    if value == null:
        raise ValueError(value)
    return value


def at_most(value: int, maximum: int) -> int:
    """The value of a field with a `maxValue`."""
    if value > maximum:
        raise ValueError(value)
    return value


def exactly[Sequence: (bytes, tuple[int, ...])](values: Sequence, length: int) -> Sequence:
    """The values of an array field; `struct` itself would pad or cut bytes."""
    if len(values) != length:
        raise ValueError(values)
    return values


def encode_ascii(value: str, maximum: int, name: str) -> bytes:
    """Variable-length US-ASCII with its length in front."""
    try:
        data = value.encode("ascii")
    except (UnicodeEncodeError, AttributeError):
        raise EncodeError(f"{name}: {_brief(value)} is not US-ASCII text") from None
    return encode_data(data, maximum, name)


def encode_data(value: Buffer, maximum: int, name: str) -> bytes:
    """Variable-length data with its length in front."""
    try:
        view = byte_view(value)
    except (TypeError, DecodeError):
        raise EncodeError(f"{name}: {_brief(value)} is not contiguous bytes") from None
    if len(view) > maximum:
        raise EncodeError(f"{name}: {len(view)} bytes, at most {maximum} are allowed")
    return DATA_LENGTH.pack(len(view)) + view


def encode_group(entries: tuple[Block, ...], block_length: int, name: str) -> bytes:
    """A group: its dimensions, then its entries."""
    if len(entries) > 0xFFFF:
        raise EncodeError(f"{name}: {len(entries)} entries, at most 65535 are allowed")
    dimensions = GROUP_DIMENSIONS.pack(block_length, len(entries))
    return dimensions + b"".join([entry.encode_body() for entry in entries])


def unfit(block: Block) -> NoReturn:
    """Finds the field of a block that could not be packed and raises `EncodeError` for it."""
    owner = type(block).__name__
    for attribute, field in zip(block.__struct_fields__, block.FIELDS, strict=False):
        value = getattr(block, attribute)
        if reason := _misfit(field, value):
            raise EncodeError(f"{owner}.{attribute}: {_brief(value)} {reason}") from None
    raise EncodeError(f"{owner} cannot be packed")


def _misfit(field: Field, value: object) -> str:
    """Why the value does not fit the field; "" if it does."""
    if field.null is not None and value is None:
        return ""
    if field.null is not None and value == field.null:
        return "is the null value of this field: pass None for an absent value"
    if field.values is not None:
        names = ", ".join(member.name for member in field.values.values())
        return "" if value in tuple(field.values) else f"is none of {names}"
    if field.maximum is not None and isinstance(value, int) and value > field.maximum:
        return f"exceeds the maximum of {field.maximum}"
    try:
        layout = struct.Struct(f"<{field.code}")
        if isinstance(value, bytes) and len(value) != layout.size:
            return f"has {len(value)} bytes, not {layout.size}"
        _ = layout.pack(*value) if isinstance(value, tuple) else layout.pack(value)
    except UNFIT as error:
        return f"does not fit ({error})"
    return ""


def refuse(message: type[FixedMessage], buffer: Buffer) -> NoReturn:
    """Finds out why a buffer is not this message and raises `DecodeError` for it."""
    cursor = Cursor(buffer)
    message.check_header(MessageHeader._make(cursor.block(MESSAGE_HEADER, "messageHeader")))
    start = cursor.offset
    cursor.take(message.BLOCK_LENGTH, message.__name__)
    cursor.finish(message.__name__)
    malformed(message, cursor.view, start)


def malformed(block: type[Block], view: memoryview, start: int) -> NoReturn:
    """Finds the field of a block that has no valid value and raises `DecodeError` for it."""
    for field in block.FIELDS:
        (value, *_) = struct.unpack_from(f"<{field.code}", view, start + field.offset)
        name = f"{block.__name__}.{field.name}"
        if field.values is not None and value not in field.values and value != field.null:
            raise DecodeError(f"{name}: {value} is no valid value") from None
        if field.maximum is not None and value > field.maximum:
            raise DecodeError(f"{name}: {value} exceeds the maximum of {field.maximum}") from None
    raise DecodeError(f"{block.__name__} is malformed") from None


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
