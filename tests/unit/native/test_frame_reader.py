"""The consumer's call in C, held against a plain one in Python on hostile descriptors and slots."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framepool._native.frames import Ages, FrameReader, FrameWriter, Taken
from framepool._native.seqlock import Layout, RingReader, RingWriter
from framepool.client.histogram import LatencyHistogram
from framepool.errors import ForkedError, FrameOverwritten, MediaDriverLost, TransportClosed
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, Drain
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.support.frame_model import EPOCH, LAYOUTS, NSLOTS, STREAM, Line, Model, plain
from tests.support.slots import ModelSlots
from tests.unit.transport.conftest import Ends

Until = Callable[[Callable[[], object]], None]


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="framepool-", dir="/dev/shm") as root:
        aeron = AeronSettings(directory=f"{root}/aeron", ipc_term_length=64 * KIB)
        with MediaDriver(aeron), Client.connect(aeron, name="test") as client:
            yield Line(client)


near = st.integers(0, 30)
wild = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]))
messages = st.builds(
    FrameDescriptor,
    stream_id=st.sampled_from([STREAM, STREAM, STREAM, STREAM + 1, 0]),
    epoch=st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH + 1, 2**64 - 1]),
    seq=st.one_of(near, wild),
    timestamp_ns=st.none() | st.integers(0, 2**64 - 2),
    meta_version=st.none() | st.integers(0, 2**32 - 2),
    trace_id=st.none() | st.integers(1, 2**64 - 1),
).map(lambda message: message.encode())
broken = st.one_of(
    st.binary(max_size=100),
    st.tuples(messages, st.integers(0, 47)).map(lambda cut: cut[0][: cut[1]]),
    st.tuples(messages, st.binary(min_size=1, max_size=8)).map(lambda long: long[0] + long[1]),
    st.tuples(messages, st.integers(0, 3), st.integers(0, 0xFFFF)).map(
        lambda odd: odd[0][: 2 * odd[1]] + struct.pack("<H", odd[2]) + odd[0][2 * odd[1] + 2 :]
    ),
)
steps = st.one_of(
    st.tuples(st.just("frame"), st.integers(0, 4), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("frame"), st.just(0), st.just(0), st.just(True)),
    st.tuples(st.just("unfinished"), st.integers(0, 4)),
    st.tuples(
        st.just("tamper"),
        st.integers(0, NSLOTS - 1),
        st.sampled_from(["payloadSlot", "poolId", "valuesLenBytes", "payloadOffset", "headerLength", "ndims", "dtype"]),
        st.integers(0, 255),
    ),
    st.tuples(st.just("overwrite"), st.integers(0, NSLOTS - 1), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("say"), messages),
    st.tuples(st.just("say"), broken),
    st.tuples(st.just("take"), st.integers(1, 10)),
    st.tuples(st.just("latest")),
    st.tuples(st.just("remap"), st.booleans(), st.sampled_from([EPOCH, EPOCH + 1])),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=40), st.sampled_from([None, 0, 1, 3]))
def test_reader_does_what_the_model_does(line: Line, actions: list[tuple[Any, ...]], max_gap: int | None) -> None:
    slots = ModelSlots(NSLOTS, (64, 128))
    ring = RingReader(slots.header, NSLOTS, slots.pools)
    model = Model(slots, STREAM, EPOCH, max_gap)
    line.settle()
    line.drain.take(4096)
    reader = FrameReader(line.drain, ring, STREAM, EPOCH, max_gap=max_gap, ledger=True)
    seq = 0
    said = 0

    def say(message: bytes) -> None:
        nonlocal said
        said += 1
        line.send(message)
        model.queue.append(message)

    for action in [*actions, ("take", 256), ("remap", True, EPOCH), ("take", 256)]:
        match action:
            case ("frame", skipped, kind, told):
                seq += skipped
                slots.publish(seq, LAYOUTS[kind], timestamp_ns=seq + 7)
                if told:
                    say(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode())
                seq += 1
            case ("unfinished", skipped):
                seq += skipped
                slots.claim(seq, 4)
                slots.abandon(seq)
                say(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode())
                seq += 1
            case ("tamper", index, field, value):
                slots.put(index, field, value)
            case ("overwrite", index, word):
                slots.put(index, "seqCommit", word)
            case ("say", message):
                say(message)
            case ("take", limit):
                line.settle()
                assert [plain(taken) for taken in reader.take(limit)] == model.take(limit)
            case ("latest",):
                line.settle()
                newest = reader.latest()
                assert ([] if newest is None else [plain(newest)]) == model.latest()
            case ("remap", mapped, epoch):
                reader.remap(ring if mapped else None, epoch)
                model.remap(mapped, epoch)
        assert reader.invalid() == model.invalid
        assert reader.regressed == model.regressed
        assert reader.next_seq == (None if model.last_seq is None else model.last_seq + 1)
        counted = reader.statistics()
        assert counted == {name: model.counts[name] for name in counted if name != "invalid"} | {
            "invalid": model.invalid.total()
        }
    assert reader.drops() == model.drops
    assert reader.drops() == []
    if model.regressed is None:
        assert sum(counted.values()) - counted["gap"] - counted["resyncs"] == said, "each descriptor counts once"


@pytest.fixture
def slots() -> ModelSlots:
    return ModelSlots(NSLOTS, (64,))


@pytest.fixture
def ring(slots: ModelSlots) -> RingReader:
    return RingReader(slots.header, NSLOTS, slots.pools)


@pytest.fixture
def drain(ends: Ends) -> Drain:
    return ends.subscription.drain(max_message=64)


def tell(ends: Ends, *sequences: int) -> None:
    for seq in sequences:
        assert ends.publication.offer(FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode()) >= 0


def publish(slots: ModelSlots, *sequences: int) -> None:
    for seq in sequences:
        slots.publish(seq, LAYOUTS[0], bytes([seq] * 4))


def test_frames_come_in_order_and_can_be_read(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader, until: Until
) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    assert reader.take() == []
    assert reader.latest() is None
    publish(slots, 0, 1, 2)
    tell(ends, 0, 1, 2)
    until(lambda: drain.waiting == 3)
    first, second = reader.take(2)
    assert (first.seq, second.seq, drain.waiting) == (0, 1, 1)
    (third,) = reader.take(2)
    assert ring.array(third.checked).tobytes() == bytes([2] * 4)
    assert reader.next_seq == 3
    assert reader.received == 3


def test_sequence_that_goes_back_stops_the_reader_until_it_is_remapped(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader, until: Until
) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    publish(slots, 4, 5, 6)
    tell(ends, 4, 5, 5, 6)
    until(lambda: drain.waiting == 4)
    assert [taken.seq for taken in reader.take()] == [4, 5]
    assert reader.regressed == 5
    assert reader.regressions == 1
    assert reader.take() == []
    assert reader.latest() is None
    reader.remap(ring, EPOCH)
    assert not reader.statistics()["skipped"]
    assert [taken.seq for taken in reader.take()] == [6], "what came behind it is not lost"
    assert reader.statistics()["received"] == 3
    assert not reader.regressed


def test_newest_of_a_backlog_comes_after_one_check(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader, until: Until
) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    publish(slots, *range(1, 7))
    tell(ends, 1, 2, 4, 5, 6)
    until(lambda: drain.waiting == 5)
    newest = reader.latest()
    assert newest is not None
    assert newest.seq == 6
    assert (reader.received, reader.skipped, reader.gap, reader.late) == (1, 4, 1, 0)


class Race:
    """A reader of a ring of 64 slots whose producer publishes so many frames while one is used."""

    SLOTS = 64

    def __init__(self, ends: Ends, drain: Drain, pace: float) -> None:
        self.pace = pace
        self.published = 0
        self._slots = ModelSlots(self.SLOTS, (64,))
        self._ring = RingReader(self._slots.header, self.SLOTS, self._slots.pools)
        self._ends = ends
        self._due = 0.0
        self._told = 0
        self.reader = FrameReader(drain, self._ring, STREAM, EPOCH)
        self.publish(1)

    def publish(self, count: float) -> None:
        self._due += count
        while self.published < int(self._due):
            self._slots.publish(self.published, LAYOUTS[0], bytes(4))
            self.published += 1

    def take(self) -> list[Taken]:
        """What the reader hands over, told of a few rounds of the ring at the most."""
        for seq in range(max(self._told, self.published - 4 * self.SLOTS), self.published):
            message = FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode()
            while self._ends.publication.offer(message) < 0:
                time.sleep(0.001)  # until the drain has made room
        self._told = self.published
        return self.reader.take()

    def use(self, frames: int) -> int:
        """Takes what comes until so many were handed over; how many of them were whole after they had been used."""
        whole = used = 0
        while used < frames:
            for frame in self.take():
                self.publish(self.pace)
                used += 1
                if frame.valid():
                    whole += 1
                else:
                    self.reader.lapped()
            self.publish(1)
        return whole


@pytest.mark.parametrize("pace", [1.5, 4, 30])
def test_most_of_what_a_slow_reader_is_handed_stays_whole_while_it_is_used(
    ends: Ends, drain: Drain, pace: float
) -> None:
    race = Race(ends, drain, pace)
    race.use(500)
    assert race.use(1_000) > 700


def test_who_is_quick_again_is_handed_every_frame_again(ends: Ends, drain: Drain) -> None:
    race = Race(ends, drain, 4)
    race.use(500)
    race.pace = 0
    race.use(500)
    late = race.reader.late
    race.publish(Race.SLOTS - 1)
    assert len(race.take()) == Race.SLOTS, "the oldest whole one too, and all at once"
    assert race.reader.late == late


def test_closed_ring_is_unmapped(ends: Ends, drain: Drain, ring: RingReader, until: Until) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    ring.close()
    tell(ends, 0)
    until(lambda: drain.waiting)
    assert reader.take() == []
    assert reader.unmapped == 1


def test_reader_whose_lease_is_over_says_so_and_takes_nothing(drain: Drain, ring: RingReader) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    reader.deadline_ns = time.monotonic_ns()
    assert reader.take() is None
    reader.deadline_ns = None
    assert reader.take() is not None


class Named(Taken):
    """A frame of a kind of one's own."""

    __slots__ = ()


