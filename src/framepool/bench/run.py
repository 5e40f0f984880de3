"""Rounds in which everybody has a turn, and what is made of them: medians, spreads and ratios.

A shared machine is twice as fast in one minute as in the next. So a round measures every peer of a cell and the
machine's own limit once, one right after the other, and a ratio is taken within its round. A cell whose rounds do not
agree is repeated, and marked as noisy if they still do not.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np

from framepool.bench.measure import Cell, Failed, measure
from framepool.bench.peer import PEERS, Peer, peer
from framepool.transport.settings import KIB, MIB

SIZES: Final = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB)
OWN: Final = "framepool"
NOISY: Final = 0.5
"""A cell is noisy when half of its rounds lie further from the median than this share of it."""
PACE_US: Final = 53
"""Between the frames of a latency, at the least. The kernel's ticks, of 1, 4 or 10 ms, are no multiples of it: else all
of them would meet a frame in one round and none in the next."""
LATENCY_S: Final = 0.6
"""Of frames for a latency. The first tenth of a second is slower than the rest, with everybody."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one peer did in one round of a cell: microseconds, or frames a second."""

    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    last_p50_us: float | None = None
    """Until the last of several receivers had it."""
    published: float | None = None
    delivered: float | None = None
    gigabytes: float | None = None
    lost: int = 0
    failed: str = ""

    @property
    def figure(self) -> float | None:
        """What a cell is compared by: less is better for a latency, more for a rate."""
        return self.p50_us if self.p50_us is not None else self.delivered


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One peer in one cell, over all rounds."""

    peer: str
    rounds: list[Sample]
    median: float | None
    spread: float | None
    """How far the middle half of the rounds lies apart, as a share of the median."""
    ratio: float | None
    """framepool's figure to this one's, the median of the rounds: below 1 is faster for a latency, above for a rate."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with everybody in it."""

    cell: Cell
    title: str
    lines: list[Line]
    limits: dict[str, float]
    """The machine's own, in µs, medians over the rounds: `memcpy`, `spin in C`, `Aeron in C` with the frame's bytes and
    with those of a descriptor."""
    limit_ratios: dict[str, float]
    """framepool's figure to each of them, the median of the rounds; of a rate to that of such copies."""
    machine: list[dict[str, float]]
    """The same limits in each round. The time of `spin in C` shows whether the two processors had a cache in common,
    which a hypervisor may change between two rounds."""
    noisy: bool


