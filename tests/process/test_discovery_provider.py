"""What a provider answers, over IPC and over UDP: a registry on real Aeron, with the test as drivers and clients.

Everything here runs over both media, which is the clause on transports (N-9-02).
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from framepool.clock import NANOS_PER_MILLI
from framepool.config import AccessRule, DiscoveryLimits, ResponseConfig
from framepool.discovery.entry import Origin
from framepool.discovery.index import Feed
from framepool.discovery.policy import Endpoint, EndpointPolicy
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from framepool.wire._generated.control_900 import Bool as ControlBool
from framepool.wire._generated.control_900 import ConsumerHello, Mode
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus, Result
from framepool.wire._generated.driver_901 import PublishMode, Role, ShmAttachRequest, ShmAttachResponse
from framepool.wire.message import MESSAGE_HEADER, MessageHeader
from tests.support.directories import private_directory
from tests.support.discovery_rig import (
    MEDIA,
    DiscoveryRig,
    Media,
    announce,
    meta,
    new_channel,
    new_stream_id,
    source,
)

CAMERA, OTHER, THIRD = 10_000, 10_001, 10_002
CLIENT = 77

pytestmark = pytest.mark.clause("N-9-02")


@pytest.fixture(scope="module")
def settings() -> Iterator[AeronSettings]:
    """One media driver for the module; every test has streams and ports of its own."""
    with private_directory() as base:
        values = AeronSettings(
            directory=str(base / "aeron"), driver_timeout=5.0, keepalive_interval=0.1, ipc_term_length=64 * KIB
        )
        with MediaDriver(values):
            yield values


@pytest.fixture(params=MEDIA)
def media(request: pytest.FixtureRequest) -> Media:
    value: Media = request.param
    return value


@pytest.fixture
def rig(settings: AeronSettings, media: Media) -> Iterator[DiscoveryRig]:
    with DiscoveryRig(settings, media) as rig:
        yield rig


def tags(result: Result) -> set[str]:
    return {tag.tag for tag in result.tags}


# What is asked for


@pytest.mark.clause("N-5.1-01", "N-5.2-20")
def test_without_filters_all_streams_are_returned(rig: DiscoveryRig) -> None:
    response = rig.asker.ask()
    assert (response.status, response.results) == (DiscoveryStatus.OK, ())
    rig.say(announce(CAMERA), announce(OTHER))
    rig.say(announce(THIRD), driver=1)
    assert rig.asker.found() == [CAMERA, OTHER, THIRD]


@pytest.mark.clause("N-5.1-02")
def test_filters_are_joined_by_and(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), source(CAMERA, "camera"), meta(CAMERA, data_source_id=1, tags=["a"]))
    rig.say(
        announce(OTHER, producer_id=8), source(OTHER, "other", producer_id=8), meta(OTHER, data_source_id=2, tags=["b"])
    )
    of_camera: dict[str, Any] = {
        "stream_id": CAMERA,
        "producer_id": 7,
        "data_source_id": 1,
        "data_source_name": "camera",
        "tags": ["a"],
    }
    of_other: dict[str, Any] = {
        "stream_id": OTHER,
        "producer_id": 8,
        "data_source_id": 2,
        "data_source_name": "other",
        "tags": ["b"],
    }
    assert rig.asker.found(**of_camera) == [CAMERA]
    for one, other in itertools.permutations(of_camera, 2):
        mixed = {one: of_camera[one], other: of_other[other]}
        assert rig.asker.found(**mixed) == [], mixed
        together = {one: of_camera[one], other: of_camera[other]}
        assert rig.asker.found(**together) == [CAMERA], together


@pytest.mark.clause("N-5.1-08", "N-5.1-09")
def test_names_are_byte_for_byte(rig: DiscoveryRig) -> None:
    name = ' Cam-A  (left/"raw") #3~ '
    rig.say(announce(CAMERA), source(CAMERA, name), announce(OTHER), source(OTHER, name.lower()))
    (result,) = rig.asker.ask(data_source_name=name).results
    assert (result.stream_id, result.data_source_name) == (CAMERA, name)
    assert rig.asker.found(data_source_name=name.strip()) == []
    assert rig.asker.found(data_source_name=name.upper()) == []
    assert rig.asker.found(data_source_name=name.lower()) == [OTHER]


@pytest.mark.clause("N-5.1-11")
def test_name_of_256_bytes_is_kept_and_a_longer_one_is_left_out(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), source(CAMERA, "x" * 256), announce(OTHER), source(OTHER, "y" * 300))
    assert rig.asker.found(data_source_name="x" * 256) == [CAMERA]
    (result,) = rig.asker.ask(stream_id=OTHER).results
    assert result.data_source_name == ""
    assert rig.asker.found(data_source_name="y" * 300) == []
    assert rig.count("names too long") == 1


@pytest.mark.clause("N-5.1-12", "N-5.1-13", "N-5.1-14", "N-5.2-06", "N-5.2-07")
def test_all_tags_asked_for_are_there_in_their_own_case_and_all_tags_are_returned(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), meta(CAMERA, tags=["Lab", "x"]))
    rig.say(announce(OTHER), meta(OTHER, tags=["Lab", "x", "b:2"]))
    rig.say(announce(THIRD), meta(THIRD, tags=["lab", "b:2"]))
    assert rig.asker.found(tags=["Lab"]) == [CAMERA, OTHER]
    assert rig.asker.found(tags=["lab"]) == [THIRD]
    assert rig.asker.found(tags=["LAB"]) == []
    assert rig.asker.found(tags=["Lab", "b:2"]) == [OTHER]
    assert rig.asker.found(tags=["x", "x", "Lab", "x"]) == [CAMERA, OTHER]
    (result,) = rig.asker.ask(tags=["b:2", "Lab"]).results
    assert tags(result) == {"Lab", "x", "b:2", "host:host-0"}
    assert len(result.tags) == 4


# What is answered


@pytest.mark.clause("N-5.2-01")
@pytest.mark.parametrize("request_id", [0, 1, 2**64 - 1])
def test_request_id_is_echoed(rig: DiscoveryRig, request_id: int) -> None:
    assert rig.asker.ask(request_id=request_id).request_id == request_id
    bad = rig.asker.request(request_id=request_id ^ 5).encode() + b"!"
    rig.asker.send(bad)
    assert rig.asker.answer(request_id ^ 5).status is DiscoveryStatus.ERROR


@pytest.mark.clause("N-5.2-03", "N-5.2-04", "N-5.2-05", "N-5.2-08", "N-6.4-02")
def test_result_is_the_last_announce_with_its_metadata_and_the_driver_to_ask(rig: DiscoveryRig) -> None:
    first = announce(CAMERA, 3)
    last = announce(CAMERA, 4, producer_id=9, layout_version=1, nslots=16, strides=(64, 1024, 65536))
    rig.say(first, last)
    (bare,) = rig.asker.ask().results
    assert (bare.data_source_name, bare.data_source_id, tags(bare)) == ("", None, {"host:host-0"})
    rig.say(source(CAMERA, "camera", epoch=4), meta(CAMERA, data_source_id=2**64 - 2, tags=["raw"]))
    (result,) = rig.asker.ask().results
    said = [(pool.pool_id, pool.pool_nslots, pool.stride_bytes, pool.region_uri) for pool in last.payload_pools]
    assert [
        (pool.pool_id, pool.pool_nslots, pool.stride_bytes, pool.region_uri) for pool in result.payload_pools
    ] == said
    for field in ("stream_id", "producer_id", "epoch", "layout_version", "header_nslots", "header_region_uri"):
        assert getattr(result, field) == getattr(last, field), field
    assert (result.header_slot_bytes, result.max_dims) == (256, 8)
    assert (result.data_source_name, result.data_source_id) == ("camera", 2**64 - 2)
    driver = rig.drivers[0].config
    assert result.driver_instance_id == driver.driver_instance_id
    assert result.driver_control_channel == driver.control_channel
    assert result.driver_control_stream_id == driver.control_stream_id


@pytest.mark.clause("N-2.2-01", "N-2.2-02", "N-5.2-08", "N-6.4-03")
def test_one_response_lists_the_same_stream_of_two_drivers_each_with_its_own_endpoint(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA, 5, producer_id=1))
    rig.say(announce(CAMERA, 2, producer_id=2), driver=1)
    results = rig.asker.ask(stream_id=CAMERA).results
    assert [
        (each.driver_instance_id, each.driver_control_channel, each.driver_control_stream_id, each.epoch, tags(each))
        for each in results
    ] == [
        ("driver-0", "aeron:ipc?alias=driver-0", 1000, 5, {"host:host-0"}),
        ("driver-1", "aeron:ipc?alias=driver-1", 1001, 2, {"host:host-1"}),
    ]


@pytest.mark.clause("N-5.2-04", "N-5.2-18")
def test_stream_whose_layout_contradicts_itself_is_not_returned(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA, header_nslots=8), announce(OTHER, header_slot_bytes=128), announce(THIRD))
    assert rig.asker.found() == [THIRD]
    rig.say(announce(CAMERA, 2))
    assert rig.asker.found() == [CAMERA, THIRD]
    rig.say(announce(CAMERA, 3, header_nslots=8))
    assert rig.asker.found(stream_id=CAMERA) == []
    assert rig.count("unfit announces") == 3


@pytest.mark.clause("N-5.2-11", "N-5.2-13")
@pytest.mark.parametrize("missing", [{"control_channel": ""}, {"control_stream_id": 0}])
def test_stream_of_a_driver_without_an_endpoint_is_not_returned(rig: DiscoveryRig, missing: dict[str, Any]) -> None:
    rig.say(announce(CAMERA))
    fields = {"instance_id": "nameless", "control_channel": "aeron:ipc", "control_stream_id": 1, "host": "h"}
    nowhere = Origin(**{**fields, "window_ns": 10**9, **missing})
    Feed(rig.registry.index, nowhere)(announce(OTHER).encode(), rig.clock.monotonic_ns())
    assert rig.asker.found() == [CAMERA]
    assert rig.asker.found(stream_id=OTHER) == []


@pytest.mark.clause("N-5.2-15", "N-5.2-16", "N-5.2-23")
def test_more_matches_than_the_cap_are_an_error_without_results(settings: AeronSettings, media: Media) -> None:
    with DiscoveryRig(settings, media, limits=DiscoveryLimits(max_results=20)) as rig:
        rig.say(*(announce(stream_id) for stream_id in range(20)))
        assert len(rig.asker.ask().results) == 20
        rig.say(announce(20), source(20, "one"))
        response = rig.asker.ask()
        assert (response.status, response.results) == (DiscoveryStatus.ERROR, ())
        assert "20" in response.error_message
        assert rig.asker.found(data_source_name="one") == [20]


@pytest.mark.clause("N-5.2-15")
def test_cap_is_a_thousand_by_default() -> None:
    assert DiscoveryLimits().max_results == 1_000


@pytest.mark.clause("N-5.2-16", "N-5.2-17", "N-5.2-23")
def test_response_that_does_not_fit_a_message_is_an_error_without_results(rig: DiscoveryRig) -> None:
    """`decisions.md` #48: a term of 64 KiB takes messages of 8 KiB."""
    rig.say(*(announce(stream_id) for stream_id in range(100)))
    response = rig.asker.ask()
    assert (response.status, response.results) == (DiscoveryStatus.ERROR, ())
    assert "8192" in response.error_message
    assert len(response.error_message) <= 1024
    assert rig.asker.found(stream_id=50) == [50]
    asker = rig.new_asker(term="term-length=512k")
    assert asker.found() == list(range(100))


