"""Two hosts and a bridge between them: frames arrive as they left, in either direction, with what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framepool.client.mapping import MappingState
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    FrameDescriptor,
    ShmPoolAnnounce,
    SlotHeader,
)
from tests.support.bridges import (
    DEST,
    SOURCE,
    Both,
    bridged,
    carried,
    image,
    joined,
    link,
    mapping,
    mapping_of,
    two_hosts,
)
from tests.support.onlooker import PATIENCE, wait_until


@pytest.fixture
def hosts(base_dir: Path) -> Iterator[Both]:
    with two_hosts(base_dir) as both:
        yield both


@pytest.mark.clause("B-1-01", "B-2.1-02", "B-2.2-01", "B-7-01", "B-7-02")
def test_frame_arrives_as_it_left(hosts: Both) -> None:
    camera = hosts[0].pool.producer(SOURCE, name="camera")
    bridged(hosts)
    eye = hosts[1].pool.consumer(DEST)
    joined(camera, eye)
    for number, shape, dtype in [(1, (7, 5), "u1"), (2, (100, 150), "f4"), (3, (0, 4), "i8"), (4, (3, 4, 5), "f8")]:
        sent = np.asarray(image(number, shape)).astype(dtype)
        seq = camera.publish(sent, timestamp_ns=1_000_000 + number, trace_id=77 + number)
        assert seq is not None
        frame = eye.wait_for(seq, PATIENCE)
        assert frame is not None
        assert np.array_equal(frame.copy(), sent)
        assert (frame.seq, frame.shape, frame.dtype, frame.timestamp_ns, frame.trace_id, frame.stream_id) == (
            seq,
            shape,
            np.dtype(dtype),
            1_000_000 + number,
            77 + number,
            DEST,
        )
    assert eye.state is MappingState.MAPPED
    assert eye.epoch == eye.reading().epoch  # type: ignore[union-attr]
    assert eye.counts["gap"] == eye.counts["late"] == 0


@pytest.mark.clause("B-2.3-01")
def test_directions_are_independent_of_each_other(hosts: Both) -> None:
    there, back = link(3000), link(3010)
    for host, roles in ((hosts[0], ("sender", "receiver")), (hosts[1], ("receiver", "sender"))):
        host.bridge(
            there, mapping(role=roles[0]), mapping(10_001, 50_001, role=roles[1], link="back"), links={"back": back}
        )
    camera, other = hosts[0].pool.producer(SOURCE), hosts[1].pool.producer(10_001)
    eye, other_eye = hosts[1].pool.consumer(DEST), hosts[0].pool.consumer(50_001)
    joined(camera, eye)
    joined(other, other_eye)
    camera.close()
    carried(other, other_eye)
    wait_until(lambda: eye.poll() == [])


@pytest.mark.clause("B-5-01", "B-5.1-01", "B-5.1-02", "B-3-03", "B-7-03", "B-7.2-01", "B-7.2-04", "B-10-11")
def test_nothing_crosses_but_chunks_announces_and_metadata(hosts: Both) -> None:
    between = link()
    tap = hosts[1].stranger()
    payload = tap.hear(between["payload_channel"], between["payload_stream_id"])
    control = tap.hear(between["control_channel"], between["control_stream_id"])
    told = tap.hear(between["metadata_channel"], between["metadata_stream_id"])
    camera = hosts[0].pool.producer(SOURCE, name="camera")
    hosts[0].bridge(between, mapping())
    hosts[1].bridge(between, mapping(), role="receiver")
    eye = hosts[1].pool.consumer(DEST)
    joined(camera, eye)
    frame = carried(camera, eye, 1)[0]
    wait_until(lambda: told.all(DataSourceMeta) and control.all(ShmPoolAnnounce))
    epoch = control.all(ShmPoolAnnounce)[-1].epoch
    assert {type(message) for message in payload.hear()} == {BridgeFrameChunk}
    assert {type(message) for message in control.hear()} == {ShmPoolAnnounce}
    assert {type(message) for message in told.hear()} == {DataSourceAnnounce, DataSourceMeta}
    chunks = [chunk for chunk in payload.all(BridgeFrameChunk) if chunk.seq == frame.seq]
    assert [chunk.chunk_index for chunk in chunks] == list(range(len(chunks)))
    assert {(chunk.stream_id, chunk.epoch, chunk.chunk_count) for chunk in chunks} == {(SOURCE, epoch, len(chunks))}
    assert {chunk.payload_length for chunk in chunks} == {frame.nbytes}
    header = SlotHeader.decode_body(chunks[0].header_bytes)
    assert header.seq_commit >> 1 == frame.seq
    assert b"".join(chunk.payload_bytes for chunk in chunks) == image(0).tobytes()


@pytest.mark.clause("B-2.1-01")
def test_slot_that_is_not_what_its_descriptor_says_is_not_sent(hosts: Both) -> None:
    camera = hosts[0].pool.producer(SOURCE)
    sender, _ = bridged(hosts)
    eye = hosts[1].pool.consumer(DEST)
    joined(camera, eye)
    before = mapping_of(sender)["frames"]["sent"]
    slot = camera.claim((8, 8))  # claimed, not committed
    liar = hosts[0].stranger()
    liar.say_local(
        hosts[0].config.stream_ids.descriptor,
        FrameDescriptor(stream_id=SOURCE, epoch=slot.epoch, seq=slot.seq),
    )
    wait_until(lambda: mapping_of(sender)["source"].get("late"))
    slot.abandon()
    assert mapping_of(sender)["frames"]["sent"] == before
    carried(camera, eye)
    assert eye.counts["gap"] == 1
