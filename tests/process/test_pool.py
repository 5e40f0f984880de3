"""The public face against a real driver: claims, frames, iteration, and what happens when a reader is lapped."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config, DriverConfig, PoolConfig, ProfileConfig
from framepool.errors import AttachRefused, FrameOverwritten, NoPoolFits, TensorError
from framepool.transport.settings import AeronSettings
from tests.support.onlooker import first_frame

STREAM = 10_000
NSLOTS = 8


@pytest.fixture
def pool(base_dir: Path) -> Iterator[fp.Pool]:
    config = Config(
        aeron=AeronSettings(directory=str(base_dir / "aeron")),
        driver=DriverConfig(shm_base_dir=str(base_dir), announce_period_ms=100, lease_expiry_ms=60_000),
        profiles={
            "default": ProfileConfig(
                nslots=NSLOTS,
                pools=(PoolConfig(pool_id=1, stride_bytes=1024), PoolConfig(pool_id=2, stride_bytes=65_536)),
            )
        },
    )
    with fp.serve(config) as pool:
        yield pool


@pytest.fixture
def camera(pool: fp.Pool) -> fp.Producer:
    return pool.producer(STREAM)


@pytest.fixture
def eye(pool: fp.Pool, camera: fp.Producer) -> fp.Consumer:
    """A consumer that a first frame has reached, so that every later one is accounted for."""
    eye = pool.consumer(STREAM)
    first_frame(camera, eye)
    eye._own.subtract(eye.counts)  # the count begins here
    camera._own.subtract(camera.counts)
    return eye


def take(eye: fp.Consumer) -> fp.Frame:
    frame = eye._next_within(20)
    assert frame is not None
    return frame


def lap(camera: fp.Producer) -> None:
    for _ in range(NSLOTS):
        camera.publish(np.full(8, 2, np.uint8))


def test_claimed_slot_is_committed_at_the_end_of_the_block(camera: fp.Producer, eye: fp.Consumer) -> None:
    with camera.claim((3, 5), np.float32) as slot:
        slot.array[:] = np.arange(15).reshape(3, 5)
        assert eye.latest(0.02) is None, "not before the block ends"
    frame = take(eye)
    assert (frame.seq, frame.shape, frame.dtype, frame.order) == (slot.seq, (3, 5), np.float32, "C")
    with frame as image:
        assert image.tolist() == np.arange(15).reshape(3, 5).tolist()


def test_block_that_raises_abandons_its_slot_and_readers_see_a_gap(camera: fp.Producer, eye: fp.Consumer) -> None:
    with pytest.raises(ZeroDivisionError), camera.claim((4,)) as slot:
        slot.array[:] = 1 // 0
    camera.publish(np.array([7], np.uint8))
    assert take(eye).copy().tolist() == [7]
    assert (eye.counts["gap"], camera.counts["abandoned"]) == (1, 1)


ARRAYS = [
    *(np.arange(24).reshape(2, 3, 4).astype(dtype) for dtype in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")),
    *(np.linspace(-1, 1, 24).reshape(2, 3, 4).astype(dtype) for dtype in ("f4", "f8")),
    np.arange(24).reshape(2, 3, 4) % 3 == 0,
    np.asfortranarray(np.arange(24, dtype="u2").reshape(4, 6)),
    np.arange(64, dtype="u2").reshape(8, 8)[:, ::2],
    np.arange(64, dtype="u2").reshape(8, 8)[::-1],
    np.arange(6, dtype="u1").reshape(1, 1, 1, 1, 1, 1, 2, 3),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}-{array.strides}")
def test_every_kind_of_array_arrives_as_it_was(camera: fp.Producer, eye: fp.Consumer, array: np.ndarray) -> None:
    camera.publish(array)
    copied = take(eye).copy()
    assert copied.dtype == array.dtype
    assert copied.shape == array.shape
    assert np.array_equal(copied, array)
    assert copied.flags.writeable


@pytest.mark.clause("W-8.2-31")
def test_frame_without_payload_is_committed_told_of_and_accepted(camera: fp.Producer, eye: fp.Consumer) -> None:
    camera.publish(np.empty((0, 5), np.uint16))
    frame = take(eye)
    assert (frame.shape, frame.nbytes) == ((0, 5), 0)
    assert frame.copy().size == 0


@pytest.mark.clause("W-9-05")
def test_frame_that_fits_no_pool_is_dropped_and_counted(camera: fp.Producer, eye: fp.Consumer) -> None:
    assert camera.publish(np.zeros(65_537, np.uint8)) is None
    with pytest.raises(NoPoolFits):
        camera.claim(65_537)
    assert camera.counts["no pool fits"] == 2
    assert camera.publish(np.zeros(65_536, np.uint8)) is not None
    assert take(eye).nbytes == 65_536


def test_array_that_no_header_can_describe_is_the_callers_mistake(camera: fp.Producer) -> None:
    with pytest.raises(TensorError):
        camera.publish(np.float64(3))
    with pytest.raises(TensorError):
        camera.publish(np.zeros((1,) * 9))


def test_frame_is_read_in_place_and_its_view_cannot_be_written(
    pool: fp.Pool, camera: fp.Producer, eye: fp.Consumer
) -> None:
    other = pool.consumer(STREAM)
    camera.publish(np.arange(100, dtype=np.uint8))
    mine = take(eye)
    with mine as image:
        assert not image.flags.writeable
        assert not image.flags.owndata
        address = image.__array_interface__["data"][0]
    stream = eye._place.stream
    assert stream is not None
    start = np.frombuffer(stream.pools[1].buffer, np.uint8).__array_interface__["data"][0]
    assert start < address < start + len(stream.pools[1].buffer)
    with mine as again:
        assert again.__array_interface__["data"][0] == address
    other.close()


def test_lapped_frame_says_so_at_the_end_of_the_block(camera: fp.Producer, eye: fp.Consumer) -> None:
    camera.publish(np.full(8, 1, np.uint8))
    frame = take(eye)
    assert frame.valid()
    lapped = pytest.raises(FrameOverwritten, match=f"frame {frame.seq} ")
    with lapped, frame as image:
        assert image.tolist() == [1] * 8
        lap(camera)
    assert not frame.valid()
    with pytest.raises(FrameOverwritten):
        frame.copy()
    assert eye.counts["late"] == 1, "counted once"


def test_errors_inside_the_block_of_a_lapped_frame_are_not_hidden(camera: fp.Producer, eye: fp.Consumer) -> None:
    camera.publish(np.full(8, 1, np.uint8))
    lapped = pytest.raises(FrameOverwritten)
    with lapped as caught, take(eye):
        lap(camera)
        raise KeyError("nonsense read from a torn frame")
    assert isinstance(caught.value.__cause__, KeyError)


def test_other_libraries_get_a_private_copy(camera: fp.Producer, eye: fp.Consumer) -> None:
    camera.publish(np.arange(6, dtype=np.uint16).reshape(2, 3))
    frame = take(eye)
    copies: list[Any] = [np.asarray(frame), np.from_dlpack(frame), np.array(memoryview(frame))]
    for copied in copies:
        assert copied.tolist() == [[0, 1, 2], [3, 4, 5]]
        with frame as image:
            assert not np.shares_memory(copied, image)
    assert np.asarray(frame, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="with frame"):
        frame.__array__(copy=False)
    out = np.empty((2, 3), np.uint16)
    frame.copy_into(out)
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}-{array.strides}")
def test_frame_becomes_a_private_arrow_tensor(camera: fp.Producer, eye: fp.Consumer, array: np.ndarray) -> None:
    pytest.importorskip("pyarrow")
    camera.publish(array)
    frame = take(eye)
    tensor = frame.to_arrow()
    assert (tensor.shape, np.array_equal(tensor.to_numpy(), array)) == (array.shape, True)
    with frame as image:
        assert not np.shares_memory(tensor.to_numpy(), image)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}-{array.strides}")
def test_frame_becomes_a_private_torch_tensor(camera: fp.Producer, eye: fp.Consumer, array: np.ndarray) -> None:
    pytest.importorskip("torch")
    camera.publish(array)
    frame = take(eye)
    tensor = frame.torch()
    assert (tuple(tensor.shape), np.array_equal(tensor.numpy(), array)) == (array.shape, True)
    with frame as image:
        assert not np.shares_memory(tensor.numpy(), image)


def test_latest_skips_to_the_newest_and_counts_what_it_passed_over(camera: fp.Producer, eye: fp.Consumer) -> None:
    for value in range(5):
        camera.publish(np.array([value], np.uint8))
    assert wait_waiting(eye, 5)
    frame = eye.latest(20)
    assert frame is not None
    assert frame.copy().tolist() == [4]
    assert eye.counts["received"] + eye.counts["skipped"] == 5
    assert eye.latest(0.01) is None


def test_waiting_for_a_frame_finds_it_or_says_that_it_was_missed(camera: fp.Producer, eye: fp.Consumer) -> None:
    first = camera.publish(np.array([1], np.uint8))
    assert first is not None
    camera.publish(np.array([2], np.uint8))
    found = eye.wait_for(first + 1, 20)
    assert found is not None
    assert found.copy().tolist() == [2]
    camera.publish(np.array([3], np.uint8))
    assert eye.wait_for(first, 20) is None
    assert take(eye).copy().tolist() == [3], "what came instead is not lost"
    assert eye.wait_for(first + 50, 0.05) is None


@pytest.mark.clause("W-15.4-06")
def test_reader_may_miss_256_frames_before_it_gives_up_the_rest(camera: fp.Producer, eye: fp.Consumer) -> None:
    camera._frames.next_seq += 256
    camera.publish(np.array([1], np.uint8))
    assert take(eye).copy().tolist() == [1]
    assert eye.counts["resyncs"] == 0
    camera._frames.next_seq += 257
    camera.publish(np.array([2], np.uint8))
    assert take(eye).copy().tolist() == [2]
    assert eye.counts["resyncs"] == 1


@pytest.mark.clause("W-15.4-04")
def test_reader_that_is_far_behind_resumes_with_the_newest(
    pool: fp.Pool, camera: fp.Producer, eye: fp.Consumer
) -> None:
    behind = pool.consumer(STREAM, max_outstanding_seq_gap=2)
    seq = camera.publish(np.array([0], np.uint8))
    assert seq is not None
    assert behind.wait_for(seq, 20) is not None, "who joins may hear older ones first"
    camera._frames.next_seq += 5
    for value in (1, 2, 3):
        camera.publish(np.array([value], np.uint8))
    assert wait_waiting(behind, 3)
    assert take(behind).copy().tolist() == [3]
    assert (behind.counts["resyncs"], behind.counts["gap"], behind.counts["skipped"]) == (1, 5, 2)


def test_closing_ends_whoever_iterates(camera: fp.Producer, eye: fp.Consumer) -> None:
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(frame.seq for frame in eye))
    reader.start()
    camera.publish(np.zeros(4, np.uint8))
    deadline = time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        time.sleep(0.005)
    eye.close()
    reader.join(20)
    assert not reader.is_alive()
    assert len(seen) == 1


def test_frames_come_to_an_event_loop(camera: fp.Producer, eye: fp.Consumer) -> None:
    async def read() -> list[int]:
        values: list[int] = []
        async for frame in eye:
            values.append(int(frame.copy()[0]))
            if len(values) == 3:
                return values
        return values

    async def both() -> list[int]:
        reading = asyncio.create_task(read())
        for value in (1, 2, 3):
            await asyncio.sleep(0.02)
            camera.publish(np.array([value], np.uint8))
        return await asyncio.wait_for(reading, 20)

    assert asyncio.run(both()) == [1, 2, 3]


def refusal(attach: Callable[[], object]) -> str:
    """The driver's reason; asked again if it had no time to say it."""
    deadline = time.monotonic() + 30
    while True:
        with pytest.raises(AttachRefused) as refused:
            attach()
        if "no answer" not in str(refused.value):
            return str(refused.value)
        assert time.monotonic() < deadline


