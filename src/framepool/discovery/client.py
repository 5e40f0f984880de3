"""Whoever asks: questions to all providers at once, answers judged, doubles and stale ones left out (Discovery 5, 7).

Several providers are asked the same and any of them may be dead: the first answer counts, the others get a little time
to add theirs, and one that gave none is asked again the next time but not waited for. So nobody notices when one of
two registries is killed. The answers are hints: who attaches asks the driver (Discovery 3).
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, Clock
from framepool.discovery.address import Address
from framepool.discovery.query import Query
from framepool.discovery.stream import ASK_AGAIN, Fault, Stream, newest, read
from framepool.errors import DiscoveryError, MediaDriverLost, TransportError
from framepool.transport import channel
from framepool.transport.aeron import Client, Filter, Pending, Publication, Subscription
from framepool.transport.listener import Listener
from framepool.wire._generated.discovery_910 import DiscoveryResponse, DiscoveryStatus
from framepool.wire.dispatch import Dispatcher

log = logging.getLogger(__name__)

NEVER_NS: Final = 2**63 - 1
RESEND_NS: Final = 250 * NANOS_PER_MILLI
"""Between questions to a provider that does not answer: it may not have been there yet."""
GRACE_NS: Final = 250 * NANOS_PER_MILLI
"""For the other providers, after the first has answered."""
FIRST_GRACE_NS: Final = NANOS_PER_SECOND
"""The same for one that has never answered so far: connections are made first."""
AGAIN: Final = 2
"""How often one question is repeated for results that contradict themselves or what is announced."""
AGAIN_NS: Final = 50 * NANOS_PER_MILLI
REMEMBERED: Final = 256
"""Questions that are over and whose late answers still show that somebody lives."""

CLIENT_ID_OFFSET: Final = 12
"""Of the upper half of a response's request id, behind message header and lower half."""


class Question:
    """One query and what has come of it so far."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.done = threading.Event()
        self.streams: list[Stream] = []
        self.refusals: list[str] = []
        self.answers = 0
        self.first_answer_ns = 0
        self.waiting: dict[Line, Asked] = {}

    def result(self) -> list[Stream]:
        """The newest of each stream; `DiscoveryError` when nobody answered, or only with errors."""
        if not self.answers:
            raise DiscoveryError(f"discovery was asked for {self.query}: " + ("; ".join(self.refusals) or "no answer"))
        return newest(self.streams)


class Asked:
    """A question on its way to one provider."""

    __slots__ = ("due_ns", "repeats", "request_id")

    def __init__(self, request_id: int, due_ns: int) -> None:
        self.request_id = request_id
        self.due_ns = due_ns
        self.repeats = 0


class Line:
    """The connection to one provider."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.publication: Publication | None = None
        self.refused = ""
        self.silent = False
        """It gave no answer when others did."""
        self.known = False
        """It has answered before."""
        self._pending: Pending[Publication] | None = None

    def offer(self, client: Client, message: bytes) -> bool:
        """Sends when the media driver has the publication and somebody listens."""
        if self.publication is None and not self._open(client):
            return False
        assert self.publication is not None
        return self.publication.offer(message) >= 0

    def state(self) -> str:
        """For people: why there is no answer."""
        if self.refused:
            return self.refused
        connected = self.publication is not None and self.publication.is_connected
        return "no answer" if connected else "nobody listens there; is a driver or a registry running?"

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        if self.publication is not None:
            self.publication.close()

    def _open(self, client: Client) -> bool:
        try:
            if self._pending is None:
                where = channel.control_publication(self.address.channel, client.settings)
                self._pending = client.add_publication_async(where, self.address.stream_id)
            self.publication = self._pending.poll()
        except MediaDriverLost:  # added again when it is back
            raise
        except TransportError:
            self._pending = None
            raise
        if self.publication is not None:
            self._pending = None
        return self.publication is not None


