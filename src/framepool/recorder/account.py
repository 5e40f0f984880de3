"""Which frames of a stream are kept, and which are not and why: recorded = published minus losses, exactly.

Within an epoch a producer counts its frames, so what was neither recorded nor reported as lost is seen as a jump. What
a jump cannot show is told by other signs: frames before the first, by what the ring held when it was mapped; frames
after the last, by what it held when it was left and by the producer's reports. Pure: the recorder feeds it and writes
what comes out, and a recorder that starts again goes on from what was written (`AccountState`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

import msgspec

KNOWN_EPOCHS: Final = 64
"""Of which late descriptors are still taken; what comes of an older one is accounted for."""


class Reason(StrEnum):
    """Why frames are not in the recording."""

    GAP = "gap"
    """No descriptor told of them: Aeron lost it, or the producer gave the slot up."""
    LAPPED = "lapped"
    """The producer took their slots before they were looked at."""
    TORN = "torn"
    """The producer took their slots while they were copied."""
    INVALID = "invalid"
    """Their slot broke a rule, which `detail` names."""
    BACKLOG = "backlog"
    """They were gone before the disk had taken what came earlier."""
    DISK_FULL = "disk full"
    """They were gone while nothing could be written; `detail` has the error."""
    NOT_MAPPED = "not mapped"
    """They were told of while the recorder had no regions of their epoch."""
    EPOCH_ENDED = "epoch ended"
    """They were committed, and the regions of their epoch were gone before anybody told of them."""
    NOT_RECORDING = "not recording"
    """No recorder ran."""
    DAMAGED = "damaged"
    """They were written, and are not readable any more."""
    NOT_CHOSEN = "not chosen"
    """The recording was computed, and its maker left them out or did not have them."""


class Loss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Frames of one epoch that are not in the recording. Without a last one it is not known how many there are."""

    stream_id: int
    epoch: int
    first_seq: int
    last_seq: int | None
    reason: Reason
    detail: str = ""

    @property
    def frames(self) -> int | None:
        return None if self.last_seq is None else self.last_seq - self.first_seq + 1

    def followed_by(self, later: Loss, *, loosely: bool = False) -> Loss | None:
        """Both as one, if the later one goes on where this one ends and has the same cause, or `loosely` any."""
        if self.last_seq is None or (self.stream_id, self.epoch) != (later.stream_id, later.epoch):
            return None
        if later.first_seq != self.last_seq + 1:
            return None
        if not loosely and (self.reason, self.detail) != (later.reason, later.detail):
            return None
        return msgspec.structs.replace(self, last_seq=later.last_seq)


class AccountState(msgspec.Struct, frozen=True):
    """What is known of a stream between two recorders: the next sequence of each of its last epochs."""

    next_seq: dict[int, int] = {}


class Words(Protocol):
    """A ring as far as it is looked over: `RingReader`."""

    @property
    def nslots(self) -> int: ...
    def word(self, index: int, /) -> int: ...


class Survey(msgspec.Struct, frozen=True):
    """What a ring holds: its committed frames, and whether some of its slots were never used."""

    oldest: int | None
    newest: int | None
    unused: bool

    @classmethod
    def of(cls, ring: Words) -> Survey:
        words = [ring.word(index) for index in range(ring.nslots)]
        committed = [word >> 1 for word in words if word & 1]
        return cls(min(committed, default=None), max(committed, default=None), 0 in words)


class _Epoch:
    """The frames of one epoch."""

    __slots__ = ("before", "cause", "first", "heard", "newest", "next", "settled")

    def __init__(self, next_seq: int, *, resumed: bool = False) -> None:
        self.first = 0 if resumed else next_seq
        """Where the account begins, which a frame from before may move while there is none behind it."""
        self.next = next_seq
        self.newest = next_seq - 1
        """The last frame that is known to be published."""
        self.before = -1
        """The last frame that was published before there was somebody to record it, for this cause."""
        self.cause = Reason.GAP
        self.settled = resumed
        """Whether the ring was asked where the account begins."""
        self.heard = False
        """Whether this recorder was told of any of its frames."""