def test_frames_are_of_the_kind_asked_for_and_know_when_they_are_lapped(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader
) -> None:
    writer = FrameWriter(ends.publication, RingWriter(slots.header, NSLOTS, slots.pools), STREAM, EPOCH)
    late: list[Taken] = []
    reader = FrameReader(drain, ring, STREAM, EPOCH, kind=Named, lookup=lambda *asked: asked, late=late.append)
    image = np.arange(6, dtype=np.uint16).reshape(2, 3)
    layout = Layout(TensorLayout.of(image).header)
    assert writer.publish(0, image, layout, 5) >= 0
    assert drain.wait(10)
    (frame,) = reader.take() or []
    assert type(frame) is Named
    assert (frame.stream_id, frame.epoch, frame.seq, frame.timestamp_ns) == (STREAM, EPOCH, 0, 5)
    assert frame.lookup is not None
    assert frame.lookup(1, 2) == (1, 2)
    with frame as inside:
        assert np.array_equal(inside, image)
    assert np.array_equal(frame.read(), image)
    writer.publish(NSLOTS, image + 1, layout)
    assert not frame.valid()
    for _ in range(2):
        with pytest.raises(FrameOverwritten), frame:
            pass
    with pytest.raises(FrameOverwritten):
        frame.read()
    assert late == [frame], "told once"
    with pytest.raises(TypeError, match="no kind of frame"):
        FrameReader(drain, ring, STREAM, EPOCH, kind=int)  # type: ignore[type-var]


