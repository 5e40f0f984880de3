"""A frame as its reader holds it: where it is, what it is, and whether it still is (Wire 8.3; `design.md`).

The live view exists inside `with frame as image:` only, and leaving the block raises `FrameOverwritten` if the
producer lapped it meanwhile. Everything else that hands out data hands out a private copy that is known to be whole:
a read-only map given to a library that writes would end the process.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from framepool._native.seqlock import CheckedSlot, RingReader
from framepool.errors import FrameOverwritten
from framepool.shm.drop import DropReason
from framepool.wire._generated.control_900 import Dtype, MajorOrder
from framepool.wire.attributes import Metadata
from framepool.wire.dtypes import NUMPY_DTYPES

if TYPE_CHECKING:
    import torch


class Frame:
    """One frame of a stream. It stays where it is until the producer needs the place; `valid()` tells.

    >>> with frame as image:          # doctest: +SKIP
    ...     show(image)               # in place, read-only
    >>> image = frame.copy()          # doctest: +SKIP
    """

    __slots__ = (
        "_checked",
        "_late",
        "_lookup",
        "_ring",
        "epoch",
        "meta_version",
        "publish_timestamp_ns",
        "seq",
        "stream_id",
        "timestamp_ns",
        "trace_id",
    )

    def __init__(
        self,
        ring: RingReader,
        checked: CheckedSlot,
        *,
        stream_id: int,
        epoch: int,
        trace_id: int | None = None,
        publish_timestamp_ns: int | None = None,
        lookup: Callable[[int, int], Metadata | None] | None = None,
        late: Callable[[Frame], None] | None = None,
    ) -> None:
        self._ring = ring
        self._checked = checked
        self._lookup = lookup
        self._late = late
        self.stream_id = stream_id
        self.epoch = epoch
        self.seq = checked.seq
        self.timestamp_ns = checked.timestamp_ns
        self.meta_version = checked.meta_version
        self.trace_id = trace_id
        self.publish_timestamp_ns = publish_timestamp_ns

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""
        return self._checked.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; BYTES and packed BIT come as uint8."""
        return NUMPY_DTYPES[Dtype(self._checked.layout.dtype)]

    @property
    def order(self) -> Literal["C", "F"]:
        """Row-major or column-major, as numpy names them."""
        return "F" if self._checked.layout.order == MajorOrder.COLUMN else "C"

    @property
    def nbytes(self) -> int:
        """Bytes of payload in shared memory."""
        return self._checked.values_len_bytes

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the version that this frame refers to; None if it has not been heard."""
        return None if self._lookup is None else self._lookup(self.stream_id, self.meta_version)

    @property
    def slot(self) -> tuple[RingReader, CheckedSlot]:
        """Where it is: for those who read slots themselves, and look again afterwards whether it still was there."""
        return self._ring, self._checked

    def valid(self) -> bool:
        """Whether the frame is still whole right now; never again once it is not."""
        try:
            return self._ring.still(self.seq)
        except ValueError:  # the ring was closed: its epoch is over
            return False

    def __enter__(self) -> npt.NDArray[Any]:
        """The frame in place, read-only."""
        try:
            return self._ring.array(self._checked)
        except ValueError:
            raise self._overwritten() from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.valid():
            raise self._overwritten() from error

    def copy(self) -> npt.NDArray[Any]:
        """A private, writable copy that is known to be whole; `FrameOverwritten` if it cannot be had any more."""
        try:
            copied = self._ring.copy(self._checked)
        except ValueError:
            raise self._overwritten() from None
        if isinstance(copied, DropReason):
            raise self._overwritten()
        return copied

    def copy_into(self, out: npt.NDArray[Any]) -> None:
        """Copies into an array of the same shape. After `FrameOverwritten` its content is worthless."""
        with self as image:
            np.copyto(out, image, casting="same_kind")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("the live view exists only inside `with frame as image:`; here a copy is made")
        copied = self.copy()
        return copied if dtype is None else copied.astype(dtype, copy=False)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.copy().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self.copy())

    def torch(self) -> torch.Tensor:
        """A private copy as a torch tensor."""
        import torch

        return torch.from_numpy(self.copy())

    def __repr__(self) -> str:
        return f"<Frame {self.seq} of stream {self.stream_id}: {self.dtype} {'x'.join(map(str, self.shape))}>"

    def _overwritten(self) -> FrameOverwritten:
        if self._late is not None:
            late, self._late = self._late, None
            late(self)
        return FrameOverwritten(f"frame {self.seq} of stream {self.stream_id} was overwritten before it was used")
