"""What a consumer may read of a frame that is being written, on real slots written by the compiled core."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from framepool.client.hello import ConsumerWishes, Introduction
from framepool.client.partial import Partial, PartialFrames, PartialSlots
from framepool.client.progress import ProgressPolicy, ProgressStream
from framepool.clock import ManualClock
from framepool.errors import FrameOverwritten
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import (
    Dtype,
    FrameProgress,
    FrameProgressState,
    MajorOrder,
    ProgressUnit,
)
from tests.support.slots import CoreSlots

STREAM = 10_000
EPOCH = 9
SEQ = 13
INDEX = SEQ % 8
STARTED, PROGRESS, COMPLETE = FrameProgressState.STARTED, FrameProgressState.PROGRESS, FrameProgressState.COMPLETE

IMAGE = TensorLayout.build(np.uint16, (8, 16))
ROWS = TensorLayout.build(np.uint16, (8, 16), progress_unit=ProgressUnit.ROWS)
PADDED_ROWS = TensorLayout.build(np.uint16, (8, 16), strides=(40, 2), progress_unit=ProgressUnit.ROWS)
PADDED = TensorLayout.build(np.uint16, (8, 16), strides=(40, 2))
COLUMNS = TensorLayout.build(np.uint16, (8, 16), order=MajorOrder.COLUMN, progress_unit=ProgressUnit.COLUMNS)


class World:
    """A producer's slots and a consumer that follows their progress."""

    def __init__(self, *, forwarded: bool = False, limit: int = 64) -> None:
        self.slots = CoreSlots()
        self.frames = PartialFrames(STREAM, forwarded=forwarded, limit=limit)
        self.map()

    def map(self, epoch: int = EPOCH) -> None:
        slots = self.slots
        self.frames.follow(PartialSlots(slots.reader, slots.header, slots.nslots, slots.pools), epoch)

    def begin(self, layout: TensorLayout, seq: int = SEQ, *, nbytes: int | None = None) -> memoryview:
        """Claims a slot, writes its header and says STARTED; the payload so far is zero."""
        self.slots.claim(seq, layout.extent if nbytes is None else nbytes)
        payload = self.slots.payload(seq)
        payload[:] = bytes(len(payload))
        self.slots.write_header(seq, layout)
        self.hear(STARTED, 0, seq)
        return payload

    def hear(
        self, state: FrameProgressState, filled: int, seq: int = SEQ, *, epoch: int = EPOCH, stream: int = STREAM
    ) -> bool:
        return self.frames.on_progress(
            FrameProgress(stream_id=stream, epoch=epoch, seq=seq, payload_bytes_filled=filled, state=state)
        )

    def partial(self, seq: int = SEQ) -> Partial:
        partial = self.frames.read(seq)
        assert partial is not None
        return partial


@pytest.fixture
def world() -> World:
    return World()


def pattern(nbytes: int) -> bytes:
    """Bytes that are never zero, so that what was not filled is told from what was."""
    return bytes(i % 255 + 1 for i in range(nbytes))


@pytest.mark.clause("W-10.2.2-06", "W-10.2.2-13")
def test_contiguous_frame_in_progress_gives_the_filled_bytes_and_no_more(world: World) -> None:
    payload = world.begin(IMAGE)
    payload[:100] = pattern(100)
    world.hear(PROGRESS, 100)
    partial = world.partial()
    assert partial.prefix().tobytes() == pattern(100)
    assert (partial.axis, partial.rows) == (0, 3)
    with partial as image:
        assert image.shape == (3, 16)
        assert image.tobytes() == pattern(96)
        assert not image.flags.writeable
    assert partial.valid()
    assert not partial.committed()
    assert partial.shape == (8, 16)
    assert partial.dtype == np.uint16
    assert repr(partial) == "<Partial 13: 100 of 256 bytes of uint16 8x16>"


