"""FALLBACK for real: consumers without shared memory, and consumers whose regions are rejected, get the same frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framepool as fp
from framepool.client.mapping import MappingState
from framepool.errors import AttachRefused, ConfigurationError
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, ConsumerHello, Mode
from tests.support.bridges import SOURCE, Host, carried, image, joined, mapping
from tests.support.onlooker import PATIENCE, wait_until
from tests.support.ports import free_port


class Spread:
    """A sender that any number of receivers join, and the URI that leads there."""

    def __init__(self) -> None:
        port = free_port()
        where = f"aeron:udp?control=127.0.0.1:{port}|control-mode=dynamic"
        metadata = f"aeron:udp?control=127.0.0.1:{free_port()}|control-mode=dynamic"
        self.link: dict[str, Any] = {
            "payload_channel": f"{where}|term-length=1m",
            "payload_stream_id": 3000,
            "control_channel": f"{where}|term-length=1m",
            "control_stream_id": 3001,
            "metadata_channel": f"{metadata}|term-length=1m",
        }
        joining = "endpoint=127.0.0.1:0|"
        self.uri = where.replace("?", f"?{joining}") + "|stream-id=3000"
        self.bridges = {
            "lab": {
                **self.link,
                "payload_channel": where.replace("?", f"?{joining}"),
                "control_channel": where.replace("?", f"?{joining}"),
                "metadata_channel": metadata.replace("?", f"?{joining}"),
            }
        }


@pytest.fixture
def spread() -> Spread:
    return Spread()


@pytest.fixture
def here(base_dir: Path, spread: Spread) -> Iterator[Host]:
    """The host of the source, with a bridge that sends."""
    with Host(base_dir, "a") as host:
        host.bridge(spread.link, mapping())
        yield host


@pytest.fixture
def there(base_dir: Path, spread: Spread) -> Iterator[Host]:
    """A host with a media driver and no driver: there is no shared memory for anybody."""
    host = Host(base_dir, "b", bridges=spread.bridges)
    with MediaDriver(host.config.aeron):
        yield host
        host.close()


def test_consumer_without_shared_memory_gets_the_same_frames(here: Host, there: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=spread.uri)
    native = here.pool.consumer(SOURCE)
    assert eye.state is MappingState.FALLBACK
    joined(camera, eye)
    joined(camera, native)
    wait_until(lambda: eye.latest(0.05) is None)
    gaps = eye.counts["gap"]
    for number, shape in enumerate([(7, 5), (0, 3), (100, 150), (2, 3, 4)]):
        sent = image(number, shape)
        seq = camera.publish(sent, timestamp_ns=10_000 + number, trace_id=number + 1)
        assert seq is not None
        frame, twin = eye.wait_for(seq, PATIENCE), native.wait_for(seq, PATIENCE)
        assert frame is not None
        assert twin is not None
        with frame as view:
            assert not view.flags.writeable
            assert np.array_equal(view, sent)
        for name in ("seq", "shape", "dtype", "order", "nbytes", "timestamp_ns", "trace_id", "epoch", "meta_version"):
            assert getattr(frame, name) == getattr(twin, name), name
    assert eye.counts["gap"] == gaps
    assert eye.epoch == native.epoch
    assert not list(there.directory.glob("tensorpool-*")), "no shared memory on that host"


@pytest.mark.clause("W-10.1.3-03", "W-15.12-01")
def test_consumer_that_is_told_to_leave_shared_memory_goes_on_with_the_same_stream(here: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE)
    eye = here.pool.consumer(SOURCE)
    joined(camera, eye)
    assert eye.state is MappingState.MAPPED
    assert eye.duties is not None
    told(here, eye.duties.introduction.consumer_id, spread.uri)
    wait_until(lambda: eye.state is MappingState.FALLBACK)
    joined(camera, eye)
    carried(camera, eye)
    assert eye._ring is None, "no region is read any more"
    assert eye.statistics()["fallback"]["published"] > 4  # type: ignore[index]
    told(here, eye.duties.introduction.consumer_id, "", Bool.TRUE)
    wait_until(lambda: eye.state is MappingState.MAPPED)
    joined(camera, eye)
    carried(camera, eye)
    assert "fallback" not in eye.statistics()


def told(host: Host, consumer_id: int, uri: str, use_shm: Bool = Bool.FALSE) -> None:
    """What a supervisor says."""
    host.stranger().say_local(
        host.config.stream_ids.control,
        ConsumerConfig(
            stream_id=SOURCE,
            consumer_id=consumer_id,
            use_shm=use_shm,
            mode=Mode.STREAM,
            descriptor_stream_id=0,
            control_stream_id=0,
            payload_fallback_uri=uri,
        ),
    )


def test_producer_tells_consumers_without_shared_memory_where_to_turn(here: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE, payload_fallback_uri=spread.uri)
    eye = here.pool.consumer(SOURCE, shared_memory=False)
    assert eye.state is MappingState.FALLBACK
    joined(camera, eye)
    carried(camera, eye)


@pytest.mark.clause("W-15.22-15", "W-15.12-01")
def test_consumer_whose_regions_are_rejected_turns_to_the_configured_uri(here: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE)
    strict = narrow(here)
    with pytest.raises(AttachRefused, match="none of the allowed directories"):
        strict.consumer(SOURCE, timeout=3)
    eye = strict.consumer(SOURCE, payload_fallback_uri=spread.uri)
    assert eye.state is MappingState.FALLBACK
    joined(camera, eye)
    carried(camera, eye)
    strict.close()


def narrow(host: Host) -> fp.Pool:
    """A connection of a program that accepts no files from where the driver of this host makes them."""
    elsewhere = host.directory / "elsewhere"
    elsewhere.mkdir()
    return fp.connect(host.configured(driver={**host.table["driver"], "shm_base_dir": str(elsewhere)}))


def test_consumer_whose_regions_are_rejected_says_so_and_is_told_where_to_turn(here: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE, payload_fallback_uri=spread.uri)
    hellos = here.stranger().hear_local(here.config.stream_ids.control)
    with narrow(here) as strict:
        eye = strict.consumer(SOURCE)
        assert eye.state is MappingState.FALLBACK
        joined(camera, eye)
        carried(camera, eye)
        assert eye.duties is not None
        mine = [each for each in hellos.all(ConsumerHello) if each.consumer_id == eye.duties.introduction.consumer_id]
        assert mine[-1].supports_shm is Bool.FALSE


def test_bridge_uri_names_channels_of_the_configuration_and_brings_metadata(here: Host, there: Host) -> None:
    camera = here.pool.producer(SOURCE, name="camera", metadata={"exposure_ms": 4})
    eye = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri="bridge://lab")
    joined(camera, eye)
    wait_until(lambda: carried(camera, eye, 1)[0].metadata is not None)
    metadata = carried(camera, eye, 1)[0].metadata
    assert metadata is not None
    assert metadata["exposure_ms"] == 4
    assert [source.name for source in there.pool.metadata.sources()] == ["camera"]


@pytest.mark.clause("W-10.1.3-05")
@pytest.mark.parametrize(
    "uri", ["foo://lab", "http://127.0.0.1", "bridge://", "bridge:lab", "udp://1.2.3.4:5", "aeron:tcp?a=b"]
)
def test_uri_of_another_scheme_is_refused(there: Host, uri: str) -> None:
    with pytest.raises(ConfigurationError, match="payload_fallback_uri"):
        there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=uri)


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("bridge://nowhere", "not in"),
        ("aeron:udp?endpoint=127.0.0.1:40999", "names no stream-id"),
        ("aeron:udp?endpoint=127.0.0.1:40999|stream-id=x", "invalid literal"),
        ("aeron:udp?stream-id=4", "neither an endpoint"),
        ("aeron:ipc?stream-id=4", "over UDP"),
        ("aeron:udp?endpoint=127.0.0.1:40999|stream-id=4|control-stream-id=4", "share stream 4"),
    ],
)
def test_uri_that_leads_nowhere_is_refused_with_its_reason(there: Host, uri: str, complaint: str) -> None:
    with pytest.raises(AttachRefused, match=complaint):
        there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=uri, timeout=0.3)


def test_consumer_that_nobody_tells_where_to_turn_is_refused(there: Host) -> None:
    with pytest.raises(AttachRefused, match="nobody said where its payloads come from"):
        there.pool.consumer(SOURCE, shared_memory=False, timeout=0.3)


def test_new_epoch_of_the_source_is_followed(here: Host, there: Host, spread: Spread) -> None:
    eye = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=spread.uri)
    epochs = []
    for _ in range(2):
        with here.pool.producer(SOURCE) as camera:
            joined(camera, eye)
            frames = carried(camera, eye)
            epochs.append(frames[-1].epoch)
    assert epochs == sorted(set(epochs))
    assert frames[-1].valid()


def test_program_that_sleeps_loses_frames_and_holds_up_nobody(here: Host, there: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE)
    sleeper = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=spread.uri)
    other = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=spread.uri)
    joined(camera, sleeper)
    joined(camera, other)
    sleeper.pass_over()
    before = sleeper.counts["gap"]
    last = carried(camera, other, 50)[-1].seq
    frame = sleeper.wait_for(last, PATIENCE)
    assert frame is not None, sleeper.statistics()
    assert sleeper.counts["gap"] - before > 30, "only the newest are kept"


def test_frames_come_by_iteration_too(here: Host, there: Host, spread: Spread) -> None:
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(SOURCE, shared_memory=False, payload_fallback_uri=spread.uri)
    joined(camera, eye)

    async def first() -> fp.Frame:
        camera.publish(image(5))
        return await anext(aiter(eye))

    assert np.array_equal(asyncio.run(first()).copy(), image(5))
    camera.publish(image(6))
    assert np.array_equal(next(eye).copy(), image(6))
