"""What strangers may cause: who sees what, how often is answered, and which endpoints are answered to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.clock import NANOS_PER_SECOND
from framepool.config import AccessRule, ResponseConfig
from framepool.discovery.entry import Entry, Origin, Told
from framepool.discovery.policy import (
    Access,
    Endpoint,
    EndpointPolicy,
    RateLimit,
    Refusal,
    TokenBucket,
    Verdict,
    parse_address,
)
from framepool.transport import channel
from framepool.transport.settings import KIB, MIB, AeronSettings
from tests.support.discovery_rig import announce, origin

A, B = origin("driver-a"), origin("driver-b")
SETTINGS = AeronSettings(directory="/nowhere")


def entry(stream_id: int = 10_000, driver: Origin = A) -> Entry:
    return Entry(driver, announce(stream_id), Told(0), 0)


# Who sees what


def test_without_rules_everybody_sees_everything() -> None:
    assert not Access(())
    assert Access(()).of(1)(entry())


def test_with_a_rule_only_what_some_rule_names_is_seen() -> None:
    rules = (
        AccessRule(clients=(1, 2), streams=((10_000, 10_009),)),
        AccessRule(clients=(2,), drivers=("driver-b",)),
        AccessRule(streams=((20_000, 20_000),)),
    )
    access = Access(rules)
    assert access
    seen = {
        client: [
            (stream_id, driver.instance_id)
            for stream_id in (10_000, 10_009, 10_010, 20_000)
            for driver in (A, B)
            if access.of(client)(entry(stream_id, driver))
        ]
        for client in (1, 2, 3)
    }
    low = [(10_000, "driver-a"), (10_000, "driver-b"), (10_009, "driver-a"), (10_009, "driver-b")]
    public = [(20_000, "driver-a"), (20_000, "driver-b")]
    assert seen == {1: low + public, 2: [*low, (10_010, "driver-b"), *public], 3: public}


# How often


def test_bucket_gives_as_many_at_once_as_in_a_second_and_then_its_rate() -> None:
    bucket = TokenBucket(4, 0)
    assert [bucket.take(0) for _ in range(5)] == [True] * 4 + [False]
    assert not bucket.take(NANOS_PER_SECOND // 4 - 1)
    assert bucket.take(NANOS_PER_SECOND // 4)
    assert [bucket.take(10 * NANOS_PER_SECOND) for _ in range(5)] == [True] * 4 + [False]


@given(st.lists(st.integers(0, NANOS_PER_SECOND // 4), max_size=200))
def test_bucket_never_gives_more_than_that(gaps: list[int]) -> None:
    bucket, now, taken = TokenBucket(20, 0), 0, 0
    for gap in gaps:
        now += gap
        taken += bucket.take(now)
        assert taken <= 20 + 20 * now / NANOS_PER_SECOND + 1e-6


def test_client_over_its_rate_is_told_once_and_then_ignored_until_it_slows_down() -> None:
    limit = RateLimit(2, max_clients=8)
    assert [limit.judge(1, 0) for _ in range(5)] == [
        Verdict.ANSWER,
        Verdict.ANSWER,
        Verdict.TELL,
        Verdict.DROP,
        Verdict.DROP,
    ]
    assert limit.judge(2, 0) is Verdict.ANSWER
    assert limit.judge(1, NANOS_PER_SECOND) is Verdict.ANSWER
    assert limit.judge(1, NANOS_PER_SECOND) is Verdict.ANSWER
    assert limit.judge(1, NANOS_PER_SECOND) is Verdict.TELL


def test_rate_of_zero_is_no_limit() -> None:
    limit = RateLimit(0, max_clients=8)
    assert {limit.judge(1, 0) for _ in range(10_000)} == {Verdict.ANSWER}
    assert len(limit) == 0


def test_clients_are_counted_up_to_a_bound() -> None:
    limit = RateLimit(1, max_clients=4)
    for client_id in range(100):
        limit.judge(client_id, 0)
        limit.judge(client_id, 0)
    assert len(limit) == 4
    assert len(limit._told) <= 4
    assert limit.forgotten == 96


# Where to


def judge(name: str, stream_id: int = 7_004, **config: object) -> Endpoint | Refusal:
    return EndpointPolicy(ResponseConfig(**config), SETTINGS).judge(name, stream_id)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "term", "longest"),
    [
        ("aeron:ipc", "1m", 128 * KIB),
        ("aeron:ipc?term-length=64k", "64k", 8 * KIB),
        ("aeron:ipc?term-length=2097152", "2m", 256 * KIB),
        ("aeron:ipc?term-length=1g", "4m", 512 * KIB),
        ("aeron:udp?endpoint=127.0.0.1:40123", "1m", 128 * KIB),
        ("aeron:udp?endpoint=[::1]:40123|mtu=9000|session-id=5|linger=1h|control=10.0.0.1:1", "1m", 128 * KIB),
    ],
)
def test_media_address_and_term_length_are_all_that_is_taken(name: str, term: str, longest: int) -> None:
    endpoint = judge(name)
    assert isinstance(endpoint, Endpoint)
    assert endpoint.max_message_length == longest
    media, parameters = channel.parse(endpoint.channel)
    asked_media, asked = channel.parse(name)
    assert media == asked_media
    assert parameters["term-length"] == term
    assert parameters.get("endpoint") == asked.get("endpoint")
    assert set(parameters) <= {"endpoint", "term-length"} | {key for key in parameters if key.startswith("untethered")}


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("", Refusal.EMPTY),
        ("ipc", Refusal.CHANNEL),
        ("aeron:tcp?endpoint=127.0.0.1:1", Refusal.CHANNEL),
        ("aeron-spy:aeron:ipc", Refusal.CHANNEL),
        ("aeron:udp?endpoint=127.0.0.1:1|endpoint=127.0.0.1:2", Refusal.CHANNEL),
        ("aeron:ipc?alias=" + "x" * 2000, Refusal.CHANNEL),
        ("aeron:udp", Refusal.ADDRESS),
        ("aeron:udp?endpoint=localhost:40123", Refusal.ADDRESS),
        ("aeron:udp?endpoint=127.0.0.1", Refusal.ADDRESS),
        ("aeron:udp?endpoint=127.0.0.1:0", Refusal.ADDRESS),
        ("aeron:udp?endpoint=127.0.0.1:65536", Refusal.ADDRESS),
        ("aeron:udp?endpoint=::1:40123", Refusal.ADDRESS),
        ("aeron:udp?endpoint=[127.0.0.1]:40123", Refusal.ADDRESS),
        ("aeron:udp?endpoint=8.8.8.8:40123", Refusal.NETWORK),
        ("aeron:udp?endpoint=0.0.0.0:40123", Refusal.NETWORK),
        ("aeron:udp?endpoint=239.1.1.1:40123", Refusal.NETWORK),
        ("aeron:ipc?term-length=100k", Refusal.TERM),
        ("aeron:ipc?term-length=32k", Refusal.TERM),
        ("aeron:ipc?term-length=m", Refusal.TERM),
        ("aeron:ipc?term-length=-1m", Refusal.TERM),
    ],
)
def test_what_is_no_endpoint_of_ours_is_refused(name: str, refusal: Refusal) -> None:
    assert judge(name) is refusal


def test_stream_ids_are_those_of_aeron() -> None:
    assert judge("aeron:ipc", 2**31) is Refusal.STREAM
    assert isinstance(judge("aeron:ipc", 2**31 - 1), Endpoint)


def test_networks_and_media_are_configured() -> None:
    assert isinstance(judge("aeron:udp?endpoint=8.8.8.8:40123", networks=("8.8.0.0/16",)), Endpoint)
    assert judge("aeron:udp?endpoint=127.0.0.1:40123", networks=("8.8.0.0/16",)) is Refusal.NETWORK
    assert judge("aeron:udp?endpoint=127.0.0.1:40123", media=("ipc",)) is Refusal.MEDIA
    assert judge("aeron:ipc", media=("udp",)) is Refusal.MEDIA
    endpoint = judge("aeron:ipc", term_length=64 * KIB)
    assert isinstance(endpoint, Endpoint)
    assert endpoint.max_message_length == 8 * KIB
    assert MIB // 8 == 128 * KIB


@given(st.text(max_size=60) | st.from_regex(r"aeron:(ipc|udp)\?[a-z-]{1,12}=[0-9a-z:\[\].]{0,20}", fullmatch=True))
def test_any_text_is_an_endpoint_or_a_refusal(text: str) -> None:
    assert isinstance(judge(text), Endpoint | Refusal)
    parse_address(text)
