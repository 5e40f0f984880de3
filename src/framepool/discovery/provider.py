"""Whoever answers: requests in, the index asked, responses out (Discovery 4.3, 5, 12).

A provider is a part of an agent: a driver embeds one for its own streams, a registry has one for those of many drivers.
It knows the index and where answers go, and nothing of where messages come from. Discovery is advice: what is answered
here grants nothing, opens no file and changes no epoch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Buffer
from typing import Final

from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.config import DiscoveryConfig
from framepool.discovery.entry import Filters
from framepool.discovery.index import Index, TooMany
from framepool.discovery.policy import Access, Endpoint, EndpointPolicy, RateLimit, Refusal, Verdict
from framepool.discovery.responses import Responses
from framepool.errors import MediaDriverLost
from framepool.transport.settings import AeronSettings
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus
from framepool.wire.discovery import RESPONSE_OVERHEAD, SalvagedRequest, encode_found, salvage_request
from framepool.wire.dispatch import Dispatcher, Drop

log = logging.getLogger(__name__)

LONGEST_ERROR: Final = 1_024
LOG_PERIOD_NS: Final = NANOS_PER_SECOND
"""Of the requests of so long, one is logged (Discovery 13)."""


class Provider:
    """Answers the requests that its owner hands over."""

    def __init__(
        self, index: Index, responses: Responses, config: DiscoveryConfig, settings: AeronSettings, clock: Clock
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._index = index
        self._responses = responses
        self._max_results = config.limits.max_results
        self._max_clients = config.limits.max_clients
        self._clock = clock
        self._access = Access(config.access)
        self.set_rate(config.limits.requests_per_second)
        self._policy = EndpointPolicy(config.responses, settings)
        self._log_at_ns = 0
        self._dispatch = Dispatcher()
        self._dispatch.on(DiscoveryRequest, self._on_request)

    def set_rate(self, requests_per_second: int) -> None:
        """How many requests of a client id are answered a second; 0 is no limit."""
        self._rate = RateLimit(requests_per_second, self._max_clients)

    def receive(self, message: Buffer) -> None:
        """One message of a stream on which requests come, whoever sent it and whatever else is said there.

        What is not of our schema and version is dropped. A malformed request is told so where it can be.
        """
        if self._dispatch(message) is not Drop.MALFORMED or (request := salvage_request(message)) is None:
            return
        endpoint = self._admit(request)
        if endpoint is not None:
            self.refuse(request.request_id, endpoint, f"malformed request: {request.reason}")

    def refuse(self, request_id: int, endpoint: Endpoint, reason: str) -> None:
        """Answers ERROR, with as much of the reason as an error message may have (Discovery 5.2)."""
        self._say(request_id, endpoint, DiscoveryStatus.ERROR, reason)

    def do_work(self) -> int:
        """Sends answers that wait, and lets streams go that fell silent."""
        return self._responses.do_work() + self._index.expire(self._clock.monotonic_ns())

    def statistics(self) -> dict[str, int]:
        """What was asked, what was answered, and what was dropped and why."""
        return {
            **self.counts,
            "clients forgotten": self._rate.forgotten,
            **self._dispatch.statistics(),
            **self._responses.statistics(),
            **self._index.statistics(),
        }

    def _on_request(self, request: DiscoveryRequest) -> None:
        endpoint = self._admit(request)
        if endpoint is None:
            return
        if request.response_stream_id == 0:
            self.refuse(request.request_id, endpoint, "responseStreamId is 0: name a stream to answer on")
            return
        try:
            self._answer(request, endpoint)
        except MediaDriverLost:
            raise
        except Exception:
            self.refuse(request.request_id, endpoint, "internal error")
            raise

    def _answer(self, request: DiscoveryRequest, endpoint: Endpoint) -> None:
        filters, visible = Filters.of(request), self._access.of(request.client_id)
        most = self._max_results
        try:
            found = self._index.find(filters, self._clock.monotonic_ns(), limit=most, visible=visible)
        except TooMany:
            self.refuse(request.request_id, endpoint, f"more than {most} streams match: ask for fewer")
            return
        self._log(request, filters, len(found))
        if not found and self._access:
            self._say(request.request_id, endpoint, DiscoveryStatus.NOT_FOUND)
            return
        results = [entry.encode() for entry in found]
        length = RESPONSE_OVERHEAD + sum(map(len, results))
        if length > endpoint.max_message_length:
            self.refuse(
                request.request_id,
                endpoint,
                f"{len(found)} streams match and need {length} bytes, this response channel takes "
                f"{endpoint.max_message_length}: ask for fewer, or name a longer term-length",
            )
            return
        self.counts["answers OK"] += 1
        self._responses.send(endpoint, encode_found(request.request_id, results))

    def _admit(self, request: DiscoveryRequest | SalvagedRequest) -> Endpoint | None:
        """The endpoint of a request that gets an answer: the endpoint may be used, and the client keeps its pace."""
        endpoint = self._policy.judge(request.response_channel, request.response_stream_id)
        if isinstance(endpoint, Refusal):
            self.counts[endpoint.value] += 1
            if endpoint is not Refusal.EMPTY and self.counts[endpoint.value] == 1:
                log.warning("discovery does not answer to %.200r: %s", request.response_channel, endpoint)
            return None
        verdict = self._rate.judge(request.client_id, self._clock.monotonic_ns())
        self.counts[verdict.value] += 1
        if verdict is Verdict.TELL:
            self.refuse(
                request.request_id, endpoint, f"more than {self._rate.rate} requests a second; wait, then ask again"
            )
        return endpoint if verdict is Verdict.ANSWER else None

    def _say(self, request_id: int, endpoint: Endpoint, status: DiscoveryStatus, reason: str = "") -> None:
        """A response without results."""
        self.counts[f"answers {status.name}"] += 1
        text = reason.encode("ascii", "replace")[:LONGEST_ERROR].decode("ascii")
        response = DiscoveryResponse(request_id=request_id, status=status, error_message=text)
        self._responses.send(endpoint, response.encode())

    def _log(self, request: DiscoveryRequest, filters: Filters, found: int) -> None:
        """Says what is asked for by kind, never by value."""
        now = self._clock.monotonic_ns()
        if now < self._log_at_ns:
            return
        self._log_at_ns = now + LOG_PERIOD_NS
        kinds = " and ".join(sorted({kind for kind, _ in filters.terms()})) or "nothing"
        log.info("client %d asked by %s, %d streams match", request.client_id, kinds, found)
