"""Streams found by name and attached to where discovery says: the driver decides, discovery hints (Discovery 3, 7).

Some tests ask a real driver; where discovery has to be wrong, a provider answers what the test wants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import framepool as fp
from framepool.client.fallback import Arrived, SourceRequest
from framepool.client.mapping import MappingState
from framepool.client.pool import Pool
from framepool.clock import NANOS_PER_SECOND
from framepool.config import Config, DiscoveryConfig, StreamConfig, StreamIds
from framepool.driver.driver import ShmDriver
from framepool.errors import (
    AmbiguousStream,
    AttachRefused,
    DiscoveryError,
    EncodeError,
    NotLocal,
    StreamNotFound,
)
from framepool.shm.layout import StreamLayout
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated import driver_901
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, Mode
from framepool.wire._generated.discovery_910 import PayloadPool, Result
from framepool.wire._generated.driver_901 import ResponseCode, Role, ShmAttachRequest, ShmAttachResponse
from tests.support.driver_client import DriverClient
from tests.support.drivers import running_driver, table
from tests.support.onlooker import PATIENCE, STREAM, Onlooker, first_frame, small_config, wait_until
from tests.support.oracle import Oracle, result
from tests.support.regions import make_stream, maps_below

SPOT = np.full(16, 7, np.uint8)


def with_discovery(config: Config, **discovery: Any) -> Config:
    return msgspec.structs.replace(config, discovery=DiscoveryConfig(**discovery))


@pytest.fixture
def silent(config: Config) -> Config:
    """A driver that does not answer discovery, so that somebody else does."""
    return with_discovery(config, embedded=False)


@pytest.fixture
def hinted(silent: Config) -> Iterator[fp.Pool]:
    with fp.serve(silent) as pool:
        yield pool


@pytest.fixture
def oracle(silent: Config, hinted: fp.Pool) -> Iterator[Oracle]:
    with Oracle(silent.aeron) as oracle:
        yield oracle


# With a driver that answers


def test_streams_are_found_by_what_their_producers_say_of_them(pool: fp.Pool) -> None:
    pool.producer(STREAM, name="camera", tags=["Lab", "x"], data_source_id=9)
    pool.producer(STREAM + 1, name="Camera", tags=["x"], metadata={"gain": 4})
    wait_until(lambda: len(pool.discover(tags=["x"])) == 2)
    assert [found.stream_id for found in pool.discover("camera")] == [STREAM]
    assert [found.name for found in pool.discover(stream_id=STREAM + 1)] == ["Camera"]
    assert [found.stream_id for found in pool.discover(tags=["x", "Lab"])] == [STREAM]
    assert [found.name for found in pool.discover(data_source_id=9)] == ["camera"]
    assert pool.discover(tags=["lab"]) == []
    assert pool.discover("camera", tags=["x"], stream_id=STREAM + 1) == []
    assert {found.stream_id for found in pool.discover()} == {STREAM, STREAM + 1}
    assert {found.local for found in pool.discover()} == {True}


def test_tags_and_id_are_attributes_of_the_source(pool: fp.Pool) -> None:
    camera = pool.producer(STREAM, name="camera", tags=["b", "a", "b"], data_source_id=3, metadata={"gain": 4})
    assert dict(camera.metadata) == {"gain": 4, "tags": ["b", "a"], "data_source_id": 3}
    camera.metadata["tags"] = ["c"]
    wait_until(lambda: pool.discover(tags=["c"]))
    assert pool.discover(tags=["a"]) == []


@pytest.mark.parametrize("wrong", [{"tags": [""]}, {"tags": [" a"]}, {"tags": ["host:x"]}, {"data_source_id": -1}])
def test_tag_that_nobody_could_ask_for_is_refused_before_anything_is_attached(
    pool: fp.Pool, wrong: dict[str, Any]
) -> None:
    with pytest.raises(EncodeError):
        pool.producer(STREAM, **wrong)
    assert pool.discover() == []


def test_consumer_is_made_by_name(pool: fp.Pool) -> None:
    camera = pool.producer(STREAM, name="camera")
    with pool.consumer("camera") as eye:
        assert first_frame(camera, eye).stream_id == STREAM
    (found,) = pool.discover("camera")
    with pool.consumer(found) as eye:
        assert first_frame(camera, eye).stream_id == STREAM


def test_consumer_waits_for_the_name_to_appear(pool: fp.Pool) -> None:
    eyes: list[fp.Consumer] = []
    reader = threading.Thread(target=lambda: eyes.append(pool.consumer("camera", timeout=30)))
    reader.start()
    wait_until(lambda: "discovery" in pool.statistics())
    pool.producer(STREAM, name="camera")
    reader.join(30)
    assert [eye.stream_id for eye in eyes] == [STREAM]


def not_found(pool: fp.Pool, name: str) -> str:
    """Why; asked again if the driver was too slow for the last question of all."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with pytest.raises(DiscoveryError) as told:
            pool.consumer(name, timeout=1)
        if isinstance(told.value, StreamNotFound) and "could not be found out" not in str(told.value):
            return str(told.value)
        assert time.monotonic() < deadline, told.value


