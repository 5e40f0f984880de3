"""A driver on a filesystem of 4 MiB of its own, filled and emptied again. Prints what it saw as one JSON document.

Usage, as root: driver_full_disk.py BASE
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from framepool.client.attach import AttachSettings
from framepool.client.consumer import Consumer
from framepool.client.plane import ControlPlane
from framepool.client.producer import Producer
from framepool.client.seat import Seat
from framepool.clock import MonotonicClock
from framepool.config import Config
from framepool.driver.driver import ShmDriver
from framepool.shm.paths import AllowedDirectories
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.driver_901 import Role

SMALL, LARGE, IMAGE = 10_001, 10_002, np.arange(100, dtype=np.uint16)


class Scene:
    """A producer and a consumer of a small stream beside the driver, and a second producer that wants a large one."""

    def __init__(self, config: Config) -> None:
        self.client = Client.connect(config.aeron)
        self.plane = ControlPlane(self.client, MonotonicClock(), config.stream_ids)
        self.allowed = AllowedDirectories([config.driver.shm_base_dir])
        self.settings = AttachSettings.configured(config.driver)
        ids = config.stream_ids
        subscription = self.client.add_subscription(channel.descriptor_subscription(), ids.descriptor)
        publication = self.client.add_publication(channel.descriptor_publication(), ids.descriptor)
        self.small, self.reader = self.seat(SMALL, Role.PRODUCER), self.seat(SMALL, Role.CONSUMER)
        self.producer = Producer(self.small, publication, self.plane.clock)
        self.consumer = Consumer(self.reader, subscription.drain(capacity=1024, max_message=64))

    def seat(self, stream_id: int, role: Role) -> Seat:
        return self.plane.add(
            Seat(self.plane, stream_id, role, allowed=self.allowed, create=True, settings=self.settings)
        )

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, what
            self.plane.do_work()
            self.producer.publish(IMAGE)
            self.consumer.poll()
            time.sleep(0.002)

    def flows(self) -> int:
        """Twenty more frames arrive."""
        before = self.consumer.counts["received"]
        self.until("frames", lambda: self.consumer.counts["received"] >= before + 20)
        return self.consumer.counts["received"]


def files(base: Path) -> list[str]:
    """Everything there but for the document that the driver renews."""
    return sorted(str(path) for path in base.rglob("*") if "status" not in path.name and path.name != "filler")


def main(base: Path) -> None:
    os.unshare(os.CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    shm = base / "shm"
    shm.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(shm)], check=True)
    table = {
        "aeron": {"directory": str(base / "aeron")},
        "driver": {
            "shm_base_dir": str(shm),
            "keepalive_interval_ms": 500,
            "lease_expiry_ms": 60_000,
            "announce_period_ms": 500,
        },
        "profiles": {
            "default": {"nslots": 16, "pools": [{"pool_id": 1, "stride_bytes": 131072}]},
            "small": {"nslots": 4, "pools": [{"pool_id": 1, "stride_bytes": 4096}]},
        },
        "streams": [{"stream_id": SMALL, "profile": "small"}],
    }
    config = msgspec.convert(table, Config)
    report: dict[str, Any] = {}
    with ShmDriver(config) as driver:
        driver.start()
        scene = Scene(config)
        scene.flows()
        fill(shm / "filler")
        before = files(shm)
        large = scene.seat(LARGE, Role.PRODUCER)
        scene.until("a refusal", lambda: large.attachment.last_refusal)
        report["refusal"] = large.attachment.last_refusal
        report["left"] = sorted(set(files(shm)) - set(before))
        report["flowed"] = scene.flows() > 0
        report["small_lost"] = scene.small.attachment.counts["lost"] + scene.reader.attachment.counts["lost"]
        asleep = time.monotonic() + 1.5  # until the driver has tried to renew its status
        scene.until("time to pass", lambda: time.monotonic() > asleep)
        scene.until("half a status to go", lambda: not list(shm.rglob("*.tmp")))
        (shm / "filler").unlink()
        scene.until("the large stream", lambda: large.stream)

        scene.plane.remove(large)  # there is no room for its next epoch beside this one, which makes way for it
        again = scene.seat(LARGE, Role.CONSUMER)
        scene.until("the large stream again", lambda: again.stream)
        scene.plane.remove(again)

        fill(shm / "filler")
        epoch = scene.small.attachment.statistics()["epoch"]
        scene.small.attachment.detach()
        scene.small.attachment.start()
        scene.until("the consumer to fail closed", lambda: scene.reader.stream is None)
        (shm / "filler").unlink()
        scene.until("a new epoch", lambda: scene.reader.mapping.epoch and scene.reader.mapping.epoch > epoch)
        report["flowed_again"] = scene.flows() > 0
        scene.plane.on_close()
        scene.client.close()
    report["left_at_the_end"] = [path for path in files(shm) if Path(path).is_file()]
    print(json.dumps(report))


def fill(path: Path) -> None:
    """Takes every free block."""
    with open(path, "wb") as file:
        try:
            while True:
                file.write(bytes(4096))
                file.flush()
        except OSError:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))
