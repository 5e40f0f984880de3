"""Blobs cut, carried in any order that a stream can produce, and put together or discarded."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.client.blobs import (
    CHUNK_MAX,
    CHUNK_OVERHEAD,
    MAX_KEPT,
    Blob,
    BlobReceiver,
    BlobSender,
    Discard,
    blob_messages,
)
from framepool.client.crc32c import crc32c
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.errors import EncodeError
from framepool.wire._generated.control_900 import MetaBlobAnnounce, MetaBlobChunk, MetaBlobComplete
from framepool.wire.dispatch import decode
from framepool.wire.message import Message

STREAM = 10_000
MASK = 3
AERON_LIMIT = 128 * 1024


def cut(
    data: bytes, *, size: int = 10, checksum: bool = True, stream_id: int = STREAM, version: int = 5, kind: int = MASK
) -> list[Message]:
    return list(
        blob_messages(stream_id, version, kind, data, max_message_length=AERON_LIMIT, chunk_max=size, checksum=checksum)
    )


def chunks_of(messages: Iterable[Message]) -> list[MetaBlobChunk]:
    return [message for message in messages if isinstance(message, MetaBlobChunk)]


def carry(receiver: BlobReceiver, messages: Iterable[Message]) -> list[Blob]:
    """Over the wire, to the reader: what it delivers."""
    delivered = []
    for message in messages:
        match decode(message.encode()):
            case MetaBlobAnnounce() as announce:
                receiver.on_announce(announce)
            case MetaBlobChunk() as chunk:
                receiver.on_chunk(chunk)
            case MetaBlobComplete() as complete:
                blob = receiver.on_complete(complete)
                delivered += [blob] if blob else []
    return delivered


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def receiver(clock: ManualClock) -> BlobReceiver:
    return BlobReceiver(clock)


# Cutting


@pytest.mark.clause("W-10.3.3-01")
def test_chunks_cover_the_blob_in_order_without_overlap() -> None:
    data = bytes(range(250)) * 655 + b"x" * 90  # 2.5 times CHUNK_MAX
    assert len(data) == CHUNK_MAX * 5 // 2
    announce, *chunks, complete = blob_messages(STREAM, 5, MASK, data, max_message_length=AERON_LIMIT)
    assert [chunk.chunk_offset for chunk in chunks_of(chunks)] == [0, CHUNK_MAX, 2 * CHUNK_MAX]
    assert b"".join(chunk.bytes_ for chunk in chunks_of(chunks)) == data
    assert announce == MetaBlobAnnounce(
        stream_id=STREAM, meta_version=5, blob_type=MASK, total_len=len(data), checksum=crc32c(data)
    )
    assert complete == MetaBlobComplete(stream_id=STREAM, meta_version=5, checksum=crc32c(data))


@pytest.mark.clause("W-15.9-03")
def test_no_chunk_is_longer_than_64_kib_by_default() -> None:
    sizes = [
        len(chunk.bytes_) for chunk in chunks_of(blob_messages(1, 1, 1, bytes(200 * 1024), max_message_length=2**24))
    ]
    assert sizes == [65_536, 65_536, 65_536, 8_192]


@pytest.mark.parametrize("limit", [29, 100, 65_536])
def test_chunks_fit_the_messages_of_the_stream(limit: int) -> None:
    messages = blob_messages(1, 1, 1, bytes(200), max_message_length=limit)
    assert max(len(chunk.encode()) for chunk in chunks_of(messages)) == min(limit, 200 + CHUNK_OVERHEAD)


def test_a_stream_of_tiny_messages_is_refused_at_once() -> None:
    with pytest.raises(EncodeError, match="no byte of a blob fits"):
        blob_messages(1, 1, 1, b"x", max_message_length=CHUNK_OVERHEAD)
    with pytest.raises(EncodeError, match="no byte of a blob fits"):
        BlobSender(lambda _: None, max_message_length=CHUNK_OVERHEAD)


def test_ids_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(EncodeError, match="blob_type"):
        blob_messages(1, 1, 2**32, b"x", max_message_length=AERON_LIMIT)


def test_an_array_is_sent_as_its_bytes(receiver: BlobReceiver) -> None:
    flat = np.arange(600, dtype=np.float32).reshape(20, 30)
    (blob,) = carry(receiver, blob_messages(STREAM, 1, MASK, flat, max_message_length=AERON_LIMIT, chunk_max=100))
    assert (np.frombuffer(blob.data, np.float32).reshape(20, 30) == flat).all()


# Putting together


@given(st.binary(max_size=300), st.integers(1, 64), st.booleans())
def test_a_blob_arrives_as_it_was_sent(data: bytes, size: int, checksum: bool) -> None:
    receiver = BlobReceiver(ManualClock())
    (blob,) = carry(receiver, cut(data, size=size, checksum=checksum))
    assert (blob.stream_id, blob.meta_version, blob.blob_type, blob.data) == (STREAM, 5, MASK, data)
    assert receiver.get(STREAM, 5, MASK) == blob


@pytest.mark.clause("W-15.9-01")
def test_a_blob_without_a_checksum_is_accepted(receiver: BlobReceiver) -> None:
    messages = cut(b"calibration", checksum=False)
    assert [message.checksum for message in messages if not isinstance(message, MetaBlobChunk)] == [0, 0]  # type: ignore[attr-defined]
    assert [blob.data for blob in carry(receiver, messages)] == [b"calibration"]


@pytest.mark.clause("W-15.9-02")
def test_the_checksum_is_the_crc32c_of_the_whole_blob() -> None:
    announce, *_, complete = cut(b"123456789", size=2)
    assert isinstance(announce, MetaBlobAnnounce)
    assert isinstance(complete, MetaBlobComplete)
    assert announce.checksum == complete.checksum == 0xE306_9283


@given(st.data())
def test_blobs_of_other_streams_and_versions_may_come_in_between(data: st.DataObject) -> None:
    receiver = BlobReceiver(ManualClock())
    blobs = {key: data.draw(st.binary(min_size=1, max_size=60)) for key in ((STREAM, 1), (STREAM, 2), (STREAM + 1, 1))}
    queues = [cut(content, size=7, stream_id=stream, version=version) for (stream, version), content in blobs.items()]
    turns = data.draw(st.permutations([i for i, queue in enumerate(queues) for _ in queue]))
    carried = [iter(queue) for queue in queues]
    delivered = carry(receiver, [next(carried[i]) for i in turns])
    assert {(blob.stream_id, blob.meta_version): blob.data for blob in delivered} == blobs


def test_blobs_of_one_version_follow_one_another(receiver: BlobReceiver) -> None:
    delivered = carry(receiver, cut(b"a flat field", kind=1) + cut(b"a mask", kind=2))
    assert [(blob.blob_type, blob.data) for blob in delivered] == [(1, b"a flat field"), (2, b"a mask")]


@given(st.permutations(range(6)))
def test_chunks_in_any_other_order_are_discarded(order: list[int]) -> None:
    receiver = BlobReceiver(ManualClock())
    announce, *chunks, complete = cut(bytes(range(57)))
    delivered = carry(receiver, [announce, *(chunks[i] for i in order), complete])
    assert bool(delivered) == (order == sorted(order))


@given(st.data())
def test_nothing_but_the_blob_is_ever_delivered(data: st.DataObject) -> None:
    """Whatever is lost, doubled, swapped or changed: the bytes that come out are those that went in."""
    receiver = BlobReceiver(ManualClock())
    content = bytes(range(57))
    messages = cut(content)
    for _ in range(data.draw(st.integers(0, 4))):
        i = data.draw(st.integers(0, len(messages) - 1))
        match data.draw(st.sampled_from(["lose", "double", "swap", "corrupt"])), messages[i]:
            case "lose", _ if len(messages) > 1:
                del messages[i]
            case "double", message:
                messages.insert(data.draw(st.integers(0, len(messages))), message)
            case "swap", _:
                j = data.draw(st.integers(0, len(messages) - 1))
                messages[i], messages[j] = messages[j], messages[i]
            case "corrupt", MetaBlobChunk() as chunk:
                flipped = bytes([chunk.bytes_[0] ^ 1]) + chunk.bytes_[1:]
                messages[i] = msgspec.structs.replace(chunk, bytes_=flipped)
    assert {blob.data for blob in carry(receiver, messages)} <= {content}


def _lose(messages: list[Message], index: int) -> list[Message]:
    return messages[:index] + messages[index + 1 :]


def _change(messages: list[Message], index: int, **fields: object) -> list[Message]:
    return [*messages[:index], msgspec.structs.replace(messages[index], **fields), *messages[index + 1 :]]


WHOLE = cut(bytes(range(57)))
UNSUMMED = cut(bytes(range(57)), checksum=False)


@pytest.mark.clause("W-10.3.3-02")
@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        pytest.param(_lose(WHOLE, 1), Discard.GAP, id="first chunk lost"),
        pytest.param(_lose(WHOLE, 3), Discard.GAP, id="chunk lost"),
        pytest.param(_lose(WHOLE, 6), Discard.GAP, id="last chunk lost"),
        pytest.param(_change(UNSUMMED, 2, chunk_offset=11), Discard.GAP, id="gap with as many bytes"),
        pytest.param(_change(UNSUMMED, 2, chunk_offset=9), Discard.OVERLAP, id="chunks overlap"),
        pytest.param([*WHOLE[:3], *WHOLE[2:]], Discard.OVERLAP, id="chunk doubled"),
        pytest.param(_change(WHOLE, 2, bytes_=b""), Discard.OVERLAP, id="chunk empty"),
        pytest.param(_change(WHOLE, 6, bytes_=bytes(8)), Discard.OVERRUN, id="too many bytes"),
        pytest.param(_change(WHOLE, 3, bytes_=bytes(10)), Discard.CHECKSUM, id="chunk corrupt"),
        pytest.param(_change(WHOLE, 0, checksum=1), Discard.CHECKSUM, id="announced checksum wrong"),
        pytest.param(_change(WHOLE, 7, checksum=1), Discard.CHECKSUM, id="completed checksum wrong"),
        pytest.param(_change(UNSUMMED, 7, checksum=1), Discard.CHECKSUM, id="only the end has one"),
        pytest.param(_lose(WHOLE, 0), Discard.UNANNOUNCED, id="announce lost"),
    ],
)
def test_a_damaged_blob_is_discarded_and_counted_by_cause(
    receiver: BlobReceiver, messages: list[Message], cause: Discard
) -> None:
    assert carry(receiver, messages) == []
    assert receiver.discards[cause] >= 1
    assert set(+receiver.discards) <= {cause, Discard.UNANNOUNCED}
    assert receiver.statistics()["open"] == 0
    assert [blob.data for blob in carry(receiver, WHOLE)] == [bytes(range(57))]


def test_a_checksum_known_at_the_end_only_is_checked_there(receiver: BlobReceiver) -> None:
    data = bytes(range(57))
    assert carry(receiver, _change(cut(data, checksum=False), 7, checksum=crc32c(data)))


def test_a_new_announce_ends_the_blob_before_it(receiver: BlobReceiver) -> None:
    first, second = cut(b"first" * 10), cut(b"second" * 10)
    assert [blob.data for blob in carry(receiver, first[:3] + second)] == [b"second" * 10]
    assert receiver.discards[Discard.INTERRUPTED] == 1


# Bounds


def test_a_blob_beyond_the_bound_is_discarded_before_its_bytes(clock: ManualClock) -> None:
    receiver = BlobReceiver(clock, max_blob_bytes=50)
    assert carry(receiver, cut(bytes(51))) == []
    assert receiver.discards[Discard.TOO_LARGE] == 1
    assert len(carry(receiver, cut(bytes(50)))) == 1


def test_an_announce_of_any_length_reserves_nothing(clock: ManualClock) -> None:
    receiver = BlobReceiver(clock, max_blob_bytes=2**63)
    receiver.on_announce(
        MetaBlobAnnounce(stream_id=1, meta_version=1, blob_type=1, total_len=2**62, checksum=0),
    )
    assert receiver.statistics()["open"] == 1


def test_only_so_many_blobs_are_open_at_once_and_silent_ones_make_room(clock: ManualClock) -> None:
    receiver = BlobReceiver(clock, max_open=3, silence_ns=10 * NANOS_PER_SECOND)
    begun = [cut(bytes(20), version=version)[0] for version in range(5)]
    carry(receiver, begun)
    assert receiver.statistics()["open"] == 3
    assert receiver.discards[Discard.TOO_MANY] == 2
    clock.advance(10 * NANOS_PER_SECOND + 1)
    carry(receiver, cut(bytes(20), version=0)[1:2])
    carry(receiver, begun[3:])
    assert receiver.discards[Discard.ABANDONED] == 2
    assert len(carry(receiver, cut(bytes(20), version=0)[2:])) == 1


def test_the_latest_blobs_are_kept_within_their_bound(clock: ManualClock) -> None:
    receiver = BlobReceiver(clock, max_kept_bytes=100)
    for version in range(5):
        assert carry(receiver, cut(bytes(40), version=version))
    assert [version for version in range(5) if receiver.get(STREAM, version, MASK)] == [3, 4]
    assert carry(receiver, cut(bytes(10), version=4))
    assert receiver.statistics()["kept_bytes"] == 50
    assert carry(receiver, cut(bytes(101), version=9))
    assert receiver.get(STREAM, 9, MASK) is None


def test_blobs_without_bytes_are_bounded_too(receiver: BlobReceiver) -> None:
    for version in range(MAX_KEPT + 10):
        carry(receiver, cut(b"", version=version))
    assert receiver.statistics()["kept"] == MAX_KEPT
    assert receiver.get(STREAM, 9, MASK) is None
    assert receiver.get(STREAM, 10, MASK) is not None


def test_blobs_of_streams_that_nobody_follows_are_ignored(clock: ManualClock) -> None:
    followed: set[int] = set()
    receiver = BlobReceiver(clock, streams=followed)
    assert carry(receiver, cut(b"mask")) == []
    assert not +receiver.discards
    followed.add(STREAM)
    assert len(carry(receiver, cut(b"mask"))) == 1


# Sending


class Wire:
    """Takes so many messages and no more, until it is told to."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[Message] = []

    def publish(self, message: Message) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.sent.append(message)
        return True