def test_name_that_nobody_has_is_an_error_that_names_similar_ones(pool: fp.Pool) -> None:
    assert re.search(r"'camera'.*there are 0 streams", not_found(pool, "camera"))
    for number, name in enumerate(("camera-left", "camera-right", "gauge")):
        pool.producer(STREAM + number, name=name)
    wait_until(lambda: len(pool.discover()) == 3)
    assert re.search(r"'camera-lift'.*similar: 'camera-left', 'camera-right'$", not_found(pool, "camera-lift"))
    assert "there are: 'camera-left', 'camera-right', 'gauge'" in not_found(pool, "zzz")


def test_two_streams_of_one_name_are_an_error_that_says_how_to_choose(pool: fp.Pool) -> None:
    cameras = [pool.producer(STREAM + number, name="camera") for number in range(2)]
    wait_until(lambda: len(pool.discover("camera")) == 2)
    with pytest.raises(AmbiguousStream, match=f"{STREAM} of driver .*{STREAM + 1} of driver .*pool.discover"):
        pool.consumer("camera")
    second = next(found for found in pool.discover("camera") if found.stream_id == STREAM + 1)
    with pool.consumer(second) as eye:
        assert first_frame(cameras[1], eye).stream_id == STREAM + 1


def test_nobody_to_ask_is_said(media_driver: MediaDriver, base_dir: Path) -> None:
    config = msgspec.structs.replace(small_config(base_dir), aeron=media_driver.settings)
    with fp.connect(config) as pool:
        with pytest.raises(DiscoveryError, match=r"all streams.*nobody listens there; is a driver"):
            pool.discover(timeout=0.1)
        with pytest.raises(DiscoveryError, match=r"name 'camera'.*nobody listens there"):
            pool.consumer("camera", timeout=0.1)


def require_rejection(pool: fp.Pool, stream: Any) -> None:
    """Asked again if the driver was too slow to say so."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with pytest.raises((AttachRefused, DiscoveryError)) as refused:
            pool.consumer(stream, timeout=1)
        if "REJECTED" in str(refused.value):
            return
        assert time.monotonic() < deadline, refused.value


@pytest.mark.clause("N-7-03")
def test_finding_a_stream_is_no_permission(config: Config) -> None:
    closed = msgspec.structs.replace(config, streams=(StreamConfig(stream_id=STREAM, roles=("producer",)),))
    with fp.serve(closed) as pool:
        pool.producer(STREAM, name="camera")
        (found,) = pool.discover("camera")
        for stream in ("camera", found):
            require_rejection(pool, stream)
        before = len(maps_below(Path(config.driver.shm_base_dir)))
        require_rejection(pool, "camera")
        assert len(maps_below(Path(config.driver.shm_base_dir))) == before


@pytest.mark.clause("N-7-02")
def test_consumer_that_was_found_by_name_notices_when_announces_stop(base_dir: Path, media_driver: MediaDriver) -> None:
    values = table(base_dir, media_driver="external")
    with running_driver("external", base_dir, values) as driver, fp.connect(driver.config) as pool:
        pool.producer(STREAM, name="camera")
        eye = pool.consumer("camera")
        assert eye.state is MappingState.MAPPED
        assert driver.process is not None
        driver.process.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: eye.state is MappingState.UNMAPPED)
        finally:
            driver.process.signal(signal.SIGCONT)
        wait_until(lambda: eye.state is MappingState.MAPPED)


# With a provider that says what the test wants


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[list[str]]:
    """The names of the files in a directory that anybody opened."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    names: list[str] = []
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(directory), 0x20) >= 0  # IN_OPEN
        yield names
        with contextlib.suppress(BlockingIOError):
            events = os.read(watch, 65_536)
            while events:
                _, _, _, length = struct.unpack_from("iIII", events)
                names.append(events[16 : 16 + length].rstrip(b"\0").decode())
                events = events[16 + length :]
    finally:
        os.close(watch)


