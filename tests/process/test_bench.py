"""The comparison with peers measures what it says; how fast anybody is, is not judged here."""

from __future__ import annotations

import io
import os
from typing import Any, NoReturn
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from framepool.bench.measure import Cell, Failed, measure
from framepool.bench.plot import svg
from framepool.bench.run import available, cells, memcpy_us, run, sample
from framepool.cli.bench import table
from tests.support.onlooker import wait_until


def measured(name: str, cell: Cell) -> dict[str, Any]:
    """Once more if a receiver had no processor while everything was sent."""
    for _ in range(4):
        found = measure(name, cell)
        if min(found["delivered"]) > 0:
            return found
    return measure(name, cell)


def left_behind() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("framepool_bench_")}


@pytest.mark.parametrize("name", ["framepool", "pipe", "arrow"])
def test_every_frame_of_a_latency_is_measured(name: str) -> None:
    before = left_behind()
    found = measured(name, Cell("latency", 4096, count=50, interval_us=1_000))
    wait_until(lambda: left_behind() <= before)  # nothing stays in shared memory; that of another run goes by itself
    (ages,) = found["ages"]
    assert found["sent"] == 50
    assert len(ages) == found["delivered"][0] > 0
    assert (ages > 0).all()
    assert np.median(ages) < 60 * 10**9


def test_rate_is_counted_on_both_sides_and_for_each_receiver() -> None:
    found = measured("framepool", Cell("rate", 65_536, receivers=2, way="in place", touch="page", seconds=0.2))
    assert found["published"] > 0
    assert len(found["delivered"]) == 2
    assert all(0 < delivered <= found["published"] * 1.01 for delivered in found["delivered"])


def test_peer_that_fails_says_why() -> None:
    with pytest.raises(Failed, match="NotImplementedError"):
        measure("arrow", Cell("latency", 4096, way="in place", count=5))


def test_peers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framepool.bench.peers.zeromq.ZeroMq.module", "no_such_module")
    names, missing = available(["zeromq"])
    assert names == ["framepool"]
    assert missing == {"zeromq": "pyzmq is not installed"}
    with pytest.raises(ValueError, match="no peer carrier-pigeon; there are framepool"):
        available(["carrier-pigeon"])


def test_who_copies_always_gets_frames_at_a_pace_that_it_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    paces: list[int] = []

    def refused(name: str, cell: Cell) -> NoReturn:
        paces.append(cell.interval_us)
        raise Failed("seen")

    monkeypatch.setattr("framepool.bench.run.measure", refused)
    for name in ("framepool", "zeromq"):
        for cell in (Cell("latency", 4096, interval_us=50), Cell("latency", 2**20, interval_us=174)):
            assert sample(name, cell).failed == "seen"
    assert paces == [50, 174, 50, 2**20 // 1_000]


def test_results_are_a_table_a_picture_and_json() -> None:
    for _ in range(5):  # a receiver may have no processor while everything is sent
        results = run(["framepool", "pipe"], [Cell("latency", 4096, count=20, interval_us=1_000)], rounds=1)
        (result,) = results
        if all(line.median is not None for line in result.lines):
            break
    assert [line.peer for line in result.lines] == ["framepool", "shared_memory + pipe"]
    assert result.lines[0].ratio == 1.0
    assert set(result.limits) == {"memcpy", "spin in C", "Aeron in C", "Aeron in C, 40 bytes"}
    assert result.machine == [result.limits], "one round"
    own = result.lines[0].median
    assert own is not None
    assert result.limit_ratios == {what: own / limit for what, limit in result.limits.items()}, "one round"
    picture = ElementTree.fromstring(svg(results))
    assert len(picture.findall("{http://www.w3.org/2000/svg}circle")) == 4, "two in the legend, two in the picture"
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table(results))
    assert "latency, 4 KiB, copy" in console.export_text()


def test_cells_are_those_of_the_promise() -> None:
    whole = cells(quick=False)
    assert {cell.nbytes for cell in whole} == {4096, 65_536, 262_144, 2**20, 2**23}
    assert {cell.receivers for cell in whole} == {1, 4}
    assert {cell.way for cell in whole} == {"copy", "in place"}
    assert {cell.touch for cell in whole if cell.kind == "rate"} == {"page", "sum"}
    assert len(cells(quick=True)) < len(whole)


def test_limit_of_the_machine_grows_with_size() -> None:
    assert 0 < memcpy_us(4096, 64) < memcpy_us(8 * 2**20, 8)
