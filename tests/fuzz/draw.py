"""Values out of the bytes that a fuzzer chose: what is left of them shrinks, and there is always something to draw."""

from __future__ import annotations

from collections.abc import Sequence


class Draw:
    """A position in the bytes of one input. Beyond their end everything is zero and empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether bytes are left."""
        return self._at < len(self._data)

    def number(self, size: int = 1) -> int:
        """An unsigned number of so many bytes."""
        return int.from_bytes(self.bytes(size), "little")

    def chosen[T](self, choices: Sequence[T]) -> T:
        return choices[self.number() % len(choices)]

    def bytes(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        start, self._at = self._at, min(self._at + size, len(self._data))
        return self._data[start : self._at]

    def piece(self) -> bytes:
        """Bytes with their length, of two bytes, in front."""
        return self.bytes(self.number(2))

    def rest(self) -> bytes:
        return self.bytes(len(self._data))

    def text(self) -> str:
        """The rest as text, whatever it is."""
        return self.rest().decode(errors="replace")


def pieced(*parts: bytes) -> bytes:
    """What `piece` reads back, one after the other."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)
