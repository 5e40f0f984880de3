"""The shared-memory driver: its streams, how they are laid out, and what it hands out at the most."""

from __future__ import annotations

import grp
import math
from typing import Annotated, Literal

import msgspec

from framepool.config.section import NotNegative, Positive, Section, StreamId
from framepool.errors import ConfigurationError
from framepool.wire.constants import HEADER_SLOT_BYTES, SUPERBLOCK_SIZE


class PoolConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One size class of a profile."""

    pool_id: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    """The number of the pool, unique in its profile."""
    stride_bytes: Positive
    """The largest payload of this pool: 64 times a power of two."""
    nslots: NotNegative = 0
    """0 is the profile's own; any other number than that is refused at attach (Driver 4.3)."""

    def __post_init__(self) -> None:
        multiple, rest = divmod(self.stride_bytes, 64)
        if rest or multiple & (multiple - 1):
            raise ValueError(f"stride_bytes {self.stride_bytes} is not 64 times a power of two (Wire 15.22)")


class ProfileConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a stream is laid out: slots in the header ring and in each pool, and the pools' size classes."""

    nslots: Positive
    """Slots of the header ring and of every pool, a power of two."""
    pools: tuple[PoolConfig, ...]
    """The size classes; a frame goes into the smallest that holds it."""
    rate_hz: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """What the fastest producer publishes; given with `latency_ms`, enough slots for both are demanded."""
    latency_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long the slowest reader may take to come to a frame."""
    safety_factor: Annotated[float, msgspec.Meta(ge=2, le=4)] = 2.0
    """By how much more than that (Wire 15.6)."""

    def __post_init__(self) -> None:
        if self.nslots & (self.nslots - 1):
            raise ValueError(f"nslots {self.nslots} is not a power of two")
        least = math.ceil(self.rate_hz * self.latency_ms / 1_000 * self.safety_factor)
        if self.nslots < least:
            enough = 1 << (least - 1).bit_length()
            raise ValueError(
                f"nslots {self.nslots} lets a reader that is {self.latency_ms} ms late miss frames at "
                f"{self.rate_hz} Hz: use {enough} or more (Wire 15.6)"
            )
        if not self.pools:
            raise ValueError("a profile needs at least one pool")
        ids = [pool.pool_id for pool in self.pools]
        if len(set(ids)) != len(ids):
            raise ValueError(f"pool ids repeat: {ids}")

    @property
    def epoch_bytes(self) -> int:
        """What one epoch of a stream of this profile occupies."""
        slot = HEADER_SLOT_BYTES + sum(pool.stride_bytes for pool in self.pools)
        return (1 + len(self.pools)) * SUPERBLOCK_SIZE + self.nslots * slot


SIZE_CLASSES = (16 * 2**20, 4 * 2**20, 2**20, 64 * 2**10, 4 * 2**10)
DEFAULT_EPOCH_BYTES = 512 * 2**20
DEFAULT_NSLOTS = (16, 8, 4)


def default_profile(free_bytes: int) -> ProfileConfig:
    """The profile of streams that name none: two epochs of it fit in a tenth of the free shared memory.

    It keeps the largest size classes that leave room for enough slots, and stays below half a GiB an epoch,
    because every new epoch is reserved in full.
    """
    budget = min(free_bytes // 10 // 2, DEFAULT_EPOCH_BYTES)
    for largest in range(len(SIZE_CLASSES)):
        strides = SIZE_CLASSES[largest:][::-1]
        pools = tuple(PoolConfig(pool_id=i, stride_bytes=stride) for i, stride in enumerate(strides, start=1))
        for nslots in DEFAULT_NSLOTS:
            profile = ProfileConfig(nslots=nslots, pools=pools)
            if profile.epoch_bytes <= budget:
                return profile
    raise ConfigurationError(
        f"{free_bytes} bytes of shared memory are free: too little for a default profile; configure one"
    )


class StreamConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream that exists from the start of the driver."""

    stream_id: StreamId
    """The id of the stream."""
    profile: str = "default"
    """Its profile; `default` is worked out from the free shared memory unless it is defined."""
    roles: tuple[Literal["producer", "consumer"], ...] = ("producer", "consumer")
    """Who may attach."""


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one driver hands out at the most."""

    max_streams: Positive = 1_000
    """Streams."""
    max_leases: Positive = 10_000
    """Leases."""
    max_bytes: NotNegative = 0
    """Of all epochs together; 0 is no limit but the filesystem's."""


class DriverConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shared-memory driver."""

    media_driver: Literal["embedded", "external"] = "embedded"
    """Whether the driver runs an Aeron media driver in its own process or uses the one of `aeron.directory`."""
    shm_base_dir: str = "/dev/shm"
    """Where the files are made, and the directory that clients accept them from."""
    hugepages_dir: str = ""
    """A hugetlbfs mount for streams that require hugepages; empty refuses them."""
    namespace: str = "default"
    """One driver each; part of the path of every file."""
    access: Literal["private", "group"] = "private"
    """Modes 0700 and 0600, or 2770 and 0660 for a group; of the files of an embedded media driver too."""
    group: str = ""
    """The group, with `access = "group"`. Clients accept its files where their own configuration names it."""
    announce_period_ms: Positive = 1_000
    """How often every stream is announced; changes are announced at once."""
    keepalive_interval_ms: Positive = 1_000
    """How often clients say that they live."""
    lease_expiry_ms: NotNegative = 3_000
    """0 grants leases that do not expire."""
    clock: Literal["monotonic", "realtime_synced"] = "monotonic"
    """The clock of announces: of this host, or one that is disciplined to other hosts."""
    clock_error_budget_us: NotNegative = 0
    """How far synchronised clocks may be apart; needed with `realtime_synced`."""
    dynamic_streams: bool = True
    """Whether EXISTING_OR_CREATE may make streams of `pools`, `driver_allocated` and `bridge_destinations`."""
    prefault: bool = False
    """Touch every page when a region is made."""
    recreate_at_start: bool = False
    """Whether to remove the files that a killed driver left before making new ones (Driver 13)."""
    shutdown_token: str = ""
    """Empty: no termination by message."""
    limits: Limits = Limits()
    """What the driver hands out at the most."""

    @property
    def group_id(self) -> int | None:
        """The id of the group that the files are shared with; None where they are private."""
        if self.access != "group":
            return None
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise ConfigurationError(f"driver.group {self.group!r}: no such group") from None

    def __post_init__(self) -> None:
        for name in ("shm_base_dir", "hugepages_dir"):
            path = getattr(self, name)
            if path and not path.startswith("/"):
                raise ValueError(f"{name} {path!r} is not an absolute path")
        if self.lease_expiry_ms and self.lease_expiry_ms < 2 * self.keepalive_interval_ms:
            raise ValueError("lease_expiry_ms is less than two keepalive intervals: every hiccup would end a lease")
        if self.clock == "realtime_synced" and not self.clock_error_budget_us:
            raise ValueError("clock realtime_synced needs clock_error_budget_us: say how good the synchronisation is")
        if (self.access == "group") != bool(self.group):
            raise ValueError("access = 'group' and group go together")
