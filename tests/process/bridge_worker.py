"""A camera whose frames say which they are, and an eye that believes none that does not: for tests of the bridge.

Lines: `attached`, `flowing N` after every 20 frames, `told SERIAL` once metadata has come, `wrong TEXT` for a frame
that is not what it says, `end JSON` with what was counted. Standard input: `end` closes and exits; `quiet` ends the
camera or the eye alone; `status` asks the bridge, if this process is a whole host with driver and bridge.

Usage: bridge_worker.py CONFIG produce|consume STREAM PERIOD BYTES [host]
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import sys
import threading
import time
import zlib

import numpy as np
import numpy.typing as npt

import framepool as fp
from framepool.config import load
from framepool.driver.driver import ShmDriver
from framepool.errors import FrameOverwritten, NotAttached

REPORT_EVERY = 20
PATIENCE = 90.0


def seal(words: npt.NDArray[np.uint64], epoch: int, seq: int) -> None:
    """Fills a frame so that it says which one it is, with a sum over all of it."""
    words[:] = np.arange(words.size, dtype=np.uint64) * np.uint64(seq + 1)
    words[0], words[1] = epoch, seq
    words[-1] = zlib.crc32(words[:-1].tobytes())


def fault(frame: fp.Frame, words: npt.NDArray[np.uint64]) -> str:
    """What is wrong with a frame; empty if nothing is."""
    if int(words[1]) != frame.seq:
        return f"frame {frame.seq} says that it is {words[1]}"
    if int(words[-1]) != zlib.crc32(words[:-1].tobytes()):
        return f"frame {frame.seq} is torn"
    if frame.timestamp_ns != 1_000 + frame.seq:
        return f"frame {frame.seq} has timestamp {frame.timestamp_ns}"
    if frame.trace_id != frame.seq + 1:
        return f"frame {frame.seq} has trace id {frame.trace_id}"
    return ""


class Camera:
    def __init__(self, pool: fp.Pool, stream_id: int, words: int) -> None:
        self.user = pool.producer(stream_id, name="camera", metadata={"serial": "SN-1"}, timeout=PATIENCE)
        self._words = words

    def turn(self) -> int:
        seq = self.user.current_seq + 1
        try:
            slot = self.user.claim(self._words, np.uint64, timestamp_ns=1_000 + seq, trace_id=seq + 1)
        except NotAttached:
            return 0
        if slot.seq != seq:  # the first of an epoch
            slot.abandon()
            return 0
        seal(slot.array, slot.epoch, slot.seq)
        try:
            slot.commit()
        except NotAttached:
            return 0
        return 1


class Eye:
    def __init__(self, pool: fp.Pool, stream_id: int) -> None:
        self.user = pool.consumer(stream_id, timeout=PATIENCE)
        self._last: tuple[int, int] | None = None
        self._told = False

    def turn(self) -> int:
        received = 0
        for frame in self.user.poll():
            try:
                words = frame.copy()
            except FrameOverwritten:
                continue
            wrong = fault(frame, words)
            at = (frame.epoch, frame.seq)
            if self._last is not None and at <= self._last:
                wrong = f"{at} came after {self._last}"
            self._last = at
            if wrong:
                print("wrong", wrong, flush=True)
            metadata = None if self._told else frame.metadata
            if metadata is not None:
                self._told = True
                print("told", metadata["serial"], flush=True)
            received += 1
        return received


def main(config: str, role: str, stream: str, period: str, size: str, whole: str = "") -> None:
    logging.basicConfig(level=logging.WARNING)  # on standard error: read when a test fails
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: [asked.put(line.strip()) for line in sys.stdin], daemon=True).start()
    settings = load(config)
    with contextlib.ExitStack() as host:
        bridge = None
        if whole:
            host.enter_context(ShmDriver(settings).start())
            bridge = host.enter_context(fp.bridge(settings))
        pool = host.enter_context(fp.connect(settings))
        worker = Camera(pool, int(stream), int(size) // 8) if role == "produce" else Eye(pool, int(stream))
        print("attached", flush=True)
        frames = 0
        while True:
            command = "" if asked.empty() else asked.get()
            if command == "end":
                break
            if command == "status" and bridge is not None:
                print("status", json.dumps(bridge.statistics()), flush=True)
            if command == "quiet":
                worker.user.close()
                print("quiet", flush=True)
            done = 0 if worker.user.closed else worker.turn()
            if (frames + done) // REPORT_EVERY > frames // REPORT_EVERY:
                print(f"flowing {frames + done}", flush=True)
            frames += done
            if isinstance(worker, Camera) or worker.user.closed:
                time.sleep(float(period))
            elif not done:
                worker.user.wait(0.02)
        said = {name: count for name, count in worker.user.counts.items() if count}
        worker.user.close()
        print("end", json.dumps({"frames": frames, **said}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
