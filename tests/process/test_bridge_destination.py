"""The destination of a mapping: the receiver is its one producer, by the rules of the driver, in epochs of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framepool.config import MappingConfig
from framepool.errors import ConfigurationError
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import (
    Bool,
    ConsumerConfig,
    ConsumerHello,
    FrameDescriptor,
    Mode,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.driver_901 import ResponseCode, Role, ShmAttachRequest, ShmAttachResponse
from framepool.wire.constants import LAYOUT_VERSION
from tests.support.bridges import (
    DEST,
    SOURCE,
    Both,
    Host,
    bridged,
    carried,
    image,
    joined,
    link,
    mapping,
    mapping_of,
    two_hosts,
)
from tests.support.onlooker import wait_until


@pytest.fixture
def hosts(base_dir: Path) -> Iterator[Both]:
    with two_hosts(base_dir) as both:
        yield both


@pytest.mark.clause("B-4-02")
def test_receiver_attaches_as_the_producer_and_publishes_only_under_its_lease(hosts: Both) -> None:
    here, there = hosts
    ids = there.config.stream_ids
    tap = there.stranger()
    control, descriptors = tap.hear_local(ids.control), tap.hear_local(ids.descriptor)
    camera = here.pool.producer(SOURCE)
    between = link()
    here.bridge(between, mapping())
    there.bridge(between, mapping(), role="receiver")
    joined(camera, there.pool.consumer(DEST))
    wait_until(lambda: descriptors.all(FrameDescriptor))
    asked = [message for message in control.all(ShmAttachRequest) if message.role is Role.PRODUCER]
    assert {message.stream_id for message in asked} == {DEST}
    ids_asked = {message.correlation_id for message in asked}
    granted = {
        message.epoch
        for message in control.all(ShmAttachResponse)
        if message.correlation_id in ids_asked and message.code is ResponseCode.OK
    }
    told = descriptors.all(FrameDescriptor)
    assert {(message.stream_id, message.epoch) for message in told} <= {(DEST, epoch) for epoch in granted}


@pytest.mark.clause("B-4-03")
def test_destination_that_the_driver_does_not_allow_is_refused_with_its_reason(hosts: Both) -> None:
    _, receiver = bridged(hosts, mapping(dest=65_000))
    wait_until(lambda: "65000 is not from" in mapping_of(receiver)["refusal"])
    assert mapping_of(receiver)["state"] == "waiting for the destination"
    assert mapping_of(receiver)["local_epoch"] is None


@pytest.mark.clause("B-4-04")
def test_producer_that_is_there_already_is_left_alone(hosts: Both) -> None:
    here, there = hosts
    resident = there.pool.producer(DEST)
    eye = there.pool.consumer(DEST)
    joined(resident, eye)
    epoch = eye.epoch
    _, receiver = bridged(hosts)
    wait_until(lambda: "producer" in mapping_of(receiver)["refusal"])
    camera = here.pool.producer(SOURCE)
    for frame in carried(resident, eye):
        camera.publish(image(99))
        assert frame.epoch == epoch
    assert eye.epoch == epoch
    assert mapping_of(receiver)["frames"]["published"] == 0
    resident.close()
    joined(camera, eye)
    carried(camera, eye)


@pytest.mark.clause("B-4-05", "B-4-04")
def test_open_destination_is_the_first_free_id_of_the_range(hosts: Both) -> None:
    here, there = hosts
    resident = there.pool.producer(50_010)
    _, receiver = bridged(hosts, mapping(SOURCE, 0), mapping(10_001, 0), dest_stream_id_range=[50_010, 50_019])
    wait_until(lambda: all(mapping_of(receiver, name)["local_epoch"] for name in ("10000", "10001")))
    taken = {mapping_of(receiver, name)["dest_stream_id"] for name in ("10000", "10001")}
    assert taken == {50_011, 50_012}
    assert resident.attached
    camera = here.pool.producer(10_001)
    eye = there.pool.consumer(mapping_of(receiver, "10001")["dest_stream_id"])
    joined(camera, eye)
    carried(camera, eye)


@pytest.mark.clause("B-4-07")
def test_consumer_that_wants_a_stream_of_its_own_is_told_that_there_is_none(hosts: Both) -> None:
    here, there = hosts
    bridged(hosts)
    ids = there.config.stream_ids
    stranger = there.stranger()
    control, own = stranger.hear_local(ids.control), stranger.hear_local(31_007)
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    stranger.say_local(
        ids.control,
        ConsumerHello(
            stream_id=DEST,
            consumer_id=9,
            supports_shm=Bool.TRUE,
            supports_progress=Bool.FALSE,
            mode=Mode.STREAM,
            max_rate_hz=0,
            expected_layout_version=LAYOUT_VERSION,
            descriptor_stream_id=31_007,
            descriptor_channel="aeron:ipc",
            control_stream_id=0,
        ),
    )
    wait_until(lambda: [each for each in control.all(ConsumerConfig) if each.consumer_id == 9])
    answer = next(each for each in control.all(ConsumerConfig) if each.consumer_id == 9)
    assert (answer.descriptor_stream_id, answer.descriptor_channel) == (0, "")
    carried(camera, eye)
    assert own.hear() == []


def test_receiver_reports_as_the_producer_that_it_is(hosts: Both) -> None:
    here, there = hosts
    bridged(hosts)
    reports = there.stranger().hear_local(there.config.stream_ids.qos)
    camera, eye = here.pool.producer(SOURCE), there.pool.consumer(DEST)
    joined(camera, eye)
    last = carried(camera, eye)[-1].seq
    wait_until(
        lambda: (
            (DEST, eye.epoch, last)
            in [(each.stream_id, each.epoch, each.current_seq) for each in reports.all(QosProducer)]
        )
    )


@pytest.mark.clause("B-8-04", "B-8-05")
def test_local_epoch_is_its_own_and_rises_with_every_restart_of_the_receiver(hosts: Both) -> None:
    here, there = hosts
    between = link()
    here.bridge(between, mapping())
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST, timeout=0)
    epochs, sources = [], set()
    for _ in range(3):
        receiver = there.bridge(between, mapping(), role="receiver")
        joined(camera, eye)
        carried(camera, eye)
        epochs.append(mapping_of(receiver)["local_epoch"])
        sources.add(mapping_of(receiver)["source_epoch"])
        assert eye.epoch == epochs[-1]
        receiver.close()
    assert epochs == sorted(set(epochs))
    assert len(sources) == 1


@pytest.mark.clause("B-8-01", "B-8-02", "B-8-03", "B-8-04")
def test_new_epoch_of_the_source_begins_a_new_local_one(hosts: Both) -> None:
    here, there = hosts
    _, receiver = bridged(hosts)
    eye = there.pool.consumer(DEST, timeout=0)
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        with here.pool.producer(SOURCE) as camera:
            joined(camera, eye)
            for frame in carried(camera, eye):
                assert frame.epoch == mapping_of(receiver)["local_epoch"]
            status = mapping_of(receiver)
            seen.append((status["source_epoch"], status["local_epoch"]))
    assert [source for source, _ in seen] == sorted({source for source, _ in seen})
    assert [local for _, local in seen] == sorted({local for _, local in seen})
    assert mapping_of(receiver)["destination"]["renewed"] >= 2
    assert eye.counts["late"] == 0


@pytest.mark.clause("B-7.2-03")
def test_announce_of_the_source_is_not_repeated_to_local_consumers(hosts: Both) -> None:
    here, there = hosts
    announces = there.stranger().hear_local(there.config.stream_ids.announce)
    _, receiver = bridged(hosts)
    camera = here.pool.producer(SOURCE)
    joined(camera, there.pool.consumer(DEST))
    wait_until(lambda: mapping_of(receiver)["announces"] > 5)
    heard = announces.all(ShmPoolAnnounce)
    assert {each.stream_id for each in heard} == {DEST}
    assert all(str(there.directory) in each.header_region_uri for each in heard)


@pytest.mark.clause("B-8-04")
def test_receiver_without_a_driver_owns_its_stream_and_counts_its_epochs(base_dir: Path) -> None:
    with Host(base_dir, "a") as here:
        there = Host(base_dir, "b")
        with MediaDriver(there.config.aeron):
            between = link()
            here.bridge(between, mapping())
            camera = here.pool.producer(SOURCE)
            epochs = []
            for _ in range(2):
                receiver = there.bridge(between, mapping(driverless=True), role="receiver")
                eye = there.pool.announced(DEST)
                joined(camera, eye)
                carried(camera, eye)
                epochs.append(eye.epoch)
                eye.close()
                receiver.close()
            assert epochs == sorted(set(epochs))
            there.close()


def test_layout_other_than_the_profile_says_is_told(hosts: Both) -> None:
    _, there = hosts
    between = link()
    there.table["profiles"]["camera"] = {"nslots": 16, "pools": [{"pool_id": 1, "stride_bytes": 128}]}
    receiver = there.bridge(between, mapping(profile="camera"), role="receiver")
    wait_until(lambda: "profile 'camera'" in mapping_of(receiver)["refusal"])


def test_mapping_that_contradicts_the_others_is_not_added(hosts: Both) -> None:
    sender, _ = bridged(hosts)
    with pytest.raises(ConfigurationError, match="mapped twice"):
        sender.add(MappingConfig(source_stream_id=SOURCE, dest_stream_id=50_009))
    assert len(sender.statistics()["mappings"]) == 1
