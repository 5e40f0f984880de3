"""A frame that is overwritten while it is copied leaves no record: two threads race, and every record is whole."""

from __future__ import annotations

import threading
import time

import numpy as np

from framepool._native.recording import DONE, LAPPED, TORN, Staging
from framepool._native.seqlock import Layout
from framepool.recorder import format as form
from framepool.shm.drop import DropReason
from framepool.shm.tensor import TensorLayout
from tests.support.tape import Framed, Ring

FRAME = 2**20
PATIENCE = 60.0


def test_no_record_is_made_of_two_frames() -> None:
    ring, staging = Ring(nslots=1, strides=(FRAME,)), Staging(8 * FRAME)
    layout = Layout(TensorLayout.build(np.uint8, (FRAME,)).header)
    stop = threading.Event()
    newest = 0

    def write() -> None:
        nonlocal newest
        seq = 0
        while not stop.is_set():
            ring.writer.publish(seq, np.full(FRAME, seq % 251, np.uint8), layout)
            newest = seq
            seq += 1

    writer = threading.Thread(target=write)
    writer.start()
    seen = {DONE: 0, TORN: 0, LAPPED: 0}
    deadline = time.monotonic() + PATIENCE
    try:
        while (seen[TORN] < 20 or seen[DONE] < 20) and time.monotonic() < deadline:
            checked = ring.reader.check(newest)
            if isinstance(checked, DropReason):
                continue
            frame = Framed((ring.reader, checked))
            count, code = staging.stage([frame], 0, staging.head, 2**40, 1, 0, 0, 0)
            seen[code] += 1
            assert count == (code == DONE)
            if count:
                with staging.view(staging.tail, staging.head) as content:
                    (record,) = form.walk(content)
                    payload = np.frombuffer(form.payload(content, record), np.uint8)
                    assert (payload == frame.seq % 251).all(), "torn"
                    assert form.is_whole(content, record)
                    del payload
            staging.release(staging.head)
    finally:
        stop.set()
        writer.join()
    assert seen[DONE] >= 20, seen
    assert seen[TORN] >= 20, seen
