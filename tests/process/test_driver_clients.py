"""Producers and consumers under a real driver: whose files they touch, and what they do when a lease ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool._native.seqlock import RingReader
from framepool.client.attach import AttachSettings, AttachState
from framepool.client.mapping import ring_parts
from framepool.clock import NANOS_PER_SECOND
from framepool.errors import NotAttached
from framepool.shm.drop import DropReason
from framepool.shm.layout import StreamLayout
from framepool.transport import channel
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import FrameDescriptor, ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    ResponseCode,
    Role,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmLeaseRevoked,
)
from tests.support.driver_client import DriverClient
from tests.support.drivers import RunningDriver, running_driver, table
from tests.support.processes import Processes
from tests.support.regions import maps_below, open_descriptors
from tests.support.rig import PATIENCE, Camera, Eye, Rig, picture

STREAM, OTHER = 10_000, 10_001
REASON = 8 + 25  # where the reason stands in ShmLeaseRevoked


def configuration(base_dir: Path, **driver: Any) -> dict[str, Any]:
    """Announces are seldom enough for the commands of other processes not to lose patience on a busy machine."""
    values = table(base_dir, media_driver="external", **{"announce_period_ms": 300, **driver})
    values["profiles"]["default"]["nslots"] = 64
    values["streams"] = [{"stream_id": STREAM}, {"stream_id": OTHER}]
    return values


@pytest.fixture
def driver(base_dir: Path, media_driver: MediaDriver) -> Iterator[RunningDriver]:
    """A driver of its own process, with the media driver elsewhere: it can be stopped and killed by itself."""
    with running_driver("external", base_dir, configuration(base_dir)) as running:
        yield running


@pytest.fixture
def rig(driver: RunningDriver) -> Iterator[Rig]:
    with Rig(driver.config) as rig:
        yield rig


@pytest.fixture
def third(driver: RunningDriver) -> Iterator[DriverClient]:
    """Somebody who listens, and says what a driver would say."""
    client = DriverClient(driver.config)
    yield client
    client.leave()


def notice_of(eye_or_camera: Camera | Eye, reason: LeaseRevokeReason) -> ShmLeaseRevoked:
    """The notice that would end a client's lease."""
    attachment = eye_or_camera.seat.attachment
    assert attachment.grant is not None
    return ShmLeaseRevoked(
        timestamp_ns=time.monotonic_ns(),
        lease_id=attachment.grant.lease_id,
        stream_id=attachment.stream_id,
        client_id=attachment.client_id,
        role=attachment.role,
        reason=reason,
        error_message="",
    )


def forget(third: DriverClient, user: Camera | Eye, lease_id: int) -> None:
    """Gives a lease back: while the driver holds it, it refuses the same client another one."""
    attachment = user.seat.attachment
    request = ShmDetachRequest(
        correlation_id=4711,
        lease_id=lease_id,
        stream_id=attachment.stream_id,
        client_id=attachment.client_id,
        role=attachment.role,
    )
    third.send(request)
    answer = third.wait_for(ShmDetachResponse, lambda answer: answer.correlation_id == request.correlation_id)
    assert answer.code is ResponseCode.OK


def lease_of(user: Camera | Eye) -> int:
    assert user.seat.attachment.grant is not None
    return user.seat.attachment.grant.lease_id


def regions_of(layout: StreamLayout) -> set[str]:
    return {layout.header_uri.path, *(pool.uri.path for pool in layout.pools)}


