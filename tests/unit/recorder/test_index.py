"""The tables beside a segment: names and types are a promise, and every row says where its frame is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from framepool._native.crc32c import crc32c
from framepool.errors import LibraryMissing
from framepool.recorder import index
from framepool.recorder.account import Reason
from framepool.recorder.index import FRAMES, LOSSES, MESSAGES
from framepool.recorder.recording import Recording
from framepool.recorder.segments import CapturedMessage
from tests.support.tape import EPOCH, STREAM, Ring, Workshop, picture

pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    shop = Workshop(tmp_path / "rec")
    shop.record(2, trace_id=2**64 - 1, publish_timestamp_ns=77)
    shop.lose(3, Reason.LAPPED)
    shop.log.add_message(CapturedMessage(1300, STREAM, 900, 4, b"message"))
    shop.log.add_message(CapturedMessage(1401, 0, 905, 1, b"event"))
    shop.record(1)
    shop.close()
    return shop


def test_schema_is_what_was_promised() -> None:
    def described(schema: object) -> dict[str, str]:
        return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}  # type: ignore[attr-defined]

    assert described(index.frames_schema()) == {
        "ordinal": "int64 not null",
        "stream_id": "int64 not null",
        "epoch": "int64 not null",
        "seq": "int64 not null",
        "timestamp_ns": "int64 not null",
        "publish_timestamp_ns": "int64",
        "recorded_ns": "int64 not null",
        "monotonic_ns": "int64 not null",
        "dtype": "string not null",
        "shape": "list<item: int64> not null",
        "strides": "list<item: int64> not null",
        "order": "string not null",
        "meta_version": "int64 not null",
        "trace_id": "int64",
        "segment": "string not null",
        "offset": "int64 not null",
        "length": "int64 not null",
        "codec": "string not null",
        "raw_length": "int64 not null",
        "crc": "int64 not null",
        "header": "fixed_size_binary[512] not null",
    }
    assert described(index.losses_schema()) == {
        "ordinal": "int64 not null",
        "stream_id": "int64 not null",
        "epoch": "int64 not null",
        "first_seq": "int64 not null",
        "last_seq": "int64",
        "frames": "int64",
        "reason": "string not null",
        "detail": "string not null",
        "recorded_ns": "int64 not null",
        "segment": "string not null",
    }
    assert described(index.messages_schema()) == {
        "ordinal": "int64 not null",
        "aeron_stream_id": "int64 not null",
        "stream_id": "int64",
        "schema_id": "int64 not null",
        "template_id": "int64 not null",
        "recorded_ns": "int64 not null",
        "monotonic_ns": "int64 not null",
        "segment": "string not null",
        "offset": "int64 not null",
        "length": "int64 not null",
    }


def test_rows_say_what_frames_are_and_where(shop: Workshop) -> None:
    path = shop.manifest.segments / f"00000000{FRAMES}"
    assert pq.read_schema(path).remove_metadata().names == index.frames_schema().names
    rows = pq.read_table(path).to_pylist()
    assert [row["ordinal"] for row in rows] == [0, 1, 2]
    segment = (shop.manifest.segments / "00000000.seg").read_bytes()
    for row, seq in zip(rows, [0, 1, 5], strict=True):
        image = picture(seq)
        assert segment[row["offset"] : row["offset"] + row["length"]] == image.tobytes()
        assert (row["stream_id"], row["epoch"], row["seq"], row["crc"]) == (STREAM, EPOCH, seq, crc32c(image))
        assert (row["dtype"], row["shape"], row["strides"], row["order"]) == ("uint8", [600], [1], "C")
        assert (row["segment"], row["codec"], row["raw_length"]) == ("00000000.seg", "raw", 600)
        assert row["timestamp_ns"] == 1000 + seq
    assert (rows[0]["trace_id"], rows[0]["publish_timestamp_ns"]) == (-1, 77), "the signed number of the same bits"
    assert (rows[2]["trace_id"], rows[2]["publish_timestamp_ns"]) == (None, None)


def test_losses_and_messages_have_rows(shop: Workshop) -> None:
    (loss,) = pq.read_table(shop.manifest.segments / f"00000000{LOSSES}").to_pylist()
    assert (loss["ordinal"], loss["first_seq"], loss["last_seq"], loss["frames"]) == (2, 2, 4, 3)
    assert (loss["reason"], loss["stream_id"], loss["segment"]) == ("lapped", STREAM, "00000000.seg")
    meta, event = pq.read_table(shop.manifest.segments / f"00000000{MESSAGES}").to_pylist()
    segment = (shop.manifest.segments / "00000000.seg").read_bytes()
    assert segment[meta["offset"] : meta["offset"] + meta["length"]] == b"message"
    assert (meta["aeron_stream_id"], meta["stream_id"], meta["schema_id"], meta["template_id"]) == (
        1300,
        STREAM,
        900,
        4,
    )
    assert (event["stream_id"], event["ordinal"]) == (None, 2)


def test_every_kind_of_element_has_a_name(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "rec")
    kinds = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "?"]
    for seq, kind in enumerate(kinds):
        ring = Ring(16)
        assert shop.log.add_frames([ring.publish(seq, np.zeros((2, 3), kind))]) == (1, 0)
    shop.close()
    table = Recording(tmp_path / "rec").segments[0].table()
    assert table["dtype"].to_pylist() == [np.dtype(kind).name for kind in kinds]
    assert table["strides"].to_pylist()[2] == [6, 2]


def test_missing_pyarrow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LibraryMissing, match=r"framepool\[record\]"):
        index.arrow()
    assert not index.has_arrow()
