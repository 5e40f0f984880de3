"""Bounded reads: the one place where lengths taken from the wire meet the end of a buffer.

A cursor never reads past its buffer, never builds more than the bytes at hand can hold, and raises
`DecodeError` and nothing else, whatever the bytes are. The names passed to its methods are for the error.
"""

from __future__ import annotations

from collections.abc import Buffer
from struct import Struct
from typing import Any, ClassVar, Protocol, Self

from framepool.errors import DecodeError, UnsupportedMessage

DATA_LENGTH = Struct("<I")
GROUP_DIMENSIONS = Struct("<HH")


class GroupEntry(Protocol):
    """What `Cursor.group` needs of the class of an entry."""

    BLOCK_LENGTH: ClassVar[int]
    MINIMUM_LENGTH: ClassVar[int]

    @classmethod
    def read(cls, cursor: Cursor) -> Self: ...


def byte_view(buffer: Buffer) -> memoryview:
    """The buffer as plain bytes, without a copy wherever `memoryview` can do it."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise DecodeError("the buffer is not contiguous: decode a contiguous copy of it")
    if view.format == "B" and view.ndim == 1:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # empty in some dimension, or of a format foreign to memoryview
        return memoryview(view.tobytes())


class Cursor:
    """A position in a buffer that moves forward by whole, checked steps."""

    __slots__ = ("extension", "offset", "view")

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        self.view = byte_view(buffer)
        self.offset = offset
        self.extension = 0
        """Bytes of a newer block that follow the known ones (Service 5.1); see `skip_extension`."""
        if not 0 <= offset <= len(self.view):
            raise DecodeError(f"offset {offset} lies outside of {len(self.view)} bytes")

    @property
    def remaining(self) -> int:
        return len(self.view) - self.offset

    def _advance(self, size: int, name: str) -> int:
        """Moves over `size` bytes and gives the offset where they start."""
        start = self.offset
        end = start + size
        if end > len(self.view):
            raise DecodeError(f"{name} needs {size} bytes at offset {start}, {self.remaining} are left")
        self.offset = end
        return start

    def take(self, size: int, name: str) -> bytes:
        """The next bytes as they are."""
        start = self._advance(size, name)
        return bytes(self.view[start : self.offset])

    def block(self, layout: Struct, name: str) -> tuple[Any, ...]:
        """The values of a block of fixed fields."""
        return layout.unpack_from(self.view, self._advance(layout.size, name))

    def data(self, name: str, maximum: int) -> bytes:
        """Variable-length data; b"" means not provided."""
        (length,) = self.block(DATA_LENGTH, name)
        if length > maximum:
            raise DecodeError(f"{name} has a length of {length}, at most {maximum} are allowed")
        return self.take(length, name)

    def ascii(self, name: str, maximum: int) -> str:
        """Variable-length US-ASCII; "" means not provided."""
        data = self.data(name, maximum)
        try:
            return data.decode("ascii")
        except UnicodeDecodeError as error:
            raise DecodeError(f"{name} has the byte 0x{data[error.start]:02x}, not of US-ASCII") from None

    def group[Entry: GroupEntry](self, name: str, entry: type[Entry]) -> tuple[Entry, ...]:
        """The entries of a group, counted against the bytes that are left before any of them is built."""
        block_length, count = self.block(GROUP_DIMENSIONS, name)
        if block_length != entry.BLOCK_LENGTH:
            found = f"{name} has entries of {block_length} bytes"
            raise UnsupportedMessage(f"unsupported dialect: {found}, not of {entry.BLOCK_LENGTH}")
        if count * entry.MINIMUM_LENGTH > self.remaining:
            raise DecodeError(f"{name} claims {count} entries, {self.remaining} bytes are left")
        return tuple([entry.read(self) for _ in range(count)])

    def skip_extension(self, name: str) -> None:
        """Moves over the fields that a newer sender appended to the block."""
        self._advance(self.extension, name)

    def finish(self, name: str) -> None:
        """A message ends where its buffer ends."""
        if self.remaining:
            raise DecodeError(f"{self.remaining} bytes follow the end of {name}")
