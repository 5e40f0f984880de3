"""Frames leave their ring as chunks over real UDP, and a frame that is overwritten on the way never completes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from framepool._native.bridge import Assembler, ChunkReceiver
from framepool._native.seqlock import CheckedSlot, Layout
from framepool.bridge.chunks import MAX_CHUNKS, ChunkSizing, chunks_of
from framepool.bridge.receiver import PrivateTarget
from framepool.bridge.sender import ChunkSender
from framepool.errors import ConfigurationError, MediaDriverLost, TransportClosed
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.bridge_902 import BridgeFrameChunk
from tests.support.chunked import EPOCH, STREAM, Link, Slots, noise
from tests.support.ports import free_port
from tests.support.slots import CoreSlots
from tests.unit.transport.conftest import open_for_messages

MTU = 1408
SIZING = ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 128)
LARGE = 2**17

type Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def source() -> CoreSlots:
    return CoreSlots(4, (1024, LARGE))


@pytest.fixture
def sender(link: Link) -> ChunkSender:
    return ChunkSender(link.publication, STREAM, SIZING)


def publish(source: CoreSlots, seq: int, length: int, *, fill: int | None = None) -> CheckedSlot:
    data = noise(seq, length) if fill is None else bytes([fill]) * length
    source.publish(seq, TensorLayout.build(np.uint8, (length,)), data, timestamp_ns=seq + 1, meta_version=3)
    checked = source.reader.check(seq)
    assert isinstance(checked, CheckedSlot)
    return checked


def carry(sender: ChunkSender, link: Link, limit: int = 7) -> list[bytes]:
    """Sends the frame on its way to its end; the messages that arrive."""
    messages: list[bytes] = []
    deadline = time.monotonic() + 10
    while sender.sending and time.monotonic() < deadline:
        sender.step(limit)
        messages += link.subscription.poll()
    assert not sender.sending
    while link.subscription.images()[0].position < link.publication.position and time.monotonic() < deadline:
        messages += link.subscription.poll()
    return messages


@pytest.mark.clause(
    "B-2.1-02", "B-5-01", "B-5.1-01", "B-5.1-02", "B-5.2-01", "B-5.2-04", "B-5.2-05", "B-5.2-06", "B-5.2-08",
    "B-5.2-09", "B-5.2-18", "B-5.2-21", "B-5.2-13", "B-5.2-14",
)  # fmt: skip
@pytest.mark.parametrize("length", [0, 1, 1062, 1063, 1064, 2343, 2344, 40_000, LARGE])
def test_what_is_sent_is_what_the_readable_twin_says(
    source: CoreSlots, sender: ChunkSender, link: Link, length: int
) -> None:
    assert sender.start(source.reader, publish(source, 6, length), EPOCH)
    messages = carry(sender, link)
    expected = chunks_of(
        source.slot(2).tobytes(), noise(6, length), stream_id=STREAM, epoch=EPOCH, seq=6, sizing=SIZING
    )
    assert messages == [chunk.message for chunk in expected]
    assert all(len(message) <= link.publication.max_payload_length for message in messages)
    statistics = sender.statistics()
    assert (statistics["sent"], statistics["chunks"]) == (1, len(messages))


def test_each_payload_byte_is_copied_once(source: CoreSlots, sender: ChunkSender, link: Link) -> None:
    sender.start(source.reader, publish(source, 0, LARGE), EPOCH)
    carry(sender, link)
    assert sender.statistics()["payload_bytes"] == LARGE


@pytest.mark.clause("B-5.4-01")
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("length", [0, 1000, 40_000])
def test_trace_id_and_checksum_reach_the_assembler(source: CoreSlots, link: Link, length: int, checked: bool) -> None:
    slots = Slots(4, {1: 1024, 2: LARGE})
    assembler = Assembler(STREAM, SIZING, crc32c=checked)
    assembler.announce(EPOCH, {1: 1024, 2: LARGE})
    assembler.target = slots
    receiver = ChunkReceiver(link.subscription)
    receiver.add(assembler)
    sender = ChunkSender(link.publication, STREAM, SIZING, crc32c=checked)
    deadline = time.monotonic() + 10
    for seq, trace_id in enumerate([None, 2**64 - 1, 5]):
        assert sender.start(source.reader, publish(source, seq, length), EPOCH, trace_id)
        while len(slots.arrived) <= seq and time.monotonic() < deadline:
            sender.step()
            receiver.poll(0)
    assert [(frame.seq, frame.trace_id, frame.payload) for frame in slots.arrived] == [
        (0, 0, noise(0, length)),
        (1, 2**64 - 1, noise(1, length)),
        (2, 5, noise(2, length)),
    ]


def test_trace_id_of_one_frame_is_not_found_beside_a_later_one(source: CoreSlots, link: Link) -> None:
    """Aeron's log is written over, term by term."""
    target = PrivateTarget({1: 1024, 2: LARGE})
    assembler = Assembler(STREAM, SIZING, timeout_ns=10**10)
    assembler.announce(EPOCH, {1: 1024, 2: LARGE})
    assembler.target = target
    receiver = ChunkReceiver(link.subscription)
    receiver.add(assembler)
    sender = ChunkSender(link.publication, STREAM, SIZING)
    found = []
    for seq in range(1500):  # of 64 KiB terms more than three
        sender.start(source.reader, publish(source, seq, 10), EPOCH, 77 if seq < 750 else None)
        deadline = time.monotonic() + 10
        while not target.waiting and time.monotonic() < deadline:
            sender.step()
            receiver.poll(0)
        found += [trace_id for _, trace_id in target.take()]
    assert found == [77] * 750 + [None] * 750
    assert link.publication.position > 6 * 64 * 1024


