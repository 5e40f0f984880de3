"""Messages from offer to poll: outcomes, claims, fragments, handlers, filters."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

import pytest

from framepool.errors import TransportClosed, TransportError
from framepool.transport.aeron import AnyPublication, Claim, Client, Filter, Outcome, Subscription
from tests.support.ports import free_port
from tests.unit.transport.conftest import CHANNEL, Ends, Until, open_for_messages

BIG_CHANNEL = "aeron:ipc?term-length=16m"
MIB = 1024 * 1024

Send = Callable[[AnyPublication, bytes], int]


def receive(subscription: Subscription, count: int, limit: int = 64, seconds: float = 20.0) -> list[bytes]:
    messages: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        messages += subscription.poll(limit)
    return messages


# ---- sending ----


def test_messages_arrive_in_order(ends: Ends, send: Send) -> None:
    sent = [b"message %d" % i for i in range(50)]
    positions = [send(ends.publication, message) for message in sent]
    assert positions == sorted(positions)
    assert receive(ends.subscription, 50) == sent
    assert ends.subscription.poll() == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_contiguous_buffer_can_be_offered(ends: Ends, kind: Callable[[bytes], object]) -> None:
    assert ends.publication.offer(kind(b"12345")) > 0  # type: ignore[arg-type]
    assert receive(ends.subscription, 1) == [b"12345"]


def test_released_and_scattered_buffers_are_refused(ends: Ends) -> None:
    released = memoryview(bytearray(8))
    released.release()
    with pytest.raises(ValueError, match="released"):
        ends.publication.offer(released)
    with pytest.raises(BufferError):
        ends.publication.offer(memoryview(bytes(8))[::2])
    with pytest.raises(TypeError):
        ends.publication.offer("text")  # type: ignore[arg-type]


def test_offer_without_a_subscriber_says_so(client: Client) -> None:
    publication = client.add_publication(CHANNEL, 99)
    assert publication.offer(b"x") == Outcome.NOT_CONNECTED
    assert publication.try_claim(1) == Outcome.NOT_CONNECTED
    assert not publication.is_connected


@pytest.mark.parametrize("exclusive", [False, True])
def test_offer_never_waits_on_back_pressure(client: Client, exclusive: bool, until: Until) -> None:
    add = client.add_exclusive_publication if exclusive else client.add_publication
    publication = add(CHANNEL, 10)
    subscription = client.add_subscription(CHANNEL, 10)
    until(lambda: open_for_messages(publication))
    sent = 0
    while (outcome := publication.offer(bytes(1000))) > 0:
        sent += 1
    assert outcome == Outcome.BACK_PRESSURED
    assert publication.position >= publication.position_limit - 1056
    assert len(receive(subscription, sent)) == sent


def test_term_rotation_is_not_the_callers_business(ends: Ends, send: Send) -> None:
    """ADMIN_ACTION comes once per term; 5 terms are written here and no outcome shows it."""
    outcomes = set()
    for i in range(5 * 64 * 1024 // 1056 + 1):
        while (outcome := ends.publication.offer(i.to_bytes(4) + bytes(1000))) < 0:
            outcomes.add(outcome)
            ends.subscription.poll()
            time.sleep(0.0005)
    assert outcomes <= {Outcome.BACK_PRESSURED}


def test_message_that_is_too_long_is_the_callers_mistake(ends: Ends) -> None:
    assert ends.publication.max_message_length == 8192
    with pytest.raises(ValueError, match="at most 8192 bytes"):
        ends.publication.offer(bytes(8193))
    assert ends.publication.offer(bytes(8192)) > 0
    assert receive(ends.subscription, 1) == [bytes(8192)]


def test_publication_knows_itself(client: Client, ends: Ends) -> None:
    publication = ends.publication
    assert (publication.channel, publication.stream_id, publication.term_length) == (CHANNEL, 10, 65536)
    assert publication.client is client
    (image,) = ends.subscription.images()
    assert image.session_id == publication.session_id
    assert image.source_identity == "aeron:ipc"
    assert image.join_position == 0
    publication.offer(b"x")
    receive(ends.subscription, 1)
    (image,) = ends.subscription.images()
    assert image.position == publication.position == 64


# ---- claims ----


def claim_of(publication: AnyPublication, length: int) -> Claim:
    claim = publication.try_claim(length)
    assert isinstance(claim, Claim)
    return claim


@pytest.mark.parametrize("exclusive", [False, True])
def test_claim_is_filled_and_committed(client: Client, exclusive: bool, until: Until) -> None:
    add = client.add_exclusive_publication if exclusive else client.add_publication
    publication = add(CHANNEL, 10)
    subscription = client.add_subscription(CHANNEL, 10)
    until(lambda: open_for_messages(publication))
    claim = claim_of(publication, 8)
    struct.pack_into("<Q", claim, 0, 77)
    assert subscription.poll() == []
    assert claim.commit() == claim.position == publication.position
    assert receive(subscription, 1) == [struct.pack("<Q", 77)]
    with pytest.raises(TransportClosed):
        claim.commit()


def test_claim_holds_back_what_comes_after_until_it_is_finished(ends: Ends) -> None:
    claim = claim_of(ends.publication, 4)
    ends.publication.offer(b"after")
    assert ends.subscription.poll() == []
    claim.abort()
    assert receive(ends.subscription, 1) == [b"after"]


def test_dropped_claim_is_aborted(ends: Ends) -> None:
    claim = claim_of(ends.publication, 4)
    ends.publication.offer(b"after")
    del claim
    assert receive(ends.subscription, 1) == [b"after"]


def test_claim_as_context_commits_unless_the_block_raises(ends: Ends) -> None:
    with claim_of(ends.publication, 3) as view:
        view[:] = b"yes"
    claim = claim_of(ends.publication, 2)
    memoryview(claim)[:] = b"no"
    claim.__exit__(KeyError, KeyError(), None)
    ends.publication.offer(b"end")
    assert receive(ends.subscription, 2) == [b"yes", b"end"]


def test_closing_a_publication_aborts_its_claims(client: Client, ends: Ends) -> None:
    """The log is shared: a claim left open would hold back the other publication for the unblock timeout."""
    other = client.add_publication(CHANNEL, 10)
    claims = [claim_of(ends.publication, 4) for _ in range(3)]
    claims[1].abort()
    other.offer(b"after")
    ends.publication.close()
    assert receive(ends.subscription, 1) == [b"after"]
    with pytest.raises(TransportClosed):
        claims[0].commit()


def test_view_of_a_claim_outlives_the_client(client: Client, ends: Ends) -> None:
    claim = claim_of(ends.publication, 16)
    view = memoryview(claim)
    client.close()
    view[:] = bytes(range(16))
    assert bytes(view) == bytes(range(16))
    with pytest.raises(TransportClosed):
        claim.commit()
    claim.abort()


def test_claim_longer_than_a_fragment_is_refused(ends: Ends) -> None:
    with pytest.raises(ValueError, match="at most 1376 bytes"):
        ends.publication.try_claim(1377)
    with pytest.raises(ValueError, match="at most"):
        ends.publication.try_claim(-1)


# ---- fragments ----


class Taker:
    """Its bound method is a fresh object at each use."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def take(self, message: bytes) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_megabyte_arrives_whole_by_a_fresh_bound_method_on_each_poll(client: Client, until: Until, limit: int) -> None:
    publication = client.add_publication(BIG_CHANNEL, 20)
    subscription = client.add_subscription(BIG_CHANNEL, 20)
    until(lambda: open_for_messages(publication))
    sent = [random.Random(i).randbytes(MIB + i) for i in range(3)]
    taker = Taker()
    for message in sent:
        assert publication.offer(message) > 0
        assert publication.offer(b"small") > 0
    deadline = time.monotonic() + 20
    while len(taker.messages) < 6:
        assert time.monotonic() < deadline
        assert subscription.poll_handler(taker.take, limit) <= limit
    assert taker.messages == [sent[0], b"small", sent[1], b"small", sent[2], b"small"]
    assert subscription.statistics()["broken"] == 0


