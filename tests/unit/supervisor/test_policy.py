"""What the supervisor decides: rules over what is known, and nothing done twice without need."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framepool.clock import NANOS_PER_SECOND
from framepool.config import SupervisorRule
from framepool.supervisor.notices import Kind
from framepool.supervisor.policy import DEAF, Order, Policy, Tell
from framepool.supervisor.state import State
from framepool.wire._generated.control_900 import Bool, ConsumerConfig, Mode
from tests.unit.supervisor import messages as say
from tests.unit.supervisor.messages import CONSUMER, STREAM
from tests.unit.supervisor.test_state import fold, history

SECOND = NANOS_PER_SECOND
URI = "aeron:udp?endpoint=127.0.0.1:40123|stream-id=3000"


def rule(when: str, then: str, **more: Any) -> SupervisorRule:
    return msgspec.convert({"when": when, "then": then, **more}, SupervisorRule)


class Desk:
    """A policy over a state, and a consumer that hears what it is told, or does not."""

    def __init__(self, *rules: SupervisorRule) -> None:
        self.state = State()
        self.policy = Policy(rules)
        self.now = 10 * SECOND
        self.hear(say.announce())

    def hear(self, *messages: Any) -> None:
        for message in messages:
            assert self.state.receive(message.encode(), self.now) is None

    def decide(self) -> list[Tell | Order]:
        self.state.tick(self.now)
        return self.policy.decide(self.state)

    def second(self, **hello: Any) -> list[Tell | Order]:
        """A second passes, the consumer says hello, decisions are made."""
        self.now += SECOND
        self.hear(say.announce(), say.hello(**hello))
        return self.decide()

    def losing(self, share: float) -> list[Tell | Order]:
        """Reports of a consumer that loses this share of its frames, for a while."""
        found = []
        for step in range(8):
            self.now += SECOND
            self.hear(say.announce(), say.hello(), say.qos(1_000 * (step + 1), round(1_000 * share) * step))
            found += self.decide()
        return found


def told(decisions: list[Tell | Order]) -> list[ConsumerConfig]:
    return [each.config for each in decisions if isinstance(each, Tell)]


@pytest.mark.clause("W-15.4-03")
def test_a_consumer_that_loses_too_much_is_told_to_take_fewer() -> None:
    desk = Desk(rule("drops", "rate_limit"))
    (config, *_) = told(desk.losing(0.2))
    assert (config.stream_id, config.consumer_id, config.mode) == (STREAM, CONSUMER, Mode.RATE_LIMITED)
    assert config.use_shm is Bool.TRUE
    assert told(Desk(rule("drops", "rate_limit")).losing(0.01)) == []


def test_a_consumer_that_obeys_is_told_once() -> None:
    desk = Desk(rule("hello", "rate_limit"))
    assert len(told(desk.second())) == 1
    assert [told(desk.second(mode=Mode.RATE_LIMITED)) for _ in range(3)] == [[], [], []]


def test_a_consumer_that_does_not_hear_is_told_again_in_answer_to_each_hello_and_then_noticed() -> None:
    desk = Desk(rule("hello", "rate_limit"))
    assert len(told(desk.second())) == 1
    assert told(desk.decide()) == [], "not before it says something again"
    for _ in range(DEAF):
        assert len(told(desk.second())) == 1
    deaf = [each for each in desk.state.journal.after(0) if each.kind is Kind.CONSUMER_DEAF]
    assert [(each.stream_id, each.client_id) for each in deaf] == [(STREAM, CONSUMER)]


@pytest.mark.clause("W-10.1.3-04")
@pytest.mark.parametrize("uri", [URI, "bridge://far"])
def test_a_consumer_without_shared_memory_is_sent_to_the_bridge(uri: str) -> None:
    desk = Desk(rule("no_shm", "fallback", payload_fallback_uri=uri))
    assert told(desk.second()) == []
    (config,) = told(desk.second(supports_shm=Bool.FALSE))
    assert (config.use_shm, config.payload_fallback_uri) == (Bool.FALSE, uri)
    assert told(desk.second(supports_shm=Bool.FALSE)) == [config], "each hello is answered: nothing shows that it heard"


@pytest.mark.clause("W-10.1.3-04")
@pytest.mark.parametrize("uri", ["http://far", "aeron:tcp?endpoint=x", "bridge:", "bridge://", "far", "aeron:udp?x"])
def test_a_place_for_payloads_that_no_consumer_would_know_is_refused(uri: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="payload_fallback_uri"):
        rule("no_shm", "fallback", payload_fallback_uri=uri)


@pytest.mark.clause("W-11-03")
def test_a_wish_for_fewer_frames_is_declined() -> None:
    desk = Desk(rule("rate_limited", "stream"))
    assert told(desk.second()) == []
    (config,) = told(desk.second(mode=Mode.RATE_LIMITED, max_rate_hz=5))
    assert (config.mode, config.descriptor_stream_id, config.descriptor_channel) == (Mode.STREAM, 0, "")
    assert told(desk.second(mode=Mode.STREAM)) == []


def test_streams_that_the_producer_assigned_stay_assigned() -> None:
    desk = Desk(rule("hello", "rate_limit"))
    asked = {"descriptor_stream_id": 31_000, "descriptor_channel": "aeron:ipc"}
    assert told(desk.second(**asked)) == [], "whoever speaks before the producer would take the stream away"
    desk.hear(say.consumer_config(**asked))
    (config,) = told(desk.decide())
    assert (config.descriptor_stream_id, config.descriptor_channel) == (31_000, "aeron:ipc")
    assert config.mode is Mode.RATE_LIMITED


def test_rules_hold_for_the_streams_and_consumers_that_they_name() -> None:
    elsewhere = rule("hello", "rate_limit", streams=[[1, 9_999]])
    others = rule("hello", "rate_limit", consumers=[CONSUMER + 1])
    assert told(Desk(elsewhere, others).second()) == []
    assert len(told(Desk(elsewhere, others).second(consumer_id=CONSUMER + 1))) == 1


def test_of_the_rules_that_fit_the_first_one_counts() -> None:
    desk = Desk(rule("no_shm", "fallback", payload_fallback_uri=URI), rule("hello", "rate_limit"))
    (config,) = told(desk.second(supports_shm=Bool.FALSE))
    assert config.payload_fallback_uri == URI
    assert config.mode is Mode.STREAM


def test_the_word_of_an_operator_goes_before_every_rule_until_it_is_taken_back() -> None:
    desk = Desk(rule("hello", "rate_limit"))
    desk.policy.decree((STREAM, CONSUMER), Mode.STREAM)
    assert told(desk.second()) == []
    (config,) = told(desk.second(mode=Mode.RATE_LIMITED))
    assert config.mode is Mode.STREAM
    assert desk.policy.release((STREAM, CONSUMER))
    assert not desk.policy.release((STREAM, CONSUMER))
    (config,) = told(desk.second())
    assert config.mode is Mode.RATE_LIMITED


def test_a_stale_consumer_is_not_told_anything() -> None:
    desk = Desk(rule("hello", "rate_limit"))
    desk.second()
    desk.now += 5 * SECOND
    assert desk.decide() == []


def test_the_death_of_a_producer_is_a_command_to_a_service_once() -> None:
    desk = Desk(rule("producer_dead", "command", service="service:camera", command="start", value=3))
    assert desk.decide() == []
    desk.hear(say.revoked())
    (order,) = desk.decide()
    assert isinstance(order, Order)
    assert (order.service, order.command, order.value, order.stream_id) == ("service:camera", "start", 3, STREAM)
    assert desk.decide() == []


def test_a_rule_that_begins_to_fit_a_consumer_is_a_command_each_time() -> None:
    desk = Desk(rule("no_shm", "command", service="service:x", command="look"))
    assert len(desk.second(supports_shm=Bool.FALSE)) == 1
    assert desk.second(supports_shm=Bool.FALSE) == []
    assert desk.second() == []
    assert len(desk.second(supports_shm=Bool.FALSE)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"when": "producer_dead", "then": "rate_limit"},
        {"when": "drops", "then": "fallback"},
        {"when": "drops", "then": "rate_limit", "payload_fallback_uri": URI},
        {"when": "drops", "then": "command"},
        {"when": "drops", "then": "command", "service": "service:x"},
        {"when": "drops", "then": "stream"},
        {"when": "hello", "then": "rate_limit", "streams": [[9, 1]]},
        {"when": "never", "then": "rate_limit"},
    ],
)
def test_rules_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, SupervisorRule)


RULES = [
    rule("drops", "rate_limit"),
    rule("no_shm", "fallback", payload_fallback_uri=URI),
    rule("hello", "rate_limit", consumers=[7]),
    rule("rate_limited", "stream"),
    rule("producer_dead", "command", service="service:a", command="start"),
]


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(RULES), max_size=4), st.integers(1, 80))
def test_decisions_follow_from_what_was_folded_and_concern_who_is_there(
    seed: int, rules: list[SupervisorRule], length: int
) -> None:
    def decisions() -> list[Tell | Order]:
        state, policy, found = State(), Policy(rules), []
        for event in history(seed, length):
            fold(state, [event])
            made = policy.decide(state)
            for each in made:
                if isinstance(each, Tell):
                    consumer = state.consumer(each.config.stream_id, each.config.consumer_id)
                    assert consumer is not None
                    assert not consumer.stale
                    assert bool(each.config.payload_fallback_uri) == (each.config.use_shm is Bool.FALSE)
            assert policy.decide(state) == [], "the same state asks for nothing more"
            found += made
        return found

    assert decisions() == decisions()
