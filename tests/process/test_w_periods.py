"""How often a producer and a consumer speak by default: ten seconds of a clock that is moved by hand (Wire 15.11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import framepool as fp
from framepool.client.consumer_duties import ConsumerDuties
from framepool.client.plane import ControlPlane
from framepool.client.producer_duties import ProducerDuties
from framepool.client.qos import ConsumerReading
from framepool.client.standalone import OwnedPlace
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import ClientConfig, Config
from framepool.shm.allocator import Allocator
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import (
    ConsumerHello,
    DataSourceAnnounce,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from tests.support.onlooker import STREAM, Onlooker, first_frame, small_config, wait_until

STEP_NS = 50 * NANOS_PER_MILLI


class Plane:
    """A producer that owns its stream and a consumer, turned by the test."""

    def __init__(self, config: Config, client: Client) -> None:
        self.clock = ManualClock(start_ns=1_000 * NANOS_PER_SECOND)
        self.plane = ControlPlane(client, self.clock, config.stream_ids, config.channels)
        announces = client.add_publication(
            channel.control_publication(settings=config.aeron), config.stream_ids.announce
        )
        allocator = Allocator(config.driver.shm_base_dir, "periods")
        self.place = OwnedPlace(self.plane, STREAM, config.profile("default"), allocator, announces, config)
        self.plane.add(self.place)
        self.plane.join(
            ProducerDuties(self.plane, client, config, self.place, current_seq=lambda: 0, attributes={"gain": 1})
        )
        reading = ConsumerReading(epoch=1, last_seq_seen=0, drops_gap=0, drops_late=0)
        period_ns = config.client.qos_period_ms * NANOS_PER_MILLI
        self.plane.join(ConsumerDuties(self.plane, STREAM, read=lambda: reading, qos_period_ns=period_ns))
        self.activity: set[int] = set()

    def run(self, seconds: int) -> None:
        for _ in range(seconds * NANOS_PER_SECOND // STEP_NS):
            self.clock.advance(STEP_NS)
            self.plane.do_work()
            assert self.place.stream is not None
            self.activity.add(self.place.stream.superblock().activity_timestamp_ns)


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings) as client:
        yield client


def spoken(config: Config, client: Client, seconds: int) -> tuple[Counter[str], Plane]:
    """How many messages of each kind an onlooker hears, after the first ones that come of joining."""
    ids = config.stream_ids
    with Onlooker(config) as onlooker:
        ears = [onlooker.listen(stream) for stream in (ids.announce, ids.metadata, ids.qos)]
        plane = Plane(config, client)
        try:
            kinds = {ShmPoolAnnounce, DataSourceAnnounce, QosProducer, QosConsumer}
            plane.run(1)
            wait_until(lambda: kinds <= {type(message) for ear in ears for message in ear.hear()})
            for ear in ears:
                ear.raw.clear()
            plane.activity.clear()
            plane.run(seconds)
        finally:
            plane.plane.on_close()
        return Counter(type(message).__name__ for ear in ears for message in ear.hear()), plane


@pytest.mark.clause("W-15.11-02", "W-15.11-03", "W-15.11-04", "W-15.11-05", "W-15.11-06")
def test_everything_periodic_is_said_once_a_second_by_default(
    base_dir: Path, media_driver: MediaDriver, client: Client
) -> None:
    config = Config(
        aeron=media_driver.settings,
        driver=small_config(base_dir, announce_period_ms=1_000).driver,
        profiles=small_config(base_dir).profiles,
    )
    assert config.driver.announce_period_ms == Config().driver.announce_period_ms
    heard, plane = spoken(config, client, 10)
    for kind in ("ShmPoolAnnounce", "DataSourceAnnounce", "QosProducer", "QosConsumer"):
        assert 9 <= heard[kind] <= 11, heard
    assert 9 <= len(plane.activity) <= 11


@pytest.mark.clause("W-15.11-02", "W-15.11-06")
def test_announces_come_as_often_as_configured(base_dir: Path, media_driver: MediaDriver, client: Client) -> None:
    config = Config(
        aeron=media_driver.settings,
        driver=small_config(base_dir, announce_period_ms=200).driver,
        profiles=small_config(base_dir).profiles,
    )
    heard, plane = spoken(config, client, 10)
    assert 49 <= heard["ShmPoolAnnounce"] <= 51
    assert 49 <= len(plane.activity) <= 51
    assert 9 <= heard["QosProducer"] <= 11


@pytest.mark.clause("W-15.11-03", "W-15.11-04", "W-15.11-05")
def test_reports_and_metadata_come_as_often_as_configured(
    base_dir: Path, media_driver: MediaDriver, client: Client
) -> None:
    config = Config(
        aeron=media_driver.settings,
        driver=small_config(base_dir, announce_period_ms=1_000).driver,
        profiles=small_config(base_dir).profiles,
        client=ClientConfig(qos_period_ms=200, metadata_period_ms=500),
    )
    heard, _ = spoken(config, client, 10)
    assert 49 <= heard["QosProducer"] <= 51
    assert 49 <= heard["QosConsumer"] <= 51
    assert 19 <= heard["DataSourceAnnounce"] <= 21


@pytest.mark.clause("W-15.11-04", "W-15.11-05")
def test_members_of_a_pool_report_as_seldom_as_configured(base_dir: Path) -> None:
    """Three hellos, which come each second, and no second report."""
    config = msgspec.structs.replace(small_config(base_dir), client=ClientConfig(qos_period_ms=600_000))
    with fp.serve(config) as pool, Onlooker(config) as onlooker:
        qos, control = (onlooker.listen(stream) for stream in (config.stream_ids.qos, config.stream_ids.control))
        camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
        first_frame(camera, eye)
        wait_until(lambda: len(control.all(ConsumerHello)) >= 4)
        assert len(qos.all(QosConsumer)) <= 1
        assert len(qos.all(QosProducer)) <= 1
