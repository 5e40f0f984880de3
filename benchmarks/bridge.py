"""The bridge over loopback UDP at an MTU of 8 KiB, against plain Aeron messages of the same size in the same run.

Either way one thread does the work of both ends beside the media driver's own: it offers messages and polls them, or it
forwards frames of 2 MiB, from the descriptor of the one ring to that of the other. The producer's own work is left out:
its frames are committed as they lie. Rounds take turns. The figure is nanoseconds for a MiB of payload, so 1 / ratio is
the share of plain Aeron's throughput that the bridge reaches; 80 % is promised. Where zenoh is installed, the same
frames go over its TCP in the same rounds, between two sessions with as many threads as it likes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.row import Row
from framepool._native.frames import FrameReader, FrameWriter
from framepool._native.seqlock import Layout, RingReader, RingWriter
from framepool.bridge.chunks import CHUNK_OVERHEAD, ChunkSizing
from framepool.bridge.receiver import Assembler, ChunkReceiver, StreamTarget
from framepool.bridge.sender import ChunkSender
from framepool.bridge.window import listen
from framepool.shm.pool import Pool
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import AnyPublication, Client, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, MIB, AeronSettings

MTU = 8 * KIB
SIZING = ChunkSizing(mtu_bytes=MTU, chunk_bytes=MTU - 128)
UDP = f"aeron:udp?endpoint=127.0.0.1:40456|mtu={MTU}|term-length=16m"
IPC = "aeron:ipc?term-length=1m"
FRAME = 2 * MIB
FRAMES = 8
"""In a round, and slots of a ring."""
ROUNDS = 60
STREAM, EPOCH = 10_000, 1
BASELINE = "plain messages of 8 KiB"
ZENOH, ZENOH_TCP = "tcp/127.0.0.1:40457", "zenoh over TCP"
LIMIT = 1 / 0.8


class Side:
    """A ring in memory, and the stream that tells of its frames."""

    def __init__(self, client: Client, stream_id: int) -> None:
        buffer = mmap.mmap(-1, 64 + FRAME * FRAMES)
        for page in range(0, len(buffer), mmap.PAGESIZE):
            buffer[page] = 1
        parts = mmap.mmap(-1, 64 + 256 * FRAMES), FRAMES, [Pool(1, FRAME, FRAMES, buffer)]
        self.slots = RingWriter(*parts)
        publication = client.add_publication(IPC, stream_id)
        drain = client.add_subscription(IPC, stream_id).drain(capacity=2 * FRAMES, max_message=64)
        while not publication.is_connected:
            time.sleep(0.001)
        self.writer = FrameWriter(publication, self.slots, STREAM, EPOCH)
        self.reader = FrameReader(drain, RingReader(*parts), STREAM, EPOCH)


class Bridge:
    """Both ends of a mapping."""

    def __init__(
        self, client: Client, publication: AnyPublication, subscription: Subscription, *, crc32c: bool
    ) -> None:
        self.source = Side(client, 1100 + 2 * crc32c)
        self.destination = Side(client, 1101 + 2 * crc32c)
        self.layout = Layout(TensorLayout.build("u1", (FRAME,)).header)
        self.sender = ChunkSender(publication, STREAM, SIZING, crc32c=crc32c)
        self.assembler = Assembler(STREAM, SIZING, timeout_ns=60 * 10**9, crc32c=crc32c)
        self.assembler.announce(EPOCH, {1: FRAME})
        self.assembler.target = StreamTarget(self.destination.writer)
        self.subscription = subscription
        self.seq = 0

    def produce(self) -> None:
        """As many frames as the ring holds, without their bytes being written."""
        for seq in range(self.seq, self.seq + FRAMES):
            self.source.slots.claim(seq, FRAME)
            assert self.source.writer.commit(seq, self.layout) >= 0
        self.seq += FRAMES

    def forward(self) -> None:
        reader = self.source.reader
        if not self.sender.sending and (taken := reader.take(1)) and reader.ring is not None:
            self.sender.start(reader.ring, taken[0].checked, EPOCH, taken[0].trace_id)
        self.sender.step(32)

    def run(self) -> None:
        self.produce()
        receiver = ChunkReceiver(self.subscription)
        receiver.add(self.assembler)
        wanted = self.assembler.published + FRAMES
        while self.assembler.published < wanted:
            self.forward()
            receiver.poll(time.monotonic_ns(), 64)
        receiver.close()
        self.destination.reader.take()


def plain(publication: AnyPublication, subscription: Subscription) -> None:
    """As many bytes of payload in messages as long as a chunk is."""
    message = bytes(SIZING.chunk_bytes + CHUNK_OVERHEAD)
    count = -(-FRAME * FRAMES // SIZING.chunk_bytes)
    sent = received = 0
    while received < count:
        for _ in range(min(32, count - sent)):
            if publication.offer(message) < 0:
                break
            sent += 1
        received += len(subscription.poll(64))


@contextlib.contextmanager
def zenoh_tcp() -> Iterator[Callable[[], None]]:
    """What sends as many frames over zenoh and waits until they have arrived."""
    import zenoh

    def session(key: str) -> zenoh.Session:
        config = zenoh.Config()
        config.insert_json5("scouting/multicast/enabled", "false")
        config.insert_json5(f"{key}/endpoints", f'["{ZENOH}"]')
        return zenoh.open(config)

    frame = bytes(FRAME)
    arrived = threading.Semaphore(0)
    with session("listen") as there, session("connect") as here:
        heard = there.declare_subscriber("frames", lambda sample: arrived.release())
        publisher = here.declare_publisher("frames", congestion_control=zenoh.CongestionControl.BLOCK)
        while not publisher.matching_status.matching:
            time.sleep(0.01)

        def send() -> None:
            for _ in range(FRAMES):
                publisher.put(frame)
            for _ in range(FRAMES):
                assert arrived.acquire(timeout=60)

        yield send
        heard.undeclare()


def measure(client: Client, zenoh: Callable[[], None] | None) -> dict[str, float]:
    """Nanoseconds per MiB of payload, medians over the rounds."""
    publication = client.add_exclusive_publication(UDP, 3000)
    subscription = listen(client, UDP, 3000)
    while not publication.is_connected:
        time.sleep(0.001)
    bridges = {
        "frames": Bridge(client, publication, subscription, crc32c=False),
        "frames with checksums": Bridge(client, publication, subscription, crc32c=True),
    }
    turns: dict[str, Callable[[], None]] = {name: bridge.run for name, bridge in bridges.items()}
    turns[BASELINE] = lambda: plain(publication, subscription)
    if zenoh is not None:
        turns[ZENOH_TCP] = zenoh
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, turn in turns.items():
            started = time.perf_counter_ns()
            turn()
            times.setdefault(name, []).append((time.perf_counter_ns() - started) * MIB / (FRAME * FRAMES))
    for bridge in bridges.values():
        told = ROUNDS * FRAMES * FRAME
        assert bridge.sender.statistics()["payload_bytes"] == bridge.assembler.copied_bytes == told
    return {name: statistics.median(values) for name, values in times.items()}


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="framepool-bench-", dir="/dev/shm") as root:
        settings = AeronSettings(directory=f"{root}/aeron")
        with contextlib.ExitStack() as open_:
            open_.enter_context(MediaDriver(settings))
            client = open_.enter_context(Client.connect(settings, name="bench"))
            peer = open_.enter_context(zenoh_tcp()) if importlib.util.find_spec("zenoh") else None
            times = measure(client, peer)
    baseline, zenoh = times.pop(BASELINE), times.pop(ZENOH_TCP, None)
    limits = {"frames": LIMIT}
    rows = [
        Row(f"bridge: {name}, a MiB", value, f"{BASELINE}, a MiB", baseline, limits.get(name))
        for name, value in times.items()
    ]
    if zenoh is not None:
        rows += [Row(f"bridge: {name}, a MiB", value, f"{ZENOH_TCP}, a MiB", zenoh) for name, value in times.items()]
    return rows