@given(st.lists(st.integers(0, 5), max_size=60))
def test_what_a_full_stream_refuses_is_sent_later_and_once(rooms: list[int]) -> None:
    wire = Wire(0)
    sender = BlobSender(wire.publish, max_message_length=38)
    for version in range(3):
        sender.send(STREAM, version, MASK, bytes([version]) * 45)
    for room in [*rooms, 100]:
        wire.room = room
        while sender.do_work():
            pass
    delivered = carry(BlobReceiver(ManualClock()), wire.sent)
    assert [blob.data for blob in delivered] == [bytes([version]) * 45 for version in range(3)]
    assert sender.pending == 0


def test_a_turn_sends_no_more_than_its_limit() -> None:
    wire = Wire(100)
    sender = BlobSender(wire.publish, max_message_length=38)
    sender.send(STREAM, 1, MASK, bytes(45))
    assert [sender.do_work(limit=3) for _ in range(4)] == [3, 3, 1, 0]
    assert sender.statistics() == {"pending": 0, "messages": 7, "blobs": 1}


def test_a_blob_is_sent_as_it_was_when_it_was_given() -> None:
    wire = Wire(100)
    sender = BlobSender(wire.publish, max_message_length=AERON_LIMIT)
    table = bytearray(b"before")
    sender.send(STREAM, 1, MASK, table)
    table[:] = b"after!"
    sender.do_work()
    assert [blob.data for blob in carry(BlobReceiver(ManualClock()), wire.sent)] == [b"before"]


