"""Whoever joins a stream again hears its last messages again: that is no producer that goes back (Wire 15.2).

With real Aeron: a reader that joins anew is let in where the slowest other reader stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from framepool._native.frames import FrameReader, FrameWriter
from framepool._native.seqlock import Layout, RingReader, RingWriter
from framepool.shm.tensor import TensorLayout
from framepool.transport.aeron import Client, Drain, Publication, Subscription
from framepool.wire._generated.control_900 import FrameDescriptor
from tests.support.slots import CoreSlots
from tests.unit.transport.conftest import CHANNEL, open_for_messages

STREAM, EPOCH, NSLOTS = 10_000, 5, 8
LAYOUT = Layout(TensorLayout.build(np.uint8, (4,)).header)


class Scene:
    """A producer, a reader that can join again, and an onlooker that stands still and keeps what was said."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.subscription: Subscription = client.add_subscription(CHANNEL, 20)
        self.onlooker: Subscription = client.add_subscription(CHANNEL, 20)
        self.publication: Publication = client.add_publication(CHANNEL, 20)
        while not open_for_messages(self.publication):
            time.sleep(0.001)
        self.slots = CoreSlots(nslots=NSLOTS)
        self.ring: RingWriter = self.slots.writer
        self.writer = FrameWriter(self.publication, self.ring, STREAM, EPOCH)
        self.drain: Drain = self.subscription.drain(capacity=4096, max_message=64)
        reader = RingReader(self.slots.header, NSLOTS, self.slots.pools)
        self.reader: FrameReader = FrameReader(self.drain, reader, STREAM, EPOCH)
        self.seen: list[int] = []

    def publish(self, *seqs: int) -> None:
        for seq in seqs:
            assert self.writer.publish(seq, np.zeros(4, np.uint8), LAYOUT) > 0

    def tell(self, *seqs: int) -> None:
        """Descriptors alone."""
        for seq in seqs:
            message = FrameDescriptor(stream_id=STREAM, epoch=EPOCH, seq=seq).encode()
            while self.publication.offer(message) < 0:
                time.sleep(0.0001)

    def rejoin(self) -> None:
        self.client.rejoin(self.subscription)

    def take(self) -> None:
        self.seen += [taken.seq for taken in self.reader.take() or []]

    def take_until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline, (self.seen, self.reader.statistics())
            self.take()


@pytest.fixture
def scene(client: Client) -> Iterator[Scene]:
    scene = Scene(client)
    yield scene
    scene.ring.close()
    scene.drain.close()


def test_frames_that_are_told_of_again_are_passed_over(scene: Scene) -> None:
    scene.publish(*range(6))
    scene.take_until(lambda: scene.seen == [0, 1, 2, 3, 4, 5])
    scene.rejoin()
    scene.publish(6)
    scene.take_until(lambda: scene.seen[-1] == 6)
    assert scene.seen == [0, 1, 2, 3, 4, 5, 6]
    assert (scene.reader.repeated, scene.reader.regressions, scene.reader.gap) == (6, 0, 0)


def test_frames_that_are_told_of_again_long_after_they_were_overwritten_are_passed_over(scene: Scene) -> None:
    for seq in range(5 * NSLOTS):
        scene.publish(seq)
        scene.take_until(lambda seq=seq: scene.seen and scene.seen[-1] == seq)
    scene.rejoin()
    scene.publish(5 * NSLOTS)
    scene.take_until(lambda: scene.seen[-1] == 5 * NSLOTS)
    assert scene.seen == list(range(5 * NSLOTS + 1))
    assert (scene.reader.repeated, scene.reader.regressions) == (5 * NSLOTS, 0)


def test_frames_that_waited_when_the_reader_joined_again_come_before_those_that_are_repeated(scene: Scene) -> None:
    scene.publish(*range(3))
    scene.take_until(lambda: scene.seen == [0, 1, 2])
    scene.publish(3, 4)
    while scene.drain.statistics()["received"] < 5:
        time.sleep(0.001)
    scene.rejoin()
    scene.publish(5)
    scene.take_until(lambda: scene.seen[-1] == 5)
    assert scene.seen == [0, 1, 2, 3, 4, 5]
    assert (scene.reader.repeated, scene.reader.regressions) == (5, 0)


@pytest.mark.clause("W-15.2-06")
def test_producer_that_goes_back_is_noticed_at_once(scene: Scene) -> None:
    scene.publish(*range(4))
    scene.take_until(lambda: len(scene.seen) == 4)
    scene.tell(2)
    scene.take_until(lambda: scene.reader.regressed == 2)


@pytest.mark.clause("W-15.2-06")
def test_producer_that_goes_back_after_the_reader_joined_again_is_noticed_within_a_lap(scene: Scene) -> None:
    """It begins at 0 again, in its slots as well, and never says anything new."""
    scene.publish(*range(100, 100 + NSLOTS))
    scene.take_until(lambda: len(scene.seen) == NSLOTS)
    while scene.onlooker.poll(64):  # nothing is repeated
        pass
    scene.rejoin()
    again = RingWriter(scene.slots.header, NSLOTS, scene.slots.pools)
    scene.slots.header[64:] = 0
    writer = FrameWriter(scene.publication, again, STREAM, EPOCH)
    for seq in range(NSLOTS + 1):
        writer.publish(seq, np.zeros(4, np.uint8), LAYOUT)
        scene.take()
    scene.take_until(lambda: scene.reader.regressed is not None)
    assert scene.reader.repeated <= NSLOTS
    assert scene.seen == list(range(100, 100 + NSLOTS)), "nothing of it was handed out"
    again.close()


@pytest.mark.clause("W-15.2-06")
def test_once_something_new_has_come_a_producer_that_goes_back_is_noticed_at_once(scene: Scene) -> None:
    scene.publish(*range(4))
    scene.take_until(lambda: len(scene.seen) == 4)
    scene.rejoin()
    scene.publish(4)
    scene.take_until(lambda: scene.seen[-1] == 4)
    repeated = scene.reader.repeated
    scene.tell(3)
    scene.take_until(lambda: scene.reader.regressed == 3)
    assert scene.reader.repeated == repeated
