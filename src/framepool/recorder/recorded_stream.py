"""One stream of a recorder: its consumer, its account, and the frames at hand, dropped ones in line with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from framepool._native.seqlock import RingReader
from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.pool import Pool
from framepool.discovery.stream import Stream
from framepool.recorder.account import AccountState, Loss, Reason, StreamAccount, Survey
from framepool.shm.drop import DropReason

BATCH: Final = 256
"""Frames taken at a time."""
NEVER_SKIP: Final = 2**62
"""A gap that is longer is no reason to skip to the newest frame: each that is still there is wanted."""


class Drop:
    """A frame that was told of and not handed over, in line with those that were."""

    __slots__ = ("detail", "epoch", "reason", "seq")

    def __init__(self, epoch: int, seq: int, reason: Reason, detail: str = "") -> None:
        self.epoch = epoch
        self.seq = seq
        self.reason = reason
        self.detail = detail


class RecordedStream:
    """One stream that is recorded: its consumer, its account, and the frames at hand. A watcher of its consumer."""

    def __init__(
        self, pool: Pool, stream: int | str | Stream, states: Mapping[int, AccountState], timeout: float
    ) -> None:
        self.consumer: Consumer | None = pool.consumer(
            stream, watcher=self, max_outstanding_seq_gap=NEVER_SKIP, timeout=timeout
        )
        self.stream_id = self.consumer.stream_id
        self.account = StreamAccount(self.stream_id, states.get(self.stream_id))
        self.losses: list[Loss] = []
        """What the account said between frames."""
        self.at_hand: list[Frame | Drop] = []
        """In the order of their sequence; what is recorded of it is taken away from the front."""
        self.last_polls = 0
        """How often it was looked at since its end was asked for."""
        self._dropped: list[Drop] = []

    @property
    def is_attached(self) -> bool:
        return self.consumer is not None and self.consumer.ready

    def detach(self) -> None:
        """Gives lease and regions back; the account hears of what was in them."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.close()

    def poll(self) -> int:
        """Takes what came, if everything that came before is dealt with."""
        if self.at_hand or self.consumer is None:
            return 0
        frames = self.consumer.poll(BATCH)
        self.at_hand = [*frames]
        if self._dropped:
            self.at_hand = sorted([*frames, *self._dropped], key=lambda each: (each.epoch, each.seq))
            self._dropped = []
        return len(self.at_hand)

    def on_mapped(self, epoch: int, ring: RingReader) -> None:
        self.losses += self.account.mapped(epoch, Survey.of(ring))

    def on_left(self, epoch: int, ring: RingReader) -> None:
        self.account.left(epoch, Survey.of(ring))

    def on_dropped(self, epoch: int, seq: int, rule: DropReason | None) -> None:
        if rule is None:
            self._dropped.append(Drop(epoch, seq, Reason.NOT_MAPPED))
        elif rule.late:
            self._dropped.append(Drop(epoch, seq, Reason.LAPPED))
        else:
            self._dropped.append(Drop(epoch, seq, Reason.INVALID, rule.name))
