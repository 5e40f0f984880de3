"""Why a frame is dropped: one number for each rule of Wire 8.2, 8.3, 10.2.1 and 15.8 that a slot can break.

A drop is no error (Wire 15.21): the frame is discarded, counted and forgotten. The numbers are shared with the
compiled core, which names them once more in ``_native/seqlock.pxd``; a test keeps the two lists equal.
"""

from __future__ import annotations

from enum import IntEnum


class DropReason(IntEnum):
    """The first rule, in the order of this list, that the slot breaks; 0 is never a reason."""

    NOT_COMMITTED = 1
    """The commit bit is 0: never written, or being written now (Wire 8.3)."""
    WRONG_SEQUENCE = 2
    """The slot holds another frame than the descriptor names (Wire 10.2.1)."""
    OVERWRITTEN = 3
    """`seq_commit` changed while the slot was read (Wire 15.3)."""

    PAYLOAD_OFFSET = 4
    """`payload_offset` is not 0 (Wire 8.2)."""
    PAYLOAD_SLOT_RANGE = 5
    """`payload_slot` lies beyond the pool (Wire 10.2.1)."""
    PAYLOAD_SLOT = 6
    """`payload_slot` is not the header's own index (Wire 15.5)."""
    UNKNOWN_POOL = 7
    """No mapped pool has this `pool_id`."""
    VALUES_LENGTH = 8
    """`values_len_bytes` is more than the pool's stride (Wire 10.2.1)."""

    HEADER_LENGTH = 9
    """`headerBytes` is not as long as a TensorHeader with its message header (Wire 8.3)."""
    HEADER_SCHEMA = 10
    """The embedded message is of another schema (Wire 8.3)."""
    HEADER_VERSION = 11
    """The embedded message is of another schema version (Wire 8.3)."""
    HEADER_TEMPLATE = 12
    """The embedded message is no TensorHeader (Wire 8.3)."""
    HEADER_BLOCK_LENGTH = 13
    """The embedded message claims another block length than its bytes have (Wire 8.3)."""

    DTYPE = 14
    """`dtype` is unknown (Wire 15.8, decisions.md #31)."""
    MAJOR_ORDER = 15
    """`major_order` is unknown (Wire 15.8, decisions.md #31)."""
    NDIMS = 16
    """`ndims` is 0 or more than MAX_DIMS (Wire 8.2)."""
    PROGRESS_UNIT = 17
    """`progress_unit` is unknown (Wire 15.8)."""
    NEGATIVE_DIM = 18
    """A dimension is negative (decisions.md #31)."""
    TOO_LARGE = 19
    """The shape has more bytes than an address can count, whatever its strides."""
    NEGATIVE_STRIDE = 20
    """A stride is negative (Wire 8.2)."""
    BIT_STRIDES = 21
    """A BIT tensor declares strides; it is always contiguous (decisions.md #31)."""
    STRIDE_ORDER = 22
    """The strides contradict `major_order` (Wire 8.2)."""
    STRIDE_OVERLAP = 23
    """The strides let elements overlap (Wire 8.2)."""
    PROGRESS_AXIS = 24
    """Progress counts columns of a tensor that has none (decisions.md #30)."""
    PROGRESS_STRIDE_ZERO = 25
    """Progress is declared without a stride (Wire 8.2)."""
    PROGRESS_STRIDE = 26
    """The progress stride is not that of the rows or columns (Wire 8.2)."""
    EXTENT = 27
    """The tensor reaches beyond `values_len_bytes` (decisions.md #31)."""

    @property
    def late(self) -> bool:
        """Whether the frame was overwritten or in flight (drops_late) rather than malformed (decisions.md #25)."""
        return self <= DropReason.OVERWRITTEN
