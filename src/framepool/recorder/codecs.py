"""Compression of single frames, by libraries that are loaded when they are first needed.

zstd is plain zstd, whichever library makes it; blosc2 shuffles the bits of elements first, which suits sensors whose
upper bits are always zero. A frame that would not become smaller is stored as it is.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Buffer, Callable
from typing import Any, Final, Literal, Protocol

from framepool.errors import LibraryMissing, RecordingDamaged
from framepool.recorder.format import Codec

ZSTD_LIBRARIES: Final = ("compression.zstd", "zstandard", "pyarrow")
"""Any of them, in this order: the standard library has one from Python 3.14 on."""
BLOSC2_LONGEST: Final = 2**31 - 33
BLOSC2_LENGTH: Final = struct.Struct("<I")
BLOSC2_LENGTH_AT: Final = 4


class Compressor(Protocol):
    """Makes frames smaller."""

    codec: Codec

    def compress(self, payload: memoryview, itemsize: int) -> bytes | None:
        """The payload in fewer bytes, or None if there is no such."""


def compressor(name: Literal["none", "zstd", "blosc2"], level: int = 1) -> Compressor | None:
    """The compressor of this name; `LibraryMissing` says what to install."""
    match name:
        case "none":
            return None
        case "zstd":
            return _Zstd(level)
        case "blosc2":
            return _Blosc2(level)


def decompress(codec: Codec, stored: Buffer, raw_bytes: int) -> Buffer:
    """The payload as it was; `RecordingDamaged` if the bytes are not of the codec or of another length."""
    match codec:
        case Codec.RAW:
            return stored
        case Codec.ZSTD:
            expand = _zstd_expander()
        case Codec.BLOSC2:
            expand = _blosc2_expander()
    try:
        raw = expand(stored, raw_bytes)
    except Exception as error:  # each library has its own
        raise RecordingDamaged(f"a frame is not {codec.name.lower()}: {error}") from None
    if len(raw) != raw_bytes:
        raise RecordingDamaged(f"a frame of {raw_bytes} bytes came out of {codec.name.lower()} with {len(raw)}")
    return raw


class _Zstd:
    codec = Codec.ZSTD

    def __init__(self, level: int) -> None:
        name, library = _zstd()
        match name:
            case "compression.zstd":
                self._compress: Callable[[memoryview], bytes] = lambda data: library.compress(data, level)
            case "zstandard":
                self._compress = library.ZstdCompressor(level=level).compress
            case _:
                codec = library.Codec("zstd", compression_level=level)
                self._compress = lambda data: codec.compress(data, asbytes=True)

    def compress(self, payload: memoryview, itemsize: int) -> bytes | None:
        return _if_smaller(self._compress(payload), payload)


class _Blosc2:
    codec = Codec.BLOSC2

    def __init__(self, level: int) -> None:
        blosc2 = _blosc2()
        self._compress = blosc2.compress2
        self._how = {
            "clevel": level,
            "codec": blosc2.Codec.LZ4,
            "filters": [blosc2.Filter.BITSHUFFLE],
            "nthreads": 1,
        }

    def compress(self, payload: memoryview, itemsize: int) -> bytes | None:
        if not 0 < len(payload) <= BLOSC2_LONGEST:
            return None
        return _if_smaller(self._compress(payload, typesize=itemsize, **self._how), payload)


def _if_smaller(compressed: bytes, payload: memoryview) -> bytes | None:
    return compressed if len(compressed) < len(payload) else None


def _zstd() -> tuple[str, Any]:
    for name in ZSTD_LIBRARIES:
        try:
            return name, importlib.import_module(name)
        except ImportError:
            continue
    raise LibraryMissing("zstd needs the package zstandard or pyarrow: pip install zstandard")


def _zstd_expander() -> Callable[[Buffer, int], bytes]:
    name, library = _zstd()
    match name:
        case "compression.zstd":
            return lambda data, length: library.ZstdDecompressor().decompress(data, max_length=length + 1)
        case "zstandard":
            return lambda data, length: _expand_with_zstandard(library, data, length)
        case _:
            return lambda data, length: library.Codec("zstd").decompress(data, length, asbytes=True)


def _expand_with_zstandard(library: Any, data: Buffer, length: int) -> bytes:
    """The length that the bytes themselves name would be allocated, whatever it is."""
    named = library.frame_content_size(data)
    if named not in {-1, length}:
        raise ValueError(f"it is of {named} bytes, not of {length}")
    expanded: bytes = library.ZstdDecompressor().decompress(data, max_output_size=length)
    return expanded


def _blosc2_expander() -> Callable[[Buffer, int], bytes]:
    expand = _blosc2().decompress2

    def expanded(data: Buffer, length: int) -> bytes:
        """The length that the bytes themselves name would be allocated, whatever it is."""
        (named,) = BLOSC2_LENGTH.unpack_from(data, BLOSC2_LENGTH_AT)
        if named != length:
            raise ValueError(f"it is of {named} bytes, not of {length}")
        raw: bytes = expand(data)
        return raw

    return expanded


def _blosc2() -> Any:
    try:
        return importlib.import_module("blosc2")
    except ImportError:
        raise LibraryMissing("blosc2 needs the package blosc2: pip install blosc2") from None
