"""The outbox: in order, bounded, and no decision fails because nobody can be told."""

from __future__ import annotations

from collections import Counter

import pytest

from framepool.errors import MediaDriverLost
from framepool.transport.aeron import Outcome
from framepool.transport.outbox import Outbox


class FakePublication:
    """Takes messages until it is told what else to do."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.outcome: Outcome | None = None
        self.lost = False

    def offer(self, message: bytes) -> int:
        if self.lost:
            raise MediaDriverLost("gone")
        if self.outcome is not None:
            return self.outcome
        self.taken.append(message)
        return len(self.taken)


@pytest.fixture
def publication() -> FakePublication:
    return FakePublication()


@pytest.fixture
def counts() -> Counter[str]:
    return Counter()


@pytest.fixture
def outbox(publication: FakePublication, counts: Counter[str]) -> Outbox:
    return Outbox(publication, "answers", counts, capacity=3)  # type: ignore[arg-type]


def test_what_is_taken_at_once_does_not_wait(outbox: Outbox, publication: FakePublication) -> None:
    outbox.put(b"a")
    assert publication.taken == [b"a"]
    assert len(outbox) == 0


@pytest.mark.parametrize("outcome", [Outcome.BACK_PRESSURED, Outcome.ADMIN_ACTION])
def test_what_is_not_taken_waits_and_keeps_its_order(
    outcome: Outcome, outbox: Outbox, publication: FakePublication
) -> None:
    publication.outcome = outcome
    outbox.put(b"a")
    outbox.put(b"b")
    assert outbox.flush() == 0
    publication.outcome = None
    outbox.put(b"c")
    assert publication.taken == [b"a", b"b", b"c"]


def test_of_too_much_the_oldest_goes_and_is_counted(
    outbox: Outbox, publication: FakePublication, counts: Counter[str]
) -> None:
    publication.outcome = Outcome.BACK_PRESSURED
    for message in (b"a", b"b", b"c", b"d", b"e"):
        outbox.put(message)
    assert len(outbox) == 3
    assert counts == {"answers overruns": 2}
    publication.outcome = None
    assert outbox.flush() == 3
    assert publication.taken == [b"c", b"d", b"e"]


def test_a_stream_without_readers_is_no_reason_to_wait(
    outbox: Outbox, publication: FakePublication, counts: Counter[str]
) -> None:
    publication.outcome = Outcome.NOT_CONNECTED
    outbox.put(b"a")
    assert len(outbox) == 0
    assert not counts


def test_what_can_never_be_sent_is_dropped_and_counted(
    outbox: Outbox, publication: FakePublication, counts: Counter[str]
) -> None:
    publication.outcome = Outcome.MAX_POSITION_EXCEEDED
    outbox.put(b"a")
    assert len(outbox) == 0
    assert counts == {"answers MAX_POSITION_EXCEEDED": 1}


def test_without_a_media_driver_messages_wait_for_it(outbox: Outbox, publication: FakePublication) -> None:
    publication.lost = True
    outbox.put(b"a")
    assert outbox.lost is not None
    publication.lost = False
    outbox.put(b"b")
    assert publication.taken == [], "its owner says when it is back"
    outbox.lost = None
    assert outbox.flush() == 2
    assert publication.taken == [b"a", b"b"]


def test_what_is_not_true_any_more_is_forgotten(outbox: Outbox, publication: FakePublication) -> None:
    publication.outcome = Outcome.BACK_PRESSURED
    outbox.put(b"a")
    outbox.clear()
    publication.outcome = None
    assert outbox.flush() == 0
