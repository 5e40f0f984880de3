"""A frame as its reader holds it: where it is, what it is, and whether it still is (Wire 8.3; `design.md`).

The live view exists inside `with frame as image:` only, and leaving the block raises `FrameOverwritten` if the
producer lapped it meanwhile. Everything else that hands out data hands out a private copy that is known to be whole:
a read-only map given to a library that writes would end the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from framepool._native.frames import Taken
from framepool.wire._generated.control_900 import Dtype, MajorOrder
from framepool.wire.attributes import Metadata
from framepool.wire.dtypes import NUMPY_DTYPES

if TYPE_CHECKING:
    import pyarrow
    import torch


class Frame(Taken):
    """One frame of a stream. It stays where it is until the producer needs the place; `valid()` tells.

    >>> seq = camera.publish(image, trace_id=7)
    >>> frame = next(eye)
    >>> with frame as array:                                # in place, read-only; FrameOverwritten if it was lapped
    ...     array.sum()
    np.uint64(66)
    >>> frame.copy().sum()                                  # private, and known to be whole
    np.uint64(66)
    >>> frame.stream_id, frame.seq == seq, frame.epoch == eye.epoch, frame.trace_id
    (10000, True, True, 7)
    >>> frame.timestamp_ns > 0, frame.publish_timestamp_ns, frame.meta_version == camera.metadata.version
    (True, None, True)
    >>> frame.valid()                                       # until the producer comes round to its place
    True
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension.

        >>> frame.shape
        (3, 4)
        """
        return self.checked.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; BYTES and packed BIT come as uint8.

        >>> frame.dtype
        dtype('uint16')
        """
        return NUMPY_DTYPES[Dtype(self.checked.layout.dtype)]

    @property
    def order(self) -> Literal["C", "F"]:
        """Row-major or column-major, as numpy names them.

        >>> frame.order
        'C'
        """
        return "F" if self.checked.layout.order == MajorOrder.COLUMN else "C"

    @property
    def nbytes(self) -> int:
        """Bytes of payload in shared memory.

        >>> frame.nbytes
        24
        """
        return self.checked.values_len_bytes

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the version that this frame refers to; None if it has not been heard.

        >>> while frame.metadata is None:                   # told when the producer came, and once a second
        ...     pass
        >>> frame.metadata["tags"]
        ['lab:3']
        """
        found: Metadata | None = self.lookup(self.stream_id, self.meta_version) if self.lookup else None
        return found

    def copy(self) -> npt.NDArray[Any]:
        """A private, writable copy that is known to be whole; `FrameOverwritten` if it cannot be had any more.

        >>> frame.copy()[1]
        array([4, 5, 6, 7], dtype=uint16)
        """
        return self.read()

    def copy_into(self, out: npt.NDArray[Any]) -> None:
        """Copies into an array of the same shape. After `FrameOverwritten` its content is worthless.

        >>> out = np.empty(frame.shape, np.float32)
        >>> frame.copy_into(out)
        >>> out[2]
        array([ 8.,  9., 10., 11.], dtype=float32)
        """
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
        """A private copy as a torch tensor, where torch is installed.

        >>> frame.torch().shape
        torch.Size([3, 4])
        """
        import torch

        return torch.from_numpy(self.copy())

    def to_arrow(self) -> pyarrow.Tensor:
        """A private copy as an Arrow tensor, with pyarrow of the extra `framepool[spark]`; booleans come as uint8.

        >>> frame.to_arrow().shape, frame.to_arrow().type
        ((3, 4), DataType(uint16))
        """
        import pyarrow

        return pyarrow.Tensor.from_numpy(self.copy())

    def __repr__(self) -> str:
        return f"<Frame {self.seq} of stream {self.stream_id}: {self.dtype} {'x'.join(map(str, self.shape))}>"