def test_udp_carries_messages_and_fragments_too(client: Client, until: Until) -> None:
    udp = f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=1m"
    subscription = client.add_subscription(udp, 30)
    publication = client.add_publication(udp, 30)
    until(lambda: open_for_messages(publication) and subscription.is_connected)
    sent = [b"small", random.Random(1).randbytes(60_000), b"last"]
    for message in sent:
        assert publication.offer(message) > 0
    assert receive(subscription, 3) == sent
    assert subscription.images()[0].source_identity.startswith("127.0.0.1:")


def test_fragments_of_two_sessions_do_not_mix(client: Client, until: Until) -> None:
    publications = [client.add_exclusive_publication(BIG_CHANNEL, 20) for _ in range(2)]
    subscription = client.add_subscription(BIG_CHANNEL, 20)
    until(lambda: subscription.image_count == 2 and all(map(open_for_messages, publications)))
    sent = [random.Random(i).randbytes(100_000) for i in range(2)]
    for publication, message in zip(publications, sent, strict=True):
        assert publication.offer(message) > 0
    assert sorted(receive(subscription, 2, limit=1)) == sorted(sent)


def test_half_a_message_of_a_session_that_left_is_forgotten(client: Client, until: Until) -> None:
    """The next publisher's messages are whole, and its predecessor's buffer is not kept for ever."""
    subscription = client.add_subscription(CHANNEL, 20)
    for i in range(20):
        with client.add_exclusive_publication(CHANNEL, 20) as publication:
            until(lambda: open_for_messages(publication))
            message = random.Random(i).randbytes(5000)
            publication.offer(message)
            assert receive(subscription, 1) == [message]
        until(lambda: subscription.image_count == 0 and not subscription.poll())
    assert subscription.statistics() == {"delivered": 20, "filtered": 0, "broken": 0, "waiting": 0, "assembling": 0}