def cells(quick: bool) -> list[Cell]:
    """What is measured: all of it, or what takes a minute or two."""
    sizes = (4 * KIB, 256 * KIB, MIB) if quick else SIZES
    span_us = round(LATENCY_S * 1e6 / (2 if quick else 1))
    found = []
    for size in sizes:
        pace = max(PACE_US, size // Peer.bytes_per_us)
        found.append(Cell("latency", size, count=span_us // pace, interval_us=pace))
        found.append(Cell("latency", size, way="in place", count=span_us // PACE_US, interval_us=PACE_US))
    for size in sizes:
        found.append(Cell("rate", size, touch="page", seconds=0.5 if quick else 1.0))
        if not quick:
            found.append(Cell("rate", size, touch="sum"))
    if not quick:
        found += [Cell("latency", size, receivers=4, count=500, interval_us=2_000) for size in (4 * KIB, MIB)]
        found += [Cell("rate", size, receivers=4, touch="page") for size in (4 * KIB, 256 * KIB)]
    return found


def run(
    names: Iterable[str], wanted: Iterable[Cell], rounds: int, progress: Callable[[str], object] = lambda text: None
) -> list[Result]:
    """Measures every cell in so many rounds, up to twice as many where they do not agree."""
    names = list(names)
    results = []
    for cell in wanted:
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        machines: list[dict[str, float]] = []
        done = 0
        while done < rounds or (done < 2 * rounds and _is_noisy(samples[names[0]])):
            done += 1
            machines.append(machine(cell))
            for name in names:
                progress(f"{cell.title}: round {done}, {peer(name).name}")
                samples[name].append(sample(name, cell))
        results.append(_result(cell, names, samples, machines))
    return results


def available(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Those of the peers that can be measured here, framepool first, and why the others cannot."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    reasons = {name: reason for name in names if (reason := peer(name).missing()) is not None}
    return sorted((set(names) | {OWN}) - set(reasons), key=list(PEERS).index), reasons


def sample(name: str, cell: Cell) -> Sample:
    """One peer, once."""
    if cell.kind == "latency" and (most := peer(name).bytes_per_us) < Peer.bytes_per_us:
        cell = msgspec.structs.replace(cell, interval_us=max(cell.interval_us, cell.nbytes // most))
    try:
        found = measure(name, cell)
    except Failed as error:
        return Sample(failed=str(error))
    if cell.kind == "rate":
        delivered = min(found["delivered"])
        return Sample(
            published=float(found["published"]),
            delivered=float(delivered),
            gigabytes=float(delivered * cell.nbytes / 1e9),
        )
    ages = [each for each in found["ages"] if len(each)]
    if len(ages) < cell.receivers:
        return Sample(failed="a receiver got nothing")
    per_receiver = [np.percentile(each, (50, 99, 99.9)) / 1e3 for each in ages]
    first = per_receiver[0]
    return Sample(
        p50_us=float(first[0]),
        p99_us=float(first[1]),
        p999_us=float(first[2]),
        last_p50_us=float(max(each[0] for each in per_receiver)),
        lost=sum(found["sent"] - count for count in found["delivered"]),
    )


def machine(cell: Cell) -> dict[str, float]:
    """The machine's own limits for a cell, in µs: measured in C right now. `memcpy` is a copy into as many places as
    the ring has slots, at the pace of the cell."""
    found = {"spin in C": _ground("spin")}
    if cell.way == "copy":
        found["memcpy"] = memcpy_us(cell.nbytes, cell.slots, cell.interval_us if cell.kind == "latency" else 0)
    if cell.kind == "latency" and cell.nbytes == SIZES[0]:
        found["Aeron in C"] = _ground("aeron", cell.nbytes)
        found["Aeron in C, 40 bytes"] = _ground("aeron", 40)
    return found


def memcpy_us(nbytes: int, places: int, interval_us: int = 0) -> float:
    """One copy of that size into shared memory, the median of many."""
    return _ground("memcpy", nbytes, places, interval_us * 1_000)


def _ground(what: str, *numbers: int) -> float:
    """By `ground`, in µs."""
    with tempfile.TemporaryDirectory(prefix="fpb-", dir="/dev/shm") as directory:
        command = [sys.executable, "-m", "framepool.bench.ground", what, directory, *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the machine's limit ({what}) could not be measured: {done.stderr.strip()[-300:]}")
    return float(done.stdout)


def _is_noisy(samples: list[Sample]) -> bool:
    figures = [figure for each in samples if (figure := each.figure) is not None]
    return len(figures) >= 3 and (_spread(figures) or 0.0) > NOISY


def _spread(figures: list[float]) -> float | None:
    middle = statistics.median(figures) if figures else 0.0
    if len(figures) < 3 or not middle:
        return None
    low, _, high = statistics.quantiles(figures, n=4)
    return (high - low) / middle


def _result(cell: Cell, names: list[str], samples: dict[str, list[Sample]], machines: list[dict[str, float]]) -> Result:
    own = [each.figure for each in samples[OWN]]
    lines = []
    for name in names:
        figures = [each.figure for each in samples[name]]
        known = [figure for figure in figures if figure is not None]
        ratios = [mine / other for mine, other in zip(own, figures, strict=True) if mine is not None and other]
        lines.append(
            Line(
                peer=peer(name).name,
                rounds=samples[name],
                median=statistics.median(known) if known else None,
                spread=_spread(known),
                ratio=statistics.median(ratios) if ratios else None,
            )
        )
    to_limits = {
        what: [
            mine * each[what] / 1e6 if cell.kind == "rate" else mine / each[what]
            for mine, each in zip(own, machines, strict=True)
            if mine is not None
        ]
        for what in machines[0]
        if cell.kind == "latency" or what == "memcpy"
    }
    return Result(
        cell=cell,
        title=cell.title,
        lines=lines,
        limits={what: statistics.median(each[what] for each in machines) for what in machines[0]},
        limit_ratios={what: statistics.median(known) for what, known in to_limits.items() if known},
        machine=machines,
        noisy=_is_noisy(samples[OWN]),
    )


def stamp() -> dict[str, Any]:
    """When and on what it was measured; the figures mean nothing elsewhere."""
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "python": sys.version.split()[0]}