@pytest.mark.clause("B-2.1-01")
@pytest.mark.parametrize("sent_before", [0, 1, 31])
def test_frame_overwritten_while_it_is_sent_never_completes(
    source: CoreSlots, sender: ChunkSender, link: Link, sent_before: int
) -> None:
    assert SIZING.count(40_000) == 32
    sender.start(source.reader, publish(source, 1, 40_000), EPOCH)
    messages: list[bytes] = []
    while len(messages) < sent_before:
        sender.step(sent_before - sender.statistics()["chunks"])
        messages += link.subscription.poll()
    publish(source, 5, 40_000)
    assert sender.step() == 0
    assert not sender.sending
    sender.start(source.reader, publish(source, 6, 10), EPOCH)
    messages += carry(sender, link)
    assert [BridgeFrameChunk.decode(message).seq for message in messages] == [1] * sent_before + [6]
    assert sender.statistics()["lapped"] == 1


class Producer(threading.Thread):
    """Overwrites slot after slot, each frame of one value, in bursts and with pauses."""

    def __init__(self, source: CoreSlots, length: int) -> None:
        super().__init__()
        self.source = source
        self.length = length
        self.newest = 0
        self.stopped = False

    def run(self) -> None:
        layout = Layout(TensorLayout.build(np.uint8, (self.length,)).header)
        for seq in itertools.count():
            if self.stopped:
                return
            self.source.writer.publish(seq, bytes([seq % 251]) * self.length, layout)
            self.newest = seq
            if seq % 64 < 16:
                time.sleep(0.005)


@pytest.mark.clause("B-2.1-01", "B-3-04")
@pytest.mark.parametrize(("mtu", "length"), [(1408, LARGE), (65_504, 130_000)], ids=["many chunks", "two chunks"])
def test_frames_that_arrive_beside_a_producer_that_laps_the_sender_are_whole(
    source: CoreSlots, client: Client, mtu: int, length: int
) -> None:
    sizing = ChunkSizing(mtu_bytes=mtu, chunk_bytes=mtu - 128)
    link = Link.open(client, mtu=mtu, term="1m")
    sender = ChunkSender(link.publication, STREAM, sizing)
    target = PrivateTarget({1: LARGE})
    assembler = Assembler(STREAM, sizing, timeout_ns=10**10)
    assembler.announce(EPOCH, {1: 1024, 2: LARGE})
    assembler.target = target
    receiver = ChunkReceiver(link.subscription)
    receiver.add(assembler)
    producer = Producer(source, length)
    producer.start()
    arrived = 0
    try:
        deadline = time.monotonic() + 60
        while (arrived < 20 or sender.statistics()["lapped"] < 20) and time.monotonic() < deadline:
            checked = source.reader.check(producer.newest)
            if isinstance(checked, CheckedSlot):
                sender.start(source.reader, checked, EPOCH)
            while sender.sending:
                sender.step(16)
                receiver.poll(0)
            receiver.poll(0)
            for slot, _ in target.take():
                assert set(bytes(target.reader.array(slot))) == {slot.seq % 251}
                arrived += 1
    finally:
        producer.stopped = True
        producer.join()
    assert arrived >= 20
    assert sender.statistics()["lapped"] >= 20


def step_until_back_pressure(sender: ChunkSender) -> None:
    """Who is connected may wait for Aeron's first window still."""
    deadline = time.monotonic() + 10
    while (sender.step(1000) or not sender.statistics()["chunks"]) and time.monotonic() < deadline:
        pass


def test_frame_goes_on_where_back_pressure_stopped_it(source: CoreSlots, sender: ChunkSender, link: Link) -> None:
    sender.start(source.reader, publish(source, 1, LARGE), EPOCH)
    step_until_back_pressure(sender)
    assert sender.sending
    assert 0 < sender.statistics()["chunks"] < SIZING.count(LARGE)
    assert sender.statistics()["back_pressured"] > 0
    messages = carry(sender, link)
    assert b"".join(BridgeFrameChunk.decode(message).payload_bytes for message in messages) == noise(1, LARGE)


def test_frame_lapped_under_back_pressure_is_given_up(source: CoreSlots, sender: ChunkSender, link: Link) -> None:
    sender.start(source.reader, publish(source, 1, LARGE), EPOCH)
    step_until_back_pressure(sender)
    publish(source, 5, 10)
    sender.step()
    assert not sender.sending
    messages = carry(sender, link)
    assert all(BridgeFrameChunk.decode(message).chunk_index < SIZING.count(LARGE) - 1 for message in messages)