def hint(stream_id: int = STREAM, **changes: Any) -> Result:
    """A result that is not out of date, whatever the driver announces."""
    return result(stream_id, **{"epoch": 2**40, **changes})


def as_result(layout: StreamLayout, **changes: Any) -> Result:
    """A result whose regions are there and could be mapped."""
    pools = tuple(
        PayloadPool(
            pool_id=pool.pool_id, pool_nslots=pool.nslots, stride_bytes=pool.stride_bytes, region_uri=str(pool.uri)
        )
        for pool in layout.pools
    )
    fields = {"epoch": layout.epoch, "header_nslots": layout.nslots, "payload_pools": pools}
    return result(layout.stream_id, **{**fields, "header_region_uri": str(layout.header_uri), **changes})


@pytest.mark.clause("N-2.3-01", "N-3-02")
def test_what_discovery_says_is_not_mapped_without_the_drivers_word(media_driver: MediaDriver, base_dir: Path) -> None:
    """The regions are there and in order, and no driver is."""
    layout = make_stream(base_dir)
    config = msgspec.structs.replace(small_config(base_dir), aeron=media_driver.settings)
    with Oracle(config.aeron) as oracle, Onlooker(config) as onlooker, fp.connect(config) as pool:
        control = onlooker.listen(config.stream_ids.control)
        with oracle.answering(as_result(layout)), opened(Path(layout.header_uri.path).parent) as files:
            with pytest.raises(AttachRefused, match="is a driver running"):
                pool.consumer("camera", timeout=6)
        assert {request.stream_id for request in control.all(ShmAttachRequest)} == {layout.stream_id}
        assert files == []
        assert maps_below(base_dir / "tensorpool") == []


@pytest.mark.clause("N-2.3-02", "N-2.3-03", "N-3-01")
@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 2**40},
        {"epoch": 2**63, "layout_version": 9},
        {"layout_version": 0},
        {"header_nslots": 2, "payload_pools": ()},
        {"header_region_uri": "shm:file?path=/etc/passwd"},
        {"producer_id": 0},
    ],
    ids="-".join,
)
def test_drivers_word_counts_where_discovery_says_otherwise(
    hinted: fp.Pool, oracle: Oracle, wrong: dict[str, Any]
) -> None:
    camera = hinted.producer(STREAM, name="camera")
    with oracle.answering(hint(**wrong)), hinted.consumer("camera") as eye:
        frame = first_frame(camera, eye)
        camera.publish(SPOT)
        assert next(eye).copy().tolist() == SPOT.tolist()
        stream = eye._place.stream
        assert stream is not None
        assert (frame.epoch, stream.layout.layout_version, stream.layout.nslots) == (stream.layout.epoch, 1, 64)
        assert stream.layout.epoch == camera._place.identity()[1]  # type: ignore[index]