@given(ages=st.lists(st.integers(-(10**6), 2**57) | st.integers(0, 1000), max_size=40))
def test_ages_are_counted_as_the_histogram_counts_them(ages: list[int]) -> None:
    native = Ages()
    expected, counted = LatencyHistogram(), LatencyHistogram()
    for age in ages:
        native.record(age)
        expected.record(age)
    counted.take(native.take())
    assert counted.to_dict() == expected.to_dict()
    assert native.take() is None


def test_frames_of_a_writer_in_c_arrive(ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader) -> None:
    writer = FrameWriter(ends.publication, RingWriter(slots.header, NSLOTS, slots.pools), STREAM, EPOCH)
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    image = np.arange(6, dtype=np.uint16).reshape(2, 3)
    layout = Layout(TensorLayout.of(image).header)
    for seq in range(100):
        assert writer.publish(seq, image + seq, layout, seq, seq % 3, seq % 2, bool(seq % 2)) >= 0
        assert drain.wait(10)
        (taken,) = reader.take()
        assert (taken.seq, taken.checked.timestamp_ns, taken.checked.meta_version) == (seq, seq, seq % 3)
        assert taken.told_meta_version == (seq % 3 or None)
        assert taken.meta_version == seq % 3
        assert taken.trace_id == (seq % 2 or None)
        assert (taken.publish_timestamp_ns is not None) == bool(seq % 2)
        assert np.array_equal(ring.array(taken.checked), image + seq)
    assert reader.statistics() == {name: 100 if name == "received" else 0 for name in reader.statistics()}


