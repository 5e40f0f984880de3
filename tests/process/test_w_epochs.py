"""Where an epoch ends for a real consumer: what it drops, what it maps next, what it may touch (Wire 15.2, 15.21)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.client.mapping import MappingState
from framepool.config import Config
from framepool.errors import AttachRefused, FrameOverwritten
from framepool.wire._generated.control_900 import (
    Bool,
    ConsumerConfig,
    FrameDescriptor,
    Mode,
    ShmPoolAnnounce,
)
from tests.support.onlooker import STREAM, Onlooker, first_frame, small_config, take, wait_until
from tests.support.rig import Rig

SPOT = np.full(16, 7, np.uint8)


def epoch_of(member: fp.Producer | fp.Consumer) -> int:
    stream = member._place.stream
    return 0 if stream is None else stream.layout.epoch


def restarted(pool: fp.Pool, camera: fp.Producer, eye: fp.Consumer) -> fp.Producer:
    """The next producer of the stream, in the next epoch, which the consumer has mapped already."""
    camera.close()
    following = pool.producer(STREAM)
    wait_until(lambda: epoch_of(eye) == epoch_of(following))
    return following


@pytest.mark.clause("W-15.2-04")
def test_frames_told_of_but_not_yet_read_go_with_their_epoch(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera.publish_batch([SPOT] * 3)
    wait_until(lambda: eye._descriptors.waiting == 3)
    old = epoch_of(camera)
    others = eye.counts["other epoch"]
    camera = restarted(pool, camera, eye)
    assert eye.poll() == []
    assert eye.counts["other epoch"] == others + 3
    assert first_frame(camera, eye).epoch > old


@pytest.mark.clause("W-15.2-04")
def test_frames_in_flight_are_not_handed_out_after_their_epoch(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera.publish_batch([SPOT] * 3)
    wait_until(lambda: eye._descriptors.waiting == 3)
    held = next(eye)
    before = eye.counts["received"]
    camera = restarted(pool, camera, eye)
    assert eye.latest(0) is None, "the two that next() had found as well"
    assert (eye.counts["received"], eye.counts["other epoch"]) == (before - 2, 2)
    assert not held.valid()
    with pytest.raises(FrameOverwritten):
        held.copy()


@pytest.mark.clause("W-15.18-01")
def test_sequence_starts_anew_with_an_epoch_and_is_no_gap(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera.publish_batch([SPOT] * 20)
    take(eye, 20)
    gaps = eye.counts["gap"]
    camera = restarted(pool, camera, eye)
    assert camera.publish_batch([SPOT] * 5) == [0, 1, 2, 3, 4]
    assert [frame.seq for frame in take(eye, 5)] == [0, 1, 2, 3, 4]
    assert eye.counts["gap"] == gaps
    assert eye.state is MappingState.MAPPED, "and 0 after 20 is no step back"


@pytest.mark.clause("W-15.21-08")
def test_consumer_without_regions_drops_what_it_is_told_of(base_dir: Path) -> None:
    """No lease and no announce of this stream yet; another stream's frames are no reason to fail either."""
    config = small_config(base_dir)
    with fp.serve(config) as pool, Onlooker(config) as onlooker, Rig(config) as rig:
        camera = pool.producer(STREAM)
        eye = rig.eye(STREAM)
        camera.publish_batch([SPOT] * 4)
        for seq in range(4):
            told = FrameDescriptor(stream_id=STREAM, epoch=epoch_of(camera), seq=seq)
            onlooker.say(config.stream_ids.descriptor, told)
        seen = []
        wait_until(lambda: (seen.extend(eye.look()), eye.consumer.counts["unmapped"] >= 4)[1])
        assert seen == []
        assert eye.consumer.counts["received"] == 0


@pytest.mark.clause("W-15.21-07")
def test_between_announce_and_remap_no_frame_of_either_epoch_is_accepted(
    pool: fp.Pool, config: Config, onlooker: Onlooker
) -> None:
    """The next epoch is announced before its files can be mapped: they are not there at all."""
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    epoch = epoch_of(camera)
    ear = onlooker.listen(config.stream_ids.announce)
    wait_until(lambda: any(each.epoch == epoch for each in ear.all(ShmPoolAnnounce)))
    announce = next(each for each in ear.all(ShmPoolAnnounce) if each.epoch == epoch)
    slot = camera.claim(SPOT.shape)
    slot.ring.commit(slot.seq, slot.layout, slot.timestamp_ns, slot.meta_version)
    future = dict.fromkeys(announce.__struct_fields__)
    future |= {name: getattr(announce, name) for name in future}
    future |= {
        "epoch": epoch + 1,
        "header_region_uri": announce.header_region_uri.replace(f"/{epoch}/", f"/{epoch + 1}/"),
        "announce_timestamp_ns": pool._clock.timestamp_ns(),
    }
    onlooker.say(config.stream_ids.announce, ShmPoolAnnounce(**future))  # type: ignore[arg-type]
    wait_until(lambda: eye.state is MappingState.UNMAPPED)
    for each in (epoch, epoch + 1):
        onlooker.say(config.stream_ids.descriptor, FrameDescriptor(stream_id=STREAM, epoch=each, seq=slot.seq))
    seen: list[fp.Frame] = []
    wait_until(lambda: (seen.extend(eye.poll()), eye.counts["unmapped"] + eye.counts["other epoch"] >= 2)[1])
    assert seen == []