@pytest.mark.clause("N-5.2-17")
def test_error_message_is_cut_at_1024_bytes(rig: DiscoveryRig) -> None:
    endpoint = EndpointPolicy(ResponseConfig(), rig.settings).judge(
        rig.asker.response_channel, rig.asker.response_stream_id
    )
    assert isinstance(endpoint, Endpoint)
    rig.registry.provider.refuse(5, endpoint, "ü" + "x" * 5_000)
    assert rig.asker.answer(5).error_message == "?" + "x" * 1_023


# Endpoints


@pytest.mark.clause("N-4.3-02")
def test_each_client_gets_its_own_answers_at_its_own_endpoint(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA))
    second = rig.new_asker()
    one, two = rig.asker.request(), second.request(stream_id=OTHER)
    rig.asker.send(one)
    second.send(two)
    assert len(rig.asker.answer(one.request_id).results) == 1
    assert second.answer(two.request_id).results == ()
    rig.asker.ask()
    second.ask()
    assert {each.request_id for each in rig.asker.hear()}.isdisjoint(each.request_id for each in second.hear())


@pytest.mark.clause("N-4.3-03")
def test_nothing_is_answered_on_the_request_channel_unless_it_is_asked_for_there(rig: DiscoveryRig) -> None:
    requests = (rig.config.discovery.channel, rig.config.discovery.stream_id)
    with Client.connect(rig.settings, name="onlooker") as onlooker:
        ear = onlooker.add_subscription(*requests)
        heard: list[bytes] = []
        request = rig.asker.request()
        rig.asker.until(lambda: ear.is_connected)
        rig.asker.send(request)
        rig.asker.answer(request.request_id)
        rig.asker.until(lambda: heard.extend(ear.poll()) or heard)
        again = rig.asker.request(response_channel=requests[0], response_stream_id=requests[1])
        rig.asker.send(again)
        rig.asker.until(lambda: heard.extend(ear.poll()) or len(heard) >= 3)
    assert [DiscoveryRequest.decode(each).request_id for each in heard[:2]] == [request.request_id, again.request_id]
    assert DiscoveryResponse.decode(heard[2]).request_id == again.request_id
    assert len(heard) == 3