@pytest.mark.clause("N-2.3-04")
@pytest.mark.parametrize("corrupt", [False, True])
def test_stream_with_a_corrupt_superblock_is_refused_though_found_and_granted(
    media_driver: MediaDriver, base_dir: Path, corrupt: bool
) -> None:
    """The test grants the lease, because a real driver looks at its superblocks before it does."""
    layout = make_stream(base_dir)
    if corrupt:
        with open(layout.header_uri.path, "r+b") as file:
            file.write(b"\0" * 8)
    config = msgspec.structs.replace(small_config(base_dir), aeron=media_driver.settings)
    with Oracle(config.aeron) as oracle, Onlooker(config) as onlooker, fp.connect(config) as pool:
        control = onlooker.listen(config.stream_ids.control)

        def grant() -> None:
            wait_until(lambda: control.all(ShmAttachRequest))
            request = control.all(ShmAttachRequest)[0]
            onlooker.say(config.stream_ids.control, granted(request.correlation_id, layout))

        driver = threading.Thread(target=grant)
        driver.start()
        with oracle.answering(as_result(layout)):
            refused = pytest.raises(AttachRefused, match="magic") if corrupt else contextlib.nullcontext()
            with refused, pool.consumer("camera", timeout=5) as eye:
                assert eye.state is MappingState.MAPPED
        driver.join()


def granted(correlation_id: int, layout: StreamLayout) -> ShmAttachResponse:
    """A driver's OK for these regions."""
    return ShmAttachResponse(
        correlation_id=correlation_id,
        code=ResponseCode.OK,
        lease_id=1,
        stream_id=layout.stream_id,
        epoch=layout.epoch,
        layout_version=layout.layout_version,
        header_nslots=layout.nslots,
        header_slot_bytes=layout.header_slot_bytes,
        max_dims=8,
        header_region_uri=str(layout.header_uri),
        payload_pools=tuple(
            driver_901.PayloadPool(
                pool_id=pool.pool_id, pool_nslots=pool.nslots, stride_bytes=pool.stride_bytes, region_uri=str(pool.uri)
            )
            for pool in layout.pools
        ),
    )


@pytest.mark.clause("N-5.2-09", "N-7-01")
def test_request_goes_to_the_driver_that_the_result_names(base_dir: Path, silent: Config) -> None:
    """Two drivers with the same stream id; announces are rare, because they do not say whose they are."""
    rare = msgspec.structs.replace(silent.driver, announce_period_ms=60_000, lease_expiry_ms=120_000)
    first = msgspec.structs.replace(silent, driver=rare)
    second = msgspec.structs.replace(
        first,
        driver=msgspec.structs.replace(rare, namespace="second", media_driver="external"),
        stream_ids=StreamIds(control=1_010),
    )
    with ShmDriver(first).start() as one, ShmDriver(second).start() as other, fp.connect(first) as pool:
        with DriverClient(first) as here, DriverClient(second) as there, Oracle(first.aeron) as oracle:
            here.hold(STREAM, Role.PRODUCER)
            held = there.hold(STREAM, Role.PRODUCER)
            results = [
                result(STREAM, driver_instance_id="one", driver_control_stream_id=1_000),
                result(STREAM, driver_instance_id="other", driver_control_stream_id=1_010),
            ]
            with oracle.answering(*results):
                chosen = next(found for found in pool.discover("camera") if found.driver == "other")
                eye = pool.consumer(chosen)
            assert eye._place.identity()[1] == held.epoch  # type: ignore[index]
            stream = eye._place.stream
            assert stream is not None
            assert "/second/" in stream.layout.header_uri.path
            assert [each["consumers"] for each in one.statistics()["streams"]] == [0]
            assert [each["consumers"] for each in other.statistics()["streams"]] == [1]
            eye.close()
            wait_until(lambda: other.statistics()["streams"][0]["consumers"] == 0)


@pytest.mark.clause("N-5.2-10")
def test_streams_of_a_consumers_own_come_from_the_producer_and_not_from_discovery(
    hinted: fp.Pool, silent: Config, oracle: Oracle
) -> None:
    """The producer is one that does not answer hellos."""
    with DriverClient(silent) as bare, Onlooker(silent) as onlooker:
        bare.hold(STREAM, Role.PRODUCER)
        with oracle.answering(hint(tags=["descriptor_stream_id:31000"])):
            eye = hinted.consumer("camera", own_stream=True)
        eye.poll()
        assert eye._descriptors.subscription.stream_id == silent.stream_ids.descriptor
        assert eye.duties is not None
        told = ConsumerConfig(
            stream_id=STREAM,
            consumer_id=eye.duties.introduction.consumer_id,
            use_shm=Bool.TRUE,
            mode=Mode.STREAM,
            descriptor_stream_id=31_007,
            control_stream_id=0,
            descriptor_channel="aeron:ipc",
        )
        onlooker.say(silent.stream_ids.control, told)
        wait_until(lambda: (eye.poll(), eye._descriptors.subscription.stream_id == 31_007)[1])
        eye.close()


