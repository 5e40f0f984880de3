"""One face for the two implementations of a slot, so that one test shows a rule in the model and in the core.

`Slots` owns a header ring and pools in private memory and can be tampered with byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from framepool._native import seqlock
from framepool.shm import slot as model
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool, check_pools
from framepool.shm.ring import HeaderRing
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import SlotHeader, TensorHeader
from framepool.wire.message import Field

TENSOR_OFFSET = 64 + 8
"""Where in a slot the TensorHeader's block starts, behind its message header."""

type Visibility = Callable[[memoryview], object] | None

FIELDS: dict[str, tuple[int, Field]] = {
    **{field.name: (0, field) for field in SlotHeader.FIELDS if field.name != "pad"},
    **{field.name: (TENSOR_OFFSET, field) for field in TensorHeader.FIELDS if field.name != "pad"},
    "slotPad": (0, next(field for field in SlotHeader.FIELDS if field.name == "pad")),
    "tensorPad": (TENSOR_OFFSET, next(field for field in TensorHeader.FIELDS if field.name == "pad")),
    "headerLength": (0, Field("headerLength", 60, "I")),
    "blockLength": (0, Field("blockLength", 64, "H")),
    "templateId": (0, Field("templateId", 66, "H")),
    "schemaId": (0, Field("schemaId", 68, "H")),
    "version": (0, Field("version", 70, "H")),
}
"""Every field of a slot by its name on the wire."""


