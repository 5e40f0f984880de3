"""What to do about it: rules over the state, decisions out, and nothing done here (Wire 10.1.3, 10.5, 11, 15.4).

A consumer is told by ConsumerConfig: to take fewer frames, to take all, or to take its payloads elsewhere. Hellos are
soft state and so are the answers: as long as a consumer says something else than it was told, it is told again, at a
pace. What else its producer assigned to it, streams of its own, stays as it is. An order of an operator goes before
every rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from framepool.clock import NANOS_PER_SECOND
from framepool.config import SupervisorRule
from framepool.supervisor.consumers import ConsumerView
from framepool.supervisor.notices import Kind
from framepool.supervisor.state import State
from framepool.supervisor.streams import keep_newest
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, Mode

DEAF: Final = 5
"""How often a consumer is told in vain before that is noticed; it is told on."""
MOST_ORDERS: Final = 4_096
MODES: Final = {"rate_limit": Mode.RATE_LIMITED, "stream": Mode.STREAM}

Who = tuple[int, int]
"""Stream and consumer."""


class Tell(msgspec.Struct, frozen=True):
    """A ConsumerConfig to publish."""

    config: ConsumerConfig
    why: str


class Order(msgspec.Struct, frozen=True):
    """A command to send to a service."""

    service: str
    command: str
    value: bool | int | float | str | None
    stream_id: int
    why: str


Decision = Tell | Order


class _Told(msgspec.Struct):
    """What a consumer was told last."""

    config: ConsumerConfig
    at_ns: int
    times: int = 1


class Policy:
    """The rules of a configuration and the words of operators, and who was told what and when."""

    def __init__(self, rules: Sequence[SupervisorRule] = (), *, interval_ns: int = NANOS_PER_SECOND) -> None:
        self.words: dict[Who, Mode] = {}
        """What operators decided: the mode of single consumers."""
        self._burials = [rule for rule in rules if rule.when == "producer_dead"]
        self._alarms = [rule for rule in rules if rule.then == "command" and rule not in self._burials]
        self._rules = [rule for rule in rules if rule.then != "command"]
        self._interval_ns = interval_ns
        self._told: dict[Who, _Told] = {}
        self._alarmed: set[tuple[Who, SupervisorRule]] = set()
        self._seen = 0

    def decree(self, who: Who, mode: Mode) -> None:
        """An operator's word: it holds until it is taken back, or the stream is forgotten."""
        self.words.pop(who, None)
        self.words[who] = mode
        keep_newest(self.words, MOST_ORDERS)
        self._told.pop(who, None)

    def release(self, who: Who) -> bool:
        """The operator's word is taken back; False if there was none."""
        return self.words.pop(who, None) is not None

    def decide(self, state: State) -> list[Decision]:
        """What is to be done now; whatever comes back counts as done."""
        decisions: list[Decision] = []
        if self._rules or self._alarms or self.words:
            for consumer in state.consumers():
                decisions += self._alarm(consumer)
                decisions += self._tell(consumer, state)
            self._forget(state)
        decisions += self._bury(state)
        return decisions

    def _tell(self, consumer: ConsumerView, state: State) -> Iterator[Tell]:
        """What a consumer is told that does not do yet what it should."""
        who = (consumer.stream_id, consumer.consumer_id)
        wish = None if consumer.stale else self._wish(consumer)
        if wish is None:
            self._told.pop(who, None)
            return
        if not self._is_due(who, wish.config, consumer, state):
            return
        yield wish

    def _wish(self, consumer: ConsumerView) -> Tell | None:
        """What holds for a consumer and is not known to be so."""
        word = self.words.get((consumer.stream_id, consumer.consumer_id))
        if word is not None:
            return _mode(consumer, word, "by order")
        rule = next((rule for rule in self._rules if _fits(rule, consumer)), None)
        if rule is None:
            return None
        why = f"rule {rule.when} -> {rule.then}"
        if rule.then == "fallback":
            return _elsewhere(consumer, rule.payload_fallback_uri, why)
        return _mode(consumer, MODES[rule.then], why)

    def _is_due(self, who: Who, config: ConsumerConfig, consumer: ConsumerView, state: State) -> bool:
        """News at once, anything else in answer to a later hello and at a pace."""
        told = self._told.get(who)
        if told is None or told.config != config:
            self._told[who] = _Told(config, state.now_ns)
            return True
        if consumer.hello_ns <= told.at_ns or state.now_ns - told.at_ns < self._interval_ns:
            return False
        told.at_ns, told.times = state.now_ns, told.times + 1
        if told.times == DEAF + 1 and config.use_shm is Bool.TRUE:
            text = f"was told {DEAF} times to be {config.mode.name}"
            state.journal.note(Kind.CONSUMER_DEAF, state.now_ns, text, stream_id=who[0], client_id=who[1])
        return True

    def _alarm(self, consumer: ConsumerView) -> Iterator[Order]:
        """Commands about a consumer, once each time that a rule begins to fit."""
        who = (consumer.stream_id, consumer.consumer_id)
        for rule in self._alarms:
            if not _fits(rule, consumer):
                self._alarmed.discard((who, rule))
            elif (who, rule) not in self._alarmed:
                self._alarmed.add((who, rule))
                why = f"consumer {consumer.consumer_id}: {rule.when}"
                yield Order(rule.service, rule.command, rule.value, consumer.stream_id, why)

    def _bury(self, state: State) -> Iterator[Order]:
        """Commands about producers that died since."""
        for notice in state.journal.after(self._seen) if self._burials else ():
            if notice.kind is Kind.PRODUCER_DEAD and notice.stream_id is not None:
                for rule in self._burials:
                    if _names(rule, notice.stream_id):
                        why = f"producer dead: {notice.text}"
                        yield Order(rule.service, rule.command, rule.value, notice.stream_id, why)
        self._seen = state.journal.last

    def _forget(self, state: State) -> None:
        """Of consumers that are gone nothing is kept but an operator's word, while their stream is there."""
        for who in [who for who in self._told if state.consumer(*who) is None]:
            del self._told[who]
        self._alarmed = {each for each in self._alarmed if state.consumer(*each[0]) is not None}
        for who in [who for who in self.words if who[0] not in state.streams]:
            del self.words[who]


