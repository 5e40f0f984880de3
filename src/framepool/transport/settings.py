"""How the media driver and its clients are set: one frozen value, checked when it is made.

Durations are in seconds, lengths in bytes.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from framepool.errors import ConfigurationError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Threading = Literal["shared", "shared-network", "dedicated"]


def default_directory() -> str:
    """AERON_DIR, else a directory of this user in shared memory."""
    named = os.environ.get("AERON_DIR")
    if named:
        return named
    root = "/dev/shm" if os.path.isdir("/dev/shm") else os.environ.get("TMPDIR", "/tmp")
    return os.path.join(root, f"framepool-aeron-{os.getuid()}")


class AeronSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directory, timeouts and lengths. Clients read the first part, a media driver that framepool starts all of it.

    The untethered timeouts say what happens to a subscriber that stops reading (`tether=false`): after the window
    limit it is cut off, after the linger the publication goes on without it, after the resting time it may rejoin by
    itself. The resting time is long because a stopped process that rejoins stalls the publication again; a live one
    need not wait for it (`Client.rejoin`).
    """

    directory: str = msgspec.field(default_factory=default_directory)
    """Where the media driver keeps its files; by default AERON_DIR, else one of this user in shared memory."""
    driver_timeout: float = 10.0
    """Seconds without a heartbeat after which clients count the media driver as lost."""
    keepalive_interval: float = 0.5
    """Seconds between the signs of life of a client."""
    resource_linger: float = 3.0
    """Seconds for which a client keeps the memory of closed publications."""
    idle_sleep: float = 0.001
    """Seconds that the thread of a client sleeps between looks, and up to 32 ms while nothing is asked."""

    threading: Threading = "shared-network"
    """Threads of the media driver: one for all, one beside that of the network, or one for each task."""
    timer_interval: float = 0.02
    """Seconds between the checks of its timeouts."""
    client_liveness_timeout: float = 10.0
    """Seconds after which it gives up a client without a sign of life."""
    publication_unblock_timeout: float = 15.0
    """Seconds after which a claim that was never finished is passed over."""
    publication_linger_timeout: float = 5.0
    """Seconds for which what was sent last can still be read."""
    image_liveness_timeout: float = 10.0
    """Seconds after which a silent publisher on another machine is given up."""
    untethered_window_limit_timeout: float = 0.05
    """Seconds after which an untethered reader that does not read is cut off."""
    untethered_linger_timeout: float = 0.05
    """Seconds after which the publication then goes on without it."""
    untethered_resting_timeout: float = 600.0
    """Seconds after which it may join again by itself."""
    term_length: int = 16 * MIB
    """Bytes of a term buffer of a UDP channel that does not name it."""
    ipc_term_length: int = 1 * MIB
    """Bytes of a term buffer of a local channel that does not name it."""
    counters_length: int = 1 * MIB
    """Bytes for the values of counters."""

    def __post_init__(self) -> None:
        for name in DURATIONS:
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"aeron.{name} must be more than 0 seconds")
        for name in ("term_length", "ipc_term_length"):
            check_term_length(getattr(self, name), f"aeron.{name}")
        if self.counters_length < MIB:
            raise ConfigurationError("aeron.counters_length must be at least 1 MiB")
        self._check_order("keepalive_interval", "driver_timeout")
        self._check_order("timer_interval", "client_liveness_timeout")
        self._check_order("client_liveness_timeout", "publication_unblock_timeout")
        for name in UNTETHERED:
            self._check_order("timer_interval", name)

    def _check_order(self, shorter: str, longer: str) -> None:
        if getattr(self, shorter) >= getattr(self, longer):
            raise ConfigurationError(
                f"aeron.{longer} = {getattr(self, longer)} s must be more than "
                f"aeron.{shorter} = {getattr(self, shorter)} s"
            )


UNTETHERED = ("untethered_window_limit_timeout", "untethered_linger_timeout", "untethered_resting_timeout")
DURATIONS = (
    "driver_timeout",
    "keepalive_interval",
    "resource_linger",
    "idle_sleep",
    "timer_interval",
    "client_liveness_timeout",
    "publication_unblock_timeout",
    "publication_linger_timeout",
    "image_liveness_timeout",
    *UNTETHERED,
)


def check_term_length(length: int, name: str) -> int:
    """Aeron's terms are powers of two between 64 KiB and 1 GiB."""
    if length & (length - 1) or not 64 * KIB <= length <= GIB:
        raise ConfigurationError(f"{name} = {length} must be a power of two between 64 KiB and 1 GiB")
    return length


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
