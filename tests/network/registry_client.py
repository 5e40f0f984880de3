"""A program of one host: it produces named streams until it is ended, or asks discovery what it is told to.

Usage: python -m tests.network.registry_client CONFIG produce STREAM,STREAM,… | ask
Questions are lines of JSON, and so are the answers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import framepool as fp
from framepool.config import Config, load
from framepool.errors import FramepoolError

PATIENCE = 60.0


def produce(config: Config, streams: str) -> None:
    host = config.discovery.host
    with fp.connect(config) as pool:
        for stream in map(int, streams.split(",")):
            name, tags = f"camera {stream} of {host}", ["lab", f"row:{stream % 2}"]
            pool.producer(stream, name=name, tags=tags, data_source_id=stream, timeout=PATIENCE)
        print("producing", flush=True)
        sys.stdin.read()


def answer(pool: fp.Pool, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if "consume" in question:
            pool.consumer(question["consume"]).close()
            return {"error": ""}
        found = pool.discover(**question["discover"], timeout=PATIENCE)
    except FramepoolError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {
        "found": [
            {
                "driver": stream.driver,
                "stream_id": stream.stream_id,
                "epoch": stream.epoch,
                "producer_id": stream.producer_id,
                "host": stream.host,
                "name": stream.name,
                "tags": sorted(stream.tags),
                "local": stream.local,
            }
            for stream in found
        ]
    }


def ask(config: Config) -> None:
    with fp.connect(config) as pool:
        print("asking", flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(pool, json.loads(line))), flush=True)


def main(path: str, role: str, streams: str = "") -> None:
    config = load(path, {})
    produce(config, streams) if role == "produce" else ask(config)


if __name__ == "__main__":
    main(*sys.argv[1:])
