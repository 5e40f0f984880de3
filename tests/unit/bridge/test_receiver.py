"""Chunks off real UDP into a local stream or into private memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from framepool._native.bridge import Assembler, ChunkReceiver
from framepool._native.frames import FrameReader, FrameWriter
from framepool._native.seqlock import CheckedSlot
from framepool.bridge.chunks import Chunk, ChunkDrop, ChunkSizing
from framepool.bridge.receiver import PrivateTarget, StreamTarget
from framepool.client.frame import Frame
from framepool.errors import AllocationError, FrameOverwritten, FramepoolError, MediaDriverLost, TransportError
from framepool.transport.aeron import AnyPublication, Client, Drain, Publication
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.support.chunked import EPOCH, STREAM, STRIDES, Link, SentFrame, Slots, noise
from tests.support.slots import CoreSlots
from tests.unit.transport.conftest import open_for_messages

SIZING = ChunkSizing(mtu_bytes=1408, chunk_bytes=1280)
LOCAL_STREAM, LOCAL_EPOCH = 50_000, 3

type Until = Callable[[Callable[[], object]], None]


def assembler_of(target: object, stream_id: int = STREAM, **options: int) -> Assembler:
    assembler = Assembler(stream_id, SIZING, **options)
    assembler.announce(EPOCH, STRIDES)
    assembler.target = target  # type: ignore[assignment]
    return assembler


def offer(publication: AnyPublication, receiver: ChunkReceiver, message: bytes, now_ns: int = 0) -> None:
    """Offers until there is room."""
    deadline = time.monotonic() + 10
    while publication.offer(message) < 0:
        assert time.monotonic() < deadline, "no room"
        receiver.poll(now_ns)


def deliver(link: Link, receiver: ChunkReceiver, *chunks: Chunk, now_ns: int = 0) -> None:
    """Sends messages and polls until all of them were taken."""
    for chunk in chunks:
        offer(link.publication, receiver, chunk.message, now_ns)
    settle(link, receiver, now_ns)


def settle(link: Link, receiver: ChunkReceiver, now_ns: int = 0) -> None:
    deadline = time.monotonic() + 10
    while link.subscription.images()[0].position < link.publication.position:
        assert time.monotonic() < deadline, "not delivered"
        receiver.poll(now_ns)


@pytest.fixture
def receiver(link: Link) -> ChunkReceiver:
    return ChunkReceiver(link.subscription)


class Local:
    """The local stream of a mapping, with a consumer."""

    def __init__(self, publication: Publication, drain: Drain) -> None:
        self.slots = CoreSlots(16, (256, 1024))
        self.writer = FrameWriter(publication, self.slots.writer, LOCAL_STREAM, LOCAL_EPOCH)
        self.reader = FrameReader(drain, self.slots.reader, LOCAL_STREAM, LOCAL_EPOCH)
        self.target = StreamTarget(self.writer)


@pytest.fixture
def local(client: Client, until: Until) -> Local:
    publication = client.add_publication("aeron:ipc?term-length=64k", 1100)
    drain = client.add_subscription("aeron:ipc?term-length=64k", 1100).drain(max_message=64)
    until(lambda: open_for_messages(publication))
    return Local(publication, drain)


@pytest.mark.clause("B-2.2-01", "B-6-12", "B-6-15", "B-7-01", "B-1-01")
def test_frames_appear_in_the_local_stream_as_a_producers_would(
    link: Link, receiver: ChunkReceiver, local: Local, until: Until
) -> None:
    assembler = assembler_of(local.target)
    receiver.add(assembler)
    frames = [
        SentFrame(seq, noise(seq, 900), timestamp_ns=seq + 1, meta_version=seq, payload_slot=77) for seq in (3, 4, 9)
    ]
    for frame in frames:
        deliver(link, receiver, *frame.chunks(SIZING))
    taken: list[object] = []
    until(lambda: taken.extend(local.reader.take()) or len(taken) == 3)
    for frame, found in zip(frames, taken, strict=True):
        assert found.seq == frame.seq  # type: ignore[attr-defined]
        checked = found.checked  # type: ignore[attr-defined]
        assert (checked.timestamp_ns, checked.meta_version) == (frame.timestamp_ns, frame.meta_version)
        assert (checked.pool_id, checked.payload_slot) == (2, frame.seq % 16)
        assert bytes(local.slots.reader.array(checked)) == frame.payload
    assert local.reader.statistics()["gap"] == 4
    assert assembler.published == 3


def test_descriptor_is_of_the_local_stream_and_has_the_trace_id(
    client: Client, link: Link, receiver: ChunkReceiver, until: Until
) -> None:
    told = client.add_publication("aeron:ipc?term-length=64k", 1100)
    heard = client.add_subscription("aeron:ipc?term-length=64k", 1100)
    until(lambda: open_for_messages(told))
    slots = CoreSlots(8, (1024,))
    target = StreamTarget(FrameWriter(told, slots.writer, LOCAL_STREAM, LOCAL_EPOCH), publish_timestamps=True)
    assembler = assembler_of(target)
    for chunk in SentFrame(5, b"traced", trace_id=2**63 + 1, meta_version=4).chunks(SIZING):
        assert assembler.feed(*chunk) == 0
    messages: list[bytes] = []
    until(lambda: messages.extend(heard.poll()) or messages)
    descriptor = FrameDescriptor.decode(messages[0])
    assert (descriptor.stream_id, descriptor.epoch, descriptor.seq) == (LOCAL_STREAM, LOCAL_EPOCH, 5)
    assert (descriptor.trace_id, descriptor.meta_version) == (2**63 + 1, 4)
    assert descriptor.timestamp_ns is not None


def test_lease_that_is_over_costs_frames_and_writes_nothing(local: Local) -> None:
    assembler = assembler_of(local.target)
    first, *rest = SentFrame(1, noise(1, 200)).chunks(ChunkSizing(mtu_bytes=512, chunk_bytes=64))
    assert assembler.feed(*first) == 0
    local.writer.deadline_ns = time.monotonic_ns()
    assert not local.target.open
    assert assembler.feed(*rest[0]) == ChunkDrop.NO_TARGET
    header = local.slots.header.tobytes()
    assert assembler.feed(*SentFrame(2, b"").chunks(SIZING)[0]) == ChunkDrop.NO_TARGET
    assert local.slots.header.tobytes() == header
    local.writer.deadline_ns = None
    assert [assembler.feed(*chunk) for chunk in rest] == [0, 0, 0]
    assert assembler.published == 1


def test_lease_that_ends_before_the_commit_abandons_the_frame(local: Local) -> None:
    class Ending(StreamTarget):
        open = True

    assembler = assembler_of(Ending(local.writer))
    local.writer.deadline_ns = time.monotonic_ns()
    assert assembler.feed(*SentFrame(2, b"").chunks(SIZING)[0]) == ChunkDrop.REFUSED
    assert local.slots.word(2) == 2 << 1
    assert local.writer.abandoned == 1


@pytest.mark.clause("B-6-01")
def test_each_stream_has_its_assembler_and_others_are_counted(link: Link, receiver: ChunkReceiver) -> None:
    one, other = Slots(8, STRIDES), Slots(8, STRIDES)
    receiver.add(assembler_of(one))
    receiver.add(assembler_of(other, STREAM + 1))
    with pytest.raises(ValueError, match="already"):
        receiver.add(assembler_of(other, STREAM + 1))
    frames = [SentFrame(seq, noise(seq, 900), stream_id=STREAM + seq % 3).chunks(SIZING) for seq in range(3, 9)]
    for first, second, third in zip(*[iter(frames)] * 3, strict=True):  # interleaved
        for chunks in zip(first, second, third, strict=True):
            deliver(link, receiver, *chunks)
    assert [(frame.seq, frame.payload) for frame in one.arrived] == [(3, noise(3, 900)), (6, noise(6, 900))]
    assert [(frame.seq, frame.payload) for frame in other.arrived] == [(4, noise(4, 900)), (7, noise(7, 900))]
    assert receiver.statistics()["other_stream"] == 2
    receiver.remove(STREAM + 1)
    deliver(link, receiver, *SentFrame(10, b"", stream_id=STREAM + 1).chunks(SIZING))
    assert receiver.statistics()["other_stream"] == 3
    assert len(other.arrived) == 2


def test_what_is_no_chunk_is_counted(link: Link, receiver: ChunkReceiver) -> None:
    chunk = SentFrame(1, b"").chunks(SIZING)[0]
    deliver(
        link,
        receiver,
        Chunk(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=1).encode()),
        Chunk(b"x"),
        Chunk(chunk.message[:-1]),
        Chunk(b"\x35" + chunk.message[1:]),
    )
    statistics = receiver.statistics()
    assert (statistics["schema"], statistics["malformed"], statistics["dialect"], statistics["chunks"]) == (1, 2, 1, 4)


@pytest.mark.clause("B-5.2-26")
def test_message_in_more_fragments_than_a_chunk_can_have_is_not_kept(link: Link, receiver: ChunkReceiver) -> None:
    small = ChunkSizing(mtu_bytes=1408, chunk_bytes=1280)
    receiver.close()
    receiver = ChunkReceiver(link.subscription, max_message_bytes=1280 + 313)
    slots = Slots(8, STRIDES)
    receiver.add(assembler_of(slots))
    deliver(link, receiver, Chunk(bytes(7000)), *SentFrame(1, noise(1, 900)).chunks(small))
    assert receiver.chunks == 1
    assert link.subscription.statistics()["broken"] > 0
    assert [frame.seq for frame in slots.arrived] == [1]


@pytest.mark.clause("B-5.3a-01", "B-5.3a-03")
def test_poll_gives_up_what_is_overdue(link: Link, receiver: ChunkReceiver) -> None:
    slots = Slots(8, STRIDES)
    assembler = assembler_of(slots, timeout_ns=1000)
    receiver.add(assembler)
    first, second = SentFrame(1, noise(1, 1024)).chunks(ChunkSizing(mtu_bytes=1408, chunk_bytes=1000))
    deliver(link, receiver, first, now_ns=5000)
    receiver.poll(6000)
    assert assembler.in_flight == 1
    receiver.poll(6001)
    assert assembler.in_flight == 0
    deliver(link, receiver, second, now_ns=6002)
    assert slots.arrived == []


@pytest.mark.parametrize("nslots", [1, 2, 8])
def test_flood_of_small_frames_into_a_small_ring_loses_none(link: Link, receiver: ChunkReceiver, nslots: int) -> None:
    slots = Slots(nslots, STRIDES)
    receiver.add(assembler_of(slots))
    for seq in range(200):
        offer(link.publication, receiver, SentFrame(seq, noise(seq, 10)).chunks(SIZING)[0].message)
    settle(link, receiver)
    assert [frame.seq for frame in slots.arrived] == list(range(200))


class Failing(Slots):
    """A target whose publication was closed."""

    def publish(self, *args: object) -> bool:
        raise FramepoolError("no")


def test_error_of_one_target_does_not_cost_another_its_frames(link: Link, receiver: ChunkReceiver) -> None:
    slots = Slots(8, STRIDES)
    receiver.add(assembler_of(Failing(8, STRIDES), STREAM + 1))
    receiver.add(assembler_of(slots))
    for frame in (SentFrame(1, b"", stream_id=STREAM + 1), SentFrame(1, b"")):
        offer(link.publication, receiver, frame.chunks(SIZING)[0].message)
    with pytest.raises(FramepoolError, match="no"):
        settle(link, receiver)
    settle(link, receiver)
    assert [frame.seq for frame in slots.arrived] == [1]


def test_target_that_fails_for_every_frame_of_a_flood_is_survived(link: Link, receiver: ChunkReceiver) -> None:
    assembler = assembler_of(Failing(256, STRIDES))
    receiver.add(assembler)
    for seq in range(500):
        message = SentFrame(seq, b"").chunks(SIZING)[0].message
        while link.publication.offer(message) < 0:
            with contextlib.suppress(FramepoolError):
                receiver.poll(0)
    deadline = time.monotonic() + 10
    while assembler.statistics()["refused"] < 500 and time.monotonic() < deadline:
        with contextlib.suppress(FramepoolError):
            receiver.poll(0)
    assert assembler.statistics()["refused"] == 500
    assert assembler.in_flight == 0


def test_subscription_is_the_receivers_alone_until_it_is_closed(link: Link, receiver: ChunkReceiver) -> None:
    with pytest.raises(TransportError):
        link.subscription.poll()
    with pytest.raises(TransportError):
        link.subscription.drain()
    with pytest.raises(TransportError):
        ChunkReceiver(link.subscription)
    receiver.close()
    receiver.close()
    with pytest.raises(ValueError, match="closed"):
        receiver.poll(0)
    link.publication.offer(b"plain")
    deadline = time.monotonic() + 10
    while not (messages := link.subscription.poll()):
        assert time.monotonic() < deadline
    assert messages == [b"plain"]
    again = ChunkReceiver(link.subscription)
    del again
    assert link.subscription.poll() == []


def test_receiver_goes_on_after_the_media_driver_was_lost(media_driver: MediaDriver) -> None:
    with Client.connect(media_driver.settings) as client:
        link = Link.open(client)
        receiver = ChunkReceiver(link.subscription)
        slots = Slots(8, STRIDES)
        receiver.add(assembler_of(slots))
        client.shut()
        with pytest.raises(MediaDriverLost):
            receiver.poll(0)
        client.reconnect(10)
        deadline = time.monotonic() + 10
        while not (open_for_messages(link.publication) and link.subscription.is_connected):
            assert time.monotonic() < deadline
        deliver(link, receiver, *SentFrame(1, noise(1, 900)).chunks(SIZING))
        assert [frame.payload for frame in slots.arrived] == [noise(1, 900)]


def test_subscription_closed_in_another_thread_ends_the_polling(client: Client) -> None:
    for _ in range(10):
        link = Link.open(client)
        receiver = ChunkReceiver(link.subscription)
        closing = threading.Timer(0.005, link.subscription.close)
        closing.start()
        with pytest.raises(TransportError):
            poll_for_ever(receiver)
        closing.join()
        link.publication.close()


def poll_for_ever(receiver: ChunkReceiver) -> None:
    while True:
        receiver.poll(0)


def test_private_frames_are_read_like_shared_ones() -> None:
    target = PrivateTarget(STRIDES, nslots=4)
    assembler = assembler_of(target)
    for seq in range(3):
        for chunk in SentFrame(seq, noise(seq, 300), trace_id=seq).chunks(SIZING):
            assert assembler.feed(*chunk) == 0
    assert target.waiting == 3
    taken = target.take(2)
    assert [(checked.seq, trace_id) for checked, trace_id in taken] == [(0, None), (1, 1)]
    frame = Frame(target.reader, taken[1][0], stream_id=STREAM, epoch=EPOCH, trace_id=taken[1][1])
    assert frame.copy().tobytes() == noise(1, 300)
    with frame as image:
        assert image.shape == (300,)
        assert not image.flags.writeable
    assert [checked.seq for checked, _ in target.take()] == [2]
    for chunk in SentFrame(5, b"").chunks(SIZING):  # the slot of 1
        assembler.feed(*chunk)
    with pytest.raises(FrameOverwritten):
        frame.copy()
    target.close()


def test_private_frames_not_taken_in_time_are_counted() -> None:
    target = PrivateTarget(STRIDES, nslots=4)
    assembler = assembler_of(target)
    for seq in range(10):
        for chunk in SentFrame(seq, noise(seq, 10)).chunks(SIZING):
            assembler.feed(*chunk)
    begun = SentFrame(10, noise(10, 300)).chunks(ChunkSizing(mtu_bytes=512, chunk_bytes=64))[0]
    assembler.feed(*begun)  # in the slot of 6
    assert [checked.seq for checked, _ in target.take()] == [7, 8, 9]
    assert target.statistics() == {"waiting": 0, "overwritten": 7}


def test_private_memory_is_bounded() -> None:
    target = PrivateTarget({1: 1024, 2: 4096}, nslots=64, max_bytes=4 * 5120)
    assert target.ring.nslots == 4
    with pytest.raises(AllocationError):
        PrivateTarget({1: 2**30}, max_bytes=2**20)


def test_private_frames_come_over_the_wire(link: Link, receiver: ChunkReceiver) -> None:
    target = PrivateTarget(STRIDES)
    receiver.add(assembler_of(target))
    deliver(link, receiver, *SentFrame(1, noise(1, 1000)).chunks(SIZING))
    ((checked, _),) = target.take()
    assert isinstance(checked, CheckedSlot)
    assert np.array_equal(target.reader.array(checked), np.frombuffer(noise(1, 1000), np.uint8))
