"""What a provider does for whom: visibility, pace, and the endpoints that it may be made to answer to.

All of it is about strangers: a client id is what the request says and proves nothing (Discovery 5.1), and a response
channel is an address that somebody else chose. Visibility is a courtesy, then, not a protection: what protects streams
are the driver's decisions and the modes of their files.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from framepool.clock import NANOS_PER_SECOND
from framepool.config import AccessRule, ResponseConfig
from framepool.discovery.address import LAST_STREAM_ID
from framepool.discovery.entry import Entry
from framepool.discovery.stream import LONGEST_CHANNEL
from framepool.errors import ConfigurationError
from framepool.transport import channel
from framepool.transport.settings import GIB, KIB, MIB, AeronSettings, check_term_length

LONGEST_MESSAGE: Final = 16 * MIB
UNITS: Final = {"k": KIB, "m": MIB, "g": GIB}

Visible = Callable[[Entry], bool]


class Access:
    """Which streams a client gets to see (Discovery 8, 12). Without rules, all."""

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self._rules = rules

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of(self, client_id: int) -> Visible:
        """Whether a client may see a stream."""
        if not self._rules:
            return lambda entry: True
        rules = [rule for rule in self._rules if not rule.clients or client_id in rule.clients]
        return lambda entry: any(_names(rule, entry) for rule in rules)


def _names(rule: AccessRule, entry: Entry) -> bool:
    instance_id, stream_id = entry.key
    return (not rule.drivers or instance_id in rule.drivers) and (
        not rule.streams or any(low <= stream_id <= high for low, high in rule.streams)
    )


class TokenBucket:
    """So many a second, and as many at once after a rest."""

    __slots__ = ("_filled_ns", "_rate", "_tokens")

    def __init__(self, rate: int, now_ns: int) -> None:
        self._rate = rate
        self._tokens = float(rate)
        self._filled_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Takes one if there is one."""
        self._tokens = min(self._rate, self._tokens + (now_ns - self._filled_ns) * self._rate / NANOS_PER_SECOND)
        self._filled_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Verdict(StrEnum):
    """What becomes of a request for its client's pace."""

    ANSWER = "answered"
    TELL = "told of the limit"
    DROP = "dropped for the limit"


class RateLimit:
    """The pace of each client id, for the ids that were heard last."""

    def __init__(self, rate: int, max_clients: int) -> None:
        self.rate = rate
        self._max_clients = max_clients
        self._buckets: OrderedDict[int, TokenBucket] = OrderedDict()
        self._told: set[int] = set()
        self.forgotten = 0
        """Clients that had to make room for others: their pace begins anew."""

    def __len__(self) -> int:
        return len(self._buckets)

    def judge(self, client_id: int, now_ns: int) -> Verdict:
        """Whether to answer; the first request over the limit is told why it gets no answer, others are not."""
        if not self.rate:
            return Verdict.ANSWER
        bucket = self._buckets.get(client_id)
        if bucket is None:
            bucket = self._buckets[client_id] = TokenBucket(self.rate, now_ns)
            if len(self._buckets) > self._max_clients:
                self.forgotten += 1
                oldest, _ = self._buckets.popitem(last=False)
                self._told.discard(oldest)
        self._buckets.move_to_end(client_id)
        if bucket.take(now_ns):
            self._told.discard(client_id)
            return Verdict.ANSWER
        if client_id in self._told:
            return Verdict.DROP
        self._told.add(client_id)
        return Verdict.TELL


class Endpoint(NamedTuple):
    """Where an answer goes, and the longest one that it takes."""

    channel: str
    stream_id: int
    max_message_length: int


class Refusal(StrEnum):
    """Why nothing is sent to the endpoint of a request."""

    EMPTY = "no response channel"
    CHANNEL = "response channel that is none"
    STREAM = "response stream that Aeron does not have"
    MEDIA = "medium not in discovery.responses.media"
    ADDRESS = "UDP endpoint that is no address and port"
    NETWORK = "address not in discovery.responses.networks"
    TERM = "term length that is none"


class EndpointPolicy:
    """Turns what a request says into a channel of ours: media, address and term length are all that is taken of it."""

    def __init__(self, config: ResponseConfig, settings: AeronSettings) -> None:
        self._config = config
        self._settings = settings
        self._networks = [ipaddress.ip_network(network) for network in config.networks]

    def judge(self, response_channel: str, stream_id: int) -> Endpoint | Refusal:
        """The endpoint to answer to, or why there is none."""
        if not response_channel:
            return Refusal.EMPTY
        if stream_id > LAST_STREAM_ID:
            return Refusal.STREAM
        if len(response_channel) > LONGEST_CHANNEL:
            return Refusal.CHANNEL
        try:
            media, parameters = channel.parse(response_channel)
        except ConfigurationError:
            return Refusal.CHANNEL
        if media not in self._config.media:
            return Refusal.MEDIA
        term_length = self._term_length(parameters.get(channel.TERM_LENGTH))
        if term_length is None:
            return Refusal.TERM
        where = "aeron:ipc"
        if media == "udp":
            address = parse_address(parameters.get("endpoint", ""))
            if address is None:
                return Refusal.ADDRESS
            if not any(address[0] in network for network in self._networks):
                return Refusal.NETWORK
            where = channel.build("udp", {"endpoint": parameters["endpoint"]})
        name = channel.control_publication(where, self._settings, term_length=term_length)
        return Endpoint(name, stream_id, min(term_length // 8, LONGEST_MESSAGE))

    def _term_length(self, wish: str | None) -> int | None:
        if wish is None:
            return min(self._config.term_length, self._config.max_term_length)
        unit = UNITS.get(wish[-1].lower(), 1)
        digits = wish if unit == 1 else wish[:-1]
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            return None
        try:
            length = check_term_length(int(digits) * unit, channel.TERM_LENGTH)
        except ConfigurationError:
            return None
        return min(length, self._config.max_term_length)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_address(endpoint: str) -> tuple[Address, int] | None:
    """Address and port of `127.0.0.1:40123` or `[::1]:40123`. A name is none: looking it up would stop the media
    driver for as long as somebody else's name server likes."""
    host, _, port = endpoint.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    return (address, int(port)) if bracketed == (address.version == 6) else None
