"""What a driver, a producer and a consumer put on the wire, listened to by a third party."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from framepool.client.consumer import Consumer
from framepool.client.plane import ControlPlane
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.clock import MonotonicClock
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.driver.driver import ShmDriver
from framepool.shm.paths import AllowedDirectories
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.settings import KIB, AeronSettings
from framepool.wire._generated.control_900 import FrameDescriptor, ShmPoolAnnounce
from framepool.wire._generated.driver_901 import Role, ShmAttachRequest, ShmAttachResponse
from framepool.wire.dispatch import decode

STREAM = 10_000
TERM = 64 * KIB


@pytest.mark.clause("W-10-01")
def test_everything_that_is_said_is_a_known_message_with_a_header(base_dir: Path) -> None:
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=50),
        profiles={"default": ProfileConfig(nslots=8, pools=(PoolConfig(pool_id=1, stride_bytes=4096),))},
    )
    clock = MonotonicClock()
    allowed = AllowedDirectories([base_dir])
    heard: list[bytes] = []
    with ShmDriver(config).start(), Client.connect(config.aeron) as client:
        ids = config.stream_ids
        ears = [client.add_subscription(channel.control(), stream) for stream in (ids.control, ids.announce)]
        ears.append(client.add_subscription(channel.control(), ids.descriptor))
        plane = ControlPlane(client, clock, ids)
        camera = plane.add(Seat(plane, STREAM, Role.PRODUCER, allowed=allowed, create=True))
        eye = plane.add(Seat(plane, STREAM, Role.CONSUMER, allowed=allowed))
        publication = client.add_publication(channel.descriptor_publication(term_length=TERM), ids.descriptor)
        descriptors = client.add_subscription(channel.descriptor_subscription(), ids.descriptor)
        producer, consumer = Producer(camera, publication, clock), Consumer(eye, descriptors.drain(max_message=64))
        image = np.arange(512, dtype=np.uint16).reshape(16, 32)
        frames = []
        deadline = time.monotonic() + 30
        while len(frames) < 20 and time.monotonic() < deadline:
            plane.do_work()
            if camera.stream and eye.stream:
                producer.publish(image)
            frames += [frame.copy() for frame in consumer.poll()]
            heard += [message for ear in ears for message in ear.poll()]
            time.sleep(0.002)
        producer.close()
        consumer.close()
        plane.on_close()
    assert len(frames) >= 20, (plane.places, camera.statistics(), eye.statistics())
    assert all(np.array_equal(frame, image) for frame in frames)
    said = {type(decode(message)) for message in heard}
    assert said >= {ShmAttachRequest, ShmAttachResponse, ShmPoolAnnounce, FrameDescriptor}