# ---- handlers ----


def test_handler_that_raises_loses_no_other_message(ends: Ends) -> None:
    for i in range(10):
        ends.publication.offer(b"%d" % i)
    seen: list[bytes] = []

    def handler(message: bytes) -> None:
        seen.append(message)
        if message in (b"3", b"4"):
            raise RuntimeError(message)

    raised = 0
    for _ in range(10):
        try:
            ends.subscription.poll_handler(handler)
        except RuntimeError:
            raised += 1
    assert seen == [b"%d" % i for i in range(10)]
    assert raised == 2


def test_poll_continues_after_a_handler_that_raised(ends: Ends) -> None:
    for i in range(4):
        ends.publication.offer(b"%d" % i)

    def handler(message: bytes) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        ends.subscription.poll_handler(handler)
    assert ends.subscription.statistics()["waiting"] == 3
    assert ends.subscription.poll(2) == [b"1", b"2"]
    assert ends.subscription.poll() == [b"3"]


def test_poll_inside_a_handler_delivers_each_message_once(ends: Ends) -> None:
    for i in range(12):
        ends.publication.offer(b"%d" % i)
    seen: list[bytes] = []

    def inner(message: bytes) -> None:
        seen.append(message)

    def outer(message: bytes) -> None:
        seen.append(message)
        if len(seen) == 2:
            seen.extend(ends.subscription.poll(3))
        elif len(seen) == 6:
            ends.subscription.poll_handler(inner, 2)

    for _ in range(12):
        ends.subscription.poll_handler(outer)
    assert seen == [b"%d" % i for i in range(12)]


@pytest.mark.parametrize("victim", ["subscription", "publication", "client"])
def test_close_inside_a_handler(client: Client, ends: Ends, victim: str) -> None:
    for i in range(5):
        ends.publication.offer(b"%d" % i)
    seen: list[bytes] = []

    def handler(message: bytes) -> None:
        seen.append(message)
        if len(seen) == 2:
            (client if victim == "client" else getattr(ends, victim)).close()

    delivered = ends.subscription.poll_handler(handler)
    if victim == "subscription":
        assert delivered == 2
    with pytest.raises(TransportClosed):
        ends.publication.offer(b"x") if victim == "publication" else ends.subscription.poll()


def test_limit_below_one_is_refused(ends: Ends) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ends.subscription.poll(0)


# ---- filters ----


def sbe(template: int, schema: int, body: bytes) -> bytes:
    return struct.pack("<4H", len(body), template, schema, 1) + body


