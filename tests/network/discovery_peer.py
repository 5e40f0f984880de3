"""What a host of the discovery tests runs: producers that only tell, and a client that asks what it is told to."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import framepool as fp
from framepool.config import Config, DiscoveryConfig
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta
from framepool.wire.attributes import attribute_of


def tell(directory: str, first: str, count: str, name: str) -> None:
    """Names and tags of streams, once a second, as the producers of all of them would tell."""
    messages = []
    for number in range(int(count)):
        stream_id = int(first) + number
        announce = DataSourceAnnounce(
            stream_id=stream_id, producer_id=1, epoch=1, meta_version=1, name=f"{name} camera {number}"
        )
        attributes = (attribute_of("tags", [f"row:{number % 10}", name]),)
        meta = DataSourceMeta(stream_id=stream_id, meta_version=1, timestamp_ns=1, attributes=attributes)
        messages += [announce.encode(), meta.encode()]
    with Client.connect(AeronSettings(directory=directory), name="producers") as client:
        publication = client.add_publication("aeron:ipc?term-length=1m", 1300)
        print("telling", flush=True)
        while True:
            for message in messages:
                while publication.offer(message) < 0:
                    time.sleep(0.001)
            time.sleep(1)


def ask(directory: str, *registries: str) -> None:
    """Answers filters, a line of JSON each, by what discovery found."""
    settings = AeronSettings(directory=directory)
    discovery = DiscoveryConfig(registries=registries, host="nowhere")
    with MediaDriver(settings), fp.connect(Config(aeron=settings, discovery=discovery)) as pool:
        print("ready", flush=True)
        for line in sys.stdin:
            filters: dict[str, Any] = json.loads(line)
            found = [
                {"driver": each.driver, "stream_id": each.stream_id, "epoch": each.epoch, "host": each.host}
                for each in sorted(pool.discover(**filters), key=lambda each: each.driver)
            ]
            print("found", json.dumps(found), flush=True)


if __name__ == "__main__":
    {"tell": tell, "ask": ask}[sys.argv[1]](*sys.argv[2:])