@pytest.mark.clause("N-5.1-03")
def test_request_without_a_response_channel_is_met_with_silence(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA))
    rig.asker.ask()
    opened = rig.count("endpoints opened")
    for stream_id in (rig.asker.response_stream_id, 0):
        rig.asker.send(rig.asker.request(response_channel="", response_stream_id=stream_id))
    assert rig.asker.found() == [CAMERA]
    assert [each.status for each in rig.asker.hear()] == [DiscoveryStatus.OK] * 2
    assert rig.count("no response channel") == 2
    assert rig.count("endpoints opened") == opened
    assert rig.count("answers waiting") == 0


@pytest.mark.clause("N-5.1-04", "N-5.1-05", "N-5.2-23")
def test_request_for_response_stream_zero_gets_an_error_and_never_results(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA))
    zero = rig.asker.listen(rig.asker.response_channel, 0)
    request = rig.asker.request(response_stream_id=0)
    rig.asker.send(request)
    heard: list[bytes] = []
    rig.asker.until(lambda: heard.extend(zero.poll()) or heard)
    response = DiscoveryResponse.decode(heard[0])
    assert (response.request_id, response.status, response.results) == (
        request.request_id,
        DiscoveryStatus.ERROR,
        (),
    )
    assert rig.asker.found() == [CAMERA]
    assert len(rig.asker.hear()) == 1