def test_call_sends_no_more_than_it_was_told(source: CoreSlots, sender: ChunkSender) -> None:
    sender.start(source.reader, publish(source, 1, 20_000), EPOCH)
    assert [sender.step(limit) for limit in (0, 1, 3)] == [0, 1, 3]
    assert sender.statistics()["chunks"] == 4


def test_frame_that_nobody_hears_is_given_up(client: Client, source: CoreSlots) -> None:
    alone = client.add_exclusive_publication(f"aeron:udp?endpoint=127.0.0.1:{free_port()}|mtu={MTU}", 3000)
    sender = ChunkSender(alone, STREAM, SIZING)
    sender.start(source.reader, publish(source, 1, 100), EPOCH)
    assert sender.step() == 0
    assert not sender.sending
    assert sender.statistics()["unheard"] == 1
    assert alone.statistics()["not_connected"] == 1


@pytest.mark.clause("B-5.2-01")
def test_frame_of_too_many_chunks_is_refused_and_counted(link: Link) -> None:
    source = CoreSlots(4, (LARGE,))
    sender = ChunkSender(link.publication, STREAM, ChunkSizing(mtu_bytes=MTU, chunk_bytes=1))
    assert sender.start(source.reader, publish(source, 1, MAX_CHUNKS), EPOCH)
    sender.abandon()
    assert not sender.start(source.reader, publish(source, 2, MAX_CHUNKS + 1), EPOCH)
    assert not sender.sending
    statistics = sender.statistics()
    assert (statistics["too_many_chunks"], statistics["abandoned"], statistics["chunks"]) == (1, 1, 0)


@pytest.mark.clause("B-10-07")
def test_frame_beyond_the_configured_limit_is_refused_and_counted(source: CoreSlots, link: Link) -> None:
    sizing = ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 128, max_payload_bytes=4096)
    sender = ChunkSender(link.publication, STREAM, sizing)
    assert not sender.start(source.reader, publish(source, 1, 4097), EPOCH)
    assert sender.start(source.reader, publish(source, 2, 4096), EPOCH)
    assert sender.statistics()["too_large"] == 1


def test_channel_with_a_smaller_mtu_than_chunks_are_sized_by_is_refused(source: CoreSlots, link: Link) -> None:
    sender = ChunkSender(link.publication, STREAM, ChunkSizing(mtu_bytes=1440, chunk_bytes=1440 - 128))
    with pytest.raises(ConfigurationError, match="MTU"):
        sender.start(source.reader, publish(source, 1, 10), EPOCH)


def test_one_frame_at_a_time(source: CoreSlots, sender: ChunkSender) -> None:
    checked = publish(source, 1, 20_000)
    sender.start(source.reader, checked, EPOCH)
    with pytest.raises(ValueError, match="frame 1"):
        sender.start(source.reader, checked, EPOCH)


def test_slot_that_another_reader_checked_is_refused(source: CoreSlots, sender: ChunkSender) -> None:
    smaller = CoreSlots(4, (64, 1024))
    with pytest.raises(ValueError, match="another reader"):
        sender.start(smaller.reader, publish(source, 1, 20_000), EPOCH)


def test_ring_closed_under_a_frame_gives_it_up(source: CoreSlots, sender: ChunkSender) -> None:
    sender.start(source.reader, publish(source, 1, 20_000), EPOCH)
    sender.step(2)
    source.reader.close()
    assert sender.step() == 0
    assert not sender.sending
    assert sender.statistics()["unmapped"] == 1


def test_lost_media_driver_is_told_and_the_frame_can_be_given_up(media_driver: MediaDriver, source: CoreSlots) -> None:
    with Client.connect(media_driver.settings) as client:
        link = Link.open(client)
        sender = ChunkSender(link.publication, STREAM, SIZING)
        sender.start(source.reader, publish(source, 1, 20_000), EPOCH)
        client.shut()
        with pytest.raises(MediaDriverLost):
            sender.step()
        assert sender.sending
        sender.abandon()
        link.publication.close()
        sender.start(source.reader, publish(source, 2, 20_000), EPOCH)
        with pytest.raises(TransportClosed):
            sender.step()


def test_publication_closed_in_another_thread_ends_the_sending(client: Client, source: CoreSlots) -> None:
    for _ in range(20):
        link = Link.open(client)
        receiver = ChunkReceiver(link.subscription)
        sender = ChunkSender(link.publication, STREAM, SIZING)
        while not open_for_messages(link.publication):
            time.sleep(0.001)
        closing = threading.Timer(0.005, link.publication.close)
        closing.start()
        checked = publish(source, source.reader.word(0) // 2 + 4, LARGE)

        def send(sender: ChunkSender, receiver: ChunkReceiver, checked: CheckedSlot) -> None:
            while True:
                if not sender.sending:
                    sender.start(source.reader, checked, EPOCH)
                sender.step(1000)
                receiver.poll(0, 1000)

        with pytest.raises(TransportClosed):
            send(sender, receiver, checked)
        closing.join()
        receiver.close()
        link.subscription.close()