@pytest.mark.clause("W-10.2.2-14")
def test_strides_without_a_progress_unit_give_nothing_but_the_number(world: World) -> None:
    world.begin(PADDED)
    world.hear(PROGRESS, 200)
    partial = world.partial()
    assert partial.filled_bytes == 200
    assert not partial.readable
    assert partial.rows is None
    with pytest.raises(ValueError, match="information only"):
        partial.prefix()
    with pytest.raises(ValueError, match="nothing of it"):
        partial.copy()


@pytest.mark.clause("W-10.2.2-14")
@pytest.mark.parametrize(("filled", "rows"), [(0, 0), (31, 0), (32, 1), (71, 1), (72, 2), (311, 7), (312, 8)])
def test_rows_with_padding_are_given_whole(world: World, filled: int, rows: int) -> None:
    payload = world.begin(PADDED_ROWS)
    payload[:filled] = pattern(filled)
    world.hear(PROGRESS, filled)
    partial = world.partial()
    assert partial.rows == rows
    with partial as image:
        assert image.shape == (rows, 16)
        assert np.all(image.view(np.uint8))
    with pytest.raises(ValueError, match="information only"):
        partial.prefix()


def test_columns_of_a_column_major_frame_are_given_whole(world: World) -> None:
    payload = world.begin(COLUMNS)
    payload[:40] = pattern(40)
    world.hear(PROGRESS, 40)
    partial = world.partial()
    assert (partial.axis, partial.rows) == (1, 2)
    assert partial.copy().T.tobytes() == pattern(32)


def test_contiguous_column_major_frame_fills_along_its_last_dimension(world: World) -> None:
    world.begin(TensorLayout.build(np.uint16, (8, 16), order=MajorOrder.COLUMN))
    world.hear(PROGRESS, 40)
    assert (world.partial().axis, world.partial().rows) == (1, 2)


@pytest.mark.parametrize(("filled", "rows"), [(64, 0), (241, 0), (242, 1), (255, 7), (256, 8)])
def test_rows_strewn_over_the_payload_wait_for_their_last_element(world: World, filled: int, rows: int) -> None:
    world.begin(TensorLayout.build(np.uint16, (8, 16), order=MajorOrder.COLUMN, progress_unit=ProgressUnit.ROWS))
    world.hear(PROGRESS, filled)
    assert world.partial().rows == rows


def test_packed_bits_come_as_bytes(world: World) -> None:
    payload = world.begin(TensorLayout.build(Dtype.BIT, (4, 24), progress_unit=ProgressUnit.ROWS))
    payload[:7] = pattern(7)
    world.hear(PROGRESS, 7)
    partial = world.partial()
    assert partial.rows == 2
    assert partial.copy().tobytes() == pattern(7)
    world.begin(TensorLayout.build(Dtype.BIT, (4, 24)), SEQ + 1)
    world.hear(PROGRESS, 7, SEQ + 1)
    assert world.partial(SEQ + 1).rows is None
    assert world.partial(SEQ + 1).copy().tobytes() == bytes(7)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_frame_touches_no_pool(world: World, shape: tuple[int, ...]) -> None:
    world.begin(TensorLayout.build(np.uint16, shape))
    world.slots.put(INDEX, "poolId", 99)
    world.hear(PROGRESS, 0)
    partial = world.partial()
    assert partial.copy().shape == shape
    assert partial.prefix().size == 0


@pytest.mark.clause("W-10.2.2-07", "W-8.2-30")
@pytest.mark.parametrize(("stride", "reason"), [(0, "PROGRESS_STRIDE_ZERO"), (36, "PROGRESS_STRIDE")])
def test_bad_progress_stride_drops_the_frame(world: World, stride: int, reason: str) -> None:
    world.begin(ROWS)
    world.slots.put(INDEX, "progressStrideBytes", stride)
    world.hear(PROGRESS, 64)
    assert world.frames.read(SEQ) is None
    assert world.frames.counts[f"invalid {reason}"] == 1
    world.slots.put(INDEX, "progressStrideBytes", 32)
    assert not world.hear(PROGRESS, 128)
    assert world.frames.read(SEQ) is None, "dropped once, dropped for good"


