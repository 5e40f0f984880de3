"""Frames that are still being written, for consumers that asked for progress (Wire 8.2, 10.2.2; `decisions.md` #29).

`PartialFrames` follows the FrameProgress messages of one stream, frame by frame, and drops a frame for progress use at
the first message or slot that breaks a rule; whether the frame is delivered later is its descriptor's business alone.
`PartialSlots` checks a slot that is in progress or committed, and a `Partial` is what may be read of it: never more
than was said to be filled.

That the header stands in an uncommitted slot is the producer's promise with its first PROGRESS; nothing in the slot
tells a header that was just written from the one of the frame before. So nothing is read on the word of STARTED, nor of
a COMPLETE that came without PROGRESS, until the slot is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Buffer, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from framepool.errors import FrameOverwritten
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool, check_pools
from framepool.shm.ring import HeaderRing, committed, in_progress, sequence
from framepool.shm.slot import CheckedSlot, check_header, payload_array
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import Dtype, FrameProgress, FrameProgressState, MajorOrder, ProgressUnit
from framepool.wire.dtypes import NUMPY_DTYPES

TRACKED_FRAMES = 64


class Words(Protocol):
    """The ordered reads of `seq_commit`: `_native.seqlock.RingReader` has them."""

    def word(self, index: int, /) -> int: ...
    def still(self, seq: int, /) -> bool: ...


class PartialSlots:
    """The slots of one mapped epoch, read before they are committed.

    The header bytes and rules are those of `shm`; the words are read by the compiled core, whose order holds on every
    machine.
    """

    def __init__(self, words: Words, header: Buffer, nslots: int, pools: Sequence[Pool]) -> None:
        self._words = words
        self._ring = HeaderRing(header, nslots)
        self._pools = check_pools(pools, nslots)

    def sequence(self, seq: int) -> int:
        """The frame that the slot of `seq` holds now."""
        return sequence(self._words.word(self._ring.index(seq)))

    def committed(self, seq: int) -> bool:
        """Whether the slot holds frame `seq`, whole: the only word on that (Wire 10.2.2)."""
        return self._words.still(seq)

    def holds(self, seq: int) -> bool:
        """Whether the slot holds frame `seq`, in progress or committed: what was read of it until now is its own."""
        # `still` comes first also for its fence: `word` alone does not stay behind the reads before it.
        if self._words.still(seq):
            return True
        return self._words.word(self._ring.index(seq)) in (in_progress(seq), committed(seq))

    def check(self, seq: int) -> CheckedSlot | DropReason:
        """The header of frame `seq` by the rules of a committed one, whether or not it is committed yet.

        The producer may write the header once more meanwhile, with another timestamp: of those fields nothing is
        promised before the commit.
        """
        if self.sequence(seq) != seq:
            return DropReason.WRONG_SEQUENCE
        private = bytes(self._ring.slot(self._ring.index(seq)))
        if not self.holds(seq):
            return DropReason.OVERWRITTEN
        return check_header(private, seq, self._ring.nslots, self._pools)

    def array(self, checked: CheckedSlot) -> npt.NDArray[Any]:
        """The whole payload in place, read-only, filled or not."""
        return payload_array(self._pools, checked)

    def payload(self, checked: CheckedSlot, nbytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of the payload in place, read-only; none of a pool if there are none (Wire 8.2)."""
        if nbytes == 0:
            return np.frombuffer(b"", np.uint8)
        view = self._pools[checked.pool_id].payload(checked.payload_slot, nbytes)
        return np.frombuffer(view.toreadonly(), np.uint8)


