"""Who asks discovery: what leaves, which answers count, and what becomes of wrong ones (Discovery 5, 7, 10)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND, ManualClock
from framepool.config import Config, DiscoveryConfig
from framepool.discovery.address import Address, addresses, response_channel
from framepool.discovery.client import AGAIN, DiscoveryClient, Question
from framepool.discovery.query import Query
from framepool.discovery.stream import Stream, newest
from framepool.errors import ConfigurationError, DiscoveryError, EncodeError
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire._generated.control_900 import ConsumerHello, ShmPoolAnnounce
from framepool.wire._generated.discovery_910 import DiscoveryRequest, DiscoveryResponse, DiscoveryStatus, PayloadPool
from framepool.wire._generated.driver_901 import ShmAttachResponse
from tests.support.oracle import HERE, PATIENCE, Oracle, local_address, result

CAMERA = Query(name="camera")


class Asker:
    """A client that the test turns, on a clock that the test moves."""

    def __init__(
        self, client: Client, *others: Address, stale: Callable[[Stream], bool] = lambda stream: False
    ) -> None:
        self.clock = ManualClock(NANOS_PER_SECOND)
        self.discovery = DiscoveryClient(client, self.clock, [local_address(), *others], here=HERE, is_stale=stale)

    def turn(self) -> None:
        self.discovery.do_work()

    def turn_until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.discovery.statistics()
            self.turn()
            time.sleep(0.001)

    def count(self, name: str) -> int:
        return int(str(self.discovery.statistics().get(name, 0)))

    def hear(self, question: Question) -> list[Stream]:
        """Turns until the question is over; its result."""
        self.turn_until(question.done.is_set)
        return question.result()


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings) as client:
        yield client


@pytest.fixture
def oracle(media_driver: MediaDriver) -> Iterator[Oracle]:
    with Oracle(media_driver.settings) as oracle:
        yield oracle


@pytest.fixture
def asker(client: Client) -> Asker:
    return Asker(client)


def names(streams: list[Stream]) -> list[str]:
    return [stream.name for stream in streams]


@pytest.mark.clause("N-4.3-01", "N-5.1-06", "N-5.1-07")
def test_every_request_says_where_its_answer_goes(asker: Asker, oracle: Oracle) -> None:
    query = Query(name="camera", tags=("a", "b", "a"), stream_id=3, producer_id=4, data_source_id=5)
    asker.discovery.ask(query)
    assert oracle.question(turn=asker.turn) == DiscoveryRequest(
        request_id=oracle.heard[0].request_id,
        client_id=asker.discovery.client_id,
        response_channel="aeron:ipc",
        response_stream_id=7_004,
        stream_id=3,
        producer_id=4,
        data_source_id=5,
        data_source_name="camera",
        tags=oracle.heard[0].tags,
    )
    assert [tag.tag for tag in oracle.heard[0].tags] == ["a", "b"]
    asker.discovery.ask(Query())
    bare = oracle.question(2, asker.turn)
    assert (bare.response_channel, bare.response_stream_id, bare.stream_id) == ("aeron:ipc", 7_004, None)


@pytest.mark.clause("N-5.1-06", "N-5.1-07")
def test_endpoint_that_nobody_could_answer_to_is_refused() -> None:
    for wrong in ({"response_stream_id": 0}, {"response_channel": ""}, {"stream_id": 0}, {"channel": ""}):
        with pytest.raises(ConfigurationError, match=f"discovery.{next(iter(wrong))}"):
            local_address(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no Aeron channel"):
        local_address(response_channel="udp://x")


def test_question_that_cannot_be_asked_is_the_callers_mistake() -> None:
    for wrong in ({"name": ""}, {"tags": ("",)}, {"stream_id": 2**32 - 1}, {"data_source_id": -1}):
        with pytest.raises(ValueError, match=r"empty|must be 0 to"):
            Query(**wrong)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="US-ASCII"):
        Query(name="kamera-ä")


def test_answer_becomes_a_stream_with_its_authority(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    found = result(tags=["lab:3"], data_source_id=9)
    oracle.answer(oracle.question(turn=asker.turn), found)
    (stream,) = asker.hear(question)
    assert (stream.stream_id, stream.name, stream.epoch, stream.nslots) == (10_000, "camera", 5, 8)
    assert (stream.driver, stream.control_channel, stream.control_stream_id) == ("driver-a", "aeron:ipc", 1_000)
    assert (stream.host, stream.local, stream.data_source_id) == (HERE, True, 9)
    assert "lab:3" in stream.tags
    assert [(pool.pool_id, pool.stride_bytes) for pool in stream.pools] == [(1, 1024)]


@pytest.mark.clause("N-3-02")
def test_what_could_be_mapped_is_not_even_kept(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result())
    assert "shm:" not in repr(asker.hear(question))


@pytest.mark.clause("N-5.2-02")
def test_answer_to_nobodys_question_is_dropped(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    request = oracle.question(turn=asker.turn)
    oracle.answer(request, result(data_source_name="forged"), request_id=request.request_id + 1)
    asker.turn_until(lambda: asker.count("unknown request id"))
    assert not question.done.is_set(), "the question stays open"
    oracle.answer(request, result(), request_id=request.request_id ^ 1 << 63)  # of another client: filtered natively
    oracle.answer(request, result())
    assert names(asker.hear(question)) == ["camera"]
    assert asker.count("unknown request id") == 1


@pytest.mark.clause("N-5.2-24")
@pytest.mark.parametrize("status", [DiscoveryStatus.NOT_FOUND, DiscoveryStatus.ERROR])
def test_results_that_come_with_a_refusal_are_ignored(asker: Asker, oracle: Oracle, status: DiscoveryStatus) -> None:
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(), status=status, error_message="index is full")
    asker.turn_until(question.done.is_set)
    assert asker.count(f"results with {status.name}") == 1
    if status is DiscoveryStatus.NOT_FOUND:
        assert question.result() == []
    else:
        with pytest.raises(DiscoveryError, match="name 'camera': index is full"):
            question.result()


def test_nothing_found_is_an_answer(asker: Asker, oracle: Oracle) -> None:
    """OK with no results, or NOT_FOUND (`decisions.md` #44)."""
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn))
    assert asker.hear(question) == []


