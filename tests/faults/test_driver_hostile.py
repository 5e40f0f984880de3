"""All that does not belong on the control stream, at a driver with leases: each kind counted, nothing changed."""

from __future__ import annotations

import dataclasses
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framepool.wire._generated import control_900 as control
from framepool.wire._generated.driver_901 import (
    LeaseRevokeReason,
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdown,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
    ShutdownReason,
)
from tests.support.driver_client import DriverClient, Held
from tests.support.driver_site import STREAM, Site
from tests.support.processes import Processes


class Hostile:
    """Makes messages of each kind that a driver must survive; `expected` says how the driver counts them."""

    def __init__(self, held: list[Held], seed: int) -> None:
        self._random = random.Random(seed)
        self._held = held
        self.expected: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.kinds: list[Callable[[], bytes]] = [
            self.random_bytes,
            self.foreign_schema,
            self.newer_version,
            self.unknown_template,
            self.other_dialect,
            self.truncated,
            self.oversized,
            self.answer_of_another_driver,
            self.attach_of_nobody,
            self.attach_by_a_client_that_holds_a_lease,
            self.attach_to_nothing,
            self.keepalive_of_a_stranger,
            self.keepalive_of_nobody,
            self.detach_of_a_stranger,
            self.shutdown_without_token,
        ]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            kind = self._random.choice(self.kinds)
            self.sent[kind.__name__] += 1
            yield kind()

    def attach(self, **changes: Any) -> ShmAttachRequest:
        fields: dict[str, Any] = {
            "correlation_id": self._random.choice([0, 1, -1, 2**62]),
            "stream_id": STREAM,
            "client_id": self._random.randrange(2**31, 2**32 - 1),
            "role": self._random.choice(list(Role)),
            "expected_layout_version": 0,
            "max_dims": 0,
            "publish_mode": PublishMode.REQUIRE_EXISTING,
        }
        return ShmAttachRequest(**{**fields, **changes})

    def victim(self) -> Held:
        return self._random.choice(self._held)

    def random_bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice([1, 7, 8, 9, 40, 500, 20_000]))

    def foreign_schema(self) -> bytes:
        self.expected["unsupported schema"] += 1
        return struct.pack("<4H", 24, 1, 999, 1) + self._random.randbytes(24)

    def newer_version(self) -> bytes:
        self.expected["unreadable UNSUPPORTED"] += 1
        data = bytearray(self.attach().encode())
        data[6:8] = struct.pack("<H", 0)
        return bytes(data)

    def unknown_template(self) -> bytes:
        self.expected["unsupported template"] += 1
        return struct.pack("<4H", 24, 99, 901, 1) + self._random.randbytes(24)

    def other_dialect(self) -> bytes:
        self.expected["unsupported dialect"] += 1
        self.expected["unreadable UNSUPPORTED"] += 1
        data = bytearray(self.attach().encode() + bytes(8))
        data[0:2] = struct.pack("<H", 27)
        return bytes(data)

    def truncated(self) -> bytes:
        self.expected["malformed"] += 1
        data = self.attach().encode()
        return data[: self._random.randrange(1, len(data))]

    def oversized(self) -> bytes:
        """A message followed by more than it holds."""
        self.expected["malformed"] += 1
        self.expected["unreadable INVALID_PARAMS"] += 1
        data = self.attach().encode()
        return data + self._random.randbytes(self._random.choice([1, 1000, 100_000]))

    def answer_of_another_driver(self) -> bytes:
        self.expected["unhandled"] += 1
        victim = self.victim()
        return self._random.choice(
            [
                ShmAttachResponse(correlation_id=1, code=ResponseCode.REJECTED, error_message="no"),
                ShmDetachResponse(correlation_id=1, code=ResponseCode.OK, error_message=""),
                ShmDriverShutdown(timestamp_ns=1, reason=ShutdownReason.ERROR, error_message=""),
                ShmLeaseRevoked(
                    timestamp_ns=1,
                    lease_id=victim.lease_id,
                    stream_id=victim.stream_id,
                    client_id=victim.client_id,
                    role=victim.role,
                    reason=LeaseRevokeReason.REVOKED,
                    error_message="",
                ),
                control.ControlResponse(correlation_id=1, code=control.ResponseCode.OK, error_message=""),
            ]
        ).encode()

    def attach_of_nobody(self) -> bytes:
        self.expected["attach INVALID_PARAMS"] += 1
        return self.attach(client_id=0).encode()

    def attach_by_a_client_that_holds_a_lease(self) -> bytes:
        self.expected["attach REJECTED"] += 1
        return self.attach(client_id=self.victim().client_id, correlation_id=7).encode()

    def attach_to_nothing(self) -> bytes:
        self.expected["attach REJECTED"] += 1
        return self.attach(stream_id=self._random.choice([0, 1, 999, 2**31, 2**32 - 2])).encode()

    def keepalive_of_a_stranger(self) -> bytes:
        self.expected["keepalive REJECTED"] += 1
        victim = self.victim()
        return keepalive(victim.lease_id, victim.stream_id, victim.client_id + 1, victim.role)

    def keepalive_of_nobody(self) -> bytes:
        self.expected["keepalive REJECTED"] += 1
        return keepalive(self._random.randrange(2**63), STREAM, self.victim().client_id, Role.CONSUMER)

    def detach_of_a_stranger(self) -> bytes:
        self.expected["detach REJECTED"] += 1
        victim = self.victim()
        right = {"lease_id": victim.lease_id, "stream_id": STREAM, "client_id": victim.client_id, "role": victim.role}
        wrong = self._random.choice(
            [{"lease_id": victim.lease_id + 1000}, {"stream_id": 1}, {"client_id": 1}, {"role": other(victim.role)}]
        )
        return ShmDetachRequest(correlation_id=1, **{**right, **wrong}).encode()

    def shutdown_without_token(self) -> bytes:
        self.expected["shutdown REJECTED"] += 1
        token = self._random.choice(["", "guess"])
        return ShmDriverShutdownRequest(
            correlation_id=1, reason=ShutdownReason.ADMIN, token=token, error_message=""
        ).encode()


