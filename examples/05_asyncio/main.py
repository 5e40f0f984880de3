"""Frames in an event loop: a camera and a reader as tasks of one program, neither blocking the other."""

import asyncio

import numpy as np

import framepool as fp

STREAM = 10_000


async def publish(camera: fp.Producer) -> None:
    number = 0
    while True:
        camera.publish(np.full((100, 100), number % 256, np.uint8))  # never waits
        number += 1
        await asyncio.sleep(0.01)


async def read(eye: fp.Consumer, count: int) -> None:
    async for frame in eye:
        image = frame.copy()
        print(f"asyncio: frame {frame.seq} has value {image[0, 0]}")
        count -= 1
        if count == 0:
            return


async def main() -> None:
    with fp.serve() as pool:
        publishing = asyncio.create_task(publish(pool.producer(STREAM)))
        await read(pool.consumer(STREAM), count=10)
        publishing.cancel()


asyncio.run(main())