def tree(base_dir: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and directory of the namespaces: which it is and how long."""
    found = {}
    for path in base_dir.glob("tensorpool-*/**/*"):
        if ".driver." not in path.name:
            info = path.lstat()
            found[str(path)] = (info.st_ino, info.st_size if path.is_file() else 0, info.st_nlink)
    return found


def frames_flow(rig: Rig, camera: Camera, eye: Eye) -> None:
    """A frame gets from one to the other."""
    seen: list[bool] = []

    def step() -> bool:
        camera.publish(7)
        seen.extend(bool((frame.array == 7).all()) for frame in eye.look())
        return bool(seen)

    rig.turn_until(step)
    assert all(seen)


# Whose files


@pytest.mark.clause("D-2.2-01", "D-2.2-02", "D-2.2-03", "D-2.3-01", "D-2.3-02", "D-3-05")
def test_clients_use_the_regions_they_were_given_and_make_none(base_dir: Path, driver: RunningDriver, rig: Rig) -> None:
    """The driver stands still meanwhile: whatever changes in its tree, a client changed."""
    name = channel.descriptor_subscription(driver.config.channels.descriptor)
    ear = rig.client.add_subscription(name, driver.config.stream_ids.descriptor)
    camera, eye = rig.camera(STREAM), rig.eye(STREAM)
    rig.attached(camera, eye)
    assert camera.seat.attachment.grant is not None
    layout = camera.seat.attachment.grant.layout
    rig.turn_until(lambda: eye.seat.mapping.epoch == layout.epoch)
    assert driver.process is not None
    driver.process.signal(signal.SIGSTOP)
    before = tree(base_dir)
    pattern = os.urandom(64)
    for seq in range(6):
        frame = picture(0)
        frame.flat[:] = list(pattern)
        assert camera.producer.publish(frame) == seq
    deadline = time.monotonic() + 30
    frames = []
    while len(frames) < 6 and time.monotonic() < deadline:
        frames += eye.look()
    assert [frame.seq for frame in frames] == list(range(6))
    assert all(frame.array.tobytes() == pattern for frame in frames)

    told = [FrameDescriptor.decode(message) for message in ear.poll()]
    assert [(each.stream_id, each.epoch, each.seq) for each in told] == [
        (STREAM, layout.epoch, seq) for seq in range(6)
    ]
    written = {
        str(path) for path in base_dir.glob("tensorpool-*/**/*") if path.is_file() and pattern in path.read_bytes()
    }
    assert written == {layout.pools[0].uri.path}, "the smallest pool that it fits in, and nothing else"
    mapped = {line[line.index(str(base_dir)) :] for line in maps_below(base_dir) if "tensorpool-" in line}
    held = {path for path in open_descriptors().values() if path.startswith(f"{base_dir}/tensorpool-")}
    assert mapped == held == regions_of(layout)

    rig.close()
    assert tree(base_dir) == before
    assert [line for line in maps_below(base_dir) if "tensorpool-" in line] == []
    driver.process.signal(signal.SIGCONT)


@pytest.mark.clause("D-4.8-04")
def test_processes_choose_different_client_ids(
    driver: RunningDriver, processes: Processes, third: DriverClient
) -> None:
    for _ in range(3):
        processes.start("-m", "framepool", "consume", str(STREAM), "--config", str(driver.path))
    deadline = time.monotonic() + 30
    granted: set[int] = set()
    while len(granted) < 3:
        assert time.monotonic() < deadline
        granted = {answer.lease_id for answer in third.of(ShmAttachResponse) if answer.lease_id is not None}
        time.sleep(0.005)
    path = next(Path(driver.config.driver.shm_base_dir).glob("tensorpool-*/default/.driver.status.json"))
    while len(leases := json.loads(path.read_bytes())["leases"]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len({lease["client_id"] for lease in leases}) == 3


# Ends of leases


@pytest.mark.clause("D-4.7-03", "D-4.7-04", "D-4.9-07", "D-4.9-09", "D-15-01")
@pytest.mark.parametrize("reason", LeaseRevokeReason)
def test_producer_whose_lease_ended_writes_nothing_until_it_has_a_new_one(
    base_dir: Path, rig: Rig, third: DriverClient, reason: LeaseRevokeReason
) -> None:
    camera = rig.camera(STREAM)
    rig.attached(camera)
    assert camera.publish() == 0
    lease_id, client_id = lease_of(camera), camera.seat.attachment.client_id
    third.send(notice_of(camera, reason))
    rig.turn_until(lambda: camera.seat.attachment.state is AttachState.ATTACHING)
    assert camera.seat.stream is None
    assert camera.publish() is None
    assert [line for line in maps_below(base_dir) if "tensorpool-" in line] == []
    forget(third, camera, lease_id)
    rig.attached(camera)
    assert lease_of(camera) != lease_id
    assert camera.seat.attachment.client_id == client_id
    assert camera.publish() == 0, "and starts a new epoch"


@pytest.mark.clause("D-4.7-03", "D-4.7-04", "D-4.9-07", "D-4.9-08", "D-4.9-09")
@pytest.mark.parametrize("reason", LeaseRevokeReason)
def test_consumer_whose_lease_ended_delivers_nothing_until_it_has_a_new_one(
    base_dir: Path, driver: RunningDriver, rig: Rig, third: DriverClient, reason: LeaseRevokeReason
) -> None:
    eye = rig.eye(STREAM)
    with Rig(driver.config) as other:
        camera = other.camera(STREAM)
        other.attached(camera)
        rig.turn_until(lambda: eye.seat.mapping.epoch == camera.seat.mapping.epoch)
        for _ in range(3):
            camera.publish()
        rig.turn_until(lambda: eye.drain.waiting == 3)
        lease_id = lease_of(eye)
        third.send(notice_of(eye, reason))
        rig.turn_until(lambda: eye.seat.attachment.state is AttachState.ATTACHING)
        assert eye.look() == [], "frames in flight are dropped"
        assert eye.consumer.counts["unmapped"] == 3
        inside = [line for line in maps_below(base_dir) if "tensorpool-" in line]
        assert all(" rw-s " in line for line in inside), "only the camera maps anything"
        forget(third, eye, lease_id)
        rig.turn_until(lambda: (other.plane.do_work(), eye.seat.stream)[1])
        assert lease_of(eye) != lease_id
        rig.turn_until(lambda: (other.plane.do_work(), camera.publish(5), eye.look())[2])


def test_place_that_is_given_up_before_the_answer_leaves_no_lease_behind(driver: RunningDriver, rig: Rig) -> None:
    """The leases of this driver last for minutes: one that nobody knows of would keep the next producer out."""
    assert driver.process is not None
    driver.process.signal(signal.SIGSTOP)
    try:
        seat = rig.seat(STREAM, Role.PRODUCER)
        rig.turn_until(lambda: seat.awaits_answer)
        rig.plane.remove(seat)
    finally:
        driver.process.signal(signal.SIGCONT)
    rig.turn_until(lambda: seat.attachment.counts["granted after detach"] == 1)
    rig.attached(rig.camera(STREAM))


@pytest.mark.clause("D-4.9-08")
def test_write_in_flight_is_abandoned_when_the_lease_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    camera = rig.camera(STREAM)
    rig.attached(camera)
    camera.publish(1)
    stream = camera.seat.stream
    assert stream is not None
    lost = pytest.raises(NotAttached, match="the lease ended")
    with lost, camera.producer.claim(64) as slot:
        slot.array[:] = 2
        monkeypatch.setattr(camera.seat.attachment, "deadline_ns", lambda: 0)
    monkeypatch.undo()
    assert camera.producer.counts["lease lost while writing"] == 1
    reader = RingReader(*ring_parts(stream))
    assert not isinstance(reader.read(0), DropReason)
    assert isinstance(reader.read(1), DropReason)
    reader.close()


@pytest.mark.clause("D-4.9-11")
@pytest.mark.parametrize("reason", [0, 4, 255])
def test_notice_with_an_unknown_reason_is_not_believed(rig: Rig, third: DriverClient, reason: int) -> None:
    camera, eye = rig.camera(STREAM), rig.eye(STREAM)
    rig.attached(camera, eye)
    leases = lease_of(camera), lease_of(eye)
    for user in (camera, eye):
        data = bytearray(notice_of(user, LeaseRevokeReason.REVOKED).encode())
        data[REASON] = reason
        third.send(bytes(data))
    rig.turn_until(lambda: rig.plane.statistics()["malformed"] == 2)
    assert (lease_of(camera), lease_of(eye)) == leases
    frames_flow(rig, camera, eye)


# Epochs


@pytest.mark.clause("D-4.9-10", "D-6-04")
def test_after_the_producers_end_a_consumer_waits_for_the_next_epoch(
    driver: RunningDriver, rig: Rig, third: DriverClient
) -> None:
    eye = rig.eye(STREAM)
    rig.attached(eye)
    held = third.hold(STREAM, Role.PRODUCER)
    rig.turn_until(lambda: held.keepalive() or eye.seat.mapping.epoch == held.epoch)  # type: ignore[func-returns-value]
    lease_id = lease_of(eye)
    third.send(
        ShmLeaseRevoked(
            timestamp_ns=time.monotonic_ns(),
            lease_id=held.lease_id,
            stream_id=STREAM,
            client_id=held.client_id,
            role=Role.PRODUCER,
            reason=LeaseRevokeReason.REVOKED,
            error_message="",
        )
    )
    rig.turn_until(lambda: held.keepalive() or eye.seat.stream is None)  # type: ignore[func-returns-value]
    heard = len(third.of(ShmPoolAnnounce))
    rig.turn_until(lambda: held.keepalive() or len(third.of(ShmPoolAnnounce)) > heard + 6)  # type: ignore[func-returns-value]
    old = third.of(ShmPoolAnnounce, lambda it: it.stream_id == STREAM)[-1]
    assert old.epoch == held.epoch, "the old epoch is announced meanwhile"
    assert eye.seat.stream is None
    held.detach()
    rig.attached(eye)
    assert (eye.seat.mapping.epoch or 0) > held.epoch
    assert lease_of(eye) == lease_id, "the lease is the same"


@pytest.mark.clause("D-6-04", "D-4.9-10")
def test_new_epoch_is_a_hard_boundary_for_what_was_in_flight(driver: RunningDriver, rig: Rig) -> None:
    eye = rig.eye(STREAM)
    with Rig(driver.config) as other:
        camera = other.camera(STREAM)
        other.attached(camera)
        epoch = camera.seat.mapping.epoch
        rig.turn_until(lambda: eye.seat.mapping.epoch == epoch)
        old = eye.seat.stream
        assert old is not None
        for _ in range(3):
            camera.publish()
        rig.turn_until(lambda: eye.drain.waiting == 3)
    rig.turn_until(lambda: eye.seat.stream is not None and (eye.seat.mapping.epoch or 0) > (epoch or 0))
    assert eye.look() == []
    assert eye.consumer.counts["other epoch"] == 3
    assert all(region.closed for region in old.regions)


# The end of a driver


@pytest.mark.clause("D-4.12-05", "D-4.12-06", "D-10-03", "D-4.8-03")
def test_shutdown_stops_clients_at_once_and_a_restart_brings_them_back(
    base_dir: Path, driver: RunningDriver, rig: Rig, third: DriverClient
) -> None:
    camera, eye = rig.camera(STREAM), rig.eye(STREAM)
    rig.attached(camera, eye)
    frames_flow(rig, camera, eye)
    leases, epoch = {lease_of(camera), lease_of(eye)}, camera.seat.mapping.epoch
    driver.stop()
    third.wait_for(ShmDriverShutdown)
    rig.plane.do_work()
    assert (camera.seat.stream, eye.seat.stream) == (None, None)
    assert (camera.publish(), eye.look()) == (None, [])
    with running_driver("external", base_dir, configuration(base_dir)):
        rig.attached(camera, eye)
        assert leases.isdisjoint({lease_of(camera), lease_of(eye)})
        assert (camera.seat.mapping.epoch or 0) > (epoch or 0)
        frames_flow(rig, camera, eye)


@pytest.mark.clause("D-4.12-07", "D-4.12-08", "D-10-02", "D-10-03", "D-4.8-03")
def test_killed_driver_is_noticed_within_the_lease_and_nothing_is_used_until_the_next_one(
    base_dir: Path, driver: RunningDriver, rig: Rig
) -> None:
    patience = AttachSettings(driver_timeout_ns=3 * NANOS_PER_SECOND, retry_max_ns=NANOS_PER_SECOND // 10)
    camera, eye = rig.camera(STREAM, settings=patience), rig.eye(STREAM, settings=patience)
    rig.attached(camera, eye)
    frames_flow(rig, camera, eye)
    leases, epoch = {lease_of(camera), lease_of(eye)}, camera.seat.mapping.epoch
    assert camera.seat.attachment.grant is not None
    paths = regions_of(camera.seat.attachment.grant.layout)
    assert driver.process is not None
    driver.process.kill()
    killed = time.monotonic()
    while camera.seat.stream is not None or eye.seat.stream is not None:
        assert time.monotonic() < killed + PATIENCE
        rig.plane.do_work()
        time.sleep(0.001)
    rig.plane.do_work()
    assert all(os.path.exists(path) for path in paths), "the files are there and are not used"
    assert (camera.publish(), eye.look()) == (None, [])
    assert (camera.seat.mapping.stream, eye.seat.mapping.stream) == (None, None)
    with running_driver("external", base_dir, configuration(base_dir)):
        rig.attached(camera, eye)
        assert leases.isdisjoint({lease_of(camera), lease_of(eye)})
        assert (camera.seat.mapping.epoch or 0) > (epoch or 0)
        frames_flow(rig, camera, eye)


@pytest.mark.clause("D-4.12-07", "D-10-02", "D-10-03", "D-4.8-03")
def test_driver_that_is_back_before_anybody_missed_it_is_noticed_all_the_same(
    base_dir: Path, driver: RunningDriver, rig: Rig
) -> None:
    """The clients wait twenty seconds for a sign of life: what tells them is the epoch, and the driver's word."""
    camera, eye = rig.camera(STREAM), rig.eye(STREAM)
    rig.attached(camera, eye)
    leases, epoch = {lease_of(camera), lease_of(eye)}, camera.seat.mapping.epoch
    assert driver.process is not None
    driver.process.kill()
    with running_driver("external", base_dir, configuration(base_dir)):
        rig.turn_until(
            lambda: all(
                user.seat.attachment.grant is not None and user.seat.attachment.grant.lease_id not in leases
                for user in (camera, eye)
            ),
            timeout=15,
        )
        rig.attached(camera, eye)
        assert (camera.seat.mapping.epoch or 0) > (epoch or 0)
        frames_flow(rig, camera, eye)


# The end of a producer


@pytest.mark.clause("D-7-01", "D-7-02", "D-7-03", "D-3-09")
def test_killed_producer_loses_its_lease_and_the_next_one_gets_a_higher_epoch(
    base_dir: Path, media_driver: MediaDriver, processes: Processes
) -> None:
    values = configuration(base_dir, lease_expiry_ms=4_000)
    with running_driver("external", base_dir, values) as driver, Rig(driver.config) as rig:
        third = DriverClient(driver.config)
        eye = rig.eye(STREAM)
        size = ("--width=8", "--height=8", "--dtype=uint8", "--rate=50")
        publisher = processes.start("-m", "framepool", "publish", str(STREAM), "--config", str(driver.path), *size)
        frames: list[object] = []
        rig.turn_until(lambda: frames.extend(eye.look()) or len(frames) > 3)
        announce = third.announce_of(STREAM, lambda it: it.producer_id != 0)
        old = eye.seat.mapping.stream
        assert old is not None
        publisher.kill()
        notice = third.wait_for(ShmLeaseRevoked, lambda it: it.role is Role.PRODUCER)
        assert (notice.client_id, notice.reason) == (announce.producer_id, LeaseRevokeReason.EXPIRED)
        rig.turn_until(lambda: eye.seat.stream is not None and eye.seat.stream is not old)
        assert all(region.closed for region in old.regions)
        assert (eye.seat.mapping.epoch or 0) > announce.epoch
        camera = rig.camera(STREAM)
        rig.attached(camera)
        assert (camera.seat.mapping.epoch or 0) > announce.epoch
        third.leave()


# Together and apart


@pytest.mark.clause("W-1-03")
@pytest.mark.parametrize("packaging", ["together", "apart"])
def test_producer_and_consumer_may_share_a_process_or_not(
    driver: RunningDriver, rig: Rig, processes: Processes, packaging: str
) -> None:
    eye = rig.eye(STREAM)
    camera = rig.camera(STREAM) if packaging == "together" else None
    if camera is None:
        size = ("--width=8", "--height=8", "--dtype=uint8", "--rate=50")
        processes.start("-m", "framepool", "publish", str(STREAM), "--config", str(driver.path), *size)
    frames = []

    def enough() -> bool:
        if camera is not None and eye.seat.stream is not None:
            camera.publish(3)
        frames.extend(eye.look())
        return len(frames) >= 20

    rig.turn_until(enough)
    order = [(frame.epoch, frame.seq) for frame in frames]
    assert order == sorted(set(order))
    assert {frame.array.shape for frame in frames} == {(8, 8)}
    assert not any("invalid" in name for name in eye.consumer.counts)


@pytest.mark.clause("W-1-02")
@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL])
def test_trouble_of_one_stream_is_not_the_others(
    base_dir: Path, media_driver: MediaDriver, processes: Processes, blow: int
) -> None:
    values = configuration(base_dir, lease_expiry_ms=5_000)
    values["profiles"]["default"]["nslots"] = 1024
    with running_driver("external", base_dir, values) as driver, Rig(driver.config) as rig:
        options = ("--config", str(driver.path), "--width=8", "--height=8", "--dtype=uint8", "--rate=50")
        publishers = {
            stream: processes.start("-m", "framepool", "publish", str(stream), *options) for stream in (STREAM, OTHER)
        }
        eyes = {stream: rig.eye(stream) for stream in publishers}
        frames: dict[int, list[int]] = {stream: [] for stream in publishers}

        def look() -> None:
            for stream, eye in eyes.items():
                frames[stream] += [frame.seq for frame in eye.look()]

        rig.turn_until(lambda: look() or all(len(seen) > 5 for seen in frames.values()))  # type: ignore[func-returns-value]
        publishers[STREAM].signal(blow)
        seen = len(frames[OTHER])
        rig.turn_until(lambda: look() or len(frames[OTHER]) >= seen + 75)  # type: ignore[func-returns-value]
        counts = eyes[OTHER].consumer.counts
        assert (counts["gap"], counts["late"]) == (0, 0), "not a frame was missed"
