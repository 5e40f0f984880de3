"""One frame through shared memory, in one program: the shortest way to see that everything works."""

import numpy as np

import framepool as fp

with fp.serve() as pool:  # embeds a driver; fp.connect() joins a running one
    camera = pool.producer(10_000)
    eye = pool.consumer(10_000)
    with camera.claim((480, 640), np.uint16) as slot:
        slot.array[:] = 42  # straight into shared memory; committed on exit
    with next(eye) as image:  # in place, read-only
        print(f"hello: {image.shape[0]} x {image.shape[1]} {image.dtype}, mean {image.mean():.0f}")
