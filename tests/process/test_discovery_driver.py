"""Discovery inside a driver: of one in this process and of one in its own (Discovery 2.1, 4.2, 12, 13)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import framepool as fp
from framepool.config import Config, load
from framepool.discovery.host import this_host
from framepool.errors import TransportError
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import ControlResponse
from framepool.wire._generated.discovery_910 import DiscoveryStatus, Result
from framepool.wire._generated.driver_901 import ResponseCode, Role, ShmAttachResponse
from framepool.wire.dispatch import decode
from framepool.wire.message import MESSAGE_HEADER, MessageHeader
from tests.support.directories import private_directory
from tests.support.discovery_rig import Asker, announce
from tests.support.driver_client import DriverClient
from tests.support.drivers import KINDS, RunningDriver, running_driver, table, write_toml
from tests.support.ports import free_port

CAMERA, READ_ONLY, LAST = STREAMS = 10_000, 10_001, 10_002


def configuration(base: Path, **discovery: Any) -> dict[str, Any]:
    streams = [{"stream_id": CAMERA}, {"stream_id": READ_ONLY, "roles": ["consumer"]}, {"stream_id": LAST}]
    return {**table(base), "streams": streams, "discovery": discovery}


@pytest.fixture(scope="module", params=KINDS)
def driver(request: pytest.FixtureRequest) -> Iterator[RunningDriver]:
    with private_directory() as base, running_driver(request.param, base, configuration(base)) as running:
        yield running


def asker_at(config: Config, channel: str = "aeron:ipc?term-length=64k", stream_id: int = 7_000) -> Asker:
    return Asker(config.aeron, channel, stream_id)


@pytest.fixture
def asker(driver: RunningDriver) -> Iterator[Asker]:
    with asker_at(driver.config) as asker:
        yield asker


@pytest.fixture
def client(driver: RunningDriver) -> Iterator[DriverClient]:
    with DriverClient(driver.config) as client:
        yield client


def all_streams(asker: Asker) -> list[Result]:
    """The configured streams of the driver, once it has announced them all."""

    def configured() -> list[Result]:
        return [result for result in asker.ask().results if result.stream_id in STREAMS]

    asker.until(lambda: len(configured()) == len(STREAMS))
    return configured()


def files_of(driver: RunningDriver, stream_id: int) -> set[Path]:
    return set(Path(driver.config.driver.shm_base_dir).glob(f"tensorpool-*/*/{stream_id}/**/*"))


# Where it is asked


@pytest.mark.clause("N-2.1-01", "N-5.2-03", "N-5.2-08")
def test_driver_answers_for_its_own_streams_and_names_itself(
    driver: RunningDriver, asker: Asker, client: DriverClient
) -> None:
    results = all_streams(asker)
    assert [result.stream_id for result in results] == list(STREAMS)
    for result in results:
        announced = client.announce_of(result.stream_id)
        fields = ("producer_id", "epoch", "layout_version", "header_nslots", "header_region_uri")
        assert [getattr(result, field) for field in fields] == [getattr(announced, field) for field in fields]
        assert [pool.region_uri for pool in result.payload_pools] == [
            pool.region_uri for pool in announced.payload_pools
        ]
        assert result.driver_instance_id.endswith(f"/{driver.config.driver.namespace}")
        assert {tag.tag for tag in result.tags} == {f"host:{this_host()}"}
    named = results[0]
    with Client.connect(driver.config.aeron, name="attacher") as other:
        where = (named.driver_control_channel, named.driver_control_stream_id)
        answers, requests = other.add_subscription(*where), other.add_publication(*where)
        request = client.request(CAMERA)
        asker.until(lambda: requests.offer(request.encode()) >= 0)
        responses: list[ShmAttachResponse] = []
        asker.until(
            lambda: (
                responses.extend(each for each in map(decode, answers.poll()) if isinstance(each, ShmAttachResponse))
                or responses
            )
        )
        assert [each.code for each in responses] == [ResponseCode.OK]


@pytest.mark.clause("N-4.2-02", "N-13-01")
def test_driver_answers_on_its_control_endpoint_by_default(driver: RunningDriver) -> None:
    channels, ids = driver.config.channels, driver.config.stream_ids
    with asker_at(driver.config, channels.control, ids.control) as asker:
        assert [result.stream_id for result in all_streams(asker)] == list(STREAMS)


@pytest.mark.clause("N-4.2-01")
@pytest.mark.parametrize("media", ["ipc", "udp"])
def test_discovery_endpoint_is_configured(base_dir: Path, media: str) -> None:
    endpoint = f"aeron:udp?endpoint=127.0.0.1:{free_port()}" if media == "udp" else "aeron:ipc?term-length=64k"
    values = configuration(base_dir, channel=endpoint, stream_id=7_777)
    with running_driver("embedded", base_dir, values) as running, asker_at(running.config, endpoint, 7_777) as asker:
        assert len(all_streams(asker)) == 3
        with asker_at(running.config, stream_id=7_000) as elsewhere:
            time.sleep(0.05)
            assert not elsewhere.requests.is_connected


def test_driver_that_cannot_listen_where_it_should_does_not_start(base_dir: Path) -> None:
    values = configuration(base_dir, channel="aeron:udp?endpoint=192.0.2.1:40123")
    path = write_toml(base_dir / "driver.toml", values)
    with pytest.raises(TransportError, match=r"192\.0\.2\.1"):
        fp.serve(load(path, {}))


def test_discovery_can_be_left_to_others(base_dir: Path) -> None:
    values = configuration(base_dir, embedded=False)
    with running_driver("embedded", base_dir, values) as running:
        with DriverClient(running.config) as client:
            client.announce_of(CAMERA)
        with asker_at(running.config, stream_id=1_000) as asker:
            asker.send(asker.request())
            time.sleep(0.1)
            assert asker.hear() == []


@pytest.mark.clause("N-4.2-03")
def test_control_stream_is_shared_without_a_mistake_on_either_side(
    driver: RunningDriver, asker: Asker, client: DriverClient
) -> None:
    """Template 1 of schema 901 is an attach request, of 910 a discovery request, of 900 an announce."""
    all_streams(asker)
    request = asker.request()
    body = request.encode()[MESSAGE_HEADER.size :]
    client.poll()
    before = len(client.heard)
    attach = client.request(LAST)
    client.send(MessageHeader(32, 1, 901, 1).encode() + body)
    client.send(announce(77).encode())
    client.send(request.encode() + b"!")
    client.send(asker.request(request_id=4_242).encode())
    client.send(attach)
    assert client.answer(attach.correlation_id).code is ResponseCode.OK
    assert asker.answer(4_242).status is DiscoveryStatus.OK
    assert asker.answer(request.request_id).status is DiscoveryStatus.ERROR
    assert 77 not in asker.found()
    said = [message for message in client.heard[before:] if isinstance(message, ShmAttachResponse | ControlResponse)]
    refused = [message for message in said if message.code is not ResponseCode.OK]
    assert all(message.correlation_id == request.request_id for message in refused), "only the forged attach"
    assert not any(isinstance(message, ControlResponse) for message in said)


# What is known


def test_name_tags_and_data_source_of_a_producer_are_found(driver: RunningDriver, asker: Asker) -> None:
    with fp.connect(driver.config) as pool:
        with pool.producer(20_000, name="Camera 1", tags=["lab:3", "raw"], data_source_id=12) as camera:
            asker.until(lambda: asker.found(data_source_name="Camera 1", tags=["raw"], data_source_id=12) == [20_000])
            (result,) = asker.ask(data_source_name="Camera 1").results
            assert {tag.tag for tag in result.tags} == {"lab:3", "raw", f"host:{this_host()}"}
            assert result.producer_id != 0
            camera.metadata.name = "Camera 2"
            asker.until(lambda: asker.found(data_source_name="Camera 2") == [20_000])
            assert asker.found(data_source_name="Camera 1") == []
        asker.until(lambda: [each.producer_id for each in asker.ask(stream_id=20_000).results] == [0])


def test_new_epoch_is_seen_at_once(driver: RunningDriver, asker: Asker, client: DriverClient) -> None:
    all_streams(asker)
    lease = client.hold(CAMERA, Role.PRODUCER)
    (result,) = asker.ask(stream_id=CAMERA).results
    assert (result.epoch, result.producer_id) == (lease.epoch, lease.client_id)


def test_host_and_instance_are_named_by_configuration(base_dir: Path) -> None:
    values = configuration(base_dir, host="rig-1", driver_instance_id="rig-1/cameras")
    with running_driver("embedded", base_dir, values) as running, asker_at(running.config) as asker:
        result = all_streams(asker)[0]
        assert result.driver_instance_id == "rig-1/cameras"
        assert [tag.tag for tag in result.tags] == ["host:rig-1"]
        assert asker.found(tags=["host:rig-1"]) == list(STREAMS)


# Advice only


@pytest.mark.clause("N-2.2-03")
def test_questions_make_no_file_and_no_epoch(driver: RunningDriver, asker: Asker) -> None:
    (before,) = [result for result in all_streams(asker) if result.stream_id == READ_ONLY]
    files = files_of(driver, READ_ONLY)
    assert files
    for stream_id in (READ_ONLY, 10_500, 25_000):
        asker.ask(stream_id=stream_id)
        asker.ask(data_source_name=f"stream {stream_id}")
    (after,) = asker.ask(stream_id=READ_ONLY).results
    assert after == before
    assert files_of(driver, READ_ONLY) == files
    assert files_of(driver, 10_500) == files_of(driver, 25_000) == set()


@pytest.mark.clause("N-12-01", "N-5.1-16")
def test_asking_grants_nothing_whoever_one_says_to_be(base_dir: Path) -> None:
    """A client that poses as the one for whom the rules show the stream sees it, and is refused like before."""
    rule = {"clients": [4_711], "streams": [[READ_ONLY, READ_ONLY]]}
    values = configuration(base_dir, access=[rule])
    with running_driver("embedded", base_dir, values) as running:
        with DriverClient(running.config) as client, asker_at(running.config) as asker:
            client.announce_of(READ_ONLY)
            before = client.attach(READ_ONLY, Role.PRODUCER, client_id=4_711)
            assert asker.ask(client_id=1, stream_id=READ_ONLY).status is DiscoveryStatus.NOT_FOUND
            assert asker.found(client_id=4_711, stream_id=READ_ONLY) == [READ_ONLY]
            after = client.attach(READ_ONLY, Role.PRODUCER, client_id=4_711)
            assert before.code is after.code is ResponseCode.REJECTED
            assert before.error_message == after.error_message
            assert client.attach(READ_ONLY, Role.CONSUMER, client_id=1).code is ResponseCode.OK


# Through faults


def test_driver_answers_again_when_the_media_driver_is_back(base_dir: Path) -> None:
    """Endpoints that strangers had named are not asked for again: one of them could keep the driver from coming
    back."""
    values = configuration(base_dir)
    values["driver"]["media_driver"] = "external"
    settings = load(write_toml(base_dir / "media.toml", values), {}).aeron
    first = MediaDriver(settings)
    try:
        with running_driver("embedded", base_dir, values) as running:
            with asker_at(running.config) as asker:
                all_streams(asker)
                for _ in range(5):
                    asker.ask(response_stream_id=asker.response_stream_id)
            first.close()
            assert running.embedded is not None
            deadline = time.monotonic() + 30
            while running.embedded.discovery.statistics()["endpoints"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with MediaDriver(settings), asker_at(running.config) as asker:
                assert len(all_streams(asker)) == 3
                assert running.embedded.discovery.statistics()["endpoints"] == 1
                running.stop()
    finally:
        first.close()


def test_flood_of_questions_does_not_hold_up_leases_and_announces(base_dir: Path) -> None:
    values = configuration(base_dir, limits={"requests_per_second": 0})
    with running_driver("embedded", base_dir, values) as running, DriverClient(running.config) as client:
        with asker_at(running.config) as asker:
            request = asker.request().encode()
            lease = client.hold(CAMERA, Role.PRODUCER)
            answered = 0
            for number in range(200):
                for _ in range(20):
                    asker.requests.offer(request)
                if number % 20 == 0:
                    lease.keepalive()
                    client.announce_of(LAST)
                answered += len(asker.responses.poll(1_000))
            if not answered:  # the driver's first answer may need longer than all of that
                asker.until(lambda: asker.responses.poll(1_000))
            assert client.attach(LAST).code is ResponseCode.OK
            assert answered > 0
