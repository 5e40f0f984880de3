"""A producer that publishes until it is killed. Usage: supervisor_worker.py CONFIG STREAM leased|standalone"""

from __future__ import annotations

import sys
import time

import numpy as np

import framepool as fp
from framepool.config import load


def main(path: str, stream: str, how: str) -> None:
    with fp.connect(load(path, {})) as pool:
        make = pool.producer if how == "leased" else pool.standalone
        with make(int(stream), name="camera") as camera:
            print("producing", flush=True)
            while True:
                camera.publish(np.zeros(4, np.uint8))
                time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
