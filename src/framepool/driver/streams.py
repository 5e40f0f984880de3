"""The driver's decisions: requests in, leases and epochs changed, messages out (Driver 4 to 8, 10).

`Authority` knows every stream, its current epoch and its leases. It does no I/O of its own: regions are made
through a `Regions` object, messages leave through a callable, and time is an argument of its clock, so that the
whole life of a driver can be driven by a test. The conductor around it does the talking.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config, ProfileConfig
from framepool.driver.leases import Lease, LeaseRefused, LeaseTable
from framepool.errors import AllocationError, FramepoolError, RegionError
from framepool.shm.layout import StreamLayout
from framepool.wire._generated.control_900 import ClockDomain, ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    Bool,
    LeaseRevokeReason,
    PayloadPool,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from framepool.wire.constants import LAYOUT_VERSION, MAX_DIMS
from framepool.wire.message import Message

log = logging.getLogger(__name__)
Publish = Callable[[Message], None]
Repeat = Callable[[ShmPoolAnnounce, int], None]
"""Says an announce again, at another time."""


class Regions(Protocol):
    """Makes, checks and refreshes the files of a stream; the driver is the only one who may (Driver 3)."""

    def create(self, stream_id: int, profile: ProfileConfig, *, hugepages: bool) -> StreamLayout:
        """A new epoch, higher than any before it, with its superblocks written. Raises AllocationError."""

    def validate(self, layout: StreamLayout) -> None:
        """Reads the superblocks again. Raises RegionError when one is not what was written (Driver 3)."""

    def refresh(self, layout: StreamLayout, timestamp_ns: int) -> None:
        """Stamps `activity_timestamp_ns` of every region of the epoch."""

    def retire(self, layout: StreamLayout) -> None:
        """The epoch is superseded: nobody is sent there any more."""

    @property
    def hugepages(self) -> bool:
        """Whether hugepage-backed regions can be made here."""


class LimitReached(AllocationError):
    """A region is not made because the configuration says how much is enough."""


class Refused(Exception):
    """A request that gets an answer other than OK."""

    def __init__(self, code: ResponseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Stream:
    """One stream as the driver knows it: how it is laid out, who may attach, and its current epoch."""

    def __init__(self, stream_id: int, profile: ProfileConfig, roles: frozenset[Role] = frozenset(Role)) -> None:
        self.stream_id = stream_id
        self.profile = profile
        self.roles = roles
        self.layout: StreamLayout | None = None
        self.hugepages = False
        """Whether a client required them: epochs that follow are made of them too."""
        self.described: tuple[StreamLayout | None, dict[str, Any]] | None = None
        """What `status` says of the layout, kept as long as that is the same."""
        self._told: tuple[StreamLayout, ShmPoolAnnounce] | None = None

    def told(self, producer_id: int) -> ShmPoolAnnounce | None:
        """The last `announce`, if all of it but its time still holds."""
        if self._told is None:
            return None
        layout, announce = self._told
        return announce if layout is self.layout and announce.producer_id == producer_id else None

    def announce(
        self, layout: StreamLayout, producer_id: int, timestamp_ns: int, domain: ClockDomain
    ) -> ShmPoolAnnounce:
        """What tells others of its current epoch."""
        message = layout.announce(producer_id=producer_id, timestamp_ns=timestamp_ns, clock_domain=domain)
        self._told = (layout, message)
        return message


class Authority:
    """Everything one driver decides about its streams."""

    def __init__(
        self, config: Config, regions: Regions, clock: Clock, publish: Publish, repeat: Repeat | None = None
    ) -> None:
        """Announces that say nothing new go to `repeat` instead, if it is given."""
        self._config = config
        self._regions = regions
        self._clock = clock
        self._publish = publish
        self._repeat = repeat or (lambda told, now: publish(msgspec.structs.replace(told, announce_timestamp_ns=now)))
        lifetime_ms = config.driver.lease_expiry_ms
        self.leases = LeaseTable(lifetime_ms * NANOS_PER_MILLI if lifetime_ms else None)
        self.streams: dict[int, Stream] = {}
        self.counts: Counter[str] = Counter()
        for stream in config.streams:
            roles = frozenset(Role[role.upper()] for role in stream.roles)
            self.streams[stream.stream_id] = Stream(stream.stream_id, config.profile(stream.profile), roles)

    def provision(self) -> None:
        """Makes an epoch for every stream that has none: the configured ones, and those that met a full disk."""
        for stream in self.streams.values():
            if stream.layout is None:
                self._try_new_epoch(stream)

    # What clients ask

    def attach(self, request: ShmAttachRequest) -> None:
        """Grants a lease or says why not; a refusal changes nothing (Driver 4.2, 4.3, 4.6, 5)."""
        try:
            stream, creating = self._admit(request)
            before = stream.layout
            layout = self._layout_for(stream, request)
        except Refused as refusal:
            self._refuse(request, refusal.code, str(refusal))
            return
        except (FramepoolError, OSError) as error:
            log.error("stream %d: %s", request.stream_id, error)
            self._refuse(request, ResponseCode.INTERNAL_ERROR, str(error))
            return
        if creating:
            self.streams[stream.stream_id] = stream
        now = self._clock.monotonic_ns()
        lease = self.leases.grant(stream.stream_id, request.client_id, request.role, now, layout.epoch)
        self.counts["attach OK"] += 1
        self._publish(_granted(request.correlation_id, lease, layout))
        if layout is not before:
            self.announce(stream)

    def keepalive(self, message: ShmLeaseKeepalive) -> None:
        """Extends the lease that the message fits, and no other (Driver 4.4).

        A consumer whose lease is unknown here is told so: an announce of a restarted driver looks to it like any
        other new epoch, so that nothing else would make it attach again (Driver 10).
        """
        known = self.leases.keepalive(
            message.lease_id, message.stream_id, message.client_id, message.role, self._clock.monotonic_ns()
        )
        self.counts["keepalive OK" if known else "keepalive REJECTED"] += 1
        if known and message.role is Role.CONSUMER:
            self._follow(message.lease_id)
        if message.role is Role.CONSUMER and self.leases.get(message.lease_id) is None:
            self._publish(
                ShmLeaseRevoked(
                    timestamp_ns=self._clock.timestamp_ns(),
                    lease_id=message.lease_id,
                    stream_id=message.stream_id,
                    client_id=message.client_id,
                    role=message.role,
                    reason=LeaseRevokeReason.REVOKED,
                    error_message="this driver knows no such lease",
                )
            )

    def _follow(self, lease_id: int) -> None:
        """A consumer that keeps alive follows the announces (`decisions.md` #41): its lease is for the current epoch,
        or for none while there is none, and holds on to no older one."""
        lease = self.leases.get(lease_id)
        if lease is not None:
            layout = self.streams[lease.stream_id].layout
            lease.epoch = 0 if layout is None else layout.epoch

    def detach(self, request: ShmDetachRequest) -> None:
        """Ends the lease that the request fits; anything else is REJECTED and changes nothing (Driver 4.9)."""
        lease = self.leases.detach(request.lease_id, request.stream_id, request.client_id, request.role)
        code = ResponseCode.REJECTED if lease is None else ResponseCode.OK
        reason = "no active lease fits this request" if lease is None else ""
        self.counts[f"detach {code.name}"] += 1
        self._publish(ShmDetachResponse(correlation_id=request.correlation_id, code=code, error_message=reason))
        if lease is not None:
            self._lease_ended(lease, LeaseRevokeReason.DETACHED, "")

    # What time and administrators do

    def expire(self) -> int:
        """Ends the leases whose keepalives stopped; returns how many."""
        ended = self.leases.expired(self._clock.monotonic_ns())
        for lease in ended:
            self._lease_ended(lease, LeaseRevokeReason.EXPIRED, "no keepalive in time")
        return len(ended)

    def revoke(self, lease_id: int, reason: str) -> bool:
        """Ends a lease for an administrative or safety reason (Driver 4.7); False when there is no such lease."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return False
        self.leases.end(lease, LeaseRevokeReason.REVOKED)
        self._lease_ended(lease, LeaseRevokeReason.REVOKED, reason)
        return True

    def announce_all(self) -> int:
        """The periodic beacon of every stream, with the activity stamp it vouches for (Driver 8, Wire 15.11)."""
        now = self._clock.timestamp_ns()
        for stream in self.streams.values():
            self.announce(stream, now)
        return len(self.streams)

    def announce(self, stream: Stream, now: int | None = None) -> None:
        """Stamps and announces the current epoch of a stream, if it has one."""
        layout = stream.layout
        if layout is None:
            return
        producer = self.leases.producer_of(stream.stream_id)
        now = self._clock.timestamp_ns() if now is None else now
        if producer is None or self._in_time(producer):
            self._regions.refresh(layout, now)
        self.counts["announces"] += 1
        producer_id = 0 if producer is None else producer.client_id
        told = stream.told(producer_id)
        if told is None:
            self._publish(stream.announce(layout, producer_id, now, self._clock.domain))
        else:
            self._repeat(told, now)

    def shut_down(self, reason: ShutdownReason, text: str = "") -> None:
        """Tells everybody that all leases end now (Driver 4.12)."""
        self._publish(ShmDriverShutdown(timestamp_ns=self._clock.timestamp_ns(), reason=reason, error_message=text))

    # Decisions

    def _refuse(self, request: ShmAttachRequest, code: ResponseCode, reason: str) -> None:
        self.counts[f"attach {code.name}"] += 1
        self._publish(ShmAttachResponse(correlation_id=request.correlation_id, code=code, error_message=reason))

    def _admit(self, request: ShmAttachRequest) -> tuple[Stream, bool]:
        """The stream of a request that may be granted, and whether it is a new one; or `Refused`."""
        if request.client_id == 0:
            raise Refused(ResponseCode.INVALID_PARAMS, "clientId 0 means no client; choose another")
        if request.max_dims > MAX_DIMS:
            raise Refused(
                ResponseCode.INVALID_PARAMS,
                f"maxDims {request.max_dims} is more than the configured {MAX_DIMS}",
            )
        if request.expected_layout_version not in {0, LAYOUT_VERSION}:
            raise Refused(
                ResponseCode.REJECTED,
                f"layout version {request.expected_layout_version} expected, {LAYOUT_VERSION} is active",
            )
        if request.require_hugepages is Bool.TRUE and not self._regions.hugepages:
            raise Refused(ResponseCode.REJECTED, "hugepages required, and this driver has no hugetlbfs to use")
        try:
            self.leases.refuse_if_taken(request.stream_id, request.client_id, request.role)
        except LeaseRefused as error:
            raise Refused(ResponseCode.REJECTED, str(error)) from error
        limit = self._config.driver.limits.max_leases
        if len(self.leases) >= limit:
            raise Refused(ResponseCode.REJECTED, f"all {limit} leases are taken")
        stream = self.streams.get(request.stream_id)
        if stream is None:
            return self._new_stream(request), True
        if request.role not in stream.roles:
            raise Refused(
                ResponseCode.REJECTED,
                f"stream {stream.stream_id} is not provisioned for role {request.role.name}",
            )
        return stream, False

    def _new_stream(self, request: ShmAttachRequest) -> Stream:
        """A stream made on demand, if the request and the policy allow it (Driver 4.2, `decisions.md` #36)."""
        stream_id = request.stream_id
        if request.publish_mode is not PublishMode.EXISTING_OR_CREATE:
            raise Refused(
                ResponseCode.REJECTED,
                f"stream {stream_id} does not exist; attach with EXISTING_OR_CREATE to make it",
            )
        if not self._config.driver.dynamic_streams:
            raise Refused(ResponseCode.REJECTED, f"stream {stream_id} does not exist and dynamic_streams is off")
        ids = self._config.stream_ids
        ranges = (ids.pools, ids.driver_allocated, ids.bridge_destinations)
        if not any(low <= stream_id <= high for low, high in ranges):
            spans = " or ".join(f"{low} to {high}" for low, high in ranges)
            raise Refused(ResponseCode.REJECTED, f"stream {stream_id} is not from {spans}")
        limit = self._config.driver.limits.max_streams
        if len(self.streams) >= limit:
            raise Refused(ResponseCode.REJECTED, f"all {limit} streams are taken")
        return Stream(stream_id, self._config.profile("default"))

    def _layout_for(self, stream: Stream, request: ShmAttachRequest) -> StreamLayout:
        """The epoch to attach to: a new one for a producer, the current one for a consumer (Driver 6)."""
        if any(pool.nslots not in {0, stream.profile.nslots} for pool in stream.profile.pools):
            raise Refused(
                ResponseCode.INVALID_PARAMS,
                "a pool of this stream is configured with other nslots than its ring",
            )
        hugepages = request.require_hugepages is Bool.TRUE
        try:
            if request.role is Role.PRODUCER or stream.layout is None:
                return self._new_epoch(stream, hugepages=hugepages or stream.hugepages)
        except LimitReached as error:
            raise Refused(ResponseCode.REJECTED, str(error)) from error
        if hugepages and not stream.layout.header_uri.require_hugepages:
            raise Refused(ResponseCode.REJECTED, f"stream {stream.stream_id} is not made of hugepages")
        try:
            self._regions.validate(stream.layout)
        except RegionError:
            self._replace_damaged(stream)
            raise
        return stream.layout

    def _replace_damaged(self, stream: Stream) -> None:
        """Somebody else changed the files of the epoch: nobody may go on using it (Driver 3, 4.7)."""
        producer = self.leases.producer_of(stream.stream_id)
        if producer is not None:
            self.revoke(producer.lease_id, "the regions of the stream were damaged")
        else:
            self._try_new_epoch(stream)
            self.announce(stream)

    def _lease_ended(self, lease: Lease, reason: LeaseRevokeReason, text: str) -> None:
        """Announces the end of a lease and, for a producer's, the new epoch (Driver 4.7, 4.9, 4.10, 6)."""
        self.counts[f"leases {reason.name}"] += 1
        self._publish(
            ShmLeaseRevoked(
                timestamp_ns=self._clock.timestamp_ns(),
                lease_id=lease.lease_id,
                stream_id=lease.stream_id,
                client_id=lease.client_id,
                role=lease.role,
                reason=reason,
                error_message=text,
            )
        )
        if lease.role is Role.PRODUCER:
            stream = self.streams[lease.stream_id]
            self._try_new_epoch(stream)
            self.announce(stream)

    def _new_epoch(self, stream: Stream, *, hugepages: bool) -> StreamLayout:
        layout = self._regions.create(stream.stream_id, stream.profile, hugepages=hugepages)
        if stream.layout is not None:
            self._regions.retire(stream.layout)
        stream.layout = layout
        stream.hugepages = hugepages
        self.counts["epochs"] += 1
        return layout

    def _try_new_epoch(self, stream: Stream) -> None:
        """A bump that no request waits for. Where it fails the stream has no epoch: it is announced no more, so
        that consumers fail closed, and the next attach or `provision` tries again."""
        try:
            self._new_epoch(stream, hugepages=stream.hugepages)
        except (AllocationError, RegionError) as error:
            log.error("stream %d has no regions now: %s", stream.stream_id, error)
            if stream.layout is not None:
                self._regions.retire(stream.layout)
            stream.layout = None

    def _in_time(self, producer: Lease) -> bool:
        """Whether the producer's last keepalive is not overdue: after the first missed one nobody vouches for it."""
        grace_ns = self._config.driver.keepalive_interval_ms * NANOS_PER_MILLI * 3 // 2
        return self._clock.monotonic_ns() - producer.keepalive_ns <= grace_ns


def _granted(correlation_id: int, lease: Lease, layout: StreamLayout) -> ShmAttachResponse:
    return ShmAttachResponse(
        correlation_id=correlation_id,
        code=ResponseCode.OK,
        lease_id=lease.lease_id,
        lease_expiry_timestamp_ns=lease.expiry_ns,
        stream_id=layout.stream_id,
        epoch=layout.epoch,
        layout_version=layout.layout_version,
        header_nslots=layout.nslots,
        header_slot_bytes=layout.header_slot_bytes,
        max_dims=MAX_DIMS,
        payload_pools=tuple(
            PayloadPool(
                pool_id=pool.pool_id,
                pool_nslots=pool.nslots,
                stride_bytes=pool.stride_bytes,
                region_uri=str(pool.uri),
            )
            for pool in layout.pools
        ),
        header_region_uri=str(layout.header_uri),
    )