def keepalive(lease_id: int, stream_id: int, client_id: int, role: Role) -> bytes:
    return ShmLeaseKeepalive(
        lease_id=lease_id, stream_id=stream_id, client_id=client_id, role=role, client_timestamp_ns=1
    ).encode()


def other(role: Role) -> Role:
    return Role.CONSUMER if role is Role.PRODUCER else Role.PRODUCER


@dataclasses.dataclass
class Attack:
    """How long an attack goes on: so many messages, or so long."""

    messages: int = 0
    seconds: float = 0.0

    def over(self, sent: int, started: float) -> bool:
        return sent >= self.messages and time.monotonic() - started >= self.seconds


def leases_of(status: dict[str, Any]) -> list[tuple[int, int, int, str]]:
    keys = ("lease_id", "stream_id", "client_id", "role")
    return [tuple(lease[key] for key in keys) for lease in status["leases"]]  # type: ignore[misc]


@pytest.mark.clause("D-4.9-02", "D-4.12-03", "D-4.8-05")
@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(Attack(messages=12_000), id="12000 messages"),
        pytest.param(Attack(seconds=60), id="60 s", marks=pytest.mark.soak),
    ],
)
def test_hostile_input_changes_no_lease_and_each_kind_is_counted(
    attack: Attack, base_dir: Path, processes: Processes
) -> None:
    site = Site(processes, base_dir, lease_expiry_ms=600_000, more='shutdown_token = "secret"')
    driver = site.start_driver()
    with DriverClient(site.config) as client:
        held = [client.hold(STREAM, Role.PRODUCER), client.hold(STREAM), client.hold(STREAM)]
        before = site.wait_status(lambda now: len(now["leases"]) == 3)
        hostile = Hostile(held, seed=20260101)
        started = time.monotonic()
        for sent, message in enumerate(hostile, start=1):
            client.poll()  # it hears itself too, and would stand in its own way
            client.heard.clear()
            client.send(message)
            if attack.over(sent, started):
                break
        good = client.attach(STREAM, correlation_id=424242)
        assert good.code is ResponseCode.OK

        after = site.wait_status(lambda now: now["counts"].get("attach OK") == 4)
        assert driver.popen.poll() is None
        assert leases_of(after)[:3] == leases_of(before)
        assert after["streams"][0]["epoch"] == before["streams"][0]["epoch"]
        for kind, count in hostile.expected.items():
            if kind.endswith(("REJECTED", "attach INVALID_PARAMS")):
                assert after["counts"][kind] == count, kind
            else:  # random bytes, cut messages and the driver's own answers are among these
                assert after["counts"][kind] >= count, kind
        assert min(hostile.sent.values()) > 0
        assert len(hostile.sent) == len(hostile.kinds)
        for lease in held:
            assert lease.detach().code is ResponseCode.OK
    print(f"\n{sum(hostile.sent.values())} messages in {time.monotonic() - started:.1f} s: {dict(hostile.sent)}")
