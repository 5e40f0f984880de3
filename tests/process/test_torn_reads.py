"""A producer process laps a consumer process on a ring of four slots: what is accepted is whole, the rest is counted.

The first test is the promise, the second shows that the first could fail.
"""

from __future__ import annotations

import json
import mmap
from collections import Counter
from pathlib import Path

import pytest

from framepool._native.seqlock import RingReader
from tests.process import lapped_ring
from tests.support.processes import Processes

FRAMES = 1_000_000
FEWER = 100_000
"""For the readable model, which takes longer over a check than four frames last: its producer makes pauses."""
BURST = 64


def lap(base: Path, processes: Processes, kind: str, frames: int, burst: int = 0) -> Counter[str]:
    """Runs both processes over `frames` and returns what became of each."""
    lapped_ring.create(base)
    producer = processes.start("-m", "tests.process.torn_reads_producer", str(base), str(frames), str(burst))
    consumer = processes.start("-m", "tests.process.torn_reads_consumer", str(base), str(frames), kind)
    assert consumer.line() == "ready"
    producer.say("go")
    producer.wait_line(f"published {frames}", timeout=90)
    line = consumer.wait_line("counts ", timeout=20)
    assert producer.wait() == consumer.wait() == 0
    return Counter(json.loads(line.removeprefix("counts ")))


@pytest.mark.clause("W-8.3-06", "W-8.3-10", "W-8.2-15", "W-15.3-03", "W-15.4-01")
def test_lapped_consumer_accepts_only_whole_frames(base_dir: Path, processes: Processes) -> None:
    seen = lap(base_dir, processes, "core", FRAMES)
    assert set(seen) <= {"accepted", "late", "gap"}
    assert seen["accepted"] + seen["late"] + seen["gap"] == FRAMES
    assert seen["accepted"] > 0
    assert seen["late"] > 0


def test_readable_model_accepts_only_whole_frames_too(base_dir: Path, processes: Processes) -> None:
    seen = lap(base_dir, processes, "model", FEWER, BURST)
    assert set(seen) <= {"accepted", "late", "gap"}
    assert seen["accepted"] + seen["late"] + seen["gap"] == FEWER
    assert seen["accepted"] > 0


def test_consumer_without_its_second_check_reports_torn_frames(base_dir: Path, processes: Processes) -> None:
    seen = lap(base_dir, processes, "blind", FEWER, BURST)
    assert seen["torn"] > 0
    assert sum(seen.values()) == FEWER


@pytest.mark.clause("W-8.2-15", "W-15.3-03")
def test_word_is_never_seen_half_written(base_dir: Path, processes: Processes) -> None:
    last = 10_000_000 - 1
    (base_dir / "header").write_bytes(bytes(64 + 256))
    with (base_dir / "header").open("rb") as file:
        header = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    writer = processes.start("-m", "tests.process.rising_words", str(base_dir), str(last + 1))
    seen = set()
    with RingReader(header, 1, []) as reader:
        while not (word := reader.word(0)) & 1 or word >> 33 != last:
            upper, lower = word >> 33, word >> 1 & 0xFFFFFFFF
            assert upper == lower
            seen.add(word)
    assert writer.line(60) == "done"
    assert len(seen) > 2