class DiscoveryClient:
    """Asks providers. Turned by its owner's duty cycle; `find` is for any other thread.

    `is_stale` knows what is announced: a result that it finds stale is dropped, and the question asked again.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        addresses: Sequence[Address],
        *,
        here: str,
        client_id: int | None = None,
        is_stale: Callable[[Stream], bool] = lambda stream: False,
        hurry: Callable[[], object] = lambda: None,
    ) -> None:
        """`hurry` is called when there is something to do."""
        self.client_id = client_id or 1 + secrets.randbelow(2**32 - 2)
        self.here = here
        self.counts: Counter[str] = Counter()
        self._client = client
        self._clock = clock
        self._lines = [Line(address) for address in dict.fromkeys(addresses)]
        self._ears: dict[tuple[str, int], Listener | Subscription | Pending[Subscription]] = {}
        self._is_stale = is_stale
        self._hurry = hurry
        self._lock = threading.RLock()
        self._questions: list[Question] = []
        self._asked: dict[int, tuple[Question, Line]] = {}
        self._numbers = itertools.count(1)
        self._dispatch = Dispatcher()
        self._dispatch.on(DiscoveryResponse, self._on_response)

    # What the owner asks

    def find(self, query: Query, timeout: float) -> list[Stream]:
        """The streams that match, newest epochs only. Waits for the duty cycle of another thread.

        Raises `DiscoveryError` if nobody answers within `timeout` seconds, or only with errors.
        """
        question = self.ask(query)
        question.done.wait(timeout)
        with self._lock:
            if not question.done.is_set() and not question.refusals:
                question.refusals = [f"{line.address}: {self._state(line)}" for line in question.waiting]
            self._close(question)
        return question.result()

    def ask(self, query: Query) -> Question:
        """Puts a question to all providers; the first requests leave with the next `do_work`."""
        question = Question(query)
        with self._lock:
            now = self._clock.monotonic_ns()
            for line in self._lines:
                line.refused = ""  # the media driver may think otherwise by now
                question.waiting[line] = Asked(self._new_request(question, line), now)
            self._questions.append(question)
            self.counts["questions"] += 1
        self._hurry()
        return question

    # What its owner turns

    def start(self) -> None:
        """Begins with the first question."""

    def do_work(self) -> int:
        """Sends what is due, hears, and ends the questions that have their answers."""
        with self._lock:
            if not self._questions and not self._ears:
                return 0
            try:
                work = self._hear()
                work += sum(self._send(question) for question in self._questions)
            except MediaDriverLost:  # the owner waits for it; questions are sent again then
                return 0
            for question in [each for each in self._questions if self._is_over(each)]:
                self._close(question)
            return work

    def due_ns(self) -> int:
        """When there will be something to do, if nobody asks anything: never, or 0 while a question is open."""
        return 0 if self._questions else NEVER_NS

    def close(self) -> None:
        """Ends whoever waits, without an answer."""
        with self._lock:
            for question in list(self._questions):
                self._close(question)
            for line in self._lines:
                line.close()
            for ear in self._ears.values():
                ear.cancel() if isinstance(ear, Pending) else ear.close()
            self._ears.clear()

    def statistics(self) -> dict[str, object]:
        """Counts of questions, answers and what was wrong with them."""
        with self._lock:
            silent = [str(line.address) for line in self._lines if line.silent]
            return {**self.counts, "open": len(self._questions), "silent": silent, **self._dispatch.statistics()}

    # Steps

    def _new_request(self, question: Question, line: Line) -> int:
        """The upper half says whose question it is, so that a native filter passes over the answers to others."""
        request_id = self.client_id << 32 | next(self._numbers) & 0xFFFFFFFF
        self._asked[request_id] = (question, line)
        while len(self._asked) > REMEMBERED and (oldest := self._oldest_over()) is not None:
            del self._asked[oldest]
        return request_id

    def _oldest_over(self) -> int | None:
        return next((key for key, (question, _) in self._asked.items() if question.done.is_set()), None)

    def _send(self, question: Question) -> int:
        now = self._clock.monotonic_ns()
        sent = 0
        for line, asked in question.waiting.items():
            if now < asked.due_ns or line.refused:
                continue
            request = question.query.request(asked.request_id, self.client_id, line.address)
            try:
                taken = self._hears(line.address) and line.offer(self._client, request.encode())
            except MediaDriverLost:
                raise
            except TransportError as error:
                line.refused = str(error)
                log.warning("discovery at %s: %s", line.address, error)
                continue
            if taken:
                asked.due_ns = now + RESEND_NS
                self.counts["requests"] += 1
                sent += 1
        return sent

    def _hears(self, address: Address) -> bool:
        """Whether the media driver has the subscription for the answers: nobody is asked before."""
        key = (address.response_channel, address.response_stream_id)
        ear = self._ears.get(key)
        if ear is None:
            only = Filter(
                schema_id=DiscoveryResponse.SCHEMA_ID,
                template_id=DiscoveryResponse.TEMPLATE_ID,
                offset=CLIENT_ID_OFFSET,
                pattern=self.client_id.to_bytes(4, "little"),
            )
            make = channel.control_subscription if _is_ipc(address) else channel.control
            where = make(address.response_channel)
            ear = self._ears[key] = self._client.add_subscription_async(where, address.response_stream_id, only=only)
        if isinstance(ear, Pending):
            try:
                subscription = ear.poll()
            except MediaDriverLost:
                raise
            except TransportError:
                del self._ears[key]
                raise
            if subscription is None:
                return False
            self._ears[key] = Listener(subscription) if _is_ipc(address) else subscription
        return True

    def _hear(self) -> int:
        heard = 0
        for ear in list(self._ears.values()):
            if not isinstance(ear, Pending):
                messages = ear.poll()
                heard += len(messages)
                for message in messages:
                    self._dispatch(message)
        return heard

    def _on_response(self, response: DiscoveryResponse) -> None:
        found = self._asked.get(response.request_id)
        if found is None:
            self.counts["unknown request id"] += 1
            return
        question, line = found
        line.silent, line.known = False, True
        asked = question.waiting.get(line)
        if question.done.is_set() or asked is None or asked.request_id != response.request_id:
            self.counts["late or double"] += 1
            return
        self.counts[f"answers {response.status.name}"] += 1
        if response.status is DiscoveryStatus.ERROR:
            question.refusals.append(response.error_message or "ERROR without a reason")
            self._answered(question, line)
        elif response.status is DiscoveryStatus.NOT_FOUND:
            question.answers += 1
            self._answered(question, line)
        elif self._take(question, response) & ASK_AGAIN and asked.repeats < AGAIN:
            self.counts["asked again"] += 1
            asked.repeats += 1
            asked.request_id = self._new_request(question, line)
            asked.due_ns = self._clock.monotonic_ns() + AGAIN_NS
        else:
            question.answers += 1
            self._answered(question, line)
        if response.results and response.status is not DiscoveryStatus.OK:
            self.counts["results with " + response.status.name] += len(response.results)

    def _take(self, question: Question, response: DiscoveryResponse) -> set[Fault]:
        """Takes the results that are in order; what was wrong with the others."""
        faults: set[Fault] = set()
        for result in response.results:
            stream = read(result, self.here)
            if isinstance(stream, Stream) and not question.query.matches(stream):
                stream = Fault.NOT_ASKED
            elif isinstance(stream, Stream) and self._is_stale(stream):
                stream = Fault.STALE
            if isinstance(stream, Fault):
                faults.add(stream)
                self.counts[stream] += 1
                if self.counts[stream] == 1:
                    log.warning("discovery: stream %d of %r: %s", result.stream_id, result.driver_instance_id, stream)
            else:
                question.streams.append(stream)
        return faults

    def _answered(self, question: Question, line: Line) -> None:
        del question.waiting[line]
        question.first_answer_ns = question.first_answer_ns or self._clock.monotonic_ns()

    def _is_over(self, question: Question) -> bool:
        """Once all have answered; once one has, the others get a grace, and none if they were silent before."""
        if not question.waiting:
            return True
        if not question.first_answer_ns:
            return False
        since = self._clock.monotonic_ns() - question.first_answer_ns
        return all(
            line.silent or line.refused or since >= (GRACE_NS if line.known else FIRST_GRACE_NS)
            for line in question.waiting
        )

    def _close(self, question: Question) -> None:
        if question in self._questions:
            self._questions.remove(question)
            for line in question.waiting if question.first_answer_ns else ():
                line.silent = True
            question.done.set()

    def _state(self, line: Line) -> str:
        try:
            return line.state()
        except MediaDriverLost:
            return "no media driver"


def _is_ipc(address: Address) -> bool:
    """Whether answers come over IPC, where a reader that stops is left behind; over UDP Aeron looks after it."""
    return channel.parse(address.response_channel)[0] == "ipc"