def test_second_producer_is_refused_with_the_drivers_reason(pool: fp.Pool, camera: fp.Producer) -> None:
    assert "has a producer already" in refusal(lambda: pool.producer(STREAM, timeout=2))


def test_consumer_of_a_stream_that_is_not_there_is_refused(pool: fp.Pool) -> None:
    assert "does not exist" in refusal(lambda: pool.consumer(10_999, timeout=2))


def test_producer_that_closes_makes_room_for_the_next(pool: fp.Pool, camera: fp.Producer) -> None:
    camera.close()
    camera.close()
    with pool.producer(STREAM) as second:
        assert second.attached
        assert second.publish(np.zeros(4, np.uint8)) == 0


def test_statistics_tell_of_lease_and_mapping(pool: fp.Pool, camera: fp.Producer, eye: fp.Consumer) -> None:
    camera.publish(np.zeros(4, np.uint8))
    take(eye)
    assert camera.statistics()["published"] == 1
    assert eye.statistics()["received"] == 1
    attachment = eye.statistics()["attachment"]
    assert isinstance(attachment, dict)
    assert attachment["state"] == "attached"
    assert len(pool.statistics()["places"]) == 2  # type: ignore[arg-type]


def test_newest_passes_over_what_came_before_and_every_frame_is_accounted_for(
    eye: fp.Consumer, camera: fp.Producer
) -> None:
    assert eye.newest() is None
    last = [camera.publish(np.full(4, number, np.uint16)) for number in range(5)][-1]
    deadline = time.monotonic() + 20
    while (frame := eye.newest()) is None or frame.seq != last:
        assert time.monotonic() < deadline
    camera.publish(np.zeros(4, np.uint16))
    assert eye.wait(20)
    eye.pass_over()
    assert eye.newest() is None
    seq = camera.publish(np.zeros(4, np.uint16))
    frame = eye.latest(20)
    assert frame is not None
    assert frame.seq == seq
    assert eye.counts["received"] + eye.counts["skipped"] == 7
    assert eye.counts["skipped"] >= 1