def test_endpoints_that_strangers_name_are_bounded(settings: AeronSettings, media: Media) -> None:
    with DiscoveryRig(settings, media) as rig:
        rig.say(announce(CAMERA))
        most = rig.config.discovery.responses.max_endpoints
        for number in range(3 * most):
            rig.asker.send(rig.asker.request(response_channel=new_channel(media), response_stream_id=new_stream_id()))
            rig.asker.until(lambda number=number: rig.count("answers OK") > number)
            rig.pass_time(20)
        rig.asker.send(rig.asker.request(response_channel="aeron:udp?endpoint=example.org:40123"))
        rig.say(announce(CAMERA))
        assert rig.asker.found() == [CAMERA]
        assert rig.count("endpoints opened") == 3 * most + 1
        assert rig.count("endpoints") <= most
        assert rig.count("UDP endpoint that is no address and port") == 1


# Malformed


def broken(request: DiscoveryRequest) -> dict[str, bytes]:
    """Requests that are malformed where the endpoint can still be read."""
    encoded = request.encode()
    name = len(request.data_source_name)
    assert name
    return {
        "bytes after the end": encoded + b"x",
        "name cut short": encoded[:-1],
        "name longer than the message": encoded[: -name - 4] + struct.pack("<I", 2**30) + encoded[-name:],
        "name that is no ASCII": encoded[:-1] + b"\xff",
    }