class Layout(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def extent(self) -> int: ...


class Checked(Protocol):
    @property
    def seq(self) -> int: ...
    @property
    def pool_id(self) -> int: ...
    @property
    def payload_slot(self) -> int: ...
    @property
    def values_len_bytes(self) -> int: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def meta_version(self) -> int: ...
    @property
    def layout(self) -> Layout: ...


class Slots:
    """A ring of `nslots` and one pool per stride, with ids from 1 in the order given."""

    def __init__(self, nslots: int = 8, strides: Sequence[int] = (1024, 4096), visibility: Visibility = None) -> None:
        self.nslots = nslots
        self.header = np.zeros(64 + 256 * nslots, np.uint8)
        self.pools = [
            Pool(pool_id, stride, nslots, np.zeros(64 + stride * nslots, np.uint8))
            for pool_id, stride in enumerate(strides, 1)
        ]
        self.bind(visibility)

    def bind(self, visibility: Visibility) -> None:
        raise NotImplementedError

    def slot(self, index: int) -> npt.NDArray[np.uint8]:
        """The 256 bytes of a header slot."""
        return self.header[64 + 256 * index : 64 + 256 * (index + 1)]

    def pool_bytes(self, pool_id: int) -> npt.NDArray[np.uint8]:
        """All bytes of a pool, its superblock first."""
        return np.frombuffer(self.pools[pool_id - 1].buffer, np.uint8)

    def word(self, index: int) -> int:
        """`seq_commit` of a slot, read as plain bytes."""
        return int.from_bytes(self.slot(index)[:8].tobytes(), "little")

    def get(self, index: int, name: str) -> Any:
        """A field of a slot: a number, or a tuple of numbers."""
        start, field = FIELDS[name]
        values = struct.unpack_from(f"<{field.code}", self.slot(index), start + field.offset)
        return values if len(values) > 1 else values[0]

    def put(self, index: int, name: str, value: Any, at: int | None = None) -> None:
        """Overwrites a field of a slot, or one element of an array field, leaving `seq_commit` alone."""
        start, field = FIELDS[name]
        if at is None:
            values = value if isinstance(value, tuple) else (value,)
            struct.pack_into(f"<{field.code}", self.slot(index), start + field.offset, *values)
        else:
            struct.pack_into("<i", self.slot(index), start + field.offset + 4 * at, value)

    def publish(
        self,
        seq: int,
        layout: TensorLayout,
        data: bytes | None = None,
        *,
        nbytes: int | None = None,
        timestamp_ns: int = 0,
        meta_version: int = 0,
    ) -> None:
        """Claim, fill with `data` if given, commit."""
        self.claim(seq, layout.extent if nbytes is None else nbytes)
        if data is not None:
            self.payload(seq)[: len(data)] = data
        self.commit(seq, layout, timestamp_ns, meta_version)

    def accept(self, seq: int) -> Checked:
        """The checked slot of a frame that must be accepted."""
        checked = self.check(seq)
        assert not isinstance(checked, DropReason), checked
        return checked

    def claim(self, seq: int, nbytes: int) -> None:
        raise NotImplementedError

    def payload(self, seq: int) -> memoryview:
        raise NotImplementedError

    def write_header(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        raise NotImplementedError

    def commit(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        raise NotImplementedError

    def abandon(self, seq: int) -> None:
        raise NotImplementedError

    def check(self, seq: int) -> Checked | DropReason:
        raise NotImplementedError

    def still(self, seq: int) -> bool:
        raise NotImplementedError

    def array(self, checked: Any) -> npt.NDArray[Any]:
        raise NotImplementedError

    def copy(self, checked: Any) -> npt.NDArray[Any] | DropReason:
        raise NotImplementedError


class ModelSlots(Slots):
    """The readable Python of `framepool.shm`."""

    def bind(self, visibility: Visibility) -> None:
        self.ring = HeaderRing(self.header, self.nslots)
        self.by_id = check_pools(self.pools, self.nslots)
        self.writer = model.SlotWriter(self.ring, self.pools, visibility)

    def claim(self, seq: int, nbytes: int) -> None:
        self.writer.claim(seq, nbytes)

    def payload(self, seq: int) -> memoryview:
        return self.writer.payload(seq)

    def write_header(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        self.writer.write_header(seq, layout, timestamp_ns, meta_version)

    def commit(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        self.writer.commit(seq, layout, timestamp_ns, meta_version)

    def abandon(self, seq: int) -> None:
        self.writer.abandon(seq)

    def check(self, seq: int) -> Checked | DropReason:
        return model.check_slot(self.ring, self.by_id, seq)

    def still(self, seq: int) -> bool:
        return model.still_committed(self.ring, seq)

    def array(self, checked: Any) -> npt.NDArray[Any]:
        return model.payload_array(self.by_id, checked)

    def copy(self, checked: Any) -> npt.NDArray[Any] | DropReason:
        return model.copy_payload(self.ring, self.by_id, checked)


class CoreSlots(Slots):
    """The compiled core, `framepool._native.seqlock`."""

    def bind(self, visibility: Visibility) -> None:
        self.writer = seqlock.RingWriter(self.header, self.nslots, self.pools, visibility)
        self.reader = seqlock.RingReader(self.header, self.nslots, self.pools)

    def claim(self, seq: int, nbytes: int) -> None:
        self.writer.claim(seq, nbytes)

    def payload(self, seq: int) -> memoryview:
        return self.writer.payload(seq)

    def write_header(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        self.writer.write_header(seq, seqlock.Layout(layout.header), timestamp_ns, meta_version)

    def commit(self, seq: int, layout: TensorLayout, timestamp_ns: int = 0, meta_version: int = 0) -> None:
        self.writer.commit(seq, seqlock.Layout(layout.header), timestamp_ns, meta_version)

    def abandon(self, seq: int) -> None:
        self.writer.abandon(seq)

    def check(self, seq: int) -> Checked | DropReason:
        return self.reader.check(seq)

    def still(self, seq: int) -> bool:
        return self.reader.still(seq)

    def array(self, checked: Any) -> npt.NDArray[Any]:
        return self.reader.array(checked)

    def copy(self, checked: Any) -> npt.NDArray[Any] | DropReason:
        return self.reader.copy(checked)


IMPLEMENTATIONS: tuple[type[Slots], ...] = (ModelSlots, CoreSlots)
