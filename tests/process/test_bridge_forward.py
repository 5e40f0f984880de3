"""What goes along with frames: metadata, announces, QoS and progress, on the streams they belong to and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import framepool as fp
from framepool.wire._generated.control_900 import (
    DataSourceAnnounce,
    DataSourceMeta,
    FrameProgress,
    FrameProgressState,
    QosConsumer,
    QosProducer,
    ShmPoolAnnounce,
)
from framepool.wire._generated.trace_904 import TraceLinkSet
from tests.support.bridges import (
    DEST,
    SOURCE,
    Both,
    Stranger,
    bridged,
    carried,
    joined,
    link,
    mapping,
    mapping_of,
    two_hosts,
)
from tests.support.chunked import SentFrame, noise
from tests.support.onlooker import Ear, wait_until


@pytest.fixture
def hosts(base_dir: Path) -> Iterator[Both]:
    with two_hosts(base_dir) as both:
        yield both


def control_ear(stranger: Stranger, between: dict[str, Any]) -> Ear:
    return stranger.hear(between["control_channel"], between["control_stream_id"])


# Metadata


@pytest.mark.clause("B-7.1-01", "B-7.1-02", "B-7.1-03", "B-7.1-04", "B-7.1-05")
def test_metadata_is_about_the_destination_and_of_the_version_it_had(hosts: Both) -> None:
    here, there = hosts
    between = link()
    stranger = there.stranger()
    crossing = stranger.hear(between["metadata_channel"], between["metadata_stream_id"])
    local = stranger.hear_local(there.config.stream_ids.metadata)
    camera = here.pool.producer(SOURCE, name="camera", summary="u16 40x30", metadata={"exposure_ms": 1})
    camera.metadata["exposure_ms"] = 2.5
    bridged(hosts, between=between)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    wait_until(lambda: local.all(DataSourceAnnounce) and local.all(DataSourceMeta))
    assert {message.stream_id for message in crossing.all(DataSourceMeta)} == {SOURCE}
    announce, meta = local.all(DataSourceAnnounce)[-1], local.all(DataSourceMeta)[-1]
    source = crossing.all(DataSourceAnnounce)[-1]
    assert (announce.stream_id, announce.name, announce.summary) == (DEST, "camera", "u16 40x30")
    assert (announce.meta_version, announce.epoch, announce.producer_id) == (2, source.epoch, source.producer_id)
    assert (meta.stream_id, meta.meta_version) == (DEST, 2)
    wait_until(lambda: (frame := carried(camera, eye, 1)[0]).metadata is not None and frame.meta_version == 2)
    metadata = carried(camera, eye, 1)[0].metadata
    assert metadata is not None
    assert metadata["exposure_ms"] == 2.5


def test_tags_tell_where_a_stream_comes_from(hosts: Both) -> None:
    here, there = hosts
    camera = here.pool.producer(SOURCE, metadata={"tags": ["left", "cold"]})
    bridged(hosts)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    wait_until(lambda: there.pool.metadata.latest(DEST) is not None)
    known = there.pool.metadata.latest(DEST)
    assert known is not None
    assert known.tags == ("left", "cold", "origin-host:a", f"origin-stream:{SOURCE}", "bridged:bridge-b")


@pytest.mark.clause("B-7.1-04")
def test_metadata_may_be_about_another_stream_than_the_destination(hosts: Both) -> None:
    here, there = hosts
    local = there.stranger().hear_local(there.config.stream_ids.metadata)
    here.pool.producer(SOURCE, name="camera")
    bridged(hosts, mapping(metadata_stream_id=50_100))
    wait_until(lambda: local.all(DataSourceAnnounce) and local.all(DataSourceMeta))
    assert {message.stream_id for message in local.all(DataSourceMeta)} == {50_100}
    assert {message.stream_id for message in local.all(DataSourceAnnounce)} == {50_100}


@pytest.mark.clause("B-7.1-06", "B-7.1-08")
@pytest.mark.parametrize(
    "off", [{"between": link(metadata=False)}, {"forward_metadata": False}], ids=["no channel", "off"]
)
def test_frames_go_without_metadata_where_that_is_off(hosts: Both, off: dict[str, Any]) -> None:
    here, there = hosts
    between = off.get("between") or link()
    stranger = there.stranger()
    local = stranger.hear_local(there.config.stream_ids.metadata)
    crossing = None
    if "metadata_channel" in between:
        crossing = stranger.hear(between["metadata_channel"], between["metadata_stream_id"])
    camera = here.pool.producer(SOURCE, name="camera")
    sender, _ = bridged(hosts, **{**off, "between": between})
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    wait_until(lambda: mapping_of(sender).get("announces", 0) > 15)  # a second and a half: metadata is repeated in one
    carried(camera, eye)
    assert local.hear() == []
    assert crossing is None or crossing.hear() == []


@pytest.mark.clause("B-10-09")
def test_metadata_is_taken_from_the_stream_that_is_configured_and_sent_on_the_one_that_is(hosts: Both) -> None:
    here, there = hosts
    between = link(metadata_stream_id=3077)
    crossing = there.stranger().hear(between["metadata_channel"], 3077)
    here.pool.producer(SOURCE, name="not this one")
    bridged(hosts, between=between, source_metadata_stream_id=1350)
    source = here.stranger()
    said = DataSourceMeta(stream_id=SOURCE, meta_version=9, timestamp_ns=1)

    def heard() -> bool:
        source.say_local(1350, said)
        return bool(crossing.all(DataSourceMeta))

    wait_until(heard)
    assert {message.meta_version for message in crossing.all(DataSourceMeta)} == {9}
    assert crossing.all(DataSourceAnnounce) == []


def test_metadata_of_other_streams_stays_where_it_is(hosts: Both) -> None:
    here, there = hosts
    between = link()
    crossing = there.stranger().hear(between["metadata_channel"], between["metadata_stream_id"])
    bridged(hosts, between=between)
    here.pool.producer(10_007, name="private")
    here.pool.producer(SOURCE, name="camera")
    wait_until(lambda: len(crossing.all(DataSourceMeta)) > 1)
    assert {message.stream_id for message in crossing.all(DataSourceMeta)} == {SOURCE}


def test_blobs_and_trace_links_go_along(hosts: Both) -> None:
    here, there = hosts
    bridged(hosts)
    links = there.stranger().hear_local(there.config.stream_ids.metadata)
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    wait_until(lambda: there.pool.metadata.latest(DEST) is not None)
    flat = np.arange(20_000, dtype=np.uint16)
    camera.send_blob(3, flat)
    blobs = there.pool.blobs
    wait_until(lambda: blobs.get(DEST, camera.metadata.version, 3) is not None)
    arrived = blobs.get(DEST, camera.metadata.version, 3)
    assert arrived is not None
    assert arrived.data == flat.tobytes()
    parent = carried(camera, eye, 1)[0]
    derived = camera.publish(np.ones(4, np.uint8), parents=[SimpleNamespace(trace_id=501)])
    wait_until(lambda: links.all(TraceLinkSet))
    (told,) = links.all(TraceLinkSet)
    assert (told.stream_id, told.epoch, told.seq) == (DEST, parent.epoch, derived)


# Announces


@pytest.mark.clause("B-7.2-02")
def test_frames_are_judged_by_the_latest_forwarded_announce(hosts: Both) -> None:
    """A bridge before the receiver, played by the test: it announces and sends as it likes."""
    here, there = hosts
    between = link()
    tap = here.stranger()
    control = between["control_channel"], between["control_stream_id"]
    payload = between["payload_channel"], between["payload_stream_id"]
    heard = tap.hear_local(here.config.stream_ids.announce)
    receiver = there.bridge(between, mapping(), role="receiver")
    with here.pool.producer(SOURCE):
        wait_until(lambda: heard.all(ShmPoolAnnounce))
    template = heard.all(ShmPoolAnnounce)[-1]
    first = msgspec.structs.replace(template, epoch=7, payload_pools=template.payload_pools[:1])
    second = msgspec.structs.replace(template, epoch=8, payload_pools=template.payload_pools[1:])
    tap.say(*control, first)
    wait_until(lambda: mapping_of(receiver)["source_epoch"] == 7 and mapping_of(receiver)["state"] == "running")
    send(tap, payload, epoch=7, seq=0, pool_id=1)
    wait_until(lambda: mapping_of(receiver)["frames"]["published"] == 1)
    tap.say(*control, second)
    wait_until(lambda: mapping_of(receiver)["source_epoch"] == 8 and mapping_of(receiver)["state"] == "running")
    send(tap, payload, epoch=7, seq=1, pool_id=1)
    wait_until(lambda: mapping_of(receiver)["frames"].get("old_epoch"))
    send(tap, payload, epoch=8, seq=0, pool_id=1)
    wait_until(lambda: mapping_of(receiver)["frames"].get("header"))
    assert mapping_of(receiver)["frames"]["published"] == 1
    send(tap, payload, epoch=8, seq=1, pool_id=2)
    wait_until(lambda: mapping_of(receiver)["frames"]["published"] == 2)


def send(tap: Stranger, payload: tuple[str, int], *, epoch: int, seq: int, pool_id: int) -> None:
    """A frame as a bridge sends it."""
    for chunk in SentFrame(seq, noise(seq, 100), epoch=epoch, pool_id=pool_id).chunks():
        tap.say(*payload, chunk.message)


# Progress and QoS


PROGRESS = mapping(source_control_stream_id=1000, dest_control_stream_id=1005)
QOS = {"source_control_stream_id": 1200, "dest_control_stream_id": 1205}


@pytest.mark.clause("B-9-03", "B-9-01")
def test_neither_progress_nor_qos_crosses_unless_it_is_asked_for(hosts: Both) -> None:
    here, there = hosts
    between = link()
    crossing = control_ear(there.stranger(), between)
    sender, _ = bridged(hosts, PROGRESS, between=between)
    camera = here.pool.producer(SOURCE)
    here.pool.consumer(SOURCE, progress=True)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    fill(camera)
    wait_until(lambda: mapping_of(sender).get("announces", 0) > 15)
    assert {type(message) for message in crossing.hear()} == {ShmPoolAnnounce}


def fill(camera: Any) -> int:
    """A frame that comes in two halves; its sequence."""
    wait_until(lambda: camera.duties is not None and camera.duties.progress.policy is not None)
    with camera.claim((64, 64), np.uint16, progress="rows") as slot:
        slot.array[:32] = 1
        wait_until(lambda: slot.progress(rows=32))
        slot.array[32:] = 2
    return int(slot.seq)


@pytest.mark.clause("B-9-04", "B-9-05", "B-9-06", "B-9-07", "B-9-08", "B-9-10", "B-7.2-05")
def test_progress_is_repeated_at_the_destination_while_the_source_still_writes(hosts: Both) -> None:
    here, there = hosts
    between = link()
    stranger = there.stranger()
    crossing = control_ear(stranger, between)
    repeated = stranger.hear_local(1005)
    elsewhere = stranger.hear_local(there.config.stream_ids.control)
    original = here.stranger().hear_local(here.config.stream_ids.control)
    bridged(hosts, PROGRESS, between=between, forward_progress=True)
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    wait_until(lambda: camera.duties is not None and camera.duties.progress.policy is not None)

    def of_the_frame(ear: Ear) -> list[FrameProgress]:
        return [each for each in ear.all(FrameProgress) if each.seq == slot.seq]

    with camera.claim((64, 64), np.uint16, progress="rows") as slot:
        slot.array[:32] = 1
        wait_until(lambda: slot.progress(rows=32))
        wait_until(lambda: of_the_frame(repeated))
        assert eye.latest(0.05) is None, "progress does not wait for the frame, and is not the frame"
        slot.array[32:] = 2
    wait_until(lambda: of_the_frame(original)[-1].state is FrameProgressState.COMPLETE)
    source = of_the_frame(original)
    wait_until(lambda: of_the_frame(crossing) == source)
    assert (arrived := of_the_frame(repeated))
    expected = [msgspec.structs.replace(each, stream_id=DEST) for each in source]
    assert arrived == expected[: len(arrived)], "what comes after the frame itself is not repeated"
    assert source[0].state is FrameProgressState.STARTED
    assert elsewhere.all(FrameProgress) == []


@pytest.mark.clause("B-9-04")
def test_progress_on_another_stream_than_the_configured_one_is_not_forwarded(hosts: Both) -> None:
    here, there = hosts
    between = link()
    crossing = control_ear(there.stranger(), between)
    bridged(
        hosts,
        mapping(source_control_stream_id=1009, dest_control_stream_id=1005),
        between=between,
        forward_progress=True,
    )
    source = here.stranger()
    here.pool.producer(SOURCE)
    wait_until(lambda: crossing.all(ShmPoolAnnounce))
    source.say_local(here.config.stream_ids.control, progress(1, seq=1))
    source.say_local(1009, progress(1, seq=2))
    source.say_local(1009, progress(1, seq=3, stream_id=10_007))
    source.say_local(1009, progress(1, seq=4))
    wait_until(lambda: len(crossing.all(FrameProgress)) == 2)
    assert [(each.stream_id, each.seq) for each in crossing.all(FrameProgress)] == [(SOURCE, 2), (SOURCE, 4)]


def progress(epoch: int, *, seq: int, stream_id: int = SOURCE) -> FrameProgress:
    state = FrameProgressState.PROGRESS
    return FrameProgress(stream_id=stream_id, epoch=epoch, seq=seq, payload_bytes_filled=64, state=state)


@pytest.mark.clause("B-9-09", "B-9-11")
def test_progress_of_unknown_streams_and_of_frames_that_are_over_is_not_repeated(hosts: Both) -> None:
    """A bridge before the receiver, played by the test."""
    here, there = hosts
    between = link()
    control = between["control_channel"], between["control_stream_id"]
    stranger = there.stranger()
    repeated = stranger.hear_local(1005)
    receiver = there.bridge(between, PROGRESS, role="receiver", forward_progress=True)
    bridge = here.bridge(between, PROGRESS, forward_progress=True)
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST)
    joined(camera, eye)
    last = carried(camera, eye)[-1].seq
    epoch = mapping_of(receiver)["source_epoch"]
    assert epoch == mapping_of(bridge)["source_epoch"]
    liar = here.stranger()
    for message in (
        progress(epoch, seq=last + 50, stream_id=10_007),
        progress(epoch - 1, seq=last + 50),
        progress(epoch + 1, seq=last + 50),
        progress(epoch, seq=last),
        progress(epoch, seq=last + 60),
    ):
        liar.say(*control, message)
    wait_until(lambda: repeated.all(FrameProgress))
    assert [(each.stream_id, each.seq) for each in repeated.all(FrameProgress)] == [(DEST, last + 60)]
    assert mapping_of(receiver)["progress dropped"] == 3
    assert receiver.statistics()["links"]["incoming"]["unmapped messages"] == 1


@pytest.mark.clause("B-9-13")
def test_progress_without_a_stream_to_repeat_it_on_is_dropped_and_frames_go_on(hosts: Both) -> None:
    """Such a configuration is refused (B-9-14); a mapping that was made before it applied drops what comes."""
    here, there = hosts
    between = link()
    camera = here.pool.producer(SOURCE)
    here.bridge(between, PROGRESS, forward_progress=True)
    config = there.configured(bridge={"instance_id": "b", **between, "role": "receiver"}, mappings=[mapping()])
    assert config.bridge is not None
    object.__setattr__(config, "bridge", msgspec.structs.replace(config.bridge, forward_progress=True))
    repeated = there.stranger().hear_local(1005)
    with fp.bridge(config) as receiver:
        eye = there.pool.consumer(DEST)
        joined(camera, eye)
        fill(camera)
        wait_until(lambda: mapping_of(receiver).get("progress dropped"))
        carried(camera, eye)
        assert "progress" not in mapping_of(receiver)
    assert repeated.all(FrameProgress) == []


@pytest.mark.clause("B-9-15")
def test_consumer_of_a_bridged_stream_waits_for_the_descriptor_whatever_progress_says(hosts: Both) -> None:
    here, there = hosts
    both = mapping(source_control_stream_id=1000, dest_control_stream_id=1000)
    bridged(hosts, both, forward_progress=True)
    camera = here.pool.producer(SOURCE)
    eye = there.pool.consumer(DEST, progress=True)
    joined(camera, eye)
    complete = FrameProgress(
        stream_id=DEST,
        epoch=1,
        seq=camera.current_seq + 1,
        payload_bytes_filled=64,
        state=FrameProgressState.COMPLETE,
    )
    there.stranger().say_local(there.config.stream_ids.control, complete)
    assert eye.latest(0.3) is None
    carried(camera, eye)


@pytest.mark.clause("B-9-02", "B-7.2-05")
def test_qos_is_repeated_at_the_destination_about_its_stream(hosts: Both) -> None:
    here, there = hosts
    between = link()
    stranger = there.stranger()
    crossing, repeated = control_ear(stranger, between), stranger.hear_local(1205)
    original = here.stranger().hear_local(here.config.stream_ids.qos)
    camera = here.pool.producer(SOURCE)
    here.pool.consumer(SOURCE)
    bridged(hosts, mapping(**QOS), between=between, forward_qos=True)
    joined(camera, there.pool.consumer(DEST))
    wait_until(lambda: repeated.all(QosProducer) and repeated.all(QosConsumer))
    assert {each.stream_id for each in crossing.all(QosProducer)} == {SOURCE}
    arrived = repeated.all(QosProducer)

    def said() -> list[QosProducer]:
        return [msgspec.structs.replace(each, stream_id=DEST) for each in original.all(QosProducer)]

    wait_until(lambda: all(each in said() for each in arrived))
    assert {each.stream_id for each in repeated.all(QosConsumer)} == {DEST}


def test_qos_and_progress_may_have_streams_of_their_own(hosts: Both) -> None:
    here, there = hosts
    own = {"source_qos_stream_id": 1200, "dest_qos_stream_id": 1205}
    stranger = there.stranger()
    reports, repeated = stranger.hear_local(1205), stranger.hear_local(1005)
    bridged(hosts, {**PROGRESS, **own}, forward_qos=True, forward_progress=True)
    camera = here.pool.producer(SOURCE)
    joined(camera, there.pool.consumer(DEST))
    wait_until(lambda: fill(camera) and repeated.all(FrameProgress))  # of a frame that is over, nothing is repeated
    wait_until(lambda: reports.all(QosProducer))
    assert reports.all(FrameProgress) == []
    assert repeated.all(QosProducer) == []
