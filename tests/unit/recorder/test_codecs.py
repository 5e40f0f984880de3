"""Compression of frames: what goes in comes out, and what is missing or damaged is said."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from framepool.errors import LibraryMissing, RecordingDamaged
from framepool.recorder import codecs
from framepool.recorder.codecs import compressor, decompress
from framepool.recorder.format import Codec

SENSOR = np.random.default_rng(1).poisson(200, (64, 65)).astype("<u2")
NOISE = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)


def only(monkeypatch: pytest.MonkeyPatch, *present: str) -> None:
    """A machine with no more than these libraries."""
    find = importlib.import_module

    def import_module(name: str) -> Any:
        if name not in present:
            raise ImportError(name)
        return find(name)

    monkeypatch.setattr(codecs.importlib, "import_module", import_module)


@pytest.mark.parametrize("library", ["compression.zstd", "zstandard", "pyarrow"])
def test_zstd_of_any_library_comes_back_with_any_other(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    only(monkeypatch, library)
    zstd = compressor("zstd", 3)
    assert zstd is not None
    stored = zstd.compress(memoryview(SENSOR).cast("B"), 2)
    assert stored is not None
    assert len(stored) < SENSOR.nbytes
    assert bytes(decompress(Codec.ZSTD, stored, SENSOR.nbytes)) == SENSOR.tobytes()
    monkeypatch.undo()
    assert bytes(decompress(Codec.ZSTD, stored, SENSOR.nbytes)) == SENSOR.tobytes()


def test_blosc2_comes_back() -> None:
    pytest.importorskip("blosc2")
    blosc2 = compressor("blosc2", 1)
    assert blosc2 is not None
    stored = blosc2.compress(memoryview(SENSOR).cast("B"), 2)
    assert stored is not None
    assert len(stored) < 0.6 * SENSOR.nbytes, "the upper bits of a sensor are zero"
    assert bytes(decompress(Codec.BLOSC2, stored, SENSOR.nbytes)) == SENSOR.tobytes()
    assert blosc2.compress(memoryview(b""), 1) is None


@pytest.mark.parametrize(("name", "package"), [("zstd", "zstandard"), ("blosc2", "blosc2")])
def test_noise_is_left_as_it_is(name: Any, package: str) -> None:
    pytest.importorskip(package)
    each = compressor(name, 1)
    assert each is not None
    assert each.compress(memoryview(NOISE), 1) is None


def test_no_compression_is_none() -> None:
    assert compressor("none") is None
    assert decompress(Codec.RAW, b"abc", 3) == b"abc"


@pytest.mark.parametrize(("name", "package"), [("zstd", "zstandard"), ("blosc2", "blosc2")])
def test_missing_library_is_named(name: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(LibraryMissing, match=f"pip install {package}"):
        compressor(name, 1)


@pytest.mark.parametrize(("codec", "package"), [(Codec.ZSTD, "zstandard"), (Codec.BLOSC2, "blosc2")])
def test_damaged_frame_is_said_to_be(codec: Codec, package: str) -> None:
    pytest.importorskip(package)
    with pytest.raises(RecordingDamaged):
        decompress(codec, b"no such thing at all", 100)


def test_frame_of_another_length_is_damaged() -> None:
    pytest.importorskip("zstandard")
    zstd = compressor("zstd", 1)
    assert zstd is not None
    stored = zstd.compress(memoryview(bytes(1000)), 1)
    assert stored is not None
    with pytest.raises(RecordingDamaged, match="999"):
        decompress(Codec.ZSTD, stored, 1001 - 2)


@pytest.mark.parametrize(("name", "package"), [("zstd", "zstandard"), ("blosc2", "blosc2")])
def test_nothing_is_expanded_that_names_a_length_of_its_own(
    name: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes that stand for 16 MiB are refused before anything is allocated for them."""
    library = pytest.importorskip(package)
    each = compressor(name, 1)
    assert each is not None
    bomb = each.compress(memoryview(bytes(2**24)), 1)
    assert bomb is not None

    def expand(*_: Any, **__: Any) -> bytes:
        raise AssertionError("it was expanded")

    monkeypatch.setattr(library, "ZstdDecompressor" if name == "zstd" else "decompress2", expand)
    with pytest.raises(RecordingDamaged, match="of 16777216 bytes, not of 1000"):
        decompress(each.codec, bomb, 1000)