def test_frames_keep_their_order_whether_the_thread_or_the_reader_itself_fetched_them(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader
) -> None:
    """Now and then the reader is away for so long that the thread fills the queue; else little passes through it."""
    writer = FrameWriter(ends.publication, RingWriter(slots.header, NSLOTS, slots.pools), STREAM, EPOCH)
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    image = np.arange(6, dtype=np.uint16)
    layout = Layout(TensorLayout.of(image).header)
    seen: list[int] = []
    queued = straight = total = 0
    for seq in range(0, 60_000, 3):
        total = seq + 3
        while ends.publication.position_limit - ends.publication.position < 1024:
            time.sleep(0.001)
        for each in range(seq, seq + 3):
            assert writer.publish(each, image, layout) >= 0
        while seq % 30 == 0 and drain.waiting < 3 and len(seen) == seq:
            time.sleep(0.001)
        waiting = drain.waiting
        taken = [each.seq for each in reader.take(2 if seq % 2 else 256)]
        queued += waiting
        straight += waiting == 0 and bool(taken)
        seen += taken
        while len(seen) < seq:  # the thread has the turn, and may have lost the processor with it
            seen += [each.seq for each in reader.take(2)]
        if seq >= 600 and straight:
            break
    while len(seen) < total:
        seen += [each.seq for each in reader.take()]
    assert seen == list(range(total))
    assert queued
    assert straight, "else one of the two ways was not gone"
    assert drain.statistics()["received"] == total


def test_what_the_thread_fetched_and_what_came_behind_it_are_taken_together(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader, until: Until
) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    together = 0
    for seq in range(0, 40, 4):
        publish(slots, seq, seq + 1, seq + 2, seq + 3)
        tell(ends, seq, seq + 1)
        until(lambda: drain.waiting == 2)
        tell(ends, seq + 2, seq + 3)
        together += len(taken := reader.take()) == 4
        while len(taken) < 4:  # the thread had the turn
            taken += reader.take()
        assert [each.seq for each in taken] == [seq, seq + 1, seq + 2, seq + 3]
    assert together > 5


def test_loss_is_told_once_everything_was_taken(
    ends: Ends, drain: Drain, slots: ModelSlots, ring: RingReader, until: Until, client: Client
) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    publish(slots, 0)
    tell(ends, 0)
    until(lambda: drain.waiting)
    client.shut()
    assert [taken.seq for taken in reader.take()] == [0]
    with pytest.raises(MediaDriverLost):
        reader.take()
    with pytest.raises(MediaDriverLost):
        reader.latest()
    drain.close()
    with pytest.raises(TransportClosed):
        reader.take()


def test_forked_child_is_refused(drain: Drain, ring: RingReader) -> None:
    reader = FrameReader(drain, ring, STREAM, EPOCH)
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            reader.take()
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_unfit_arguments_are_refused(drain: Drain, ring: RingReader) -> None:
    with pytest.raises(TypeError):
        Taken()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        FrameReader(None, ring, STREAM, EPOCH)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        FrameReader(drain, ring, 2**32, EPOCH)
    with pytest.raises(OverflowError):
        FrameReader(drain, ring, STREAM, EPOCH, max_gap=-1)
    with pytest.raises(ValueError, match="at least 1"):
        FrameReader(drain, ring, STREAM, EPOCH).take(0)
