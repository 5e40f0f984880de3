"""Two hosts and a bridge between them: frames arrive as they left, in either direction, with what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framepool.bridge import Bridge
from framepool.bridge.chunks import ChunkSizing
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
    Host,
    bridged,
    carried,
    image,
    joined,
    link,
    mapping,
    mapping_of,
    two_hosts,
)
from tests.support.chunked import SentFrame, noise
from tests.support.onlooker import PATIENCE, wait_until
from tests.support.ports import free_ports


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
    before = eye.counts["gap"], eye.counts["late"]
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
    assert (eye.counts["gap"], eye.counts["late"]) == before


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
    wait_until(lambda: told.all(DataSourceMeta) and told.all(DataSourceAnnounce) and control.all(ShmPoolAnnounce))
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
    before, late, gap = mapping_of(sender)["frames"]["sent"], refused(sender), eye.counts["gap"]
    slot = camera.claim((8, 8))  # claimed, not committed
    liar = hosts[0].stranger()
    liar.say_local(
        hosts[0].config.stream_ids.descriptor,
        FrameDescriptor(stream_id=SOURCE, epoch=slot.epoch, seq=slot.seq),
    )
    wait_until(lambda: refused(sender) > late)
    slot.abandon()
    assert mapping_of(sender)["frames"]["sent"] == before
    carried(camera, eye)
    assert eye.counts["gap"] == gap + 1


def refused(sender: Bridge) -> int:
    """How many frames were not what their descriptors said when the bridge turned to them."""
    return int(mapping_of(sender)["source"].get("late", 0))


def test_discovery_shows_a_bridged_stream_and_where_it_comes_from(hosts: Both) -> None:
    here, there = hosts
    camera = here.pool.producer(SOURCE, name="camera", tags=["cold"])
    bridged(hosts)
    joined(camera, there.pool.consumer(DEST))
    found = []

    def shown() -> bool:
        found[:] = there.pool.discover("camera", tags=["bridged:bridge-b"], timeout=PATIENCE)
        return bool(found)

    wait_until(shown)
    (stream,) = found
    assert (stream.stream_id, stream.name, stream.local) == (DEST, "camera", True)
    assert {"cold", "origin-host:a", f"origin-stream:{SOURCE}"} <= set(stream.tags)
    eye = there.pool.consumer("camera")
    assert eye.stream_id == DEST
    carried(camera, eye, 1)


@pytest.mark.clause("B-5.4-01")
def test_checksums_go_beside_the_chunks_and_are_not_needed(hosts: Both) -> None:
    here, there = hosts
    between = link()
    payload = there.stranger().hear(between["payload_channel"], between["payload_stream_id"])
    _, receiver = bridged(hosts, between=between, crc32c=True)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    joined(camera, eye)
    carried(camera, eye)
    assert "checksum" not in mapping_of(receiver)["frames"]
    assert {type(message) for message in payload.hear()} == {BridgeFrameChunk}, "no field and no message of its own"
    unsummed = SentFrame(camera.current_seq + 5, noise(1, 100), epoch=mapping_of(receiver)["source_epoch"])
    liar = here.stranger()
    for chunk in unsummed.chunks(crc32c=False):
        liar.say(between["payload_channel"], between["payload_stream_id"], chunk.message)
    wait_until(lambda: mapping_of(receiver)["frames"].get("checksum") == 1)


@pytest.mark.clause("B-3-01")
def test_one_stream_goes_to_two_receivers_over_multicast(base_dir: Path) -> None:
    ports = free_ports(3)
    groups = ("224.20.30.39", "224.20.30.41", "224.20.30.43")
    channels = [
        f"aeron:udp?endpoint={group}:{port}|interface=127.0.0.1|term-length=1m"
        for group, port in zip(groups, ports, strict=True)
    ]
    between = {
        "payload_channel": channels[0],
        "payload_stream_id": 3000,
        "control_channel": channels[1],
        "control_stream_id": 3001,
        "metadata_channel": channels[2],
    }
    with Host(base_dir, "a") as here, Host(base_dir, "b") as one, Host(base_dir, "c") as other:
        here.bridge(between, mapping())
        camera = here.pool.producer(SOURCE)
        eyes = []
        for host, dest in ((one, DEST), (other, 50_007)):
            host.bridge(between, mapping(dest=dest), role="receiver")
            eyes.append(host.pool.consumer(dest))
        for eye in eyes:
            joined(camera, eye)
        seq = camera.publish(image(3))
        assert seq is not None
        for eye in eyes:
            frame = eye.wait_for(seq, PATIENCE)
            assert frame is not None
            assert np.array_equal(frame.copy(), image(3))


@pytest.mark.clause("B-7-02")
def test_descriptors_go_where_the_destination_host_has_them(base_dir: Path) -> None:
    with Host(base_dir, "a") as here, Host(base_dir, "b", stream_ids={"descriptor": 1177}) as there:
        ears = [there.stranger().hear_local(stream_id) for stream_id in (1100, 1177)]
        bridged((here, there))
        camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
        joined(camera, eye)
        wait_until(lambda: ears[1].all(FrameDescriptor))
        assert ears[0].all(FrameDescriptor) == []


@pytest.mark.clause("B-10-06", "B-10-07")
def test_hard_caps_hold_on_either_side(hosts: Both) -> None:
    here, there = hosts
    between = link()
    payload = there.stranger().hear(between["payload_channel"], between["payload_stream_id"])
    sender = here.bridge(between, mapping(), max_chunk_bytes=512, max_payload_bytes=4096)
    receiver = there.bridge(between, mapping(), role="receiver", max_chunk_bytes=512, max_payload_bytes=2048)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    wait_until(lambda: camera.publish(np.zeros(64, np.uint8)) is not None and eye.latest(0.05) is not None)
    camera.publish(np.zeros(5000, np.uint8))
    wait_until(lambda: mapping_of(sender)["frames"].get("too_large") == 1)
    camera.publish(np.zeros(4000, np.uint8))
    wait_until(lambda: mapping_of(receiver)["frames"].get("payload_length") == 1)
    assert max(chunk.chunk_length for chunk in payload.all(BridgeFrameChunk)) == 512
    liar = here.stranger()
    long = SentFrame(camera.current_seq + 1, noise(1, 1000), epoch=mapping_of(receiver)["source_epoch"])
    for chunk in long.chunks(ChunkSizing(mtu_bytes=1408, chunk_bytes=513)):
        liar.say(between["payload_channel"], between["payload_stream_id"], chunk.message)
    wait_until(lambda: mapping_of(receiver)["frames"].get("chunk_bytes"))


@pytest.mark.clause("B-8-01")
def test_frame_on_its_way_ends_with_the_epoch_it_is_of(hosts: Both) -> None:
    here, there = hosts
    between = link()
    between["payload_channel"] = between["payload_channel"].replace("term-length=1m", "term-length=64k")
    stalled = there.stranger().hear(between["payload_channel"], between["payload_stream_id"])
    sender = here.bridge(between, mapping())
    with here.pool.producer(SOURCE) as camera:
        wait_until(lambda: mapping_of(sender)["state"] == "running" and mapping_of(sender)["source_epoch"])
        first = mapping_of(sender)["source_epoch"]
        for _ in range(3):
            camera.publish(np.zeros(60_000, np.uint8))
        wait_until(lambda: mapping_of(sender)["frames"].get("back_pressured", 0) > 3)
    with here.pool.producer(SOURCE) as camera:
        wait_until(lambda: mapping_of(sender)["source_epoch"] > first + 1)
        wait_until(lambda: mapping_of(sender)["frames"].get("abandoned") == 1)

        def next_epoch_is_heard() -> bool:
            camera.publish(np.zeros(8, np.uint8))
            return any(chunk.epoch != first for chunk in stalled.all(BridgeFrameChunk))

        wait_until(next_epoch_is_heard)
    old = [chunk for chunk in stalled.all(BridgeFrameChunk) if chunk.epoch == first]
    cut_off = [chunk for chunk in old if chunk.seq == old[-1].seq]
    assert 0 < len(cut_off) < cut_off[0].chunk_count


def test_receiver_that_comes_later_is_told_of_the_source_at_once(base_dir: Path) -> None:
    seldom = {"shm_base_dir": str(base_dir / "a"), "announce_period_ms": 1_000}
    with Host(base_dir, "a", driver=seldom) as here, Host(base_dir, "b") as there:
        here.pool.producer(SOURCE)
        between = link()
        sender = here.bridge(between, mapping())
        wait_until(lambda: mapping_of(sender).get("announces"))
        there.bridge(between, mapping(), role="receiver")

        def repeated() -> bool:
            told = sender.statistics()
            return bool(told["links"]["outgoing"]["control sent"] > told["mappings"][0]["announces"])

        wait_until(repeated)
