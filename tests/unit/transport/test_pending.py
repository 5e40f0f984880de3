"""Waiting for what the media driver was asked for: who says when it is there, and what becomes of a refusal."""

from __future__ import annotations

import pytest

from framepool.errors import TransportBusy, TransportError, TransportTimeout
from framepool.transport.aeron import Pending


class Asked:
    """Something to add, which is answered as told, once for each poll, and with the last answer from then on."""

    def __init__(self, *answers: bool | TransportError) -> None:
        self.answers = list(answers)
        self.asked = 1
        self.closed = False

    def add(self) -> None:
        self.asked += 1

    def poll_add(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True

    def describe(self) -> str:
        return "it"


BUSY = TransportBusy("please retry")


def test_what_cannot_be_given_now_is_asked_for_again() -> None:
    asked = Asked(False, BUSY, False, BUSY, True)
    assert Pending(asked).wait(10) is asked
    assert asked.asked == 3
    assert not asked.closed


def test_what_stays_busy_is_said_when_the_time_is_over() -> None:
    asked = Asked(BUSY)
    with pytest.raises(TransportBusy, match="please retry"):
        Pending(asked).wait(0.5)
    assert asked.asked > 1
    assert asked.closed


def test_what_was_busy_and_is_not_answered_then_is_said_to_be_busy() -> None:
    with pytest.raises(TransportBusy, match="please retry"):
        Pending(Asked(BUSY, False)).wait(0.2)


def test_what_is_never_answered_is_given_up() -> None:
    asked = Asked(False)
    with pytest.raises(TransportTimeout, match=r"no answer from the media driver for it in 0\.01 s"):
        Pending(asked).wait(0.01)
    assert (asked.asked, asked.closed) == (1, True)


def test_refusal_is_final() -> None:
    asked = Asked(False, TransportError("no such thing"))
    with pytest.raises(TransportError, match="no such thing"):
        Pending(asked).wait(10)
    assert (asked.asked, asked.closed) == (1, True)
