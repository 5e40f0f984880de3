"""What a checker found: the rule that was broken, by whom, and where in the history."""

from __future__ import annotations

from typing import Self

import msgspec

from framepool.testing.journal import Event


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no run may show."""

    rule: str
    """Which of the promises was broken."""
    text: str
    """What happened, for people."""
    process: str
    stream_id: int
    epoch: int
    seq: int
    t: int
    others: tuple[str, ...] = ()
    """Other processes that have to do with it."""

    @classmethod
    def of(cls, rule: str, event: Event, text: str, *others: Event) -> Self:
        return cls(
            rule=rule,
            text=f"{who(event)} {text}",
            process=event.process,
            stream_id=event.stream_id,
            epoch=event.epoch,
            seq=event.seq,
            t=event.t,
            others=tuple(other.process for other in others),
        )

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def who(event: Event) -> str:
    return f"{event.process}, stream {event.stream_id}:"


def frame_name(key: tuple[int, int, int]) -> str:
    """A frame by stream, epoch and sequence number."""
    return f"seq {key[2]} of epoch {key[1]} of stream {key[0]}"
