"""Frames into torch: each becomes a tensor of its own, ready for a model."""

import numpy as np
import torch

import framepool as fp

STREAM = 10_000
BATCH = 4

blur = torch.nn.Conv2d(1, 1, kernel_size=3, padding=1, bias=False)
torch.nn.init.constant_(blur.weight, 1 / 9)

with fp.serve() as pool, torch.inference_mode():
    camera = pool.producer(STREAM)
    eye = pool.consumer(STREAM)
    for number in range(BATCH):
        camera.publish(np.full((64, 64), number, np.float32))
    batch = torch.stack([next(eye).torch() for _ in range(BATCH)])  # private, whole and writable
    blurred = blur(batch[:, None])
    print(f"torch: {tuple(blurred.shape)}, centres {[round(float(value)) for value in blurred[:, 0, 32, 32]]}")
