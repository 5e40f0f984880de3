"""What a running driver says of itself: a document beside its streams, and Aeron counters, renewed each second.

With thousands of streams, which take longer to describe, it is less often (`REST`).

`framepool status` reads the document from another process. It is replaced by rename, so that a reader sees a whole
one, and it lies in the directory of the namespace, so that whoever may map the streams may read it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter as Counts
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from framepool.agent import Timers
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import Config
from framepool.driver.streams import Authority, Stream
from framepool.errors import FramepoolError, MediaDriverLost
from framepool.shm.allocator import Allocator
from framepool.transport.aeron import Client, Counter
from framepool.wire._generated.driver_901 import ResponseCode, Role

log = logging.getLogger(__name__)

STATUS_FILE = ".driver.status.json"
COUNTER_TYPES = {"leases": 2101, "streams": 2102, "epochs": 2103, "announces": 2104}
REJECTED_TYPE = 2105
"""Of the counters of refused requests, one for each code; the code is their key."""
REFUSALS = tuple(code for code in ResponseCode if code is not ResponseCode.OK)
REST = 1_000
"""Times as long as it took to say something, nothing is said."""
REQUESTS = ("attach", "detach", "shutdown", "unreadable")


class StatusUnavailable(FramepoolError):
    """No driver has left a status here."""


def describe(authority: Authority, config: Config, clock: Clock, counts: Mapping[str, int]) -> dict[str, Any]:
    """The whole state of a driver as plain values."""
    now = clock.monotonic_ns()
    leases = [
        {
            "lease_id": lease.lease_id,
            "stream_id": lease.stream_id,
            "client_id": lease.client_id,
            "role": lease.role.name,
            "state": lease.state.name,
            "age_s": (now - lease.attached_ns) / NANOS_PER_SECOND,
            "expires_in_s": None if lease.expiry_ns is None else (lease.expiry_ns - now) / NANOS_PER_SECOND,
        }
        for lease in authority.leases
    ]
    consumers = Counts(lease.stream_id for lease in authority.leases if lease.role is Role.CONSUMER)
    streams = []
    for stream_id, stream in authority.streams.items():
        producer = authority.leases.producer_of(stream_id)
        streams.append(
            {
                **_layout_of(stream),
                "producer": None if producer is None else producer.client_id,
                "consumers": consumers[stream_id],
            }
        )
    return {
        "pid": os.getpid(),
        "monotonic_ns": now,
        "namespace": config.driver.namespace,
        "aeron_directory": config.aeron.directory,
        "keepalive_interval_ms": config.driver.keepalive_interval_ms,
        "lease_expiry_ms": config.driver.lease_expiry_ms,
        "announce_period_ms": config.driver.announce_period_ms,
        "streams": streams,
        "leases": leases,
        "counts": dict(sorted(counts.items())),
    }


def _layout_of(stream: Stream) -> dict[str, Any]:
    """What changes with the epoch only, so that it is not worked out each second for every stream."""
    layout = stream.layout
    if stream.described is None or stream.described[0] is not layout:
        stream.described = (
            layout,
            {
                "stream_id": stream.stream_id,
                "epoch": None if layout is None else layout.epoch,
                "bytes": 0 if layout is None else layout.total_bytes,
                "nslots": stream.profile.nslots,
                "strides": tuple(pool.stride_bytes for pool in stream.profile.pools),
            },
        )
    return stream.described[1]


def read_status(allocator: Allocator) -> dict[str, Any]:
    """The last status that a driver of this namespace wrote; it may have died since, its pid tells."""
    try:
        with open(f"{allocator.directory}/{STATUS_FILE}", "rb") as file:
            status: dict[str, Any] = msgspec.json.decode(file.read())
    except FileNotFoundError:
        raise StatusUnavailable(f"no driver has run in {allocator.directory}; start one: framepool driver") from None
    except (OSError, msgspec.DecodeError) as error:
        raise StatusUnavailable(f"{allocator.directory}/{STATUS_FILE}: {error}") from error
    return status


class StatusWriter:
    """The agent that renews the document and the counters."""

    role = "status"

    def __init__(
        self,
        allocator: Allocator,
        client: Client,
        clock: Clock,
        authority: Authority,
        describe_now: Callable[[], dict[str, Any]],
    ) -> None:
        self._allocator = allocator
        self._client = client
        self._timers = Timers(clock)
        self._authority = authority
        self._describe = describe_now
        self._counters: dict[str, Counter] = {}
        self._rest_until_ns = 0

    def on_start(self) -> None:
        for name, type_id in COUNTER_TYPES.items():
            self._counters[name] = self._client.add_counter(type_id, f"framepool driver {name}")
        for code in REFUSALS:
            label = f"framepool driver rejected {code.name}"
            self._counters[code.name] = self._client.add_counter(REJECTED_TYPE, label, code.to_bytes(4, "little"))
        self._timers.every(NANOS_PER_SECOND, self.write, first_ns=0)

    def do_work(self) -> int:
        self._timers.poll()
        return 0

    def on_close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._allocator.directory}/{STATUS_FILE}")

    def write(self) -> None:
        """Renews the document and the counters. On a full filesystem the last document stays; the driver goes on.

        Where that takes long, as with thousands of streams, it is done less often.
        """
        if time.monotonic_ns() < self._rest_until_ns:
            return
        began_ns = time.thread_time_ns()
        self._write()
        self._rest_until_ns = time.monotonic_ns() + (time.thread_time_ns() - began_ns) * REST

    def _write(self) -> None:
        path = f"{self._allocator.directory}/{STATUS_FILE}"
        document = self._describe()
        try:
            with open(f"{path}.tmp", "wb", opener=_private) as file:
                file.write(msgspec.json.encode(document))
                self._allocator.share(file.fileno())
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            log.warning("status not written: %s", error)
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.tmp")
        self._count(Counts(document["counts"]))

    def _count(self, counts: Counts[str]) -> None:
        values = {
            "leases": len(self._authority.leases),
            "streams": len(self._authority.streams),
            "epochs": counts["epochs"],
            "announces": counts["announces"],
            **{code.name: sum(counts[f"{request} {code.name}"] for request in REQUESTS) for code in REFUSALS},
        }
        with contextlib.suppress(MediaDriverLost):  # the conductor waits for it; the counters come back with it
            for name, value in values.items():
                self._counters[name].set(value)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