def test_filter_passes_only_what_it_names_and_counts_the_rest(client: Client, until: Until) -> None:
    only = Filter(schema_id=900, template_id=3, offset=8, pattern=struct.pack("<I", 10_000))
    subscription = client.add_subscription(CHANNEL, 10, only=only)
    publication = client.add_publication(CHANNEL, 10)
    until(lambda: open_for_messages(publication))
    wanted = sbe(3, 900, struct.pack("<II", 10_000, 1))
    for message in (
        sbe(3, 901, struct.pack("<II", 10_000, 1)),
        sbe(4, 900, struct.pack("<II", 10_000, 1)),
        sbe(3, 900, struct.pack("<II", 10_001, 1)),
        sbe(3, 900, b"\x10\x27\x00"),
        b"short",
        b"",
        wanted,
    ):
        assert publication.offer(message) > 0
    assert receive(subscription, 1) == [wanted]
    assert subscription.statistics()["filtered"] == 6
    subscription.set_filter()
    publication.offer(b"anything")
    assert receive(subscription, 1) == [b"anything"]


def test_filter_finds_what_follows_a_block_of_any_length(client: Client, until: Until) -> None:
    def event(block: int, data: bytes, *, claims: int | None = None) -> bytes:
        return struct.pack("<4H", block if claims is None else claims, 1, 905, 1) + bytes(block) + data

    pattern = struct.pack("<I", 4) + b"mine"
    only = Filter(schema_id=905, template_id=1, after_block=True, pattern=pattern)
    subscription = client.add_subscription(CHANNEL, 10, only=only)
    publication = client.add_publication(CHANNEL, 10)
    until(lambda: open_for_messages(publication))
    wanted = [event(40, pattern + b"more"), event(56, pattern), event(0, pattern)]
    for message in (
        wanted[0],
        event(40, pattern, claims=56),
        event(40, pattern, claims=0xFFFF),
        event(40, struct.pack("<I", 5) + b"mine2"),
        event(40, struct.pack("<I", 3) + b"min"),
        event(40, pattern[:-1]),
        event(40, b""),
        wanted[1],
        b"",
        b"1234567",
        wanted[2],
    ):
        assert publication.offer(message) > 0
    assert receive(subscription, 3) == wanted
    assert subscription.statistics()["filtered"] == 8


def test_filter_is_checked(ends: Ends) -> None:
    with pytest.raises(ValueError, match="16-bit"):
        ends.subscription.set_filter(schema_id=70_000)
    with pytest.raises(ValueError, match="pattern"):
        ends.subscription.set_filter(pattern=bytes(261))
    with pytest.raises(ValueError, match="offset"):
        ends.subscription.set_filter(offset=-1)


# ---- adds ----


def test_add_that_the_media_driver_refuses_says_why(client: Client) -> None:
    with pytest.raises(TransportError, match="term-length"):
        client.add_publication("aeron:ipc?term-length=65k", 10)
    with pytest.raises(TransportError, match="refused"):
        client.add_subscription("aeron:bad", 10)
    assert client.children() == []


def test_asynchronous_add_does_not_wait(client: Client) -> None:
    pending = [
        client.add_publication_async(CHANNEL, 1),
        client.add_exclusive_publication_async(CHANNEL, 2),
        client.add_subscription_async(CHANNEL, 3),
        client.add_counter_async(2002, "pending"),
    ]
    added = [one.wait(10) for one in pending]  # type: ignore[attr-defined]
    assert client.children() == added
    assert pending[0].poll() is added[0]


def test_pending_add_can_be_cancelled_and_dropped(client: Client, until: Until) -> None:
    client.add_publication_async(CHANNEL, 1).cancel()
    dropped = client.add_counter_async(2003, "dropped")
    del dropped
    assert client.children() == []
    until(lambda: not [r for r in client.counters() if r.type_id == 2003 and r.state == "allocated"])


def test_unfinished_object_says_that_it_is_being_added(client: Client) -> None:
    pending = client.add_publication_async(CHANNEL, 1)
    (publication,) = client.children()
    assert isinstance(publication, AnyPublication)
    with pytest.raises(TransportError, match="still being added"):
        publication.offer(b"x")
    assert pending.wait(10) is publication