@pytest.mark.clause("W-15.21-06")
def test_sequence_that_goes_back_ends_the_mapping(pool: fp.Pool, config: Config, onlooker: Onlooker) -> None:
    """The one thing about a frame that indicates a remap (`decisions.md` #21); the next announce maps anew."""
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    camera.publish_batch([SPOT] * 4)
    *_, held = take(eye, 4)
    before = eye.statistics()["mapping"]
    assert isinstance(before, dict)
    told = FrameDescriptor(stream_id=STREAM, epoch=held.epoch, seq=held.seq - 2)
    onlooker.say(config.stream_ids.descriptor, told)

    def unmapped() -> bool:
        assert eye.poll() == [], "the frame is there, but it is not to be believed"
        after = eye.statistics()["mapping"]
        assert isinstance(after, dict)
        return int(after.get("unmapped", 0)) > int(before.get("unmapped", 0))

    wait_until(unmapped)
    assert not held.valid(), "what is in flight is dropped"
    wait_until(lambda: eye.state is MappingState.MAPPED)
    assert first_frame(camera, eye).epoch == held.epoch


@pytest.mark.clause("W-15.12-01")
def test_states_of_a_consumer(pool: fp.Pool, config: Config, onlooker: Onlooker) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    first_frame(camera, eye)
    states = [eye.state]
    tell(onlooker, eye, use_shm=False)
    wait_until(lambda: eye.state is MappingState.FALLBACK)
    received = eye.counts["received"]
    camera.publish_batch([SPOT] * 3)
    wait_until(lambda: (eye.poll(), eye.counts["unmapped"] >= 3)[1])
    assert eye.counts["received"] == received, "shared memory is left alone"
    states.append(eye.state)
    tell(onlooker, eye, use_shm=True)
    wait_until(lambda: eye.state is MappingState.MAPPED)
    first_frame(camera, eye)
    pool.close()
    states.append(eye.state)
    assert states == [MappingState.MAPPED, MappingState.FALLBACK, MappingState.UNMAPPED]


def tell(onlooker: Onlooker, eye: fp.Consumer, *, use_shm: bool) -> None:
    """What a supervisor says to a consumer."""
    assert eye.duties is not None
    config = ConsumerConfig(
        stream_id=STREAM,
        consumer_id=eye.duties.introduction.consumer_id,
        use_shm=Bool(use_shm),
        mode=Mode.STREAM,
        descriptor_stream_id=0,
        control_stream_id=0,
        payload_fallback_uri="" if use_shm else "aeron:udp?endpoint=127.0.0.1:40123",
        descriptor_channel="",
        control_channel="",
    )
    onlooker.say(onlooker.config.stream_ids.control, config)


@pytest.mark.clause("W-15.14-01")
def test_nobody_but_the_producer_can_write(pool: fp.Pool) -> None:
    camera, eye = pool.producer(STREAM), pool.consumer(STREAM)
    with first_frame(camera, eye) as image:
        assert permissions(image.__array_interface__["data"][0]) == "r--s"
    stream = eye._place.stream
    assert stream is not None
    for region in stream.regions:
        assert permissions(np.frombuffer(region.buffer, np.uint8).__array_interface__["data"][0]) == "r--s"
    with camera.claim(4) as slot:
        assert permissions(slot.array.__array_interface__["data"][0]) == "rw-s"
    with pytest.raises(AttachRefused):
        pool.producer(STREAM, timeout=0.3)


def permissions(address: int) -> str:
    """How the page at an address is mapped into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, *_ = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return flags
    raise AssertionError(f"{address:#x} is not mapped")


@pytest.mark.clause("W-15.21a.4-02")
@pytest.mark.parametrize("owner", ["driver", "producer"])
def test_announces_name_absolute_paths(pool: fp.Pool, config: Config, onlooker: Onlooker, owner: str) -> None:
    ear = onlooker.listen(config.stream_ids.announce)
    with pool.producer(STREAM) if owner == "driver" else pool.standalone(STREAM):
        wait_until(lambda: ear.all(ShmPoolAnnounce))
        for announce in ear.all(ShmPoolAnnounce):
            for uri in (announce.header_region_uri, *(each.region_uri for each in announce.payload_pools)):
                path = Path(uri.removeprefix("shm:file?path="))
                assert path.is_absolute()
                assert path.is_relative_to(config.driver.shm_base_dir)