@pytest.mark.clause("N-7-05")
def test_result_that_is_older_than_what_is_announced_is_asked_for_again(hinted: fp.Pool, oracle: Oracle) -> None:
    camera = hinted.producer(STREAM, name="camera")
    epoch = camera._place.identity()[1]  # type: ignore[index]
    wait_until(lambda: hinted.plane.announced(STREAM))
    hinted._discovery()._freshness_ns = 60 * NANOS_PER_SECOND  # an announce counts, however long ago it came
    with oracle.answering(result(STREAM, epoch=epoch - 1)) as answers:
        assert hinted.discover("camera") == []
        assert len({request.request_id for request in oracle.heard}) == 3, "asked again, and not for ever"
        answers[0] = result(STREAM, epoch=epoch)
        assert [found.epoch for found in hinted.discover("camera")] == [epoch]


def test_stream_of_another_host_is_never_attached_to(hinted: fp.Pool, silent: Config, oracle: Oracle) -> None:
    """Although a stream of the same id, with a driver at the same place, is here."""
    hinted.producer(STREAM)
    with Onlooker(silent) as onlooker:
        control = onlooker.listen(silent.stream_ids.control)
        with oracle.answering(hint(host="elsewhere")):
            (found,) = hinted.discover("camera")
            for stream in ("camera", found):
                with pytest.raises(NotLocal, match=f"stream {STREAM} .*host elsewhere.*bridge.*{STREAM}"):
                    hinted.consumer(stream, timeout=10)
        assert control.all(ShmAttachRequest) == []


def test_copy_that_a_bridge_makes_here_is_chosen(hinted: fp.Pool, oracle: Oracle) -> None:
    camera = hinted.producer(50_000, name="camera")
    remote, copy = hint(host="elsewhere"), hint(50_000)
    with oracle.answering(remote, copy), hinted.consumer("camera") as eye:
        assert first_frame(camera, eye).stream_id == 50_000


def test_copy_that_a_bridge_is_about_to_make_is_waited_for(hinted: fp.Pool, oracle: Oracle) -> None:
    camera = hinted.producer(50_000, name="camera")
    with oracle.answering(hint(host="elsewhere")) as answers:
        later = threading.Timer(0.5, lambda: answers.append(hint(50_000)))
        later.start()
        with hinted.consumer("camera") as eye:
            assert first_frame(camera, eye).stream_id == 50_000
        later.join()


class Nothing:
    """A source of payloads that brings none."""

    epoch = 5

    def __init__(self, request: SourceRequest) -> None:
        self.request = request

    def start(self) -> None: ...
    def close(self) -> None: ...

    def do_work(self) -> int:
        return 0

    def due_ns(self) -> int:
        return 0

    def take(self, limit: int) -> list[Arrived]:
        return []

    def wait(self, timeout: float) -> bool:
        return False

    def statistics(self) -> dict[str, int]:
        return {}


def test_stream_of_another_host_comes_another_way_where_one_is_configured(silent: Config, hinted: fp.Pool) -> None:
    config = with_discovery(silent, payload_fallback_uri="bridge://lab")
    sources: list[Nothing] = []

    def open_source(request: SourceRequest) -> Nothing:
        sources.append(Nothing(request))
        return sources[-1]

    with Oracle(config.aeron) as oracle, Onlooker(config) as onlooker, Pool(config, open_source=open_source) as pool:
        control = onlooker.listen(config.stream_ids.control)
        with oracle.answering(hint(host="elsewhere")), pool.consumer("camera", timeout=10) as eye:
            assert eye.state is MappingState.FALLBACK
            assert [(source.request.uri, source.request.stream_id) for source in sources] == [("bridge://lab", STREAM)]
        assert control.all(ShmAttachRequest) == []
