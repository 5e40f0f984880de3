"""Where a demo lives: a private directory, as large as there is room, and the configuration of everything in it.

Nothing of it is shared with a live driver or with another demo: its own directory for files and Aeron, its own
namespace, a free port. It goes with the demo; what a killed one left goes with the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from framepool.config import Config, load
from framepool.driver.janitor import process_lives
from framepool.errors import FramepoolError

PREFIX = "framepool-demo-"
FILE = "framepool.toml"
NAMESPACE = "demo"
STARS, CHART, NOISE = 10_000, 10_001, 10_002

MIB = 2**20
AERON_BYTES = 20 * MIB
"""Of the media driver: its logs are kept short here."""
SPARE = 0.85
"""Of the free space; the rest is for others."""
EPOCHS = 2
"""Of each stream at a time: the next one is made before the last one goes."""
RING_FRAMES, RING_SEGMENTS = 40, 5
RECORDINGS = "recordings"
NSLOTS = (16, 8, 4)
SHRINKS = (1, 2, 4)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How large everything is."""

    stars: tuple[int, int]
    """Columns and rows."""
    chart: tuple[int, int]
    noise: tuple[int, int]
    nslots: int

    @property
    def strides(self) -> dict[int, int]:
        """The bytes of a slot of each stream."""
        sizes = {STARS: (self.stars, 2), CHART: (self.chart, 3), NOISE: (self.noise, 4)}
        return {stream: stride(size[0] * size[1] * pixel) for stream, (size, pixel) in sizes.items()}

    @property
    def ring_bytes(self) -> int:
        """What the recorder keeps of the detector's frames."""
        return RING_FRAMES * self.strides[NOISE]

    @property
    def bytes(self) -> int:
        """What all of it takes; the recorder has a segment under way beside its ring."""
        ring = self.ring_bytes + self.ring_bytes // RING_SEGMENTS
        return AERON_BYTES + EPOCHS * self.nslots * sum(self.strides.values()) + ring


def stride(size: int) -> int:
    return max(64, 1 << (size - 1).bit_length())


def plans(width: int, height: int) -> Iterator[Plan]:
    """From what was asked for to what fits a small container."""
    for shrink in SHRINKS:
        for nslots in NSLOTS:
            yield Plan(
                stars=(max(1, width // shrink), max(1, height // shrink)),
                chart=(640 // shrink, 480 // shrink),
                noise=(512 // shrink, 512 // shrink),
                nslots=nslots,
            )


def free_bytes(directory: str) -> int:
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize


def fitting(width: int, height: int, free: int) -> Plan | None:
    """The largest plan for which there is room."""
    return next((plan for plan in plans(width, height) if plan.bytes <= SPARE * free), None)


def settle(width: int, height: int, shm: str = "/dev/shm", elsewhere: str | None = None) -> tuple[str, Plan]:
    """Where to live and how large; says on standard error what is smaller or slower than it could be."""
    asked = next(iter(plans(width, height)))
    if os.access(shm, os.W_OK):
        free = free_bytes(shm)
        plan = fitting(width, height, free)
        if plan is not None:
            if plan != asked:
                size = f"{plan.stars[0]} x {plan.stars[1]} pixels, {plan.nslots} slots"
                print(
                    f"framepool demo: {free // MIB} MiB are free in {shm}: rings are smaller ({size})", file=sys.stderr
                )
            return shm, plan
        why = f"{free // MIB} MiB are free in {shm}"
    else:
        why = f"{shm} is not there or not writable"
    elsewhere = elsewhere or tempfile.gettempdir()
    plan = fitting(width, height, free_bytes(elsewhere))
    if plan is None:
        raise FramepoolError(
            f"{why} and {free_bytes(elsewhere) // MIB} MiB in {elsewhere}: too little for a demo of {width} x {height} "
            "pixels; make room or ask for smaller frames"
        )
    print(f"framepool demo: {why}; going to {elsewhere}, which may be a disk and slower", file=sys.stderr)
    return elsewhere, plan


@contextlib.contextmanager
def private_directory(root: str) -> Iterator[str]:
    """A directory of our own, gone afterwards; what killed demos left goes first."""
    for left in Path(root).glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(left.name.removeprefix(PREFIX).partition("-")[0])
            if left.lstat().st_uid == os.geteuid() and not process_lives(pid):
                shutil.rmtree(left)
    base = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root)
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def configure(base: str, plan: Plan, port: int = 0) -> Config:
    """Writes the configuration that every part of the demo, and whoever wants to look at it, runs with."""
    names = {STARS: "stars", CHART: "chart", NOISE: "noise"}
    lines = [
        "[aeron]",
        f'directory = "{base}/aeron"',
        "ipc_term_length = 262144",
        "[driver]",
        f'shm_base_dir = "{base}"',
        f'namespace = "{NAMESPACE}"',
        "[channels]",
        'descriptor = "aeron:ipc?term-length=1m"',
        *(f'{name} = "aeron:ipc?term-length=256k"' for name in SMALL_CHANNELS),
        "[discovery]",
        'channel = "aeron:ipc?term-length=256k"',
        "[console]",
        f"port = {port}",
        f'recordings = "{base}/{RECORDINGS}"',
        "[recorder]",
        f"segment_bytes = {plan.ring_bytes // RING_SEGMENTS}",
        "segment_seconds = 5.0",
        f"retain_bytes = {plan.ring_bytes}",
        "staging_bytes = 8388608",
    ]
    for stream, size in plan.strides.items():
        lines += [
            f"[profiles.{names[stream]}]",
            f"nslots = {plan.nslots}",
            f"pools = [{{ pool_id = 1, stride_bytes = {size} }}]",
            "[[streams]]",
            f"stream_id = {stream}",
            f'profile = "{names[stream]}"',
        ]
    path = Path(base, FILE)
    path.write_text("\n".join(lines) + "\n")
    return load(path, {})


SMALL_CHANNELS = ("control", "announce", "qos", "metadata", "service_control", "service_status")
