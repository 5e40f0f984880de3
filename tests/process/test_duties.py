"""What producers and consumers say to each other beside frames, over a real Aeron and with a real driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig, StreamIds
from framepool.transport import channel
from framepool.transport.aeron import Client, Subscription
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import (
    ConsumerHello,
    DataSourceAnnounce,
    FrameDescriptor,
    FrameProgress,
    FrameProgressState,
    Mode,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire.dispatch import decode
from framepool.wire.message import Message

STREAM = 10_000
MILLI = 1_000_000


@pytest.fixture
def config(base_dir: Path) -> Config:
    return Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={"default": ProfileConfig(nslots=64, pools=(PoolConfig(pool_id=1, stride_bytes=2**18),))},
    )


@pytest.fixture
def pool(config: Config) -> Iterator[fp.Pool]:
    with fp.serve(config) as pool:
        yield pool


class Ear:
    """A third party that hears one stream of the control plane."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.heard: list[Message] = []

    def all[M: Message](self, kind: type[M]) -> list[M]:
        self.heard += [decode(message) for message in self._subscription.poll(256)]
        return [message for message in self.heard if isinstance(message, kind)]


@pytest.fixture
def listen(config: Config, pool: fp.Pool) -> Iterator[Callable[[int], Ear]]:
    with Client.connect(config.aeron) as client:
        yield lambda stream: Ear(client.add_subscription(channel.control(), stream))


