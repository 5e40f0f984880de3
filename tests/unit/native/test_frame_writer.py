"""The producer's call in C: slot, lease and descriptor."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from framepool._native.aeron import Heartbeat
from framepool._native.frames import ABANDONED, EXPIRED, ClaimedSlot, FrameWriter
from framepool._native.seqlock import CheckedSlot, Layout, RingWriter
from framepool.errors import NoPoolFits, SequenceError, TensorError, TransportClosed
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, Outcome
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import FrameDescriptor, MajorOrder
from framepool.wire.dtypes import from_numpy
from tests.support.slots import CoreSlots
from tests.unit.transport.conftest import CHANNEL, Ends

Until = Callable[[Callable[[], object]], None]

STREAM, EPOCH = 10_000, 5
IMAGE = np.arange(12, dtype=np.float32).reshape(3, 4)
LAYOUT = Layout(TensorLayout.of(IMAGE).header)


def descriptors(ends: Ends, count: int) -> list[FrameDescriptor]:
    messages: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(messages) < count:
        assert time.monotonic() < deadline
        messages += ends.subscription.poll()
    return [FrameDescriptor.decode(message) for message in messages]


def content(slots: CoreSlots, seq: int) -> np.ndarray:
    checked = slots.reader.check(seq)
    assert isinstance(checked, CheckedSlot), checked
    return slots.reader.array(checked)


@pytest.fixture
def slots() -> CoreSlots:
    return CoreSlots(8, (64, 1024))


@pytest.fixture
def writer(ends: Ends, slots: CoreSlots) -> FrameWriter:
    return FrameWriter(ends.publication, slots.writer, STREAM, EPOCH)


def test_frame_is_committed_before_its_descriptor_says_so(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    assert writer.publish(0, IMAGE, LAYOUT, 77) == ends.publication.position
    assert descriptors(ends, 1) == [FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=0)]
    assert np.array_equal(content(slots, 0), IMAGE)
    assert slots.accept(0).timestamp_ns == 77
    assert slots.accept(0).pool_id == 1
    assert (writer.committed, writer.told, writer.expired, writer.abandoned) == (1, 1, 0, 0)
    assert ends.publication.statistics()["sent"] == 1


def test_descriptor_has_every_field_where_the_schema_says(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    before = time.monotonic_ns()
    writer.publish(2**40 + 1, IMAGE, LAYOUT, meta_version=3, trace_id=2**63 + 9, publish_timestamp=True)
    (descriptor,) = descriptors(ends, 1)
    after = time.monotonic_ns()
    assert descriptor.seq == 2**40 + 1
    assert descriptor.meta_version == 3
    assert descriptor.trace_id == 2**63 + 9
    assert descriptor.timestamp_ns is not None
    assert before <= slots.accept(2**40 + 1).timestamp_ns <= descriptor.timestamp_ns <= after
    assert slots.accept(2**40 + 1).meta_version == 3


def test_realtime_stamps_are_of_that_clock(ends: Ends, slots: CoreSlots) -> None:
    writer = FrameWriter(ends.publication, slots.writer, STREAM, EPOCH, realtime=True)
    before = time.time_ns()
    writer.publish(0, IMAGE, LAYOUT, publish_timestamp=True)
    (descriptor,) = descriptors(ends, 1)
    assert descriptor.timestamp_ns is not None
    assert before <= slots.accept(0).timestamp_ns <= descriptor.timestamp_ns <= time.time_ns()


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(IMAGE.tobytes(), id="bytes"),
        pytest.param(memoryview(IMAGE), id="memoryview"),
        pytest.param(np.asfortranarray(IMAGE), id="columns first"),
        pytest.param(np.repeat(IMAGE, 2, axis=1)[:, ::2], id="strided"),
        pytest.param(IMAGE[::-1][::-1], id="turned twice"),
        pytest.param(np.vstack([IMAGE, IMAGE])[3:], id="rows of a larger one"),
    ],
)
def test_any_source_arrives_as_the_layout_says(source: np.ndarray, writer: FrameWriter, slots: CoreSlots) -> None:
    assert writer.publish(3, source, LAYOUT) >= 0
    assert np.array_equal(content(slots, 3), IMAGE)


def test_column_layout_is_filled_in_its_order(writer: FrameWriter, slots: CoreSlots) -> None:
    layout = Layout(TensorLayout.build(np.float32, (3, 4), order=MajorOrder.COLUMN).header)
    for seq, source in enumerate([IMAGE, np.asfortranarray(IMAGE)]):
        writer.publish(seq, source, layout)
        assert np.array_equal(content(slots, seq), IMAGE)
        assert content(slots, seq).flags.f_contiguous


def test_padded_layout_is_filled_around_its_gaps(writer: FrameWriter, slots: CoreSlots) -> None:
    layout = Layout(TensorLayout.build(np.float32, (3, 4), strides=(32, 4)).header)
    writer.publish(0, IMAGE, layout)
    assert np.array_equal(content(slots, 0), IMAGE)


def test_empty_frame_is_published(writer: FrameWriter, slots: CoreSlots) -> None:
    empty = np.zeros((0, 3), np.uint8)
    assert writer.publish(0, empty, Layout(TensorLayout.of(empty).header)) >= 0
    assert content(slots, 0).shape == (0, 3)


def test_large_copy_lets_other_threads_run_and_is_whole(ends: Ends) -> None:
    slots = CoreSlots(4, (16 * 2**20,))
    writer = FrameWriter(ends.publication, slots.writer, STREAM, EPOCH)
    image = np.random.default_rng(1).integers(0, 256, 16 * 2**20, np.uint8)
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1

    other = threading.Thread(target=count)
    other.start()
    try:
        for seq in range(1_000):  # if the other thread got no processor meanwhile, once more
            before = turns
            writer.publish(seq, image, Layout(TensorLayout.of(image).header))
            if turns > before:
                break
        else:
            pytest.fail("a copy keeps the interpreter")
    finally:
        stop.set()
        other.join()
    assert np.array_equal(content(slots, seq), image)


def test_slot_filled_in_place_is_committed(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    slots.writer.claim(4, LAYOUT.extent)
    slots.writer.array(4, LAYOUT)[...] = IMAGE
    assert slots.reader.check(4) is DropReason.NOT_COMMITTED
    assert writer.commit(4, LAYOUT, 9, 1, 2) >= 0
    assert np.array_equal(content(slots, 4), IMAGE)
    (descriptor,) = descriptors(ends, 1)
    assert descriptor == FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=4, meta_version=1, trace_id=2)
    with pytest.raises(SequenceError):
        writer.commit(4, LAYOUT)


def test_lease_that_is_over_leaves_the_slot_alone(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    writer.publish(1, IMAGE, LAYOUT)
    before = slots.header.tobytes()
    writer.deadline_ns = time.monotonic_ns()
    assert writer.publish(9, IMAGE, LAYOUT) == EXPIRED
    assert slots.header.tobytes() == before
    writer.deadline_ns = time.monotonic_ns() + 10**10
    assert writer.publish(9, IMAGE, LAYOUT) >= 0
    writer.deadline_ns = None
    assert writer.deadline_ns is None
    assert len(descriptors(ends, 2)) == 2
    assert (writer.committed, writer.told, writer.expired, writer.abandoned) == (2, 2, 1, 0)


def test_lease_that_ends_while_the_slot_is_filled_abandons_it(
    writer: FrameWriter, slots: CoreSlots, ends: Ends
) -> None:
    writer.deadline_ns = time.monotonic_ns() + 10**10
    slots.writer.claim(1, LAYOUT.extent)
    writer.deadline_ns = time.monotonic_ns()
    assert writer.commit(1, LAYOUT) == ABANDONED
    assert slots.reader.check(1) is DropReason.NOT_COMMITTED
    with pytest.raises(SequenceError):
        slots.writer.commit(1, LAYOUT)
    assert ends.subscription.poll() == []
    writer.deadline_ns = None
    assert writer.publish(9, IMAGE, LAYOUT) >= 0
    assert (writer.committed, writer.told, writer.expired, writer.abandoned) == (1, 1, 0, 1)


class EndsTheLease:
    """A source whose export takes so long that the lease is over when the copy begins."""

    def __init__(self, writer: FrameWriter) -> None:
        self.writer = writer

    def __buffer__(self, flags: int, /) -> memoryview:
        self.writer.deadline_ns = time.monotonic_ns()
        return memoryview(IMAGE)


def test_lease_that_ends_within_publish_abandons_it(writer: FrameWriter, slots: CoreSlots) -> None:
    assert writer.publish(1, EndsTheLease(writer), LAYOUT) == ABANDONED
    assert slots.reader.check(1) is DropReason.NOT_COMMITTED


def test_lease_follows_the_keepalives_that_left(ends: Ends, writer: FrameWriter, until: Until) -> None:
    lifetime = 200_000_000
    drain = ends.subscription.drain(max_message=64)
    heartbeat = Heartbeat(ends.publication, b"alive", 10_000_000)
    until(lambda: heartbeat.sent)
    writer.follow(heartbeat, lifetime)
    time.sleep(0.3)
    until(lambda: writer.publish(0, IMAGE, LAYOUT) >= 0)
    heartbeat.close()
    until(lambda: writer.publish(1, IMAGE, LAYOUT) == EXPIRED if heartbeat_is_old(heartbeat, lifetime) else False)
    writer.follow(heartbeat, 50 * lifetime, time.monotonic_ns())
    assert writer.publish(1, IMAGE, LAYOUT) >= 0
    writer.follow(None)
    assert writer.publish(2, IMAGE, LAYOUT) >= 0
    drain.close()


def heartbeat_is_old(heartbeat: Heartbeat, lifetime: int) -> bool:
    return time.monotonic_ns() - heartbeat.last_sent_ns >= lifetime


def test_nobody_listening_and_back_pressure_are_told_but_not_waited_for(client: Client, slots: CoreSlots) -> None:
    alone = FrameWriter(client.add_publication(CHANNEL, 11), slots.writer, STREAM, EPOCH)
    assert alone.publish(0, IMAGE, LAYOUT) == Outcome.NOT_CONNECTED
    assert isinstance(slots.reader.check(0), CheckedSlot)
    assert (alone.committed, alone.told, alone.expired, alone.abandoned) == (1, 0, 0, 0)


def test_back_pressure_commits_and_drops_the_descriptor(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    while ends.publication.offer(bytes(1000)) >= 0:
        pass
    outcomes = {writer.publish(seq, IMAGE, LAYOUT) for seq in range(2000)}
    assert Outcome.BACK_PRESSURED in outcomes
    assert writer.committed == 2000
    assert ends.publication.statistics()["back_pressured"] >= 2000 - writer.told
    assert isinstance(slots.reader.check(1999), CheckedSlot)


def test_lost_media_driver_costs_the_descriptor_only(media_driver: MediaDriver, slots: CoreSlots) -> None:
    with Client.connect(media_driver.settings) as client:
        publication = client.add_publication(CHANNEL, 12)
        writer = FrameWriter(publication, slots.writer, STREAM, EPOCH)
        client.shut()
        assert writer.publish(0, IMAGE, LAYOUT) == Outcome.CLOSED
        assert isinstance(slots.reader.check(0), CheckedSlot)
        assert publication.statistics()["closed"] == 1
        client.reconnect(10)
        assert writer.publish(1, IMAGE, LAYOUT) == Outcome.NOT_CONNECTED
        publication.close()
        with pytest.raises(TransportClosed):
            writer.publish(2, IMAGE, LAYOUT)
        with pytest.raises(TransportClosed):
            writer.commit(2, LAYOUT)
    assert slots.word(2) == 0


def test_what_the_slot_refuses_is_refused_with_words(writer: FrameWriter, slots: CoreSlots) -> None:
    large = np.zeros(2000, np.uint8)
    with pytest.raises(NoPoolFits):
        writer.publish(1, large, Layout(TensorLayout.of(large).header))
    with pytest.raises(TensorError, match="47 bytes"):
        writer.publish(1, bytes(47), LAYOUT)
    with pytest.raises(TensorError, match="int16"):
        writer.publish(1, np.zeros((3, 4), np.int16), LAYOUT)
    with pytest.raises(TensorError, match=r"\(4, 3\)"):
        writer.publish(1, np.zeros((3, 4), np.float32).T, LAYOUT)
    assert slots.word(1) == 0
    writer.publish(1, IMAGE, LAYOUT)
    with pytest.raises(SequenceError):
        writer.publish(1, IMAGE, LAYOUT)
    with pytest.raises(SequenceError):
        writer.publish(2**63, IMAGE, LAYOUT)
    with pytest.raises(OverflowError):
        writer.publish(2, IMAGE, LAYOUT, -1)
    slots.writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.publish(2, IMAGE, LAYOUT)
    assert (writer.committed, writer.told, writer.expired, writer.abandoned) == (1, 1, 0, 0)


def test_failed_flush_leaves_the_slot_uncommitted(ends: Ends) -> None:
    def flush(payload: memoryview) -> None:
        raise OSError("no flush")

    slots = CoreSlots(visibility=flush)
    writer = FrameWriter(ends.publication, slots.writer, STREAM, EPOCH)
    with pytest.raises(OSError, match="no flush"):
        writer.publish(1, IMAGE, LAYOUT)
    assert slots.reader.check(1) is DropReason.NOT_COMMITTED
    assert ends.subscription.poll() == []
    assert (writer.committed, writer.failed) == (0, 1)


def test_array_after_array_goes_under_rising_numbers(slots: CoreSlots, ends: Ends) -> None:
    asked: list[tuple[int, ...]] = []

    def describe(image: npt.NDArray[Any], columns_first: bool) -> Layout:
        asked.append(image.shape)
        order = MajorOrder.COLUMN if columns_first else MajorOrder.ROW
        return Layout(TensorLayout.build(from_numpy(image.dtype), image.shape, order=order).header)

    writer = FrameWriter(ends.publication, slots.writer, STREAM, EPOCH, describe=describe)
    kinds = [
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.arange(6, dtype=np.uint16).reshape(2, 3) + 1,
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        np.arange(12, dtype=np.int16).reshape(2, 6)[:, ::2],
        np.full((1,), 5, dtype=np.float64),
        np.zeros((0, 3), dtype=np.uint8),
    ]
    for seq, image in enumerate(kinds):
        assert writer.put(image, seq, 1, 7, True) == seq
        assert np.array_equal(content(slots, seq), image)
    assert asked == [(2, 3), (2, 3), (2, 3), (2, 3), (1,), (0, 3)], "an array of the last kind is not described again"
    assert writer.put([1, 2, 3]) == len(kinds) == writer.next_seq - 1
    told = descriptors(ends, len(kinds) + 1)
    assert [each.seq for each in told] == list(range(len(kinds) + 1))
    assert (told[0].meta_version, told[0].trace_id, told[-1].trace_id) == (1, 7, None)
    writer.deadline_ns = time.monotonic_ns()
    assert writer.put(kinds[0]) == EXPIRED
    assert writer.claim(ClaimedSlot, LAYOUT) is None
    assert writer.next_seq == len(kinds) + 1


def test_claimed_slot_is_finished_or_forsaken(writer: FrameWriter, slots: CoreSlots, ends: Ends) -> None:
    first = writer.claim(ClaimedSlot, LAYOUT, 11, 3)
    assert first is not None
    assert first.open
    assert (first.seq, first.epoch, first.timestamp_ns, first.meta_version) == (0, EPOCH, 11, 3)
    first.array[...] = IMAGE
    assert first.finish(7) >= 0
    assert not first.open
    assert np.array_equal(content(slots, 0), IMAGE)
    assert descriptors(ends, 1) == [FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=0, meta_version=3, trace_id=7)]
    second = writer.claim(ClaimedSlot, LAYOUT)
    assert second is not None
    assert second.forsake()
    assert slots.reader.check(1) is DropReason.NOT_COMMITTED
    with pytest.raises(SequenceError):
        second.finish()
    with pytest.raises(TypeError, match="no kind of slot"):
        writer.claim(int, LAYOUT)  # type: ignore[type-var]
    third = writer.claim(ClaimedSlot, LAYOUT)
    slots.writer.close()
    assert third is not None
    assert not third.forsake(), "the ring was closed with its epoch"


@pytest.mark.parametrize("ring", [2**20, 2**25], ids=["in the cache", "past the cache"])
@pytest.mark.parametrize("nbytes", [65_536, 65_537, 2**20 - 8, 2**20, 2**20 + 63, 3 * 2**20 + 1])
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_long_payload_is_copied_to_the_byte(ends: Ends, ring: int, nbytes: int, offset: int) -> None:
    stride = 2**22
    slots = CoreSlots(max(2, ring // stride), (stride,))
    writer = FrameWriter(ends.publication, slots.writer, STREAM, EPOCH)
    source = np.random.default_rng(nbytes).integers(0, 255, nbytes + offset, np.uint8)[offset:]
    slots.pool_bytes(1)[:] = 255
    writer.publish(1, source, Layout(TensorLayout.of(source).header))
    assert np.array_equal(content(slots, 1), source)
    around = slots.pool_bytes(1)
    assert (around[: 64 + stride] == 255).all()
    assert (around[64 + stride + nbytes :] == 255).all()


def untouched(pages: mmap.mmap, offset: int) -> bool:
    """Whether nobody has written to a page of a private mapping of a file: then it is the file's."""
    address = np.frombuffer(pages, np.uint8).ctypes.data + offset
    assert pages[offset] == 0  # it is there
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // mmap.PAGESIZE * 8)
        (entry,) = struct.unpack("<Q", pagemap.read(8))
    assert entry >> 63, "the page is in memory"
    return bool(entry >> 61 & 1)


