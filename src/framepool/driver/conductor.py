"""The driver as an agent: the control stream in, decisions by `Authority`, answers and announces out (Driver 4.5, 8).

It reads a bounded number of requests a cycle, so that a storm of them cannot hold up announces and expiries, and
what Aeron does not take at once waits in an outbox. Input that is not for the driver is counted; a request that can
be recognised but not read is answered with the code that says why (Driver 4.6).
"""

from __future__ import annotations

import hmac
import logging
import struct
import time
from collections import Counter
from collections.abc import Buffer, Callable

from framepool.agent import AgentTerminated, Timers
from framepool.clock import NANOS_PER_MILLI, Clock
from framepool.config import Config
from framepool.driver.streams import Authority, Regions
from framepool.errors import MediaDriverLost
from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.transport.outbox import Outbox
from framepool.wire._generated import control_900 as control
from framepool.wire._generated.driver_901 import (
    ResponseCode,
    ShmAttachRequest,
    ShmAttachResponse,
    ShmDetachRequest,
    ShmDetachResponse,
    ShmDriverShutdownRequest,
    ShmLeaseKeepalive,
    ShutdownReason,
)
from framepool.wire.dispatch import Dispatcher, Drop
from framepool.wire.message import MESSAGE_HEADER, Message
from framepool.wire.salvage import Salvaged, salvage

log = logging.getLogger(__name__)

REQUESTS_PER_CYCLE = 16
"""Few, because each may make the files of an epoch, and announces wait meanwhile."""
PAST_NS = 500 * NANOS_PER_MILLI
PAST_PAUSE = 0.002
PAST_QUIET = 10
"""How long a new driver reads requests away at the most, and when it has seen the last of them."""
REQUESTS = (ShmAttachRequest, ShmDetachRequest, ShmDriverShutdownRequest)
"""What gets an answer even where it cannot be read."""