@pytest.mark.clause("N-5.2-22", "N-5.2-23")
def test_malformed_request_with_a_readable_endpoint_gets_an_error(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA))
    for kind in broken(rig.asker.request(data_source_name="camera")):
        request = rig.asker.request(data_source_name="camera")
        rig.asker.send(broken(request)[kind])
        response = rig.asker.answer(request.request_id)
        assert (response.status, response.results) == (DiscoveryStatus.ERROR, ()), kind
        assert response.error_message.startswith("malformed request: "), kind
    tagged = rig.asker.request(tags=["tag"]).encode().replace(b"tag", b"t\xe4g")
    rig.asker.send(tagged)
    rig.asker.until(lambda: rig.count("answers ERROR") == len(broken(rig.asker.request(data_source_name="x"))) + 1)
    assert rig.asker.found() == [CAMERA]


@pytest.mark.clause("N-5.2-22")
def test_well_formed_requests_within_limits_never_get_an_error(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), source(CAMERA, "camera"))
    for filters in (
        {},
        {"stream_id": 0},
        {"stream_id": 2**32 - 2, "producer_id": 2**32 - 2, "data_source_id": 2**64 - 2},
        {"data_source_name": "x" * 3000},
        {"tags": ["", "x" * 500]},
        {"tags": [""]},
        {"client_id": 0},
        {"client_id": 2**32 - 1},
    ):
        assert rig.asker.ask(**filters).status is DiscoveryStatus.OK, filters
    assert rig.asker.found(tags=[""]) == [CAMERA]


@pytest.mark.clause("N-5.2-22", "N-5.2-23")
def test_failure_inside_is_an_error_and_the_provider_goes_on(
    rig: DiscoveryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.say(announce(CAMERA))
    with monkeypatch.context() as broken:
        broken.setattr(rig.registry.index, "find", lambda *_, **__: 1 / 0)
        response = rig.asker.ask()
    assert (response.status, response.results, response.error_message) == (DiscoveryStatus.ERROR, (), "internal error")
    assert [type(error) for error in rig.errors] == [ZeroDivisionError]
    rig.errors.clear()
    assert rig.asker.found() == [CAMERA]


def test_malformed_request_without_a_readable_endpoint_is_dropped(rig: DiscoveryRig) -> None:
    request = rig.asker.request().encode()
    for length in range(8, len(request) - 8, 7):
        rig.asker.send(request[:length])
    assert rig.asker.ask().status is DiscoveryStatus.OK
    assert len(rig.asker.hear()) == 1


@pytest.mark.clause("N-4.2-03")
def test_messages_of_other_schemas_on_the_stream_are_not_taken_for_requests(rig: DiscoveryRig) -> None:
    """Template 1 exists in every schema, and so may the bytes behind it."""
    rig.say(announce(CAMERA))
    request = rig.asker.request()
    body = request.encode()[MESSAGE_HEADER.size :]
    attach = ShmAttachRequest(
        correlation_id=1,
        stream_id=CAMERA,
        client_id=CLIENT,
        role=Role.CONSUMER,
        expected_layout_version=0,
        max_dims=0,
        publish_mode=PublishMode.EXISTING_OR_CREATE,
    )
    hello = ConsumerHello(
        stream_id=CAMERA,
        consumer_id=1,
        supports_shm=ControlBool.TRUE,
        supports_progress=ControlBool.FALSE,
        mode=Mode.STREAM,
        max_rate_hz=0,
        expected_layout_version=0,
        descriptor_stream_id=0,
        control_stream_id=0,
    )
    for message in (announce(CAMERA).encode(), attach.encode(), hello.encode()):
        rig.asker.send(message)
    for schema_id in (900, 901, 902, 905, 909, 911):
        rig.asker.send(MessageHeader(32, 1, schema_id, 1).encode() + body)
    rig.asker.send(MessageHeader(32, 2, 910, 1).encode() + body)
    rig.asker.send(b"\x01")
    assert rig.asker.found() == [CAMERA]
    assert len(rig.asker.hear()) == 1


@pytest.mark.clause("N-10-06")
@pytest.mark.parametrize(("schema_id", "version"), [(909, 1), (910, 0), (910, 2), (910, 9)])
def test_other_schema_or_version_is_rejected(rig: DiscoveryRig, schema_id: int, version: int) -> None:
    rig.say(announce(CAMERA))
    request = rig.asker.request()
    rig.asker.send(MessageHeader(32, 1, schema_id, version).encode() + request.encode()[MESSAGE_HEADER.size :])
    assert rig.asker.found() == [CAMERA]
    assert request.request_id not in {each.request_id for each in rig.asker.hear()}


# Time and epochs


@pytest.mark.clause("N-6.2-01", "N-6.2-02", "N-6.2-03")
def test_stream_expires_three_periods_after_its_last_announce(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), announce(OTHER))
    rig.pass_time(2_500)
    assert rig.asker.found() == [CAMERA, OTHER]
    rig.say(announce(OTHER))
    rig.pass_time(1_000)
    assert rig.asker.found() == [OTHER]
    assert rig.asker.found(stream_id=CAMERA) == []
    rig.say(source(CAMERA, "camera"))
    assert rig.asker.found(data_source_name="camera") == []
    rig.say(announce(CAMERA))
    assert rig.asker.found(data_source_name="camera") == [CAMERA]


