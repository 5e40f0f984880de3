"""A consumer that attaches to a stream and then sleeps: `pool_sleeper.py CONFIG STREAM`."""

from __future__ import annotations

import sys
import time

import framepool as fp
from framepool.config import load


def main(config: str, stream: str) -> None:
    with fp.connect(load(config), timeout=60) as pool, pool.consumer(int(stream), timeout=60):
        print("attached", flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
