"""What a transport must offer to be measured: someone who sends, someone who receives, in processes of their own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint64]
"""A frame: words, so that nobody has to look at bytes as a number."""
See = Callable[[Image], None]
QUEUE_BYTES: Final = 256 * 2**20
"""For frames that nobody took yet, where somebody may be late."""


class Place(msgspec.Struct, frozen=True):
    """Where one measurement takes place; everybody who takes part is told the same."""

    directory: str
    """A directory in shared memory, of this measurement alone."""
    name: str
    """A name that no other measurement has."""
    nbytes: int
    """Of a frame."""
    receivers: int
    """How many receive it."""
    slots: int
    """Frames that a receiver may be behind, where the transport keeps them in a ring."""


class Sender(ABC):
    """Publishes frames of one size."""

    @abstractmethod
    def publish(self, image: Image) -> None:
        """Sends a copy of `image`; never waits for a receiver that is slow, if the transport can do without."""

    def fill(self, stamp: int) -> None:
        """Claims a frame in place, writes `stamp` into its first eight bytes and sends it, without any copy."""
        raise NotImplementedError

    @property
    def fills(self) -> bool:
        """Whether it can send in place."""
        return type(self).fill is not Sender.fill


class Receiver(ABC):
    """Receives them."""

    torn: int = 0
    """Frames that were shown and turned out to be overwritten meanwhile: they do not count."""

    @abstractmethod
    def poll(self, see: See) -> None:
        """Shows the frames that are there, each until `see` comes back. It looks and does not wait, unless the
        transport has threads of its own, which need the core: then it may wait for them."""

    def poll_again(self, see: See, times: int) -> None:
        """Polls so many times: in a loop of its own where a call each time would be much of what a poll takes."""
        for _ in range(times):
            self.poll(see)


class Peer(ABC):
    """A transport."""

    name: ClassVar[str]
    module: ClassVar[str]
    """What has to be importable."""
    package: ClassVar[str]
    """What to install."""
    bytes_per_us: ClassVar[int] = 6_000
    """What the frames of a latency come to at the most where they are copied: a small part of what the machine can
    copy. Less for who copies them always and cannot keep up with that: else its queue would be measured."""

    def missing(self) -> str | None:
        """Why it cannot be measured here; None if it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.package} is not installed"
        return None

    def site(self, place: Place) -> contextlib.AbstractContextManager[object]:
        """What has to run beside the two, such as a daemon; entered in a third process."""
        return contextlib.nullcontext()

    @abstractmethod
    def sender(self, place: Place) -> contextlib.AbstractContextManager[Sender]:
        """In a process of its own, before the receivers."""

    @abstractmethod
    def receiver(self, place: Place, index: int) -> contextlib.AbstractContextManager[Receiver]:
        """In a process of its own."""


PEERS: Final = {
    "framepool": "framepool.bench.peers.own:Framepool",
    "iceoryx2": "framepool.bench.peers.iceoryx:Iceoryx",
    "momentumx": "framepool.bench.peers.momentum:Momentum",
    "zenoh": "framepool.bench.peers.zenoh_shm:Zenoh",
    "zeromq": "framepool.bench.peers.zeromq:ZeroMq",
    "arrow": "framepool.bench.peers.arrow:Arrow",
    "pipe": "framepool.bench.peers.pipe:SharedMemoryAndPipe",
}
"""By the name on the command line."""


def peer(name: str) -> Peer:
    """A transport by its name."""
    module, _, kind = PEERS[name].partition(":")
    made: Peer = getattr(importlib.import_module(module), kind)()
    return made
