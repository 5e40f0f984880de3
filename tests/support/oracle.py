"""A provider of discovery that says what a test tells it to, in order or not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from framepool.discovery.address import Address
from framepool.discovery.client import Question
from framepool.discovery.host import host_tag, this_host
from framepool.transport import channel
from framepool.transport.aeron import Client, Publication
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.discovery_910 import (
    DiscoveryRequest,
    DiscoveryResponse,
    DiscoveryStatus,
    PayloadPool,
    Result,
    Tag,
)
from framepool.wire.message import Message

PATIENCE = 30.0
HERE = this_host()


def local_address(stream_id: int = 7_000, **changes: Any) -> Address:
    """Questions and answers over IPC."""
    fields = {"channel": "aeron:ipc", "response_channel": "aeron:ipc", "response_stream_id": 7_004}
    return Address(**{**fields, "stream_id": stream_id, **changes})


def result(stream_id: int = 10_000, **changes: Any) -> Result:
    """A result that is in order, of this host, with fields changed at will."""
    tags = changes.pop("tags", ())
    host = changes.pop("host", HERE)
    fields: dict[str, Any] = {
        "stream_id": stream_id,
        "producer_id": 7,
        "epoch": 5,
        "layout_version": 1,
        "header_nslots": 8,
        "header_slot_bytes": 256,
        "max_dims": 8,
        "driver_control_stream_id": 1_000,
        "driver_control_channel": "aeron:ipc",
        "driver_instance_id": "driver-a",
        "data_source_name": "camera",
        "payload_pools": (PayloadPool(pool_id=1, pool_nslots=8, stride_bytes=1024, region_uri="shm:file?path=/x"),),
        "header_region_uri": "shm:file?path=/nowhere/header.ring",
        "tags": tuple(Tag(tag=tag) for tag in [*tags, *([host_tag(host)] if host else [])]),
    }
    return Result(**{**fields, **changes})


class Oracle:
    """An Aeron client that hears requests and answers them when it is told to."""

    def __init__(self, settings: AeronSettings, address: Address | None = None) -> None:
        self.address = address or local_address()
        self.heard: list[DiscoveryRequest] = []
        self._client = Client.connect(settings, name="oracle", timeout=PATIENCE)
        self._requests = self._client.add_subscription(channel.control(self.address.channel), self.address.stream_id)
        self._answers: dict[tuple[str, int], Publication] = {}

    def hear(self) -> list[DiscoveryRequest]:
        """All requests so far."""
        self.heard += [DiscoveryRequest.decode(message) for message in self._requests.poll()]
        return self.heard

    def question(self, number: int = 1, turn: Callable[[], object] = lambda: None) -> DiscoveryRequest:
        """Request number so and so, repeats of the same one not counted; waits for it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            turn()
            different = {request.request_id: request for request in self.hear()}
            if len(different) >= number:
                return list(different.values())[number - 1]
            assert time.monotonic() < deadline, f"{len(different)} questions came, not {number}"
            time.sleep(0.001)

    def asked(self, question: Question, turn: Callable[[], object]) -> DiscoveryRequest:
        """The request of a question; who joins late may hear earlier ones too."""
        ids = {asked.request_id for asked in question.waiting.values()}
        number = 1
        while (request := self.question(number, turn)).request_id not in ids:
            number += 1
        return request

    def say(self, message: Message | bytes, *, channel_name: str = "", stream_id: int = 0) -> None:
        """Puts something on the response stream; somebody must listen."""
        where = (channel_name or self.address.response_channel, stream_id or self.address.response_stream_id)
        publication = self._answers.get(where)
        if publication is None:
            name = channel.control_publication(where[0], self._client.settings)
            publication = self._answers[where] = self._client.add_publication(name, where[1])
        data = message if isinstance(message, bytes) else message.encode()
        deadline = time.monotonic() + PATIENCE
        while publication.offer(data) < 0:
            assert time.monotonic() < deadline, "nobody takes the answer"
            time.sleep(0.001)

    def answer(
        self,
        request: DiscoveryRequest,
        *results: Result,
        status: DiscoveryStatus = DiscoveryStatus.OK,
        **changes: Any,
    ) -> None:
        """Answers a request where it asks for it."""
        response = DiscoveryResponse(
            **{"request_id": request.request_id, "status": status, "results": results, **changes}
        )
        self.say(response, channel_name=request.response_channel, stream_id=request.response_stream_id)

    @contextlib.contextmanager
    def answering(self, *results: Result) -> Iterator[list[Result]]:
        """Answers every request with the same results, from a thread; what comes back may be changed meanwhile."""
        answers, stop = list(results), threading.Event()

        def serve() -> None:
            done = 0
            while not stop.wait(0.001):
                for request in self.hear()[done:]:
                    done += 1
                    self.answer(request, *answers)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield answers
        finally:
            stop.set()
            thread.join(PATIENCE)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
