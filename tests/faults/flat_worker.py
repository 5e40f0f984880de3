"""Programs that come and go, and programs that stay: `churn`, `steady`, `produce` and `consume`.

`churn` attaches, publishes, reads, asks discovery and leaves, over and over, and says `turn N` after each; `steady`
keeps a producer and a consumer. `produce` and `consume` are the two ends of a stream of very many small frames; the
first sends a part of them each time it is told to.
"""

from __future__ import annotations

import contextlib
import sys
import time

import numpy as np

import framepool as fp
from framepool.config import Config, load
from framepool.errors import FramepoolError

STREAM = 10_000
OTHERS = 12
SMALL = np.zeros(16, np.uint32)


def churn(config: Config) -> None:
    for turn in range(10**9):
        with contextlib.suppress(FramepoolError):  # a machine that is too busy for a lease is no reason to end
            come_and_go(config, turn)
        print(f"turn {turn}", flush=True)


def come_and_go(config: Config, turn: int) -> None:
    number = STREAM + 1 + turn % OTHERS
    with fp.connect(config) as pool, pool.producer(number, name=f"source-{turn}", metadata={"turn": turn}) as producer:
        with pool.consumer(number) as reader, pool.consumer(STREAM) as eye:
            for _ in range(50):
                producer.publish(SMALL + turn)
                reader.poll()
                eye.poll()
            pool.discover()


def steady(config: Config) -> None:
    with fp.connect(config) as pool, pool.producer(STREAM, name="steady") as camera, pool.consumer(STREAM) as eye:
        print("ready", flush=True)
        while True:
            with contextlib.suppress(FramepoolError):
                camera.publish(SMALL)
            for frame in eye.poll():
                with contextlib.suppress(fp.FrameOverwritten):
                    frame.copy()
            time.sleep(0.001)


def produce(config: Config, frames: int, parts: int) -> None:
    with fp.connect(config) as pool, pool.producer(STREAM) as camera:
        print("ready", flush=True)
        for part in range(parts):
            sys.stdin.readline()
            for _ in range(frames // parts):
                camera.publish(SMALL)
            print(f"part {part}", flush=True)
        sys.stdin.readline()


def consume(config: Config) -> None:
    with fp.connect(config) as pool, pool.consumer(STREAM, timeout=60) as eye:
        print("ready", flush=True)
        while True:
            frames = eye.poll(1024)
            for frame in frames:
                with contextlib.suppress(fp.FrameOverwritten):
                    frame.copy()
            if not frames:
                eye.wait(0.1)


config = load(sys.argv[2], {})
match sys.argv[1]:
    case "churn":
        churn(config)
    case "steady":
        steady(config)
    case "produce":
        produce(config, int(sys.argv[3]), int(sys.argv[4]))
    case "consume":
        consume(config)