@pytest.mark.clause("N-6.3-01")
def test_newer_epoch_replaces_the_older(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA, 4), announce(CAMERA, 5, nslots=32))
    (result,) = rig.asker.ask().results
    assert (result.epoch, result.header_nslots) == (5, 32)
    assert "/5/" in result.header_region_uri


@pytest.mark.clause("N-6.3-02")
def test_epoch_that_goes_back_is_dropped_unless_the_driver_has_moved(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA, 5), announce(CAMERA, 4))
    assert [each.epoch for each in rig.asker.ask().results] == [5]
    assert rig.count("older epochs") == 1
    moved = rig.registry.sources[0].feed.origin
    fields = {name: getattr(moved, name) for name in moved.__struct_fields__}
    elsewhere = Feed(rig.registry.index, Origin(**{**fields, "control_stream_id": 4_000}))
    elsewhere(announce(CAMERA, 4).encode(), rig.clock.monotonic_ns())
    assert [(each.epoch, each.driver_control_stream_id) for each in rig.asker.ask().results] == [(4, 4_000)]


@pytest.mark.clause("N-6.4-01")
def test_stream_that_only_its_producer_tells_of_is_not_returned(rig: DiscoveryRig) -> None:
    rig.say(source(CAMERA, "camera"), meta(CAMERA, tags=["a"]))
    assert rig.asker.found() == []
    assert rig.asker.found(data_source_name="camera") == []


@pytest.mark.clause("N-9-01")
def test_streams_of_other_hosts_are_advertised_with_their_host_and_the_tags_of_their_bridge(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA), source(CAMERA, "camera"))
    rig.say(announce(50_000), source(50_000, "camera"), meta(50_000, tags=["bridge:from=host-0"]), driver=1)
    here, there = rig.asker.ask(data_source_name="camera").results
    assert tags(here) == {"host:host-0"}
    assert tags(there) == {"host:host-1", "bridge:from=host-0"}
    assert rig.asker.found(tags=["host:host-1"]) == [50_000]


# Policy


@pytest.fixture
def guarded(settings: AeronSettings, media: Media) -> Iterator[DiscoveryRig]:
    """Client 1 may see one stream, everybody another."""
    rules = (AccessRule(clients=(1,), streams=((CAMERA, CAMERA),)), AccessRule(streams=((OTHER, OTHER),)))
    with DiscoveryRig(settings, media, access=rules) as rig:
        rig.say(announce(CAMERA), source(CAMERA, "camera"), announce(OTHER), announce(THIRD))
        yield rig


@pytest.mark.clause("N-8-01", "N-5.1-15")
def test_rules_decide_who_sees_what(guarded: DiscoveryRig) -> None:
    assert guarded.asker.found(client_id=1) == [CAMERA, OTHER]
    assert guarded.asker.found(client_id=2) == [OTHER]


