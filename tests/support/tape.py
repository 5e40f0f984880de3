"""Frames for a recorder without Aeron: a ring in private memory, and what a reader would take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framepool._native.recording import DONE, SEGMENT_FULL, Staging
from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.clock import ManualClock
from framepool.config import RecorderConfig
from framepool.recorder.account import AccountState, Loss, Reason
from framepool.recorder.disk import Disk
from framepool.recorder.manifest import Manifest
from framepool.recorder.recovery import take_over
from framepool.recorder.sealing import Frontier, Sealer
from framepool.recorder.segments import SegmentLog
from framepool.shm.drop import DropReason
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout

STREAM, EPOCH = 10_000, 2**40 + 1


@dataclass
class Framed:
    """A frame as a consumer hands it over."""

    slot: tuple[RingReader, CheckedSlot]
    stream_id: int = STREAM
    epoch: int = EPOCH
    publish_timestamp_ns: int | None = None
    trace_id: int | None = None

    @property
    def seq(self) -> int:
        return self.slot[1].seq


class Ring:
    """A writer and a reader of one ring."""

    def __init__(self, nslots: int = 8, strides: Sequence[int] = (1024, 65_536)) -> None:
        self.header = np.zeros(64 + 256 * nslots, np.uint8)
        self.pools = [
            Pool(number, stride, nslots, np.zeros(64 + stride * nslots, np.uint8))
            for number, stride in enumerate(strides, 1)
        ]
        self.writer = RingWriter(self.header, nslots, self.pools)
        self.reader = RingReader(self.header, nslots, self.pools)

    def publish(
        self, seq: int, array: npt.NDArray[Any], *, timestamp_ns: int = 0, meta_version: int = 0, **told: Any
    ) -> Framed:
        """Commits a frame and takes it, as its descriptor would let a reader do."""
        data = np.ascontiguousarray(array)
        layout = Layout(TensorLayout.of(data).header)
        self.writer.publish(seq, data, layout, timestamp_ns, meta_version)
        return self.take(seq, **told)

    def take(self, seq: int, **told: Any) -> Framed:
        checked = self.reader.check(seq)
        assert not isinstance(checked, DropReason), checked
        return Framed((self.reader, checked), **told)


def picture(seed: int, nbytes: int = 600) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


class Workshop:
    """Log, disk and sealer of a recording, turned by hand."""

    def __init__(self, path: Path, *, nslots: int = 8, **settings: Any) -> None:
        self.config = RecorderConfig(**{"staging_bytes": 2**20, "segment_bytes": 2**20, **settings})
        self.clock = ManualClock()
        self.manifest = Manifest(path)
        self.begin = take_over(self.manifest)
        self.staging = Staging(self.config.staging_bytes)
        self.log = SegmentLog(
            self.staging,
            self.begin.info,
            self.config,
            self.clock,
            next_number=self.begin.next_number,
            next_ordinal=self.begin.next_ordinal,
        )
        self.frontier = Frontier(self.manifest, self.clock, self.begin.next_ordinal)
        self.sealer = Sealer(self.manifest, self.config, self.clock, self.frontier)
        self.disk = Disk(
            self.manifest.segments,
            self.log,
            self.clock,
            reserve_bytes=self.config.segment_bytes,
            direct=self.config.direct_io == "auto",
            on_flushed=self.frontier.flushed,
            on_ended=self.sealer.take,
        )
        self.ring = Ring(nslots)
        self.next_seq = {stream: known.next_seq.get(EPOCH, 0) for stream, known in self.begin.state.items()}
        self.state: dict[int, AccountState] = dict(self.begin.state)

    def record(self, count: int = 1, nbytes: int = 600, *, stream_id: int = STREAM, **told: Any) -> None:
        """Adds frames; their content follows from their sequence."""
        for _ in range(count):
            seq = self.next_seq.get(stream_id, 0)
            ring = Ring(8)
            frame = ring.publish(seq, picture(seq, nbytes), timestamp_ns=1000 + seq, stream_id=stream_id, **told)
            added, code = self.log.add_frames([frame])
            if code == SEGMENT_FULL:
                self.roll()
                added, code = self.log.add_frames([frame])
            assert (added, code) == (1, DONE), "no room: turn the disk"
            self.next_seq[stream_id] = seq + 1
            self.state[stream_id] = AccountState({EPOCH: seq + 1})

    def lose(self, count: int = 1, reason: Reason = Reason.GAP, *, stream_id: int = STREAM) -> None:
        first = self.next_seq.get(stream_id, 0)
        loss = Loss(stream_id=stream_id, epoch=EPOCH, first_seq=first, last_seq=first + count - 1, reason=reason)
        assert self.log.add_loss(loss)
        self.next_seq[stream_id] = first + count
        self.state[stream_id] = AccountState({EPOCH: first + count})

    def flush(self) -> None:
        assert self.log.flush()

    def roll(self) -> None:
        assert self.log.end(dict(self.state))

    def turn(self, times: int | None = None) -> int:
        """Lets disk and sealer work, until there is nothing to do or so often."""
        done = 0
        while times is None or done < times:
            if not self.disk.do_work() and not self.sealer.do_work():
                break
            done += 1
        return done

    def close(self) -> None:
        """As in good order."""
        self.roll()
        self.turn()
        self.kill()

    def kill(self) -> None:
        """Leaves everything as it is, as the end of the process would."""
        self.disk.on_close()
        self.manifest.unlock()