def _names(rule: SupervisorRule, stream_id: int) -> bool:
    return not rule.streams or any(low <= stream_id <= high for low, high in rule.streams)


def _fits(rule: SupervisorRule, consumer: ConsumerView) -> bool:
    if not _names(rule, consumer.stream_id) or (rule.consumers and consumer.consumer_id not in rule.consumers):
        return False
    match rule.when:
        case "no_shm":
            return not consumer.supports_shm
        case "rate_limited":
            return consumer.mode is Mode.RATE_LIMITED
        case "drops":
            return consumer.drops_high
    return rule.when == "hello"


def _mode(consumer: ConsumerView, mode: Mode, why: str) -> Tell | None:
    """Told to be in another mode than it says it is in; everything else stays as it was told before.

    Nothing is known of a consumer before its hello, and nothing of the streams that it asked for before they were
    granted or declined: whoever speaks too early takes them away.
    """
    hello, before = consumer.hello, consumer.config
    if hello is None or hello.mode is mode:
        return None
    if before is None:
        if hello.descriptor_stream_id or hello.control_stream_id:
            return None
        before = ConsumerConfig(
            stream_id=consumer.stream_id,
            consumer_id=consumer.consumer_id,
            use_shm=hello.supports_shm,
            mode=mode,
            descriptor_stream_id=0,
            control_stream_id=0,
        )
    return Tell(msgspec.structs.replace(before, mode=mode), why)


def _elsewhere(consumer: ConsumerView, uri: str, why: str) -> Tell | None:
    """Told to leave shared memory. Nothing that it says tells whether it did, so each hello is answered (Wire 15.12);
    without shared memory it has no streams of its own."""
    if consumer.hello is None:
        return None
    config = ConsumerConfig(
        stream_id=consumer.stream_id,
        consumer_id=consumer.consumer_id,
        use_shm=Bool.FALSE,
        mode=consumer.hello.mode,
        descriptor_stream_id=0,
        control_stream_id=0,
        payload_fallback_uri=uri,
    )
    return Tell(config, why)