@pytest.mark.clause("N-5.2-12", "N-5.2-14")
def test_result_without_a_driver_to_attach_to_is_left_out(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    wrong = [
        result(1, driver_control_channel=""),
        result(2, driver_control_stream_id=0),
        result(3, driver_control_channel="tcp://somewhere"),
        result(4, driver_control_channel=f"aeron:udp?endpoint={'x' * 2_000}"),
        result(5, driver_control_stream_id=2**31),
    ]
    oracle.answer(oracle.question(turn=asker.turn), *wrong, result(6))
    assert [stream.stream_id for stream in asker.hear(question)] == [6]
    assert asker.count("no usable control channel") == 3
    assert asker.count("no usable control stream") == 2
    assert len(oracle.heard) == 1, "no reason to ask again"


@pytest.mark.clause("N-5.2-19")
@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_pools": (PayloadPool(pool_id=1, pool_nslots=16, stride_bytes=64),)},
        {"header_slot_bytes": 128},
        {"max_dims": 9},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_result_that_contradicts_itself_is_discarded_and_asked_for_again(
    asker: Asker, oracle: Oracle, wrong: dict[str, object]
) -> None:
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(**wrong))
    asker.turn_until(lambda: asker.count("asked again"))
    assert not question.done.is_set()
    asker.clock.advance(NANOS_PER_SECOND // 10)
    oracle.answer(oracle.question(2, asker.turn), result(epoch=6))
    assert [stream.epoch for stream in asker.hear(question)] == [6]


def test_provider_that_never_gets_it_right_is_asked_a_few_times_only(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    for number in range(1, AGAIN + 2):
        oracle.answer(oracle.question(number, asker.turn), result(max_dims=0), result(11_000))
        asker.turn_until(lambda number=number: asker.count("answers OK") == number)
        asker.clock.advance(NANOS_PER_SECOND // 10)
    assert [stream.stream_id for stream in asker.hear(question)] == [11_000]


@pytest.mark.clause("N-7-05")
def test_result_that_announces_prove_stale_is_discarded_and_asked_for_again(client: Client, oracle: Oracle) -> None:
    asker = Asker(client, stale=lambda stream: stream.epoch < 4)
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(epoch=3))
    asker.turn_until(lambda: asker.count("asked again"))
    asker.clock.advance(NANOS_PER_SECOND // 10)
    oracle.answer(oracle.question(2, asker.turn), result(epoch=4))
    assert [stream.epoch for stream in asker.hear(question)] == [4]


@pytest.mark.clause("N-7-04")
def test_doubles_are_one_and_the_newest_epoch_stands(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(Query())
    oracle.answer(
        oracle.question(turn=asker.turn),
        result(epoch=5),
        result(epoch=5),
        result(epoch=4),
        result(epoch=3, driver_instance_id="driver-b"),
        result(12_000, epoch=1),
    )
    streams = asker.hear(question)
    assert sorted((stream.driver, stream.stream_id, stream.epoch) for stream in streams) == [
        ("driver-a", 10_000, 5),
        ("driver-a", 12_000, 1),
        ("driver-b", 10_000, 3),
    ]
    assert newest(streams) == streams


@pytest.mark.clause("N-5.1-10")
def test_names_are_compared_byte_for_byte(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(Query(name="CamA"))
    others = ("cama", "CamA ", "CamA2", "")
    oracle.answer(
        oracle.question(turn=asker.turn),
        result(1, data_source_name="CamA"),
        *(result(2 + index, data_source_name=name) for index, name in enumerate(others)),
    )
    assert names(asker.hear(question)) == ["CamA"]
    assert asker.count("not what was asked for") == len(others)


def test_results_that_nobody_asked_for_are_left_out(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(Query(tags=("Lab",), stream_id=1, producer_id=7, data_source_id=9))
    wanted = {"tags": ["Lab", "x"], "data_source_id": 9}
    oracle.answer(
        oracle.question(turn=asker.turn),
        result(1, **wanted),
        result(2, **wanted),
        result(1, **{**wanted, "tags": ["lab"]}, driver_instance_id="b"),
        result(1, **wanted, producer_id=8, driver_instance_id="c"),
        result(1, tags=["Lab"], driver_instance_id="d"),
    )
    assert [stream.driver for stream in asker.hear(question)] == ["driver-a"]


@pytest.mark.clause("N-10-01", "N-10-03", "N-4.2-04")
def test_messages_of_other_schemas_and_versions_are_no_answers(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    request = oracle.question(turn=asker.turn)
    answer = DiscoveryResponse(request_id=request.request_id, status=DiscoveryStatus.OK, results=(result(),)).encode()

    def with_header(block: int = 9, template: int = 2, schema: int = 910, version: int = 1) -> bytes:
        return b"".join(value.to_bytes(2, "little") for value in (block, template, schema, version)) + answer[8:]

    for other in (
        with_header(version=2),
        with_header(version=0),
        with_header(schema=911),
        with_header(schema=900),
        with_header(schema=901),
        with_header(template=1),
        with_header(block=10),
        answer[:40],
    ):
        oracle.say(other)
    asker.turn_until(lambda: asker.count("malformed"))
    assert not question.done.is_set()
    assert (asker.count("unsupported version"), asker.count("handled")) == (2, 0)
    assert asker.count("unsupported dialect") == 1
    oracle.say(with_header())
    assert names(asker.hear(question)) == ["camera"]


@pytest.mark.clause("N-4.2-04")
def test_whole_messages_of_other_schemas_on_the_response_stream_are_passed_over(asker: Asker, oracle: Oracle) -> None:
    """Template 2 of schemas 900 and 901 is a hello and an attach response."""
    assert (ConsumerHello.TEMPLATE_ID, ShmAttachResponse.TEMPLATE_ID) == (2, 2)
    question = asker.discovery.ask(CAMERA)
    request = oracle.question(turn=asker.turn)
    id_in_front = request.request_id.to_bytes(8, "little")
    for other in (ConsumerHello, ShmAttachResponse, ShmPoolAnnounce):
        oracle.say(other.HEADER_BYTES + id_in_front + bytes(200))
    oracle.answer(request, result())
    assert names(asker.hear(question)) == ["camera"]
    assert asker.count("handled") == 1


@pytest.mark.clause("N-10-02")
def test_layout_version_is_not_the_version_of_the_message(asker: Asker, oracle: Oracle) -> None:
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(layout_version=2))
    assert [stream.layout_version for stream in asker.hear(question)] == [2]


@pytest.mark.parametrize(
    ("tags", "host", "local"),
    [((), HERE, True), ((), "elsewhere", False), ((), "", False), (("host:elsewhere",), HERE, False)],
    ids=["this one", "another", "unknown", "two"],
)
def test_stream_is_local_only_if_its_one_host_is_this_one(
    asker: Asker, oracle: Oracle, tags: tuple[str, ...], host: str, local: bool
) -> None:
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(tags=tags, host=host))
    (stream,) = asker.hear(question)
    assert stream.local is local


def test_question_is_asked_again_until_somebody_comes_who_answers(asker: Asker, media_driver: MediaDriver) -> None:
    question = asker.discovery.ask(CAMERA)
    for _ in range(5):
        asker.turn()
        time.sleep(0.01)
    with Oracle(media_driver.settings) as late:
        first = late.question(turn=asker.turn)
        asker.clock.advance(NANOS_PER_SECOND)
        asker.turn_until(lambda: len(late.hear()) == 2)
        assert late.heard[1].request_id == first.request_id
        late.answer(first, result())
        late.answer(first, result(11_000))
        assert [stream.stream_id for stream in asker.hear(question)] == [10_000]
        asker.turn_until(lambda: asker.count("late or double"))


@pytest.fixture
def second(media_driver: MediaDriver) -> Iterator[Oracle]:
    with Oracle(media_driver.settings, local_address(7_001)) as oracle:
        yield oracle


def test_all_providers_are_asked_and_what_they_know_is_put_together(
    client: Client, oracle: Oracle, second: Oracle
) -> None:
    asker = Asker(client, second.address)
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result(epoch=5))
    asker.turn_until(lambda: asker.count("answers OK"))
    assert not question.done.is_set(), "the other one has a little time"
    second.answer(second.question(turn=asker.turn), result(epoch=6), result(11_000))
    assert [(stream.stream_id, stream.epoch) for stream in asker.hear(question)] == [(10_000, 6), (11_000, 5)]


def test_provider_that_is_gone_delays_one_answer_a_little_and_then_none(
    client: Client, oracle: Oracle, second: Oracle
) -> None:
    asker = Asker(client, second.address)
    question = asker.discovery.ask(CAMERA)
    for provider in (oracle, second):
        provider.answer(provider.question(turn=asker.turn), result())
    asker.hear(question)
    second.close()
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(2, asker.turn), result())
    asker.turn_until(lambda: asker.count("answers OK") == 3)
    asker.clock.advance(249 * NANOS_PER_MILLI)
    asker.turn()
    assert not question.done.is_set()
    asker.clock.advance(NANOS_PER_MILLI)
    assert names(asker.hear(question)) == ["camera"]
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(3, asker.turn), result())
    assert names(asker.hear(question)) == ["camera"], "without any time on the clock"


def test_provider_that_comes_back_is_waited_for_again(
    client: Client, oracle: Oracle, second: Oracle, media_driver: MediaDriver
) -> None:
    asker = Asker(client, second.address)
    second.close()
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result())
    asker.turn_until(lambda: asker.count("answers OK"))
    asker.clock.advance(NANOS_PER_SECOND)
    asker.hear(question)
    assert asker.discovery.statistics()["silent"] == ["aeron:ipc stream 7001"]
    with Oracle(media_driver.settings, local_address(7_001)) as back:
        question = asker.discovery.ask(CAMERA)
        request = back.asked(question, asker.turn)
        oracle.answer(oracle.question(2, asker.turn), result())
        asker.hear(question)
        back.answer(request, result())  # too late for its question, but it lives
        asker.turn_until(lambda: asker.discovery.statistics()["silent"] == [])
        assert asker.count("late or double") == 1
        question = asker.discovery.ask(CAMERA)
        oracle.answer(oracle.question(3, asker.turn), result())
        asker.turn_until(lambda: asker.count("answers OK") == 3)
        back.answer(back.asked(question, asker.turn), result(11_000))
        assert [stream.stream_id for stream in asker.hear(question)] == [10_000, 11_000]


def test_error_of_one_provider_is_nothing_if_another_answers(client: Client, oracle: Oracle, second: Oracle) -> None:
    asker = Asker(client, second.address)
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), status=DiscoveryStatus.ERROR, error_message="too many")
    second.answer(second.question(turn=asker.turn), result())
    assert names(asker.hear(question)) == ["camera"]