@pytest.mark.clause("N-12-02", "N-5.2-21", "N-5.2-23")
def test_hidden_stream_is_answered_like_one_that_is_not_there(guarded: DiscoveryRig) -> None:
    hidden = guarded.asker.ask(client_id=2, stream_id=CAMERA)
    absent = guarded.asker.ask(client_id=2, stream_id=99)
    assert hidden.status is absent.status is DiscoveryStatus.NOT_FOUND
    assert (hidden.results, hidden.error_message) == (absent.results, absent.error_message) == ((), "")
    assert guarded.asker.ask(client_id=2, data_source_name="camera").status is DiscoveryStatus.NOT_FOUND
    assert guarded.asker.ask(client_id=1, stream_id=CAMERA).status is DiscoveryStatus.OK
    assert guarded.asker.ask(client_id=2).status is DiscoveryStatus.OK


@pytest.mark.clause("N-12-02")
def test_hidden_streams_do_not_count_for_limits(settings: AeronSettings, media: Media) -> None:
    rules = (AccessRule(streams=((1, 2),)),)
    with DiscoveryRig(settings, media, access=rules, limits=DiscoveryLimits(max_results=2)) as rig:
        rig.say(*(announce(stream_id) for stream_id in range(10)))
        assert rig.asker.found() == [1, 2]


@pytest.mark.clause("N-5.2-20", "N-5.2-21")
def test_without_rules_nothing_found_is_ok(rig: DiscoveryRig) -> None:
    rig.say(announce(CAMERA))
    response = rig.asker.ask(stream_id=99)
    assert (response.status, response.results) == (DiscoveryStatus.OK, ())


@pytest.mark.clause("N-5.1-15")
def test_client_that_asks_too_often_is_told_and_then_ignored(settings: AeronSettings, media: Media) -> None:
    with DiscoveryRig(settings, media, limits=DiscoveryLimits(requests_per_second=5)) as rig:
        rig.say(announce(CAMERA))
        requests = [rig.asker.request(client_id=1) for _ in range(10)]
        for request in requests:
            rig.asker.send(request)
        assert rig.asker.found(client_id=2) == [CAMERA]
        answers = {each.request_id: each.status for each in rig.asker.hear()}
        said = [answers.get(request.request_id) for request in requests]
        assert said == [DiscoveryStatus.OK] * 5 + [DiscoveryStatus.ERROR] + [None] * 4
        rig.pass_time(1_000)
        assert rig.asker.found(client_id=1) == [CAMERA]


@pytest.mark.clause("N-13-03")
def test_queries_are_logged_at_a_sampled_rate_and_without_what_they_name(
    rig: DiscoveryRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="framepool.discovery.provider")
    rig.registry.provider.set_rate(0)
    for _ in range(200):
        rig.asker.ask(client_id=4711, data_source_name="secret", tags=["hidden"])
        rig.clock.advance(10 * NANOS_PER_MILLI)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 3
    assert "4711" in lines[0]
    assert "name and tag" in lines[0]
    assert "secret" not in lines[0]
    assert "hidden" not in lines[0]


@pytest.mark.clause("N-8-02", "N-2.2-03")
def test_registry_neither_answers_nor_forwards_attach_requests(rig: DiscoveryRig) -> None:
    """Nor does it open a file: nothing of what is announced here exists."""
    rig.say(announce(CAMERA))
    with Client.connect(rig.settings, name="onlooker") as onlooker:
        ears = [
            onlooker.add_subscription("aeron:ipc?term-length=64k", driver.config.control_stream_id)
            for driver in rig.drivers
        ]
        attach = ShmAttachRequest(
            correlation_id=4,
            stream_id=CAMERA,
            client_id=CLIENT,
            role=Role.CONSUMER,
            expected_layout_version=0,
            max_dims=0,
            publish_mode=PublishMode.EXISTING_OR_CREATE,
        )
        rig.asker.send(attach)
        assert rig.asker.found() == [CAMERA]
        for _ in range(50):
            rig.turn()
        assert [ear.poll() for ear in ears] == [[], []]
        assert not any(isinstance(each, ShmAttachResponse) for each in rig.asker.hear())
    (result,) = rig.asker.ask().results
    assert result.epoch == 1
