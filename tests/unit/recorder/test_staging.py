"""Frames on their way into a segment: copied once, proven whole, laid out as the format says."""

from __future__ import annotations

import numpy as np
import pytest

from framepool._native.crc32c import crc32c
from framepool._native.recording import DONE, LAPPED, NO_ROOM, SEGMENT_FULL, Staging
from framepool.errors import AllocationError
from framepool.recorder import format as form
from framepool.recorder.format import Codec, Kind
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import SlotHeader
from tests.support.tape import EPOCH, STREAM, Framed, Ring, picture

SEGMENT = 0xFEED_0000_0000_0001
ENDLESS = 2**62


def stage(
    staging: Staging, frames: list[Framed], *, first: int = 0, origin: int = 0, limit: int = ENDLESS, number: int = 0
) -> tuple[int, int]:
    return staging.stage(frames, first, origin, limit, SEGMENT, number, 111, 222)


def content(staging: Staging) -> memoryview:
    return staging.view(staging.tail, staging.head)


def test_staged_frame_is_a_record_that_the_readable_side_reads() -> None:
    ring, staging = Ring(), Staging(65_536)
    image = np.arange(600, dtype="<u2").reshape(20, 30)
    told = ring.publish(5, image, timestamp_ns=77, meta_version=3, publish_timestamp_ns=88, trace_id=99)
    assert stage(staging, [told], number=6) == (1, DONE)
    (record,) = form.walk(content(staging), SEGMENT)
    assert (record.kind, record.offset, record.end) == (Kind.FRAME, 0, staging.head)
    assert record.payload_offset % form.ALIGNMENT == 0
    payload = form.payload(content(staging), record)
    assert payload == image.tobytes()
    assert form.is_whole(content(staging), record)
    (header,) = form.frame_headers(content(staging), np.array([0]))
    expected = {
        "magic": form.MAGIC,
        "version": 1,
        "kind": 2,
        "header_bytes": 512,
        "segment_id": SEGMENT,
        "record_bytes": 512 + 1216,
        "stored_bytes": 1200,
        "raw_bytes": 1200,
        "number": 6,
        "codec": 0,
        "recorded_ns": 111,
        "monotonic_ns": 222,
        "stream_id": STREAM,
        "epoch": EPOCH,
        "seq": 5,
        "publish_timestamp_ns": 88,
        "trace_id": 99,
        "pool_id": 2,
        "timestamp_ns": 77,
        "meta_version": 3,
        "raw_crc": crc32c(image),
        "stored_crc": crc32c(image),
    }
    assert {name: int(header[name]) for name in expected} == expected
    assert header["tensor"].tobytes() == TensorLayout.of(image).header


def test_slot_header_is_kept_as_it_was_in_the_ring() -> None:
    ring, staging = Ring(), Staging(65_536)
    stage(staging, [ring.publish(9, picture(1), timestamp_ns=5, meta_version=6)])
    slot = bytes(content(staging)[256:512])
    assert slot == ring.header[64 + 256 * 1 :][:256].tobytes()
    assert SlotHeader.BLOCK.unpack_from(slot)[0] == 9 << 1 | 1


def test_what_a_descriptor_did_not_say_is_null() -> None:
    ring, staging = Ring(), Staging(65_536)
    stage(staging, [ring.publish(0, picture(1))])
    (header,) = form.frame_headers(content(staging), np.array([0]))
    assert (header["publish_timestamp_ns"], header["trace_id"]) == (form.NO_TIMESTAMP, form.NO_TRACE_ID)


def test_frame_without_payload_is_a_header_alone() -> None:
    ring, staging = Ring(), Staging(4096)
    stage(staging, [ring.publish(0, np.empty((0, 5), np.uint16))])
    assert staging.head == 512
    (record,) = form.walk(content(staging))
    assert record.prefix.stored_bytes == 0


def test_frame_that_was_overwritten_leaves_no_trace_and_is_named() -> None:
    ring, staging = Ring(nslots=2), Staging(65_536)
    first, lapped = ring.publish(0, picture(0)), ring.publish(1, picture(1))
    ring.publish(3, picture(3))
    third = ring.publish(4, picture(4))
    assert stage(staging, [third, lapped, third]) == (1, LAPPED)
    assert stage(staging, [first]) == (0, LAPPED)
    assert [record.prefix.number for record in form.walk(content(staging))] == [0]
    assert staging.rows == 1