def test_without_readers_old_blobs_make_room_for_new_ones() -> None:
    wire = Wire(0)
    sender = BlobSender(wire.publish, max_message_length=AERON_LIMIT, max_pending_bytes=100)
    for version in range(10):
        sender.send(STREAM, version, MASK, bytes(40))
        sender.do_work()
    assert sender.pending == 2
    wire.room = 100
    while sender.do_work():
        pass
    assert [blob.meta_version for blob in carry(BlobReceiver(ManualClock()), wire.sent)] == [0, 9]
    assert sender.statistics()["given up"] == 8


# CRC32C


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE306_9283),  # the check value of CRC-32/ISCSI, and RFC 3720 B.4 for the rest
        (bytes(32), 0x8A91_36AA),
        (b"\xff" * 32, 0x62A8_AB43),
        (bytes(range(32)), 0x46DD_794E),
        (bytes(range(31, -1, -1)), 0x113F_DB5C),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def _bitwise(data: bytes) -> int:
    state = 0xFFFF_FFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F6_3B78 if state & 1 else 0)
    return state ^ 0xFFFF_FFFF


@settings(max_examples=30)
@given(st.integers(1_000, 5_000), st.integers(0, 2**32 - 1))
def test_crc32c_of_many_bytes_is_the_definition(size: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(size)
    assert crc32c(data) == _bitwise(data)


@settings(max_examples=30)
@given(st.integers(0, 3 * 2**20), st.lists(st.integers(0, 3 * 2**20), max_size=4))
def test_crc32c_goes_on_where_it_stopped(size: int, cuts: list[int]) -> None:
    data = memoryview(np.random.default_rng(size).bytes(size))
    crc, start = 0, 0
    for end in [*sorted(cut for cut in cuts if cut < size), size]:
        crc = crc32c(data[start:end], crc)
        start = end
    assert crc == crc32c(data)


def test_crc32c_is_fast_enough_for_large_blobs() -> None:
    data = bytes(CHUNK_MAX)
    crc32c(data)
    best = min(_seconds(data) for _ in range(20))  # of this thread's own time, whatever else runs
    assert len(data) / best > 20e6


def _seconds(data: bytes) -> float:
    start = time.thread_time()
    crc32c(data)
    return time.thread_time() - start
