"""Where a frame comes from: its trace id, and those of the frames it was made of (Wire 10.2.1, `decisions.md` #15).

A trace begins with a frame that is published with a `trace_id`. A frame that is derived from traced ones gets an id of
its own, and one `TraceLinkSet` (schema 904) names the ids of its parents. Pure: the producer sends what is made here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from framepool.wire._generated.trace_904 import Parent, TraceLinkSet

MAX_PARENTS: Final = 1_000
"""What fits into one message on the shortest term buffer that Aeron allows."""


class Traced(Protocol):
    """A frame, or whatever else bears a trace id; None and 0 are none."""

    @property
    def trace_id(self) -> int | None: ...


class Trace(msgspec.Struct, frozen=True):
    """The trace of one frame.

    >>> Trace(7, (1, 2)).links(10_000, epoch=3, seq=5).parents
    (Parent(trace_id=1), Parent(trace_id=2))
    """

    trace_id: int | None = None
    parents: tuple[int, ...] = ()

    @classmethod
    def of(cls, trace_id: int | None = None, parents: Iterable[Traced] = ()) -> Trace:
        """The trace of a frame made of `parents`: under `trace_id`, or a new one if any of them has a trace.

        Untraced parents are passed over, the others named once each; a frame is no parent of itself.
        """
        found = dict.fromkeys(parent.trace_id for parent in parents)
        ids = tuple(each for each in found if each and each != trace_id)
        if len(ids) > MAX_PARENTS:
            raise ValueError(f"{len(ids)} traced parents: one frame has at most {MAX_PARENTS}")
        if ids and not trace_id:
            trace_id = new_trace_id(ids)
        return cls(trace_id, ids) if trace_id else UNTRACED

    def links(self, stream_id: int, epoch: int, seq: int) -> TraceLinkSet | None:
        """What is told of the frame; None without parents, because a set has at least one."""
        if not self.trace_id or not self.parents:
            return None
        return TraceLinkSet(
            stream_id=stream_id,
            epoch=epoch,
            seq=seq,
            trace_id=self.trace_id,
            parents=tuple(Parent(trace_id=parent) for parent in self.parents),
        )


UNTRACED: Final = Trace()


def new_trace_id(taken: Iterable[int] = ()) -> int:
    """A random id that is neither 0, which is none, nor `taken`."""
    avoid = {0, *taken}
    while (drawn := secrets.randbits(64)) in avoid:
        pass
    return drawn
