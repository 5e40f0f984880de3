"""One end of a link, which says how many bytes its process copied; run by test_bridge_copies.py."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time

import numpy as np

from framepool._native.bridge import Assembler, ChunkReceiver
from framepool._native.seqlock import CheckedSlot, Layout, RingReader, RingWriter
from framepool.bridge.chunks import ChunkSizing
from framepool.bridge.receiver import PrivateTarget
from framepool.bridge.sender import ChunkSender
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings

STREAM, EPOCH = 10_000, 1
SIZING = ChunkSizing(mtu_bytes=8192, chunk_bytes=8064)
FRAME, FRAMES = 2**20, 16


def copied() -> int:
    count = ctypes.CDLL(None).bytes_copied
    count.restype = ctypes.c_ulonglong
    return int(count())


def send(client: Client, channel: str) -> None:
    publication = client.add_exclusive_publication(channel, 3000)
    while not publication.is_connected:
        time.sleep(0.001)
    parts = mmap.mmap(-1, 64 + 256 * FRAMES), FRAMES, [Pool(1, FRAME, FRAMES, mmap.mmap(-1, 64 + FRAME * FRAMES))]
    writer, reader = RingWriter(*parts), RingReader(*parts)
    layout = Layout(TensorLayout.build(np.uint8, (FRAME,)).header)
    sender = ChunkSender(publication, STREAM, SIZING)
    before = copied()
    for seq in range(FRAMES):
        writer.claim(seq, FRAME)
        writer.commit(seq, layout)
        checked = reader.check(seq)
        assert isinstance(checked, CheckedSlot)
        sender.start(reader, checked, EPOCH)
        while sender.sending:
            sender.step()
    report(copied() - before, sender.statistics()["sent"])


def receive(client: Client, channel: str) -> None:
    receiver = ChunkReceiver(client.add_subscription(channel, 3000))
    assembler = Assembler(STREAM, SIZING, timeout_ns=60 * 10**9)
    assembler.announce(EPOCH, {1: FRAME})
    assembler.target = PrivateTarget({1: FRAME})
    receiver.add(assembler)
    print("listening", flush=True)
    before = copied()
    while assembler.published < FRAMES:
        receiver.poll(time.monotonic_ns())
    report(copied() - before, assembler.published)


def report(nbytes: int, frames: int) -> None:
    print(json.dumps({"copied": nbytes, "payload": FRAME * FRAMES, "frames": frames}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    role, directory, channel = sys.argv[1:]
    with Client.connect(AeronSettings(directory=directory)) as client:
        (send if role == "send" else receive)(client, channel)
