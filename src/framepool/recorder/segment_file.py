"""A segment written from arrays, in one process and without a ring: for what is computed rather than recorded.

Several processes may write segments of one recording side by side, because a record says its number within its segment
and not its ordinal. Whoever makes them part of the recording gives each its place (`Contents.first_ordinal`).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Buffer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from framepool.recorder import format as form
from framepool.recorder.account import AccountState, Loss
from framepool.recorder.contents import Contents, LossRow, SegmentHead
from framepool.recorder.format import FRAME_HEADER, Kind
from framepool.shm.tensor import TensorLayout
from framepool.wire._generated.control_900 import SlotHeader
from framepool.wire.cursor import byte_view


class SegmentFile:
    """Writes one segment, buffered. What it returns at the end is durable.

    >>> with SegmentFile(path, recording_id) as file:                                   # doctest: +SKIP
    ...     file.add(image, stream_id=10_000, epoch=1, seq=0, timestamp_ns=time_ns())
    >>> file.contents                                                                   # doctest: +SKIP
    """

    def __init__(
        self,
        path: Path,
        recording_id: str,
        *,
        number: int = 0,
        first_ordinal: int = 0,
        host: str = "",
        boot_id: str = "",
    ) -> None:
        self.contents = Contents(
            number=number, file=path.name, segment_id=secrets.randbits(64) or 1, first_ordinal=first_ordinal
        )
        self._headers: list[bytes] = []
        self._offsets: list[int] = []
        self._next_seq: dict[int, dict[int, int]] = {}
        self._at = 0
        self._file = open(path, "xb", buffering=2**20)  # noqa: SIM115 closed in close()
        head = SegmentHead(
            recording_id=recording_id, number=number, first_ordinal=first_ordinal, host=host, boot_id=boot_id
        )
        self._add(Kind.SEGMENT, msgspec.json.encode(head), time.time_ns())

    def add(
        self,
        array: npt.NDArray[Any],
        *,
        stream_id: int,
        epoch: int,
        seq: int,
        timestamp_ns: int = 0,
        meta_version: int = 0,
        trace_id: int = 0,
    ) -> None:
        """Adds a frame; arrays that are not contiguous are copied into a row-major one."""
        columns_first = array.flags.f_contiguous and not array.flags.c_contiguous
        plain = array if columns_first else np.ascontiguousarray(array)
        layout = TensorLayout.of(plain)
        payload = (plain.T if columns_first else plain).reshape(-1).view(np.uint8)
        self.add_raw(
            payload,
            layout.header,
            stream_id=stream_id,
            epoch=epoch,
            seq=seq,
            timestamp_ns=timestamp_ns,
            meta_version=meta_version,
            trace_id=trace_id,
        )

    def add_raw(
        self,
        payload: Buffer,
        tensor_header: bytes,
        *,
        stream_id: int,
        epoch: int,
        seq: int,
        timestamp_ns: int = 0,
        meta_version: int = 0,
        trace_id: int = 0,
    ) -> None:
        """Adds a frame as it is, with its encoded TensorHeader."""
        data = byte_view(payload)
        slot = SlotHeader(
            seq_commit=seq << 1 | 1,
            values_len_bytes=len(data),
            payload_slot=0,
            pool_id=0,
            payload_offset=0,
            timestamp_ns=timestamp_ns,
            meta_version=meta_version,
            header_bytes=tensor_header,
        ).encode_body()
        header = form.encode_frame_header(
            data,
            slot,
            segment_id=self.contents.segment_id,
            number=len(self._headers),
            recorded_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            stream_id=stream_id,
            epoch=epoch,
            seq=seq,
            publish_timestamp_ns=form.NO_TIMESTAMP,
            trace_id=trace_id,
        )
        self._offsets.append(self._at)
        self._headers.append(header)
        self._write(header, data)
        epochs = self._next_seq.setdefault(stream_id, {})
        epochs[epoch] = max(seq + 1, epochs.get(epoch, 0))

    def add_loss(self, loss: Loss, recorded_ns: int | None = None) -> None:
        """Adds a row of the loss table."""
        now_ns = time.time_ns() if recorded_ns is None else recorded_ns
        self._add(Kind.LOSS, msgspec.json.encode(loss), now_ns)
        self.contents.losses.append(LossRow(loss, now_ns, len(self._headers)))

    def close(self) -> Contents:
        """Ends the segment and makes it durable."""
        contents = self.contents
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            contents.bytes = self._at
            contents.offsets = np.array(self._offsets, np.int64)
            contents.headers = np.frombuffer(b"".join(self._headers), FRAME_HEADER)
            contents.end_ordinal = contents.first_ordinal + len(self._headers)
            contents.state = {stream: AccountState(epochs) for stream, epochs in self._next_seq.items()}
        return contents

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, kind: Kind, payload: bytes, recorded_ns: int) -> None:
        record = form.encode(
            kind,
            payload,
            segment_id=self.contents.segment_id,
            number=len(self._headers),
            recorded_ns=recorded_ns,
            monotonic_ns=time.monotonic_ns(),
        )
        self._write(record)

    def _write(self, *parts: Buffer) -> None:
        for part in parts:
            self._file.write(part)
            self._at += memoryview(part).nbytes
        padding = -self._at % form.ALIGNMENT
        self._file.write(bytes(padding))
        self._at += padding
