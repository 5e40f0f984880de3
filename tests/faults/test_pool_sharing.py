"""One payload, many readers: every process sees the same bytes of the same file, and the transport moves none."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import framepool as fp
from framepool.config import Config, load
from tests.faults.pool_worker import WORDS, seal
from tests.support.drivers import table, write_toml
from tests.support.onlooker import STREAM
from tests.support.processes import Processes

WORKER = str(Path(__file__).parent / "pool_worker.py")
READERS = 4


@pytest.fixture
def path(base_dir: Path) -> Path:
    values = table(base_dir)
    values["profiles"]["default"] = {"nslots": 64, "pools": [{"pool_id": 1, "stride_bytes": 1024}]}
    return write_toml(base_dir / "pool.toml", values)


@pytest.fixture
def pool(path: Path) -> Iterator[fp.Pool]:
    config: Config = load(path, environ={})
    with fp.serve(config) as pool:
        yield pool


def test_four_processes_read_the_very_bytes_that_the_producer_wrote(
    processes: Processes, path: Path, pool: fp.Pool
) -> None:
    camera = pool.producer(STREAM)
    readers = [
        processes.start(WORKER, str(path), str(path.parent / f"{n}.journal"), str(n), "locate", "0.01", str(STREAM))
        for n in range(READERS)
    ]
    for reader in readers:
        reader.wait_line("attached", 60)
    stream = camera._place.stream
    assert stream is not None
    region = stream.pools[1]
    start = np.frombuffer(region.buffer, np.uint8).__array_interface__["data"][0]
    for _ in range(10):
        with camera.claim(WORDS, np.uint64) as slot:
            seal(slot.array, slot.epoch, slot.seq)
            written = {
                "seq": slot.seq,
                "inode": Path(region.uri.path).stat().st_ino,
                "offset": slot.array.__array_interface__["data"][0] - start,
                "crc": zlib.crc32(slot.array.tobytes()),
            }
        seen = [json.loads(reader.wait_line("where").removeprefix("where ")) for reader in readers]
        assert len({each.pop("pid") for each in seen}) == READERS
        assert seen == [written] * READERS
    sent = camera._descriptors.statistics()
    assert sent["sent"] == camera.current_seq + 1
    assert camera._descriptors.position == 96 * sent["sent"], "40 bytes of descriptor a frame, and no payload"