def test_newest_is_the_last_of_those_that_wait_for_an_iteration(eye: fp.Consumer, camera: fp.Producer) -> None:
    seqs = [camera.publish(np.zeros(4, np.uint16)) for _ in range(4)]
    assert wait_waiting(eye, 4)
    assert next(eye).seq == seqs[0]
    frame = eye.newest()
    assert frame is not None
    assert frame.seq == seqs[-1]
    assert eye.counts["received"] == 2
    assert eye.counts["skipped"] == 2


def test_a_consumer_can_be_waited_for_beside_others(eye: fp.Consumer, camera: fp.Producer) -> None:
    assert select.select([eye], [], [], 0.01)[0] == []
    camera.publish(np.zeros(4, np.uint16))
    assert select.select([eye], [], [], 20)[0] == [eye]
    assert eye.newest() is not None
    assert select.select([eye], [], [], 0.01)[0] == []


def wait_waiting(eye: fp.Consumer, count: int) -> bool:
    """Until so many descriptors wait to be polled."""
    deadline = time.monotonic() + 20
    while eye._descriptors.waiting < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("stream_id", ["camera", 2**32, -1])
def test_stream_is_made_under_a_number(pool: fp.Pool, stream_id: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="number"):
        pool.producer(stream_id)


UNCLOSED = """
import framepool as fp
pool = fp.connect()
camera, eye = pool.producer(10_000), pool.consumer(10_000)
print(camera.publish([1]), flush=True)
"""


def test_program_that_closes_nothing_ends_in_silence_and_gives_its_leases_back(pool: fp.Pool, base_dir: Path) -> None:
    places = {"FRAMEPOOL_AERON_DIRECTORY": str(base_dir / "aeron"), "FRAMEPOOL_DRIVER_SHM_BASE_DIR": str(base_dir)}
    program = [sys.executable, "-c", UNCLOSED]
    done = subprocess.run(program, env={**os.environ, **places}, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
    with pool.producer(STREAM, timeout=20) as camera:  # before the lease of the other one would have ended
        assert camera.attached