def test_waiting_for_an_answer_that_does_not_come_says_who_was_asked(client: Client) -> None:
    asker = Asker(client, local_address(7_001))
    stop = threading.Event()

    def turn() -> None:
        while not stop.wait(0.001):
            asker.turn()

    turner = threading.Thread(target=turn)
    turner.start()
    try:
        with pytest.raises(DiscoveryError, match=r"all streams.*stream 7000: nobody listens there; .*stream 7001"):
            asker.discovery.find(Query(), 0.1)
    finally:
        stop.set()
        turner.join()
    assert asker.count("open") == 0


def test_channel_that_the_media_driver_refuses_is_named_and_the_others_are_asked(
    client: Client, oracle: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    asker = Asker(client, local_address(channel="aeron:udp?endpoint=no.such.host.invalid:1"))
    question = asker.discovery.ask(CAMERA)
    oracle.answer(oracle.question(turn=asker.turn), result())
    assert names(asker.hear(question)) == ["camera"]
    asker.turn_until(lambda: "no.such.host.invalid" in caplog.text)


def test_closing_ends_whoever_waits(asker: Asker) -> None:
    question = asker.discovery.ask(CAMERA)
    asker.turn()
    asker.discovery.close()
    assert question.done.is_set()
    with pytest.raises(DiscoveryError, match="no answer"):
        question.result()


def test_host_and_registries_are_asked_as_configured() -> None:
    (own,) = addresses(Config())
    assert own == local_address(response_channel="aeron:ipc?term-length=4m")
    registries = ("aeron:udp?endpoint=127.0.0.1:40123", "aeron:udp?endpoint=127.0.0.1:40124")
    own, *others = addresses(
        Config(discovery=DiscoveryConfig(registries=registries, stream_id=5, response_stream_id=6))
    )
    assert [own.channel, *(each.channel for each in others)] == ["aeron:ipc", *registries]
    assert {each.stream_id for each in (own, *others)} == {5}
    assert {each.response_stream_id for each in (own, *others)} == {6}
    for each in others:
        assert each.response_channel.startswith("aeron:udp?endpoint=127.0.0.1:")
    configured = Config(
        discovery=DiscoveryConfig(registries=registries, response_channel="aeron:udp?endpoint=10.0.0.7:40200")
    )
    back = "aeron:udp?endpoint=10.0.0.7:40200|term-length=4m"
    assert {each.response_channel for each in addresses(configured)[1:]} == {back}
    only = Config(discovery=DiscoveryConfig(channel=registries[0], registries=registries[1:]))
    assert [each.channel for each in addresses(only)] == [registries[1]]


def test_registry_without_a_way_back_is_named() -> None:
    for registry in ("aeron:udp?control=127.0.0.1:1|control-mode=dynamic", "aeron:udp?endpoint=no.such.host.invalid:1"):
        with pytest.raises(ConfigurationError, match=r"discovery\.response_channel"):
            response_channel(registry)
    assert response_channel("aeron:udp?endpoint=[::1]:40123").startswith("aeron:udp?endpoint=[::1]:")