class Conductor:
    """Serves the control stream of one driver."""

    role = "shm driver"

    def __init__(
        self,
        config: Config,
        client: Client,
        regions: Regions,
        clock: Clock,
        announced: Callable[[control.ShmPoolAnnounce, bytes], object] = lambda announce, encoded: None,
    ) -> None:
        """Whatever is announced is told to `announced` too."""
        self._config = config
        self._client = client
        self._clock = clock
        self._timers = Timers(clock)
        self._announced = announced
        self._beacons = Beacons()
        self._lost = False
        self._joins = 0
        self._end = (ShutdownReason.NORMAL, "")
        self._ending = False
        self.counts: Counter[str] = Counter()
        self.authority = Authority(config, regions, clock, self.publish, self.repeat)
        self._dispatch = Dispatcher()
        self._dispatch.on(ShmAttachRequest, self.authority.attach)
        self._dispatch.on(ShmLeaseKeepalive, self.authority.keepalive)
        self._dispatch.on(ShmDetachRequest, self.authority.detach)
        self._dispatch.on(ShmDriverShutdownRequest, self._on_shutdown_request)

    def on_start(self) -> None:
        ids = self._config.stream_ids
        channels = self._config.channels
        requests = self._client.add_subscription(channel.control(channels.control), ids.control)
        self._requests = Listener(requests, tethered=True)
        control_channel, announce_channel = (
            channel.control_publication(name, self._config.aeron) for name in (channels.control, channels.announce)
        )
        answers = self._client.add_publication(control_channel, ids.control)
        announces = self._client.add_publication(announce_channel, ids.announce)
        self._answers = Outbox(answers, "answers", self.counts)
        self._announces = Outbox(announces, "announces", self.counts)
        self.authority.provision()
        self._pass_over_the_past()
        period_ns = self._config.driver.announce_period_ms * NANOS_PER_MILLI
        self._timers.every(period_ns, self.announce, first_ns=0)

    def do_work(self) -> int:
        if self._ending:
            raise AgentTerminated
        if self._lost:
            return self._come_back()
        work = self._answers.flush() + self._announces.flush()
        try:
            requests = self._requests.poll(REQUESTS_PER_CYCLE)
            if self._requests.joins != self._joins:
                requests = []
                self._pass_over_the_past()
        except MediaDriverLost as error:
            log.error("media driver lost, waiting for it: %s", error)
            self._lost = True
            return 0
        for request in requests:
            self.receive(request)
        self._timers.poll()  # a beat is no sign that there is more to do
        return work + len(requests) + self.authority.expire()

    def _pass_over_the_past(self) -> None:
        """Requests to a driver that died are not for us, nor those again that we heard before we had to join again.
        Aeron hands them over: a reader joins a stream where the slowest reader stands, and for some seconds that is
        the dead one. Who still wants an answer asks again."""
        self._joins = self._requests.joins
        until_ns = self._clock.monotonic_ns() + PAST_NS
        quiet = 0
        while quiet < PAST_QUIET and self._clock.monotonic_ns() < until_ns:
            passed_over = self._requests.poll(REQUESTS_PER_CYCLE)
            self.counts["requests to a predecessor"] += len(passed_over)
            quiet = 0 if passed_over else quiet + 1
            time.sleep(PAST_PAUSE)

    def on_close(self) -> None:
        """Says goodbye as far as somebody listens (Driver 4.12)."""
        self.authority.shut_down(*self._end)

    def receive(self, message: Buffer) -> None:
        """One message of the control stream, whoever sent it."""
        dropped = self._dispatch(message)
        if dropped is None or dropped in {Drop.UNHANDLED, Drop.SCHEMA}:
            return
        refused = salvage(message, REQUESTS)
        if refused is None:
            return
        unsupported = dropped is not Drop.MALFORMED or refused.field == "publishMode"
        code = ResponseCode.UNSUPPORTED if unsupported else ResponseCode.INVALID_PARAMS
        self.counts[f"unreadable {code.name}"] += 1
        self.publish(refusal(refused, code))

    def publish(self, message: Message) -> None:
        """Sends a message now or as soon as Aeron takes it."""
        if isinstance(message, control.ShmPoolAnnounce):
            self.repeat(message, message.announce_timestamp_ns)
        else:
            self._answers.put(message.encode())

    def repeat(self, announce: control.ShmPoolAnnounce, timestamp_ns: int) -> None:
        """Announces at that time, for the first time or again."""
        encoded = self._beacons.encode(announce, timestamp_ns)
        self._announces.put(encoded)
        self._announced(announce, encoded)

    def statistics(self) -> dict[str, int]:
        """Counts of everything that was asked, answered, announced and dropped."""
        return {**self.authority.counts, **self.counts, **self._dispatch.statistics()}

    def announce(self) -> None:
        """Announces every stream now, those included that had no room before."""
        self.authority.provision()
        self.authority.announce_all()

    def may_be_ended_by(self, token: str) -> bool:
        """Whether this is the configured token; none is configured for a driver that nobody may end by message."""
        expected = self._config.driver.shutdown_token
        return bool(expected) and hmac.compare_digest(expected.encode(), token.encode())

    def end(self, reason: ShutdownReason, why: str) -> None:
        """Ends with the next cycle, and says so to everybody."""
        log.info("shutting down by request: %s", why)
        self._end = (reason, why)
        self._ending = True

    def _come_back(self) -> int:
        """After the media driver was lost: leases go on expiring, and what is announced first is the truth."""
        self.authority.expire()
        if not self._client.try_reconnect():
            return 0
        log.info("media driver is back")
        self._lost = False
        self.counts["reconnects"] += 1
        self._answers.lost = self._announces.lost = None
        self._announces.clear()
        self.announce()
        return 1

    def _on_shutdown_request(self, request: ShmDriverShutdownRequest) -> None:
        """Ends the driver if the token is the configured one; anything else changes nothing (Driver 4.12)."""
        allowed = self.may_be_ended_by(request.token)
        code = control.ResponseCode.OK if allowed else control.ResponseCode.REJECTED
        self.publish(
            control.ControlResponse(
                correlation_id=request.correlation_id,
                code=code,
                error_message="" if allowed else "not authorised to shut the driver down",
            )
        )
        if not allowed:
            self.counts["shutdown REJECTED"] += 1
            refused = self.counts["shutdown REJECTED"]
            if refused.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: a flood does not fill the log
                log.warning("a shutdown request with a wrong token was refused, the %d. so far", refused)
            return
        self.end(request.reason, request.error_message)
        raise AgentTerminated


class Beacons:
    """The bytes of announces: of one that is said again, only the time is written anew."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[control.ShmPoolAnnounce, bytearray]] = {}

    def encode(self, announce: control.ShmPoolAnnounce, timestamp_ns: int) -> bytes:
        """What `announce.encode()` gives, with that time instead of its own."""
        last, data = self._known.get(announce.stream_id, (None, bytearray()))
        if last is not announce:
            data = bytearray(announce.encode())
            self._known[announce.stream_id] = (announce, data)
        TIMESTAMP.pack_into(data, TIMESTAMP_OFFSET, timestamp_ns)
        return bytes(data)


TIMESTAMP = struct.Struct("<Q")
TIMESTAMP_OFFSET = MESSAGE_HEADER.size + next(
    field.offset for field in control.ShmPoolAnnounce.FIELDS if field.name == "announceTimestampNs"
)


def refusal(request: Salvaged, code: ResponseCode) -> Message:
    """The answer to a request that was only recognised, of the kind that its sender waits for."""
    correlation_id, reason = request.correlation_id, request.reason
    if request.message is ShmAttachRequest:
        return ShmAttachResponse(correlation_id=correlation_id, code=code, error_message=reason)
    if request.message is ShmDetachRequest:
        return ShmDetachResponse(correlation_id=correlation_id, code=code, error_message=reason)
    return control.ControlResponse(correlation_id=correlation_id, code=control.ResponseCode(code), error_message=reason)