def test_slot_that_somebody_fills_is_left_alone_when_another_is_committed(ends: Ends, tmp_path: Path) -> None:
    """A writer fetches the next slot by writing what is there: what a camera has just put there would be lost."""
    stride, nslots = 2 * mmap.PAGESIZE, 4
    path = tmp_path / "pool"
    path.write_bytes(bytes(64 + stride * nslots))
    with path.open("r+b") as file:
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    pool = Pool(1, stride, nslots, pages)
    ring = RingWriter(np.zeros(64 + 256 * nslots, np.uint8), nslots, [pool])
    writer = FrameWriter(ends.publication, ring, STREAM, EPOCH)

    def slot(index: int) -> int:
        return 64 + stride * index

    ring.claim(0, IMAGE.nbytes)
    ring.claim(1, IMAGE.nbytes)
    writer.commit(0, LAYOUT)
    assert untouched(pages, slot(1)), "it was claimed before"
    writer.commit(1, LAYOUT)
    assert not untouched(pages, slot(2)), "nobody has it: it is fetched"
    ring.claim(2, IMAGE.nbytes)
    assert untouched(pages, slot(0))
    ring.claim(4, IMAGE.nbytes)  # of the next lap, and 3 is left out
    ring.claim(7, IMAGE.nbytes)
    writer.commit(7, LAYOUT)
    assert untouched(pages, slot(0)), "its claim is still open"


def test_tensor_header_is_written_where_the_slot_has_another(writer: FrameWriter, slots: CoreSlots) -> None:
    other = np.arange(8, dtype=np.int16)
    layouts = {id(IMAGE): LAYOUT, id(other): Layout(TensorLayout.of(other).header)}
    for seq, image in enumerate([IMAGE] * 9 + [other] * 9 + [IMAGE] * 9):
        if seq % 9 == 4:
            slots.header[64 + 256 * (seq % 8) + 100] ^= 255  # whatever it held
        writer.publish(seq, image, layouts[id(image)], seq)
        assert np.array_equal(content(slots, seq), image)
