"""A program as a user writes it, with every verb of the public face: mypy reads it, nobody runs it."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import framepool as fp
from framepool.config import load
from framepool.errors import (
    AmbiguousStream,
    AttachRefused,
    DiscoveryError,
    FrameOverwritten,
    NoPoolFits,
    NotAttached,
    NotLocal,
    StreamNotFound,
)

CAMERA = 10_000


def camera(pool: fp.Pool, images: list[npt.NDArray[np.uint16]]) -> None:
    wishes = {"gain": 4}
    with pool.producer(
        CAMERA, name="camera", tags=["lab:3"], data_source_id=17, metadata=wishes, publish_timestamps=True
    ) as producer:
        assert_type(producer, fp.Producer)
        for image in images:
            assert_type(producer.publish(image), int | None)
        assert_type(producer.publish_batch(images), list[int | None])
        with producer.metadata.edit():
            producer.metadata["gain"] = 8
        try:
            with producer.claim((480, 640), np.uint16, progress="rows") as slot:
                assert_type(slot, fp.Slot)
                slot.array[:240] = 7
                assert_type(slot.progress(rows=240), bool)
                slot.array[240:] = 7
        except NoPoolFits:
            raise
        except NotAttached:
            assert_type(producer.attached, bool)


def eye(pool: fp.Pool) -> float:
    total = 0.0
    with pool.consumer(CAMERA, max_rate_hz=100) as consumer:
        for frame in consumer:
            assert_type(frame, fp.Frame)
            try:
                with frame as image:
                    total += float(image.mean())
            except FrameOverwritten:
                continue
            assert_type(frame.shape, tuple[int, ...])
            assert_type(frame.copy(), npt.NDArray[Any])
            assert_type((frame.seq, frame.epoch, frame.timestamp_ns), tuple[int, int, int])
            if frame.metadata is not None and frame.metadata["gain"] == 8:
                break
        newest = consumer.latest(timeout=1.0)
        if newest is not None:
            out = np.empty(newest.shape, newest.dtype)
            newest.copy_into(out)
        assert_type(consumer.wait_for(7, timeout=1.0), fp.Frame | None)
        assert_type(consumer.poll(), list[fp.Frame])
        assert_type(consumer.statistics(), dict[str, object])
    return total


def early(pool: fp.Pool) -> int | None:
    with pool.consumer(CAMERA, progress=True, own_stream=True) as consumer:
        partial = consumer.partial()
        return None if partial is None else partial.rows


def found(pool: fp.Pool) -> list[str]:
    streams = pool.discover("camera", tags=["lab:3"], data_source_id=17, timeout=1.0)
    assert_type(streams, list[fp.Stream])
    for stream in streams:
        assert_type(stream.stream_id, int)
        assert_type(stream.tags, tuple[str, ...])
        assert_type(stream.data_source_id, int | None)
        assert_type(stream.local, bool)
    try:
        with pool.consumer("camera") as consumer, pool.consumer(streams[0]) as other:
            assert_type(consumer, fp.Consumer)
            assert_type(next(other).seq, int)
    except (NotLocal, AmbiguousStream, StreamNotFound) as error:
        print(error)
    except DiscoveryError:
        raise
    return [stream.name for stream in streams]


async def asynchronous(pool: fp.Pool) -> int:
    with pool.consumer(CAMERA) as consumer:
        async for frame in consumer:
            return frame.seq
    return -1


def main() -> None:
    with fp.serve() as pool:
        assert_type(pool, fp.Pool)
        camera(pool, [np.zeros((4, 4), np.uint16)])
        print(found(pool))
    try:
        with fp.connect(load("framepool.toml")) as pool, pool.standalone(CAMERA) as producer:
            producer.publish(np.arange(3))
            with pool.announced(CAMERA, timeout=2.0) as consumer:
                assert_type(next(consumer), fp.Frame)
        with fp.Producer.standalone(CAMERA, config=load("framepool.toml")) as own:
            assert_type(own, fp.Producer)
    except AttachRefused as error:
        print(error)
    except fp.FramepoolError:
        raise


if __name__ == "__main__":
    main()
