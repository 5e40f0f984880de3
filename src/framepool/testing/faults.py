"""What is going to happen: a plan of faults that is made of a seed alone, before anything runs.

The same seed and length give the same sequence, on whatever machine and however the run goes: what a machine cannot do
is left out when its time comes, not when the plan is made. Faults overlap, but no two of them have the same victim at
the same time.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

ROUND: Final = 30.0
"""Seconds of a round: faults at first, then quiet, in which everybody has to find back."""
QUIET: Final = 8.0
"""Of them, how many at the end nothing new goes wrong."""

REST: Final = 0.5
"""Between two faults with one victim."""


class Kind(StrEnum):
    """What can go wrong."""

    KILL = "kill"
    """SIGKILL, and a new process after a while."""
    STOP = "stop"
    """SIGSTOP and SIGCONT, for less and for more than a lease."""
    MEDIA_DRIVER = "media driver"
    """The media driver is killed, and comes back."""
    FULL = "shared memory full"
    """Not a byte is left in the filesystem of the streams, and a producer has to attach anew."""
    DESCRIPTORS = "file descriptors"
    """A process can open no more files."""
    MEMORY = "memory"
    """A process gets no more memory."""
    TRUNCATE = "truncated region"
    """A region file that is in use is cut."""
    REPLACE = "replaced region"
    """Another file takes the place of a region file."""
    SYMLINK = "symlink swap"
    """A component of the path of the regions is a link to elsewhere and back again, a thousand times a second, while
    a reader opens them."""
    SUPERBLOCK = "corrupted superblock"
    SLOT = "corrupted slots"
    """Words of slot headers."""
    CLOCK = "clock jump"
    """The clock of one process is ahead, or behind, until it is started anew."""
    LOSS = "packet loss"
    PARTITION = "partition"
    DELAY = "write delay"
    """Each write of the recorder takes long."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a plan."""

    number: int
    round: int
    at: float
    """Seconds from the begin of its round."""
    kind: Kind
    target: str
    seconds: float
    """How long it lasts."""
    detail: int
    """Chooses between ways to do it: which file, which byte, how much."""


PRODUCERS: Final = ("camera-0", "spare-0", "camera-1")
READERS: Final = ("eye-0", "eye-1", "slow")
CLIENTS: Final = (*PRODUCERS, *READERS, "recorder")
BRIDGES: Final = ("bridge-a", "bridge-b", "eye-b")
SERVERS: Final = ("driver-a", "driver-b", "registry")
STREAMS: Final = ("10000", "10001")
POOLS: Final = "pools"
NETWORK: Final = "network"


class Choice(NamedTuple):
    """How often, to whom, and for how long."""

    weight: int
    targets: tuple[str, ...]
    least: float
    most: float


CHOICES: Final = {
    Kind.KILL: Choice(5, (*CLIENTS, *BRIDGES, *SERVERS), 0.0, 2.0),
    Kind.STOP: Choice(5, (*CLIENTS, *BRIDGES, *SERVERS, "media-a", "media-b"), 0.3, 6.0),
    Kind.MEDIA_DRIVER: Choice(1, ("media-a", "media-b"), 0.0, 3.0),
    Kind.FULL: Choice(1, (POOLS,), 1.0, 4.0),
    Kind.DESCRIPTORS: Choice(2, (*CLIENTS, "bridge-a", "bridge-b", "driver-a"), 1.0, 4.0),
    Kind.MEMORY: Choice(2, (*CLIENTS, "bridge-a", "bridge-b", "driver-a"), 1.0, 4.0),
    Kind.TRUNCATE: Choice(1, STREAMS, 0.2, 2.0),
    Kind.REPLACE: Choice(2, STREAMS, 0.5, 3.0),
    Kind.SYMLINK: Choice(2, STREAMS, 1.0, 4.0),
    Kind.SUPERBLOCK: Choice(2, STREAMS, 0.5, 3.0),
    Kind.SLOT: Choice(2, STREAMS, 0.5, 3.0),
    Kind.CLOCK: Choice(2, (*CLIENTS, "driver-a"), 0.5, 4.0),
    Kind.LOSS: Choice(2, (NETWORK,), 2.0, 6.0),
    Kind.PARTITION: Choice(1, (NETWORK,), 1.0, 8.0),
    Kind.DELAY: Choice(2, ("recorder",), 1.0, 5.0),
}

ALSO: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.FULL: ("camera-1",),
    Kind.SYMLINK: (POOLS, "eye-1"),
    Kind.TRUNCATE: (POOLS,),
    Kind.REPLACE: (POOLS,),
    Kind.SUPERBLOCK: (POOLS,),
    Kind.SLOT: (POOLS,),
}
"""Who else is a victim of it."""


def plan(seed: int, seconds: float, kinds: Sequence[Kind] = tuple(Kind)) -> list[Fault]:
    """The faults of a run of so many seconds, a round after the other; each kind once before any comes twice."""
    chance = random.Random(f"framepool torture {seed}")
    rounds = max(1, round(seconds / ROUND))
    length = max(1.0, seconds / rounds - QUIET)
    due = chance.sample(kinds, len(kinds))
    faults: list[Fault] = []
    for number in range(rounds):
        busy: dict[str, float] = {}
        at = chance.uniform(0.2, 1.0)
        while at < length:
            kind = due[-1] if due else chance.choices(kinds, [CHOICES[kind].weight for kind in kinds])[0]
            fault = _choose(chance, kind, len(faults), number, at)
            victims = (fault.target, *ALSO.get(kind, ()))
            if any(busy.get(victim, 0.0) > at for victim in victims):
                at += 0.1
                continue
            busy |= dict.fromkeys(victims, at + fault.seconds + REST)
            due = due[:-1]
            faults.append(fault)
            at += chance.uniform(0.2, 2.0)
    return faults


def _choose(chance: random.Random, kind: Kind, number: int, round_: int, at: float) -> Fault:
    choice = CHOICES[kind]
    return Fault(
        number=number,
        round=round_,
        at=round(at, 2),
        kind=kind,
        target=chance.choice(choice.targets),
        seconds=round(chance.uniform(choice.least, choice.most), 2),
        detail=chance.randrange(2**31),
    )


def fingerprint(faults: Sequence[Fault]) -> str:
    """The same for the same sequence, and for no other."""
    return hashlib.sha256(msgspec.json.encode(faults)).hexdigest()[:16]
