"""A frame's way through a slot: claim, fill, commit on one side, check, read, check again on the other (Wire 8.3).

The readable model of `_native.seqlock`, with the same rules in the same order; see `ring` for what it does not
promise. Sending the descriptor and counting drops belong to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from framepool.errors import SequenceError, TensorError
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool, check_pools, choose_pool
from framepool.shm.ring import MAX_SEQUENCE, HeaderRing, committed, in_progress, is_committed, sequence
from framepool.shm.tensor import TensorLayout, decode_tensor, view
from framepool.wire._generated.control_900 import SlotHeader
from framepool.wire.constants import HEADER_BYTES_OFFSET, TENSOR_HEADER_BYTES, TENSOR_HEADER_OFFSET

SEQ_COMMIT_BYTES = 8


@dataclass(frozen=True, slots=True)
class CheckedSlot:
    """A slot whose header broke no rule and was whole when read; the payload is proven by `still_committed`."""

    seq: int
    pool_id: int
    payload_slot: int
    values_len_bytes: int
    timestamp_ns: int
    meta_version: int
    layout: TensorLayout


class Strided(Protocol):
    """What the check of a header needs to know of a pool."""

    @property
    def stride_bytes(self) -> int: ...


def check_slot(ring: HeaderRing, pools: Mapping[int, Pool], seq: int) -> CheckedSlot | DropReason:
    """The slot of frame `seq`, or the first rule that forbids to use it (Wire 8.2, 8.3, 10.2.1). Never waits."""
    index = ring.index(seq)
    word = ring.word(index)
    if not is_committed(word):
        return DropReason.NOT_COMMITTED
    if sequence(word) != seq:
        return DropReason.WRONG_SEQUENCE
    private = bytes(ring.slot(index))
    if not still_committed(ring, seq):
        return DropReason.OVERWRITTEN
    return check_header(private, seq, ring.nslots, pools)


def check_header(private: bytes, seq: int, nslots: int, pools: Mapping[int, Strided]) -> CheckedSlot | DropReason:
    """What a private copy of the slot of frame `seq` says, or the first rule broken; `seq_commit` is not looked at."""
    _, length, payload_slot, pool_id, payload_offset, timestamp, version, _ = SlotHeader.BLOCK.unpack_from(private)
    if payload_offset != 0:
        return DropReason.PAYLOAD_OFFSET
    if payload_slot >= nslots:
        return DropReason.PAYLOAD_SLOT_RANGE
    if payload_slot != seq & (nslots - 1):
        return DropReason.PAYLOAD_SLOT
    if length and pool_id not in pools:
        return DropReason.UNKNOWN_POOL
    if length and length > pools[pool_id].stride_bytes:
        return DropReason.VALUES_LENGTH
    if int.from_bytes(private[HEADER_BYTES_OFFSET:TENSOR_HEADER_OFFSET], "little") != TENSOR_HEADER_BYTES:
        return DropReason.HEADER_LENGTH
    layout = decode_tensor(private[TENSOR_HEADER_OFFSET:], length)
    if isinstance(layout, DropReason):
        return layout
    return CheckedSlot(seq, pool_id, payload_slot, length, timestamp, version, layout)


def still_committed(ring: HeaderRing, seq: int) -> bool:
    """The second check: whether the slot still holds frame `seq`, so that all read of it until now is whole."""
    return ring.word(ring.index(seq)) == committed(seq)


def payload_array(pools: Mapping[int, Pool], checked: CheckedSlot) -> npt.NDArray[np.generic]:
    """The payload in place, read-only; what it shows may be used once `still_committed` says so.

    A frame without payload touches no pool (Wire 8.2).
    """
    if checked.values_len_bytes == 0:
        return view(b"", 0, checked.layout)
    pool = pools[checked.pool_id]
    return view(pool.buffer, pool.offset(checked.payload_slot), checked.layout)


def copy_payload(
    ring: HeaderRing, pools: Mapping[int, Pool], checked: CheckedSlot
) -> npt.NDArray[np.generic] | DropReason:
    """A private copy of the payload that is known to be whole, else OVERWRITTEN (Wire 8.3)."""
    private = bytearray(checked.layout.extent)
    if private:
        private[:] = pools[checked.pool_id].payload(checked.payload_slot, len(private))
    if not still_committed(ring, checked.seq):
        return DropReason.OVERWRITTEN
    return view(private, 0, checked.layout, writable=True)


@dataclass(slots=True)
class Claim:
    """A slot between claim and commit."""

    seq: int
    nbytes: int
    pool: Pool


class SlotWriter:
    """Claims, fills and commits the slots of one producer. Sequences rise; several claims may be open at once.

    `visibility`, if given, is called with the payload before each commit store: where DMA is not coherent it
    flushes what the platform needs flushed (Wire 8.3). If it raises, the slot stays uncommitted.
    """

    def __init__(
        self,
        ring: HeaderRing,
        pools: Sequence[Pool],
        visibility: Callable[[memoryview], object] | None = None,
    ) -> None:
        check_pools(pools, ring.nslots)
        self._ring = ring
        self._pools = pools
        self._visibility = visibility
        self._floor = 0
        self._claims: dict[int, Claim] = {}

    def claim(self, seq: int, nbytes: int) -> memoryview:
        """Takes the slot of `seq` for `nbytes` and returns them, writable; readers see the slot as in progress.

        Raises NoPoolFits or SequenceError with the slot untouched. Never waits (Wire 9, 15.4).
        """
        if not self._floor <= seq <= MAX_SEQUENCE:
            raise SequenceError(f"sequence {seq} is out of turn: the next is {self._floor} or higher")
        index = self._ring.index(seq)
        if open_claim := self._claims.get(index):
            raise SequenceError(
                f"slot of sequence {seq} is still claimed by {open_claim.seq}: commit or abandon it first"
            )
        pool = choose_pool(self._pools, nbytes)
        self._claims[index] = Claim(seq, nbytes, pool)
        self._floor = seq + 1
        self._ring.store(index, in_progress(seq))
        return pool.payload(index, nbytes)

    def payload(self, seq: int) -> memoryview:
        """The claimed payload bytes once more."""
        claim = self._claimed(seq)
        return claim.pool.payload(self._ring.index(seq), claim.nbytes)

    def write_header(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        """Writes all of the slot but `seq_commit`, whatever it held (Wire 8.3).

        A producer that sends progress does so before the first PROGRESS, and `commit` again (decisions.md #29).
        """
        claim = self._claimed(seq)
        if layout.extent > claim.nbytes:
            raise TensorError(f"the tensor needs {layout.extent} bytes, the claim has {claim.nbytes}")
        index = self._ring.index(seq)
        header = SlotHeader(
            seq_commit=in_progress(seq),
            values_len_bytes=claim.nbytes,
            payload_slot=index,
            pool_id=claim.pool.pool_id,
            payload_offset=0,
            timestamp_ns=timestamp_ns,
            meta_version=meta_version,
            header_bytes=layout.header,
        )
        self._ring.slot(index)[SEQ_COMMIT_BYTES:] = header.encode_body()[SEQ_COMMIT_BYTES:]

    def commit(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        """Writes the header and commits: from here on readers accept the frame."""
        self.write_header(seq, layout, timestamp_ns, meta_version)
        if self._visibility is not None:
            self._visibility(self.payload(seq))
        index = self._ring.index(seq)
        del self._claims[index]
        self._ring.store(index, committed(seq))

    def abandon(self, seq: int) -> None:
        """Gives a claim up: the slot stays in progress, which readers drop, until a later frame takes it."""
        self._claimed(seq)
        del self._claims[self._ring.index(seq)]

    def _claimed(self, seq: int) -> Claim:
        claim = self._claims.get(self._ring.index(seq))
        if claim is None or claim.seq != seq:
            raise SequenceError(f"sequence {seq} is not claimed")
        return claim
