"""A bare client of a driver: any message or bytes onto the control stream, everything that comes back kept in order.

It holds leases only as numbers and sends no keepalive by itself, so that a test decides what a driver gets to hear.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Self

from framepool.config import Config
from framepool.errors import DecodeError
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire._generated.driver_901 import (
    PublishMode,
    ResponseCode,
    Role,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmLeaseKeepalive,
    ShmLeaseRevoked,
)
from framepool.wire.dispatch import decode
from framepool.wire.message import Message

PATIENCE = 30.0
_client_ids = itertools.count(1_000)
_correlation_ids = itertools.count(1)


def new_client_id() -> int:
    """One that no other attachment of this test run uses."""
    return next(_client_ids)


class DriverClient:
    """One Aeron client on the control and announce streams of a driver."""

    def __init__(self, config: Config) -> None:
        ids, channels = config.stream_ids, config.channels
        self._client = Client.connect(config.aeron, name="test client", timeout=PATIENCE)
        self.control = self._client.add_subscription(channel.control(channels.control), ids.control)
        self.announces = self._client.add_subscription(channel.control(channels.announce), ids.announce)
        self._requests = self._client.add_publication(channel.control(channels.control), ids.control)
        self.heard: list[Message] = []
        self._asked: dict[int, ShmAttachRequest] = {}

    # Out

    def send(self, message: Message | bytes) -> None:
        """Puts a message or mere bytes on the control stream."""
        if isinstance(message, ShmAttachRequest):
            self._asked[message.correlation_id] = message
        data = message if isinstance(message, bytes) else message.encode()
        deadline = time.monotonic() + PATIENCE
        while self._requests.offer(data) < 0:
            assert time.monotonic() < deadline, "the control stream takes nothing"
            time.sleep(0.001)

    # In

    def poll(self) -> None:
        """Takes in what has come, control before announces."""
        for subscription in (self.control, self.announces):
            while messages := subscription.poll():
                for data in messages:
                    try:
                        self.heard.append(decode(data))
                    except DecodeError:
                        continue  # what a test sent to see it refused

    def wait_for[M: Message](
        self, kind: type[M], fits: Callable[[M], bool] = lambda _: True, *, since: int = 0, timeout: float = PATIENCE
    ) -> M:
        """The first message of that kind that fits, from position `since` of `heard` on, waiting for it."""
        deadline = time.monotonic() + timeout
        while True:
            self.poll()
            for message in self.heard[since:]:
                if isinstance(message, kind) and fits(message):
                    return message
            said = [type(message).__name__ for message in self.heard[since:]]
            assert time.monotonic() < deadline, f"no such {kind.__name__} within {timeout} s; heard {said[-20:]}"
            time.sleep(0.001)

    def of[M: Message](self, kind: type[M], fits: Callable[[M], bool] = lambda _: True) -> list[M]:
        """Everything of that kind that has come so far."""
        self.poll()
        return [message for message in self.heard if isinstance(message, kind) and fits(message)]

    def announce_of(self, stream_id: int, fits: Callable[[ShmPoolAnnounce], bool] = lambda _: True) -> ShmPoolAnnounce:
        """The next announce of a stream that fits; announces that were heard before do not count."""
        self.poll()
        return self.wait_for(
            ShmPoolAnnounce, lambda each: each.stream_id == stream_id and fits(each), since=len(self.heard)
        )

    def revoked(self, lease_id: int) -> ShmLeaseRevoked:
        """The notice that a lease has ended."""
        return self.wait_for(ShmLeaseRevoked, lambda notice: notice.lease_id == lease_id)

    # Questions

    def request(self, stream_id: int, role: Role = Role.CONSUMER, **changes: Any) -> ShmAttachRequest:
        """An attach request that makes the stream if need be, with fields changed at will."""
        fields: dict[str, Any] = {
            "correlation_id": next(_correlation_ids),
            "stream_id": stream_id,
            "client_id": new_client_id(),
            "role": role,
            "expected_layout_version": 0,
            "max_dims": 0,
            "publish_mode": PublishMode.EXISTING_OR_CREATE,
        }
        return ShmAttachRequest(**{**fields, **changes})

    def answer(self, correlation_id: int) -> ShmAttachResponse:
        return self.wait_for(ShmAttachResponse, lambda answer: answer.correlation_id == correlation_id)

    def attach(self, stream_id: int, role: Role = Role.CONSUMER, **changes: Any) -> ShmAttachResponse:
        """Sends an attach request and waits for its answer, whatever it is."""
        request = self.request(stream_id, role, **changes)
        self.send(request)
        return self.answer(request.correlation_id)

    def hold(self, stream_id: int, role: Role = Role.CONSUMER, **changes: Any) -> Held:
        """Attaches; fails the test unless the answer is OK."""
        request = self.request(stream_id, role, **changes)
        self.send(request)
        answer = self.answer(request.correlation_id)
        assert answer.code is ResponseCode.OK, answer
        return Held(self, request, answer)

    def leave(self) -> None:
        """Goes without a word, as after a crash or when there is no driver any more."""
        self._client.close()

    def close(self) -> None:
        """Gives back what it was granted, as far as it still holds it, and leaves."""
        try:
            for answer in self.of(ShmAttachResponse, lambda it: it.code is ResponseCode.OK):
                if answer.correlation_id in self._asked:
                    Held(self, self._asked[answer.correlation_id], answer).detach()
        finally:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.close()
        else:
            self.leave()


class Held:
    """A lease that was granted, and the messages that concern it."""

    def __init__(self, client: DriverClient, request: ShmAttachRequest, answer: ShmAttachResponse) -> None:
        assert answer.lease_id is not None
        assert answer.epoch is not None
        self._client = client
        self.answer = answer
        self.lease_id: int = answer.lease_id
        self.epoch: int = answer.epoch
        self.stream_id, self.client_id, self.role = request.stream_id, request.client_id, request.role

    def keepalive(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "lease_id": self.lease_id,
            "stream_id": self.stream_id,
            "client_id": self.client_id,
            "role": self.role,
            "client_timestamp_ns": time.monotonic_ns(),
        }
        self._client.send(ShmLeaseKeepalive(**{**fields, **changes}))

    def detach(self, **changes: Any) -> ShmDetachResponse:
        """Asks for the end of the lease and waits for the answer."""
        fields: dict[str, Any] = {
            "correlation_id": next(_correlation_ids),
            "lease_id": self.lease_id,
            "stream_id": self.stream_id,
            "client_id": self.client_id,
            "role": self.role,
        }
        request = ShmDetachRequest(**{**fields, **changes})
        self._client.send(request)
        return self._client.wait_for(ShmDetachResponse, lambda it: it.correlation_id == request.correlation_id)