def wait_until(condition: Callable[[], object], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def first_frame(camera: fp.Producer, eye: fp.Consumer) -> fp.Frame:
    """Publishes until the consumer is on the producer's epoch and has a frame."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        camera.publish(np.zeros(4, np.uint8))
        frame = eye.latest(0.05)
        if frame is not None:
            return frame
    raise AssertionError(eye.statistics())


@pytest.mark.clause("W-10.3.2-03")
def test_frame_finds_the_metadata_of_its_version(pool: fp.Pool) -> None:
    camera = pool.producer(STREAM, name="camera", metadata={"gain": 4})
    eye = pool.consumer(STREAM)
    frame = first_frame(camera, eye)
    wait_until(lambda: frame.metadata)
    assert frame.metadata is not None
    assert frame.metadata["gain"] == 4
    with camera.metadata.edit():
        camera.metadata["gain"] = 8
        camera.metadata["roi"] = {"x": 1, "y": 2}
    later = first_frame(camera, eye)
    assert later.meta_version == frame.meta_version + 1
    wait_until(lambda: later.metadata)
    assert later.metadata is not None
    assert (later.metadata["gain"], later.metadata["roi"]) == (8, {"x": 1, "y": 2})
    assert frame.metadata["gain"] == 4, "the old frame keeps the old meaning"
    (source,) = pool.metadata.find("camera")
    assert source.stream_id == STREAM


@pytest.mark.clause("W-5-01")
def test_each_logical_stream_goes_where_the_configuration_says(base_dir: Path) -> None:
    ids = StreamIds(control=2000, announce=2001, descriptor=2100, qos=2200, metadata=2300)
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={"default": ProfileConfig(nslots=4, pools=(PoolConfig(pool_id=1, stride_bytes=1024),))},
        stream_ids=ids,
    )
    expected: dict[int, type[Message]] = {
        ids.control: ConsumerHello,
        ids.announce: ShmPoolAnnounce,
        ids.descriptor: FrameDescriptor,
        ids.qos: QosProducer,
        ids.metadata: DataSourceAnnounce,
    }
    with fp.serve(config) as pool, Client.connect(config.aeron) as client:
        ears = {stream: Ear(client.add_subscription(channel.control(), stream)) for stream in expected}
        unused = [Ear(client.add_subscription(channel.control(), stream)) for stream in (1000, 1001, 1100, 1200, 1300)]
        camera, eye = pool.producer(STREAM, name="camera"), pool.consumer(STREAM)
        first_frame(camera, eye)
        wait_until(lambda: all(ears[stream].all(kind) for stream, kind in expected.items()))
        assert all(ear.all(Message) == [] for ear in unused)


def test_large_metadata_arrives_whole(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    frame = first_frame(camera, eye)
    flat_field = np.random.default_rng(7).integers(0, 2**16, (512, 512), np.uint16)
    camera.send_blob(3, flat_field)
    wait_until(lambda: pool.blobs.get(STREAM, frame.meta_version, 3))
    blob = pool.blobs.get(STREAM, frame.meta_version, 3)
    assert blob is not None
    assert bytes(blob.data) == flat_field.tobytes()


@pytest.mark.clause("W-8.2-20")
def test_region_of_interest_is_metadata_and_not_header(pool: fp.Pool) -> None:
    camera = pool.producer(STREAM, metadata={"roi": [0, 64, 512, 128]})
    eye = pool.consumer(STREAM)
    frame = first_frame(camera, eye)
    wait_until(lambda: frame.metadata)
    assert frame.metadata is not None
    assert frame.metadata["roi"] == [0, 64, 512, 128]
    assert frame.shape == (4,)


@pytest.mark.clause("W-10.4.1-02", "W-15.4-05")
def test_reports_carry_the_real_counts(pool: fp.Pool, config: Config, listen: Callable[[int], Ear]) -> None:
    ear = listen(config.stream_ids.qos)
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera._frames.next_seq += 3
    camera.publish(np.zeros(4, np.uint8))
    wait_until(lambda: eye.latest(0.01) or eye.counts["gap"] >= 3)
    wait_until(lambda: any(report.drops_gap == eye.counts["gap"] for report in ear.all(QosConsumer)))
    report = ear.all(QosConsumer)[-1]
    assert report.last_seq_seen == camera.current_seq
    assert report.mode is Mode.STREAM
    wait_until(lambda: any(report.current_seq == camera.current_seq for report in ear.all(QosProducer)))


@pytest.mark.clause("W-10.1.2-14")
def test_consumer_whose_id_is_taken_goes_on_with_another(
    pool: fp.Pool, config: Config, listen: Callable[[int], Ear]
) -> None:
    ear = listen(config.stream_ids.control)
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    assert eye.duties is not None
    taken = eye.duties.introduction.consumer_id
    with Client.connect(config.aeron) as twin:
        mouth = twin.add_publication(channel.control_publication(settings=config.aeron), config.stream_ids.qos)
        report = QosConsumer(
            stream_id=STREAM,
            consumer_id=taken,
            epoch=1,
            last_seq_seen=99,
            drops_gap=0,
            drops_late=0,
            mode=Mode.STREAM,
        )
        wait_until(lambda: mouth.offer(report.encode()) > 0)
        wait_until(lambda: eye.duties and eye.duties.introduction.consumer_id != taken)
    renewed = eye.duties.introduction.consumer_id
    wait_until(lambda: renewed in {hello.consumer_id for hello in ear.all(ConsumerHello)})
    first_frame(camera, eye)


@pytest.mark.clause("W-10.2.2-01", "W-10.2.2-04", "W-8.2-12", "W-8.3-07")
def test_rows_are_readable_while_the_frame_is_written(
    pool: fp.Pool, config: Config, listen: Callable[[int], Ear]
) -> None:
    ear = listen(config.stream_ids.control)
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM, progress=True)
    first_frame(camera, eye)
    assert camera.duties is not None
    wait_until(lambda: camera.duties and camera.duties.progress.policy)
    with camera.claim((100, 1000), np.uint16, progress="rows") as slot:
        slot.array[:50] = np.arange(1000)
        wait_until(lambda: slot.progress(rows=50))
        wait_until(lambda: (partial := eye.partial(slot.seq)) and partial.rows)
        partial = eye.partial(slot.seq)
        assert partial is not None
        assert (partial.rows, partial.committed()) == (50, False)
        with partial as image:
            assert image.shape == (50, 1000)
            assert (image == np.arange(1000)).all()
        assert eye.latest(0.02) is None, "no frame before its commit"
        slot.array[50:] = 7
    wait_until(lambda: (frame := eye.latest(0.1)) and frame.seq == slot.seq)
    states = [message.state for message in ear.all(FrameProgress) if message.seq == slot.seq]
    wait_until(
        lambda: [m.state for m in ear.all(FrameProgress) if m.seq == slot.seq][-1] is FrameProgressState.COMPLETE
    )
    assert states[0] is FrameProgressState.STARTED
    assert FrameProgressState.PROGRESS in states


@pytest.mark.clause("W-10.2.2-12")
def test_nobody_is_told_of_progress_unless_somebody_asked(
    pool: fp.Pool, config: Config, listen: Callable[[int], Ear]
) -> None:
    ear = listen(config.stream_ids.control)
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    with camera.claim((100, 1000), np.uint16, progress="rows") as slot:
        time.sleep(0.05)
        assert not slot.progress(rows=50)
    wait_until(lambda: (frame := eye.latest(0.1)) and frame.seq == slot.seq)
    assert ear.all(FrameProgress) == []


@pytest.mark.clause("W-11-01")
def test_reader_that_asks_for_less_gets_frames_evenly_spread(pool: fp.Pool) -> None:
    camera = pool.producer(STREAM)
    all_of_them, few = pool.consumer(STREAM), pool.consumer(STREAM, max_rate_hz=10)
    first_frame(camera, all_of_them)
    first_frame(camera, few)
    while all_of_them.latest(0.05):
        pass
    start = time.monotonic_ns() + 1000 * MILLI
    stamps: dict[str, list[int]] = {"all": [], "few": []}
    for number in range(200):
        camera.publish(np.zeros(4, np.uint8), timestamp_ns=start + number * 10 * MILLI)
        if number % 20 == 19:
            time.sleep(0.02)
            for name, eye in (("all", all_of_them), ("few", few)):
                eye.wait(0.01)
                stamps[name] += [frame.timestamp_ns for frame in eye.poll()]
    assert len(stamps["all"]) > 150
    assert 15 <= len(stamps["few"]) <= 25, "2 seconds of frames at 10 Hz"
    assert few.counts["rate limited"] >= 100


@pytest.mark.clause("W-5-05", "W-5-09", "W-10.1.3-07")
def test_consumer_gets_a_descriptor_stream_of_its_own_that_ends_with_it(
    pool: fp.Pool, config: Config, listen: Callable[[int], Ear]
) -> None:
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM, own_stream=True, max_rate_hz=1000)
    assert eye.duties is not None
    wait_until(lambda: eye.duties and eye.duties.assignment.descriptor)
    own = eye.duties.assignment.descriptor
    low, high = config.stream_ids.consumer_descriptor
    assert low <= own.stream_id <= high
    first_frame(camera, eye)
    assert eye._descriptors.subscription.stream_id == own.stream_id
    ear = listen(own.stream_id)
    wait_until(lambda: camera.publish(np.zeros(4, np.uint8)) and ear.all(FrameDescriptor))
    assert {type(message) for message in ear.heard} == {FrameDescriptor}, "nothing else is sent there"
    assert camera.duties is not None
    eye.close()
    wait_until(lambda: not camera.duties.own_streams if camera.duties else False)