class Partial:
    """What may be read of a frame that is being written.

    `with partial as image:` gives the whole rows that are there, in place and read-only, and raises
    `FrameOverwritten` at its end if the slot went to another frame meanwhile. `prefix()` gives the filled bytes of a
    contiguous tensor. Where the layout allows neither, `filled_bytes` is for information only (Wire 10.2.2).
    """

    __slots__ = ("_checked", "_slots", "axis", "filled_bytes", "rows", "seq", "state")

    def __init__(self, slots: PartialSlots, checked: CheckedSlot, filled_bytes: int, state: FrameProgressState) -> None:
        self._slots = slots
        self._checked = checked
        self.seq = checked.seq
        self.filled_bytes = filled_bytes
        self.state = state
        """What the producer said last; COMPLETE is no commit."""
        self.axis = progress_axis(checked.layout)
        """The dimension that fills up: 0 for rows, 1 for columns; None if it cannot be told."""
        self.rows = None if self.axis is None else whole_units(checked.layout, self.axis, filled_bytes)
        """How many entries of `axis` lie wholly in the filled bytes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole frame."""
        return self._checked.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; BYTES and packed BIT come as uint8."""
        return NUMPY_DTYPES[self._checked.layout.dtype]

    @property
    def values_len_bytes(self) -> int:
        """How many bytes the whole frame will have."""
        return self._checked.values_len_bytes

    @property
    def readable(self) -> bool:
        """Whether the layout lets any prefix be read (Wire 10.2.2)."""
        return self.axis is not None or is_contiguous(self._checked.layout)

    def valid(self) -> bool:
        """Whether the slot is still this frame's: what was read of it until now may be used."""
        try:
            return self._slots.holds(self.seq)
        except ValueError:  # the ring was closed: its epoch is gone
            return False

    def committed(self) -> bool:
        """Whether the frame is whole in its slot, whatever the producer said of its progress."""
        try:
            return self._slots.committed(self.seq)
        except ValueError:
            return False

    def prefix(self) -> npt.NDArray[np.uint8]:
        """The filled bytes in place, read-only; they may be used once `valid()` says so, after the read."""
        if not is_contiguous(self._checked.layout):
            raise ValueError(f"frame {self.seq} has strides: its filled bytes are for information only")
        return self._slots.payload(self._checked, self.filled_bytes)

    def __enter__(self) -> npt.NDArray[Any]:
        """The whole rows that are there, or columns; of a BIT tensor its packed bytes."""
        if not self.readable:
            raise ValueError(f"frame {self.seq} has strides and no progress unit: nothing of it can be read yet")
        layout = self._checked.layout
        if layout.dtype is Dtype.BIT:
            return self.prefix()[: layout.extent]
        assert self.axis is not None
        return self._slots.array(self._checked)[(slice(None),) * self.axis + (slice(self.rows),)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self.valid():
            raise FrameOverwritten(f"frame {self.seq} lost its slot while it was read") from error

    def copy(self) -> npt.NDArray[Any]:
        """A private copy of the whole rows that is known to be this frame's; else `FrameOverwritten`."""
        with self as image:
            return image.copy()

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"<Partial {self.seq}: {self.filled_bytes} of {self.values_len_bytes} bytes of {self.dtype} {shape}>"


def is_contiguous(layout: TensorLayout) -> bool:
    """Whether all strides are inferred, so that filled bytes are filled elements (Wire 10.2.2)."""
    return not any(layout.declared_strides)


def progress_axis(layout: TensorLayout) -> int | None:
    """The dimension whose entries progress can be counted in (`decisions.md` #30).

    The declared one; else the outermost of a contiguous tensor, whose entries lie one behind the other. A packed BIT
    tensor without a declared one has none.
    """
    if layout.progress_unit is not ProgressUnit.NONE:
        return layout.progress_unit - ProgressUnit.ROWS
    if not is_contiguous(layout) or layout.dtype is Dtype.BIT:
        return None
    return 0 if layout.order is MajorOrder.ROW else len(layout.shape) - 1


def whole_units(layout: TensorLayout, axis: int, filled_bytes: int) -> int:
    """How many entries of that dimension lie in the first `filled_bytes`, to their last element.

    So a row without the padding behind it counts, and a row whose elements are strewn over the payload, as in
    column-major order, does not before all of them are there.
    """
    units = layout.shape[axis]
    if layout.extent == 0:
        return units
    if layout.dtype is Dtype.BIT:
        stride, extent, filled = 8 * layout.progress_stride_bytes, prod(layout.shape), 8 * filled_bytes
    else:
        stride, extent, filled = layout.strides[axis], layout.extent, filled_bytes
    one = extent - (units - 1) * stride
    return min(units, (filled - one) // stride + 1) if filled >= one else 0


@dataclass(slots=True)
class Hint:
    """What the messages about one frame said so far."""

    seq: int
    state: FrameProgressState
    filled_bytes: int
    header_promised: bool = False
    dropped: bool = False


class PartialFrames:
    """The frames of one stream that progress is heard of: STARTED, PROGRESS, COMPLETE, never back (Wire 10.2.2).

    It keeps the `limit` newest. One that fell out, or that a descriptor told of, is not taken up again. A frame whose
    STARTED was missed is followed from where it is.
    """

    def __init__(self, stream_id: int, *, forwarded: bool = False, limit: int = TRACKED_FRAMES) -> None:
        """`forwarded` is for streams that a bridge fills: its progress has the epochs of the source, which say nothing
        about the regions here, and is matched by stream and sequence (`decisions.md` #51)."""
        self.stream_id = stream_id
        self.counts: Counter[str] = Counter()
        self._forwarded = forwarded
        self._limit = limit
        self._slots: PartialSlots | None = None
        self._epoch = 0
        self._frames: dict[int, Hint] = {}
        self._floor = 0

    def follow(self, slots: PartialSlots | None, epoch: int = 0) -> None:
        """Begins anew with the slots of another epoch, or with none while nothing is mapped (Wire 15.2)."""
        self._slots = slots
        self._epoch = 0 if self._forwarded else epoch
        self._forget_all()

    def on_progress(self, message: FrameProgress) -> bool:
        """Takes a message in; False if it was of no use."""
        if message.stream_id != self.stream_id:
            return False
        if self._slots is None:
            return self._refuse("unmapped")
        if message.epoch != self._epoch and not self._follows_source(message.epoch):
            return self._refuse("other epoch")
        if message.seq < self._floor:
            return self._refuse("old")
        return self._advance(message)

    def on_descriptor(self, seq: int) -> None:
        """The frame is available: it and those before it are partial no more."""
        self._raise_floor(seq + 1)

    @property
    def newest(self) -> Hint | None:
        """What is known of the newest frame in progress."""
        return max(
            (hint for hint in self._frames.values() if not hint.dropped), key=lambda hint: hint.seq, default=None
        )

    def read(self, seq: int | None = None) -> Partial | None:
        """What may be read of a frame, by default the newest of which anything may; None if nothing may.

        A frame whose slot went to a later one, or breaks a rule, is dropped for progress use (Wire 8.2). One whose
        slot is still an earlier frame's may be asked for again: a bridge tells of frames before their first bytes
        come (`decisions.md` #54).
        """
        for wanted in sorted(self._frames, reverse=True) if seq is None else (seq,):
            hint = self._frames.get(wanted)
            if hint is not None and not hint.dropped and (partial := self._read(hint)):
                return partial
        return None

    def statistics(self) -> dict[str, int]:
        return {"frames": len(self._frames), **self.counts}

    def _follows_source(self, epoch: int) -> bool:
        """Whether forwarded progress came with a later epoch of its source, in which sequences start anew."""
        if not self._forwarded or epoch < self._epoch:
            return False
        self._epoch = epoch
        self._forget_all()
        return True

    def _advance(self, message: FrameProgress) -> bool:
        hint = self._frames.get(message.seq)
        if hint is None:
            hint = self._frames[message.seq] = Hint(message.seq, message.state, message.payload_bytes_filled)
            while len(self._frames) > self._limit:
                self._raise_floor(min(self._frames) + 1)
        if hint.dropped:
            return self._refuse("dropped before")
        if message.state is FrameProgressState.UNKNOWN:
            self._drop(hint, "unknown state")
            return False
        if message.state < hint.state or message.payload_bytes_filled < hint.filled_bytes:
            self._drop(hint, "regressed")
            return False
        hint.state = message.state
        hint.filled_bytes = message.payload_bytes_filled
        hint.header_promised |= message.state is FrameProgressState.PROGRESS
        self.counts["heard"] += 1
        return True

    def _read(self, hint: Hint) -> Partial | None:
        slots = self._slots
        assert slots is not None, "without slots no frame is followed"
        holder = slots.sequence(hint.seq)
        if holder < hint.seq:
            self.counts["early"] += 1
            return None
        if holder == hint.seq and not hint.header_promised and not slots.committed(hint.seq):
            return None
        checked = slots.check(hint.seq)
        if isinstance(checked, DropReason):
            self._drop(hint, "late" if checked.late else f"invalid {checked.name}")
            return None
        if hint.filled_bytes > checked.values_len_bytes:
            self._drop(hint, "beyond the payload")
            return None
        return Partial(slots, checked, hint.filled_bytes, hint.state)

    def _drop(self, hint: Hint, why: str) -> None:
        hint.dropped = True
        self.counts[why] += 1

    def _refuse(self, why: str) -> bool:
        self.counts[why] += 1
        return False

    def _raise_floor(self, floor: int) -> None:
        self._floor = max(self._floor, floor)
        for seq in [seq for seq in self._frames if seq < self._floor]:
            del self._frames[seq]

    def _forget_all(self) -> None:
        self._frames.clear()
        self._floor = 0