def test_only_what_fits_is_staged_and_records_run_over_the_end_in_one_piece() -> None:
    ring, staging = Ring(), Staging(4096)
    taken = [ring.publish(seq, picture(seq, 1000)) for seq in range(3)]
    assert stage(staging, taken) == (2, NO_ROOM)
    staging.release(1536)
    assert staging.room == 4096 - 1536
    assert stage(staging, taken, first=2) == (1, DONE)
    staging.release(3072)
    assert stage(staging, [ring.publish(3, picture(3, 1000))]) == (1, DONE)
    payloads = [bytes(form.payload(content(staging), record)) for record in form.walk(content(staging))]
    assert payloads == [picture(2, 1000).tobytes(), picture(3, 1000).tobytes()]
    assert staging.head > staging.capacity


def test_segment_takes_no_more_than_its_bytes_but_always_one_frame() -> None:
    ring, staging = Ring(), Staging(65_536)
    taken = [ring.publish(seq, picture(seq, 1000)) for seq in range(3)]
    assert stage(staging, taken, limit=2 * 1536) == (2, SEGMENT_FULL)
    assert stage(staging, taken, first=2, origin=staging.head, limit=64) == (1, DONE)


def test_staging_grows_only_when_nothing_is_in_it() -> None:
    ring, staging = Ring(), Staging(4096)
    large = ring.publish(0, picture(0, 60_000))
    stage(staging, [ring.publish(1, picture(1))])
    assert not staging.grow(65_536 * 2)
    staging.release(staging.head)
    held = staging.view(staging.head, staging.head)
    assert not staging.grow(65_536 * 2), "somebody still looks at it"
    held.release()
    assert staging.grow(65_536 * 2)
    assert stage(staging, [large]) == (1, DONE)
    (record,) = form.walk(content(staging))
    assert form.payload(content(staging), record) == picture(0, 60_000).tobytes()


def test_last_frame_can_be_stored_in_fewer_bytes() -> None:
    ring, staging = Ring(), Staging(65_536)
    image = np.zeros(1000, np.uint8)
    stage(staging, [ring.publish(0, picture(0))])
    position = staging.head
    staging.hold()
    stage(staging, [ring.publish(1, image)], number=1)
    assert staging.ready == position
    staging.restore(position, b"short", Codec.ZSTD, 0)
    assert staging.head == position + 512 + 64
    _, record = form.walk(content(staging), SEGMENT)
    assert (bytes(form.payload(content(staging), record)), record.prefix.number) == (b"short", 1)
    assert form.is_whole(content(staging), record)
    with pytest.raises(ValueError, match="longer"):
        staging.restore(position, bytes(10), Codec.ZSTD, 0)
    offsets, headers = staging.take_rows()
    assert np.frombuffer(offsets, np.int64).tolist() == [0, position]
    kept = np.frombuffer(headers, form.FRAME_HEADER)[1]
    assert (kept["codec"], kept["raw_bytes"], kept["stored_bytes"], kept["raw_crc"]) == (1, 1000, 5, crc32c(image))
    with pytest.raises(ValueError, match="does not begin"):
        staging.restore(0, b"", Codec.ZSTD, 0)


def test_headers_of_the_frames_are_kept_for_the_index_and_handed_over_once() -> None:
    ring, staging = Ring(), Staging(2**20)
    staging.append(bytes(4096))
    staging.release(4096)
    for seq in range(3000):  # more than are allocated at first
        stage(staging, [ring.publish(seq, picture(seq, 10))], origin=4096, number=seq)
        staging.release(staging.head)
    offsets, headers = staging.take_rows()
    assert np.frombuffer(offsets, np.int64).tolist() == [576 * seq for seq in range(3000)]
    assert np.frombuffer(headers, form.FRAME_HEADER)["seq"].tolist() == list(range(3000))
    assert staging.take_rows() == (b"", b"")


def test_ring_of_an_epoch_that_is_over_is_not_read() -> None:
    ring, staging = Ring(), Staging(4096)
    told = ring.publish(0, picture(0))
    ring.reader.close()
    assert stage(staging, [told]) == (0, LAPPED)
    assert staging.head == 0


def test_positions_outside_are_refused() -> None:
    staging = Staging(4096)
    assert staging.append(bytes(4096))
    assert not staging.append(b"x")
    for bad in (lambda: staging.view(0, 4097), lambda: staging.release(5000)):
        with pytest.raises(ValueError, match="not between"):
            bad()
    with pytest.raises(ValueError, match="multiple"):
        Staging(5000)
    with pytest.raises(AllocationError):
        Staging(2**60)