class StreamAccount:
    """The account of one stream. Each call says which frames are lost by it, in the order of their sequence."""

    def __init__(self, stream_id: int, state: AccountState | None = None) -> None:
        self.stream_id = stream_id
        self.repeated = 0
        """Frames that came again: heard twice after joining again, or numbered twice by their producer."""
        self._epochs = {epoch: _Epoch(following, resumed=True) for epoch, following in sorted(_known(state).items())}
        self._accounted_to = min(self._epochs, default=0) - 1
        """Epochs up to this one were before our time or had to make room: what is heard of them is accounted for."""
        self._resumed = set(self._epochs)
        """Epochs that a recorder before this one saw, until this one sees one."""

    @property
    def state(self) -> AccountState:
        return AccountState({epoch: known.next for epoch, known in self._epochs.items()})

    def next_seq(self, epoch: int) -> int:
        """The frame that would leave no gap."""
        known = self._epochs.get(epoch)
        return 0 if known is None else known.next

    def mapped(self, epoch: int, ring: Survey) -> list[Loss]:
        """The regions of an epoch are there now, and hold this.

        The first epoch ever begins with the next frame to come. One that began while the stream was recorded begins
        with its first frame: the oldest one, as long as the ring still has it, else number 0 (Wire 15.2).
        """
        losses = self._end_earlier(epoch)
        known = self._epochs.get(epoch)
        if known is None or not known.settled:
            begin = self._begin(epoch, ring)
            if known is None:
                known = self._add(epoch, begin)
            elif begin < known.first:
                losses.append(self._loss(epoch, begin, known.first - 1, Reason.NOT_MAPPED))
            known.settled = True
        newest = -1 if ring.newest is None else ring.newest
        known.before = newest
        known.cause = Reason.NOT_RECORDING if self._resumed else Reason.NOT_MAPPED
        known.newest = max(known.newest, newest)
        self._resumed = set()
        return losses

    def left(self, epoch: int, ring: Survey) -> None:
        """The regions of an epoch are let go of, and held this at the end."""
        known = self._epochs.get(epoch)
        if known is not None and ring.newest is not None:
            known.newest = max(known.newest, ring.newest)

    def expect(self, epoch: int, seq: int, reason: Reason = Reason.GAP) -> list[Loss] | None:
        """This frame is at hand: what is lost before it, for this reason; None if it is accounted for already."""
        if epoch <= self._accounted_to and epoch not in self._epochs:
            self.repeated += 1
            return None
        known = self._epochs.get(epoch) or self._add(epoch, seq)
        if seq < known.first and known.next == known.first:  # the first that was heard was published before we looked
            known.first = known.next = seq
        if seq < known.next:
            self.repeated += 1
            return None
        return self._skip(epoch, known, seq, reason)

    def kept(self, epoch: int, seq: int) -> None:
        """This frame is recorded, and the expected ones before it."""
        known = self._epochs[epoch]
        known.next = seq + 1
        known.newest = max(known.newest, seq)
        known.heard = True

    def dropped(
        self, epoch: int, seq: int, reason: Reason, detail: str = "", *, gap: Reason = Reason.GAP
    ) -> list[Loss]:
        """This frame was told of, and cannot be recorded; what is missing before it is lost because of `gap`, or for
        want of a recorder, if the one before saw the epoch and this one has not mapped it yet."""
        if epoch in self._resumed and not self._epochs[epoch].heard:
            gap = Reason.NOT_RECORDING
        before = self.expect(epoch, seq, gap)
        if before is None:
            return []
        self.kept(epoch, seq)
        return [*before, self._loss(epoch, seq, seq, reason, detail)]

    def finished(self, reason: Reason = Reason.GAP, detail: str = "") -> list[Loss]:
        """Nothing more is recorded: what is known to be published until now, and did not come."""
        losses: list[Loss] = []
        for epoch, known in self._epochs.items():
            losses += self._skip(epoch, known, known.newest + 1, reason, detail)
        return losses

    def _begin(self, epoch: int, ring: Survey) -> int:
        if all(other == epoch for other in self._epochs):
            return 0 if ring.newest is None else ring.newest + 1
        return ring.oldest if ring.oldest is not None and ring.unused else 0

    def _end_earlier(self, epoch: int) -> list[Loss]:
        """The tails of the epochs before this one. Of one that ended while no recorder ran, nobody knows the end."""
        if self._resumed:
            last = max(self._resumed)
            if last >= epoch:
                return []
            return [self._loss(last, self._epochs[last].next, None, Reason.NOT_RECORDING)]
        losses: list[Loss] = []
        for earlier, known in self._epochs.items():
            if earlier < epoch:
                losses += self._skip(earlier, known, known.newest + 1, Reason.EPOCH_ENDED)
        return losses

    def _skip(self, epoch: int, known: _Epoch, until: int, reason: Reason, detail: str = "") -> list[Loss]:
        """Everything from the next frame to the one before `until` is lost."""
        losses = []
        for end, cause, more in ((min(until, known.before + 1), known.cause, ""), (until, reason, detail)):
            if end > known.next:
                losses.append(self._loss(epoch, known.next, end - 1, cause, more))
                known.next = end
        return losses

    def _add(self, epoch: int, next_seq: int) -> _Epoch:
        if not self._epochs:
            self._accounted_to = epoch - 1
        elif len(self._epochs) >= KNOWN_EPOCHS:
            oldest = min(self._epochs)
            del self._epochs[oldest]
            self._accounted_to = max(self._accounted_to, oldest)
        added = _Epoch(next_seq)
        self._epochs = dict(sorted({**self._epochs, epoch: added}.items()))
        return added

    def _loss(self, epoch: int, first: int, last: int | None, reason: Reason, detail: str = "") -> Loss:
        return Loss(stream_id=self.stream_id, epoch=epoch, first_seq=first, last_seq=last, reason=reason, detail=detail)


def _known(state: AccountState | None) -> dict[int, int]:
    return {} if state is None else state.next_seq
