"""The account of a stream: every frame that was published is recorded or lost, once, whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from framepool.recorder.account import KNOWN_EPOCHS, AccountState, Loss, Reason, StreamAccount, Survey

STREAM = 10_000
EMPTY = Survey(None, None, True)


def brief(losses: list[Loss] | None) -> list[tuple[int, int, int | None, str]] | None:
    if losses is None:
        return None
    return [(loss.epoch, loss.first_seq, loss.last_seq, loss.reason.value) for loss in losses]


def begun(epoch: int = 1) -> StreamAccount:
    account = StreamAccount(STREAM)
    account.mapped(epoch, EMPTY)
    return account


def recorded(account: StreamAccount, epoch: int, seq: int) -> list[Loss] | None:
    losses = account.expect(epoch, seq)
    if losses is not None:
        account.kept(epoch, seq)
    return losses


def test_frames_of_an_epoch_that_had_to_make_room_are_not_lost_when_they_are_heard_again() -> None:
    """Epochs come and go by the dozen where regions cannot be mapped; a reader that joins again hears old ones."""
    account = begun(epoch=10)
    assert recorded(account, 10, 0) == []
    for epoch in range(11, 11 + KNOWN_EPOCHS):
        account.mapped(epoch, EMPTY)
    for each in (account, StreamAccount(STREAM, account.state)):
        assert each.expect(10, 0) is None
        assert each.dropped(10, 0, Reason.NOT_MAPPED) == []
        assert each.repeated == 2


def test_epoch_that_was_passed_over_is_lost_when_it_is_heard_of() -> None:
    """Each process tells of its frames in a log of its own: a newer epoch may be heard of before an older one."""
    account = begun(epoch=10)
    account.mapped(12, EMPTY)
    assert brief(account.dropped(11, 3, Reason.NOT_MAPPED)) == [(11, 3, 3, "not mapped")]
    assert brief(account.dropped(11, 5, Reason.NOT_MAPPED)) == [(11, 4, 4, "gap"), (11, 5, 5, "not mapped")]
    assert account.dropped(11, 4, Reason.NOT_MAPPED) == []


def test_older_epoch_than_all_that_are_known_is_lost_once_though_there_is_no_room() -> None:
    account = begun(epoch=10)
    for epoch in range(12, 12 + KNOWN_EPOCHS - 1):
        account.mapped(epoch, EMPTY)
    assert brief(account.dropped(11, 0, Reason.NOT_MAPPED)) == [(11, 0, 0, "not mapped")]
    assert account.dropped(11, 0, Reason.NOT_MAPPED) == []
    assert account.expect(10, 0) is None


def test_frames_in_sequence_lose_nothing() -> None:
    account = begun()
    assert [recorded(account, 1, seq) for seq in range(3)] == [[], [], []]
    assert account.finished() == []


def test_jump_is_a_gap() -> None:
    account = begun()
    assert brief(recorded(account, 1, 2)) == [(1, 0, 1, "gap")]
    assert brief(recorded(account, 1, 4)) == [(1, 3, 3, "gap")]


def test_frames_before_the_recorder_came_are_not_its_losses() -> None:
    account = StreamAccount(STREAM)
    assert account.mapped(1, Survey(90, 97, False)) == []
    assert brief(recorded(account, 1, 99)) == [(1, 98, 98, "gap")], "what was published after it came is"
    account = StreamAccount(STREAM)
    account.mapped(1, Survey(90, 97, False))
    assert recorded(account, 1, 95) == [], "one that was told of just then is a gift"
    assert brief(recorded(account, 1, 97)) == [(1, 96, 96, "not mapped")]


def test_dropped_frame_is_lost_for_its_reason() -> None:
    account = begun()
    assert brief(account.dropped(1, 1, Reason.LAPPED)) == [(1, 0, 0, "gap"), (1, 1, 1, "lapped")]
    (loss,) = account.dropped(1, 2, Reason.INVALID, "DTYPE")
    assert (loss.reason, loss.detail, loss.frames) == (Reason.INVALID, "DTYPE", 1)


def test_frame_that_comes_again_is_neither_recorded_nor_lost_twice() -> None:
    account = begun()
    recorded(account, 1, 0)
    assert recorded(account, 1, 0) is None
    assert account.dropped(1, 0, Reason.LAPPED) == []
    assert account.repeated == 2


def test_epoch_that_began_while_we_watched_begins_with_its_first_frame() -> None:
    account = begun()
    recorded(account, 1, 0)
    assert account.mapped(2, Survey(0, 3, True)) == []
    assert brief(recorded(account, 2, 5)) == [(2, 0, 3, "not mapped"), (2, 4, 4, "gap")]
    account.mapped(3, Survey(1000, 1003, True))
    assert brief(recorded(account, 3, 1004)) == [(3, 1000, 1003, "not mapped")], "a producer need not begin at 0"
    account.mapped(4, Survey(96, 103, False))
    assert brief(recorded(account, 4, 104)) == [(4, 0, 103, "not mapped")], "the ring went round: 0 it is (Wire 15.2)"


def test_tail_of_an_epoch_is_lost_with_it() -> None:
    account = begun()
    recorded(account, 1, 0)
    account.left(1, Survey(0, 4, True))
    assert brief(account.mapped(2, EMPTY)) == [(1, 1, 4, "epoch ended")]
    assert brief(account.dropped(1, 5, Reason.NOT_MAPPED)) == [(1, 5, 5, "not mapped")], "told of later still"


def test_frames_told_of_before_the_regions_were_there_are_lost_once() -> None:
    account = begun()
    recorded(account, 1, 0)
    assert brief(account.dropped(2, 3, Reason.NOT_MAPPED)) == [(2, 3, 3, "not mapped")]
    assert brief(account.mapped(2, Survey(0, 5, True))) == [(2, 0, 2, "not mapped")]
    assert brief(recorded(account, 2, 6)) == [(2, 4, 5, "not mapped")]


def test_epochs_of_before_our_time_are_nothing_to_us() -> None:
    account = begun(5)
    assert account.dropped(4, 7, Reason.NOT_MAPPED) == []


def test_next_recorder_goes_on_where_the_last_one_stopped() -> None:
    account = begun()
    recorded(account, 1, 0)
    again = StreamAccount(STREAM, account.state)
    assert again.mapped(1, Survey(2, 9, False)) == []
    assert brief(recorded(again, 1, 12)) == [(1, 1, 9, "not recording"), (1, 10, 11, "gap")]


def test_frames_that_are_still_there_after_a_restart_are_recorded() -> None:
    again = StreamAccount(STREAM, AccountState({1: 3}))
    again.mapped(1, Survey(0, 7, False))
    assert brief(recorded(again, 1, 6)) == [(1, 3, 5, "not recording")]
    assert recorded(again, 1, 7) == []


def test_frames_that_nobody_recorded_are_told_apart_from_those_before_a_recorder_had_mapped() -> None:
    """The next recorder may be told of frames before it has the regions."""
    again = StreamAccount(STREAM, AccountState({1: 3}))
    assert brief(again.dropped(1, 7, Reason.NOT_MAPPED)) == [(1, 3, 6, "not recording"), (1, 7, 7, "not mapped")]
    assert brief(again.dropped(1, 9, Reason.NOT_MAPPED)) == [(1, 8, 8, "gap"), (1, 9, 9, "not mapped")]
    assert again.mapped(1, Survey(4, 11, False)) == []
    assert brief(recorded(again, 1, 13)) == [(1, 10, 11, "not recording"), (1, 12, 12, "gap")]


def test_frames_that_the_last_recorder_dealt_with_are_nothing_to_the_next_one() -> None:
    """It may hear them again: who joins a local stream hears it from where its slowest reader stood."""
    again = StreamAccount(STREAM, AccountState({1: 3}))
    again.mapped(1, Survey(0, 7, False))
    assert again.expect(1, 1) is None
    assert again.dropped(1, 2, Reason.LAPPED) == []
    assert again.repeated == 2
    assert recorded(again, 1, 3) == []


def test_of_an_epoch_that_ended_without_a_recorder_nobody_knows_the_end() -> None:
    again = StreamAccount(STREAM, AccountState({1: 3, 2: 8}))
    assert brief(again.mapped(4, Survey(0, 1, True))) == [(2, 8, None, "not recording")]
    assert brief(recorded(again, 4, 2)) == [(4, 0, 1, "not recording")]
    assert again.mapped(5, EMPTY) == []


def test_stop_accounts_for_what_was_published_until_then() -> None:
    account = begun()
    recorded(account, 1, 0)
    account.left(1, Survey(0, 2, True))
    assert brief(account.finished()) == [(1, 1, 2, "gap")]
    assert account.finished() == []


def test_losses_that_follow_each_other_for_one_cause_are_one_row() -> None:
    first = Loss(stream_id=1, epoch=1, first_seq=3, last_seq=4, reason=Reason.GAP)
    second = Loss(stream_id=1, epoch=1, first_seq=5, last_seq=5, reason=Reason.GAP)
    assert first.followed_by(second) == Loss(stream_id=1, epoch=1, first_seq=3, last_seq=5, reason=Reason.GAP)
    assert second.followed_by(first) is None
    for other in ({"reason": Reason.TORN}, {"epoch": 2}, {"stream_id": 2}, {"detail": "x"}):
        fields: dict[str, Any] = {"stream_id": 1, "epoch": 1, "first_seq": 5, "last_seq": 5, "reason": Reason.GAP}
        assert first.followed_by(Loss(**{**fields, **other})) is None


class Recording(RuleBasedStateMachine):
    """A producer with a ring, descriptors that get lost, epochs that end, and recorders that are killed."""

    SLOTS = 4

    def __init__(self) -> None:
        super().__init__()
        self.account = StreamAccount(STREAM)
        self.kept: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int]] = []
        self.unknown: set[int] = set()
        self.seen: set[int] = set()
        self.published: dict[int, list[int]] = {}
        self.epoch = 0
        self.seq = 0
        self.told: list[tuple[int, int]] = []
        self.mapped: int | None = None
        self.first: tuple[int, int] | None = None
        self.new_epoch()
        self.map()

    def note(self, losses: list[Loss]) -> None:
        for loss in losses:
            if loss.last_seq is None:
                self.unknown.add(loss.epoch)
            else:
                self.lost += [(loss.epoch, seq) for seq in range(loss.first_seq, loss.last_seq + 1)]

    def survey(self) -> Survey:
        seqs = self.published[self.epoch]
        held = {seq % self.SLOTS: seq for seq in seqs}
        return Survey(min(held.values(), default=None), max(held.values(), default=None), len(held) < self.SLOTS)

    @rule(count=st.integers(1, 6), heard=st.lists(st.booleans(), min_size=6, max_size=6))
    def publish(self, count: int, heard: list[bool]) -> None:
        for told in heard[:count]:
            self.published[self.epoch].append(self.seq)
            if told:
                self.told.append((self.epoch, self.seq))
            self.seq += 1

    @rule()
    def new_epoch(self) -> None:
        if self.mapped is not None:
            self.account.left(self.mapped, self.survey())
            self.mapped = None
        self.epoch += 1
        self.seq = 0
        self.published[self.epoch] = []

    @precondition(lambda self: self.mapped is None)
    @rule()
    def map(self) -> None:
        if self.first is None:
            self.first = (self.epoch, len(self.published[self.epoch]))
        self.note(self.account.mapped(self.epoch, self.survey()))
        self.mapped = self.epoch
        self.seen.add(self.epoch)

    @rule(lapped=st.booleans())
    def hear(self, lapped: bool) -> None:
        if self.mapped is None:
            return
        for epoch, seq in self.told:
            if epoch != self.mapped or lapped:
                self.note(
                    self.account.dropped(epoch, seq, Reason.LAPPED if epoch == self.mapped else Reason.NOT_MAPPED)
                )
            elif (losses := recorded(self.account, epoch, seq)) is not None:
                self.note(losses)
                self.kept.append((epoch, seq))
        self.told.clear()

    @rule()
    def kill(self) -> None:
        self.account = StreamAccount(STREAM, self.account.state)
        self.told.clear()
        self.mapped = None

    def teardown(self) -> None:
        if self.mapped is None:
            self.map()
        self.hear(False)
        assert self.mapped is not None
        self.account.left(self.mapped, self.survey())
        self.note(self.account.finished())
        accounted = self.kept + self.lost
        assert len(set(accounted)) == len(accounted), "nothing twice"
        assert self.first is not None
        for epoch, seqs in self.published.items():
            mine = {seq for each, seq in accounted if each == epoch}
            if epoch < self.first[0]:
                assert not mine
            elif epoch == self.first[0]:
                expected = set(seqs[self.first[1] :])
                assert mine - expected <= set(seqs), "an earlier one was a gift"
                assert expected <= mine or epoch in self.unknown
            else:
                assert mine <= set(seqs)
                told = epoch in self.seen and epoch not in self.unknown
                assert mine == set(seqs) or not told, "of an epoch that came and went unseen nobody can tell"


Recording.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestRecording = Recording.TestCase