@pytest.mark.parametrize(
    ("field", "value"), [("payloadOffset", 64), ("payloadSlot", 0), ("ndims", 9), ("templateId", 51)]
)
def test_uncommitted_header_follows_the_rules_of_a_committed_one(world: World, field: str, value: int) -> None:
    world.begin(IMAGE)
    world.slots.put(INDEX, field, value)
    world.hear(PROGRESS, 64)
    assert world.frames.read(SEQ) is None
    assert [name for name in world.frames.counts if name.startswith("invalid ")]


@pytest.mark.clause("W-8.2-14")
def test_slot_of_a_later_frame_drops_the_progress(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    world.slots.commit(SEQ, IMAGE)
    world.slots.publish(SEQ + 8, IMAGE)
    assert world.frames.read(SEQ) is None
    assert world.frames.counts["late"] == 1
    assert not world.hear(PROGRESS, 128)


@pytest.mark.parametrize("before", [SEQ - 8, SEQ + 8])
def test_header_copied_from_another_frame_is_not_taken_for_this_one(
    world: World, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is looked at before the copy too: the slot may become this frame's while the old header is read."""
    slots = PartialSlots(world.slots.reader, world.slots.header, world.slots.nslots, world.slots.pools)
    world.slots.publish(before, IMAGE)
    monkeypatch.setattr(slots, "holds", lambda seq: True)
    assert slots.check(SEQ) is DropReason.WRONG_SEQUENCE


def test_frame_that_only_started_is_dropped_with_its_slot_too(world: World) -> None:
    world.begin(IMAGE)
    world.slots.abandon(SEQ)
    world.slots.publish(SEQ + 8, IMAGE)
    assert world.frames.read(SEQ) is None
    assert world.frames.newest is None


def test_slot_that_changes_while_it_is_read_is_noticed(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    partial = world.partial()
    world.slots.abandon(SEQ)
    world.slots.claim(SEQ + 8, 64)
    assert not partial.valid()
    with pytest.raises(FrameOverwritten):
        partial.copy()


def test_slot_that_changes_while_its_header_is_copied_is_late(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    monkeypatch.setattr(PartialSlots, "holds", lambda slots, seq: False)
    assert world.frames.read(SEQ) is None
    assert world.frames.counts["late"] == 1


def test_partial_stays_valid_over_the_commit(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    with world.partial():
        world.slots.commit(SEQ, IMAGE)
    assert world.partial().committed()


def test_partial_of_an_unmapped_epoch_is_not_valid(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    partial = world.partial()
    world.slots.reader.close()
    assert not partial.valid()
    assert not partial.committed()


@pytest.mark.clause("W-10.2.2-11")
def test_complete_is_no_commit(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 64)
    world.hear(COMPLETE, 256)
    partial = world.partial()
    assert partial.state is COMPLETE
    assert not partial.committed()
    world.slots.commit(SEQ, IMAGE)
    assert partial.committed()


def test_nothing_is_read_before_the_header_is_promised(world: World) -> None:
    """Until PROGRESS or the commit the header may be the one of the frame before."""
    world.begin(IMAGE)
    assert world.frames.read(SEQ) is None
    world.hear(COMPLETE, 256)
    assert world.frames.read(SEQ) is None
    world.slots.commit(SEQ, IMAGE)
    assert world.partial().rows == 8


@pytest.mark.clause("W-10.2.2-10")
@pytest.mark.parametrize(
    "then", [(PROGRESS, 999), (STARTED, 2_000), (FrameProgressState.UNKNOWN, 2_000)], ids=["bytes", "state", "unknown"]
)
def test_progress_that_goes_back_drops_the_frame(world: World, then: tuple[FrameProgressState, int]) -> None:
    world.begin(IMAGE, nbytes=4_000)
    world.hear(PROGRESS, 1_000)
    assert not world.hear(*then)
    assert world.frames.read(SEQ) is None
    assert not world.hear(PROGRESS, 3_000)
    assert world.frames.newest is None


def test_nothing_follows_complete_but_itself(world: World) -> None:
    world.begin(IMAGE)
    assert world.hear(COMPLETE, 256)
    assert world.hear(COMPLETE, 256)
    assert not world.hear(PROGRESS, 256)


def test_more_bytes_than_the_payload_has_drop_the_frame(world: World) -> None:
    world.begin(IMAGE)
    world.hear(PROGRESS, 257)
    assert world.frames.read(SEQ) is None
    assert world.frames.counts["beyond the payload"] == 1


def test_frame_whose_start_was_missed_is_followed(world: World) -> None:
    world.slots.claim(SEQ, 256)
    world.slots.write_header(SEQ, IMAGE)
    assert world.hear(PROGRESS, 64)
    assert world.partial().rows == 2


def test_descriptor_ends_the_progress_of_its_frame_and_those_before(world: World) -> None:
    for seq in (SEQ, SEQ + 1, SEQ + 2):
        world.begin(IMAGE, seq)
    world.frames.on_descriptor(SEQ + 1)
    assert not world.hear(PROGRESS, 64, SEQ)
    assert not world.hear(PROGRESS, 64, SEQ + 1)
    assert world.hear(PROGRESS, 64, SEQ + 2)
    assert world.frames.statistics()["frames"] == 1


def test_only_so_many_frames_are_followed_and_the_oldest_go() -> None:
    world = World(limit=4)
    for seq in range(100):
        world.hear(STARTED, 0, seq)
    assert world.frames.statistics()["frames"] == 4
    assert not world.hear(PROGRESS, 1, 95)
    assert world.hear(PROGRESS, 1, 96)


def test_newest_readable_frame_is_read_unless_one_is_named(world: World) -> None:
    for seq in (SEQ, SEQ + 1):
        world.begin(IMAGE, seq)
        world.hear(PROGRESS, 64, seq)
    world.hear(PROGRESS, 64, SEQ + 800)
    partial = world.frames.read()
    assert partial is not None
    assert partial.seq == SEQ + 1, "what nobody wrote yet hides nothing"
    assert world.partial(SEQ).seq == SEQ


def test_messages_of_others_count_for_nothing(world: World) -> None:
    world.begin(IMAGE)
    assert not world.hear(PROGRESS, 64, stream=STREAM + 1)
    assert not world.hear(PROGRESS, 64, epoch=EPOCH - 1)
    world.frames.follow(None)
    assert not world.hear(PROGRESS, 64)
    assert world.frames.read() is None
    assert world.frames.counts["other epoch"] == world.frames.counts["unmapped"] == 1


def test_new_epoch_starts_anew(world: World) -> None:
    world.begin(IMAGE)
    world.frames.on_descriptor(SEQ + 50)
    world.map(EPOCH + 1)
    assert world.hear(PROGRESS, 64, epoch=EPOCH + 1)


def test_forwarded_progress_is_matched_by_sequence_and_may_come_before_its_frame() -> None:
    world = World(forwarded=True)
    assert world.hear(STARTED, 0, epoch=77)
    assert world.hear(PROGRESS, 64, epoch=77)
    assert world.frames.read(SEQ) is None
    world.slots.claim(SEQ, 256)
    world.slots.write_header(SEQ, IMAGE)
    assert world.partial().rows == 2
    assert world.hear(STARTED, 0, epoch=78), "the source began a new epoch"
    assert not world.hear(PROGRESS, 64, epoch=77)


def test_frame_that_a_reporter_tells_of_is_read_as_it_fills() -> None:
    """Both sides together: the slot held another header before, and no row is shown before it is there."""
    world, clock = World(), ManualClock()
    stream = ProgressStream(
        STREAM,
        send=world.frames.on_progress,
        clock=clock,
        policy=ProgressPolicy(bytes_delta=32, min_bytes_delta=1),
    )
    wishes = ConsumerWishes(supports_progress=True)
    stream.agree([Introduction(STREAM, send=lambda message: True, clock=clock, wishes=wishes).hello()])
    world.slots.publish(SEQ - 8, PADDED, bytes(PADDED.extent))
    world.slots.claim(SEQ, ROWS.extent)
    payload = world.slots.payload(SEQ)
    report = stream.frame(EPOCH, SEQ, ROWS, ROWS.extent, write_header=lambda: world.slots.write_header(SEQ, ROWS))
    report.start()
    assert world.frames.read() is None
    for rows in range(1, 9):
        payload[: 32 * rows] = pattern(32 * rows)
        clock.advance(1_000_000)
        assert report.update(rows=rows)
        assert world.partial().copy().tobytes() == pattern(32 * rows)
    assert not world.partial().committed()
    world.slots.commit(SEQ, ROWS)
    report.complete()
    assert world.partial().committed()
    assert world.partial().state is COMPLETE


class Filling(RuleBasedStateMachine):
    """A producer that fills frames of all kinds, slowly, and says so; a liar now and then. Whatever it does, a partial
    that is valid shows no byte that was not filled when the last believed message was sent."""

    LAYOUTS = (IMAGE, ROWS, PADDED_ROWS, PADDED, COLUMNS, TensorLayout.build(np.float32, (3, 5, 4)))

    def __init__(self) -> None:
        super().__init__()
        self.world = World(limit=3)
        self.next = 0
        self.open: dict[int, tuple[TensorLayout, int]] = {}

    @precondition(lambda self: len(self.open) < 3)
    @rule(layout=st.sampled_from(LAYOUTS), told=st.booleans())
    def claim(self, layout: TensorLayout, told: bool) -> None:
        seq, self.next = self.next, self.next + 1
        if seq - 8 in self.open:
            self.world.slots.abandon(seq - 8)
            del self.open[seq - 8]
        self.world.slots.claim(seq, layout.extent)
        payload = self.world.slots.payload(seq)
        payload[:] = bytes(len(payload))
        if told:
            self.world.hear(STARTED, 0, seq)
        self.open[seq] = layout, 0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        layout, filled = self.open[seq]
        filled = data.draw(st.integers(filled, layout.extent))
        self.world.slots.payload(seq)[:filled] = pattern(filled)
        self.world.slots.write_header(seq, layout)
        self.open[seq] = layout, filled

    @precondition(lambda self: self.open)
    @rule(data=st.data(), state=st.sampled_from(FrameProgressState))
    def say(self, data: st.DataObject, state: FrameProgressState) -> None:
        """Never more than is true: what a producer claims beyond that, no consumer can tell."""
        seq = data.draw(st.sampled_from(sorted(self.open)))
        _, filled = self.open[seq]
        if filled:  # the header is there
            self.world.hear(state, data.draw(st.integers(0, filled)), seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), whole=st.booleans())
    def end(self, data: st.DataObject, whole: bool) -> None:
        seq = data.draw(st.sampled_from(sorted(self.open)))
        layout, _ = self.open.pop(seq)
        if whole:
            self.world.slots.payload(seq)[:] = pattern(layout.extent)
            self.world.slots.commit(seq, layout)
        else:
            self.world.slots.abandon(seq)

    @invariant()
    def shows_only_what_was_filled(self) -> None:
        for seq in range(max(0, self.next - 12), self.next):
            partial = self.world.frames.read(seq)
            if partial is None or not partial.readable:
                continue
            shown = partial.copy()
            assert np.all(np.ascontiguousarray(shown).view(np.uint8))
            hint = self.world.frames._frames[seq]
            assert partial.filled_bytes == hint.filled_bytes
            if partial.axis is not None and shown.size:
                layout = partial._checked.layout
                end = sum((n - 1) * s for n, s in zip(shown.shape, layout.strides, strict=True)) + shown.itemsize
                assert end <= partial.filled_bytes
            else:
                assert shown.nbytes <= partial.filled_bytes


TestFilling = Filling.TestCase
TestFilling.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
