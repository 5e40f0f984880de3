"""Reports by a clock that the test moves, and consumers that share a stream and perhaps an id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.client.qos import ConsumerQos, ConsumerReading, ProducerQos, ProducerReading
from framepool.clock import NANOS_PER_SECOND, ManualClock
from framepool.wire._generated.control_900 import Mode, QosConsumer, QosProducer
from framepool.wire.message import Message

STREAM = 10_000
SECOND = NANOS_PER_SECOND


class Wire:
    """What was published, and whether Aeron takes more."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.open = True

    def publish(self, message: Message) -> bool:
        if self.open:
            self.sent.append(message)
        return self.open


class Reader:
    """A consumer with numbers that the test sets, on a stream that the test carries."""

    def __init__(self, clock: ManualClock, consumer_id: int = 7) -> None:
        self.wire = Wire()
        self.reading: ConsumerReading | None = reading()
        self.collisions: list[int] = []
        self.qos = ConsumerQos(
            STREAM,
            consumer_id,
            read=lambda: self.reading,
            publish=self.wire.publish,
            clock=clock,
            on_collision=self.collisions.append,
        )

    def report(self) -> list[QosConsumer]:
        """What it sends when it is turned, as it comes over the wire."""
        self.qos.do_work()
        sent = [QosConsumer.decode(message.encode()) for message in self.wire.sent]
        self.wire.sent.clear()
        return sent


def reading(last_seq_seen: int = 41, drops_gap: int = 3, drops_late: int = 2) -> ConsumerReading:
    return ConsumerReading(epoch=9, last_seq_seen=last_seq_seen, drops_gap=drops_gap, drops_late=drops_late)


def report(consumer_id: int = 7, stream_id: int = STREAM) -> QosConsumer:
    return QosConsumer(
        stream_id=stream_id,
        consumer_id=consumer_id,
        epoch=9,
        last_seq_seen=0,
        drops_gap=0,
        drops_late=0,
        mode=Mode.STREAM,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# Reports


@pytest.mark.clause("W-10.4.2-01")
def test_producer_reports_its_current_sequence_once_a_second(clock: ManualClock) -> None:
    wire = Wire()
    seq = 0
    qos = ProducerQos(
        STREAM,
        read=lambda: ProducerReading(producer_id=77, epoch=9, current_seq=seq, watermark=12 if seq else None),
        publish=wire.publish,
        clock=clock,
    )
    assert [qos.do_work(), qos.do_work()] == [1, 0]
    seq = 1_234
    clock.advance(SECOND - 1)
    assert qos.do_work() == 0
    clock.advance(1)
    assert qos.do_work() == 1
    assert [QosProducer.decode(message.encode()) for message in wire.sent] == [
        QosProducer(stream_id=STREAM, producer_id=77, epoch=9, current_seq=0),
        QosProducer(stream_id=STREAM, producer_id=77, epoch=9, current_seq=1_234, watermark=12),
    ]


def test_a_producer_without_a_lease_reports_nothing(clock: ManualClock) -> None:
    wire = Wire()
    ProducerQos(STREAM, read=lambda: None, publish=wire.publish, clock=clock).do_work()
    assert wire.sent == []


def test_a_report_that_is_not_taken_is_counted_and_not_repeated(clock: ManualClock) -> None:
    wire = Wire()
    wire.open = False
    qos = ProducerQos(
        STREAM,
        read=lambda: ProducerReading(producer_id=1, epoch=1, current_seq=0),
        publish=wire.publish,
        clock=clock,
    )
    qos.do_work()
    wire.open = True
    assert qos.do_work() == 0
    assert qos.statistics() == {"lost": 1}


@pytest.mark.clause("W-10.4.1-01")
def test_consumer_reports_its_counters_once_a_second(clock: ManualClock) -> None:
    reader = Reader(clock)
    expected = QosConsumer(
        stream_id=STREAM,
        consumer_id=7,
        epoch=9,
        last_seq_seen=41,
        drops_gap=3,
        drops_late=2,
        mode=Mode.STREAM,
    )
    assert reader.report() == [expected]
    assert reader.report() == []
    clock.advance(SECOND)
    reader.reading = ConsumerReading(epoch=10, last_seq_seen=0, drops_gap=4, drops_late=5, mode=Mode.RATE_LIMITED)
    (second,) = reader.report()
    assert (second.epoch, second.drops_gap, second.drops_late, second.mode) == (10, 4, 5, Mode.RATE_LIMITED)


@pytest.mark.clause("W-10.4.1-03")
def test_a_report_has_no_room_for_latency(clock: ManualClock) -> None:
    (sent,) = Reader(clock).report()
    assert len(sent.encode()) == 8 + 41


def test_a_consumer_that_is_not_attached_reports_nothing(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.reading = None
    assert reader.report() == []


def test_reports_keep_their_phase_and_skip_what_they_missed(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.report()
    clock.advance(60 * SECOND + SECOND // 2)
    assert len(reader.report()) == 1
    assert reader.report() == []
    clock.advance(SECOND // 2)
    assert len(reader.report()) == 1


@pytest.mark.parametrize("period_ns", [0, -1])
def test_a_period_is_above_0(clock: ManualClock, period_ns: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ProducerQos(STREAM, read=lambda: None, publish=lambda _: None, clock=clock, period_ns=period_ns)


# Two with one id


def test_own_reports_that_come_back_are_known(clock: ManualClock) -> None:
    reader = Reader(clock)
    for seq in range(100):
        reader.reading = reading(last_seq_seen=seq // 10)
        for heard in reader.report():
            reader.qos.on_qos_consumer(heard)
        clock.advance(SECOND)
    assert not reader.qos.collided
    assert reader.collisions == []


def test_a_report_heard_while_it_is_being_sent_is_known(clock: ManualClock) -> None:
    heard: list[int] = []
    qos: ConsumerQos

    def publish(message: Message) -> None:
        assert isinstance(message, QosConsumer)
        qos.on_qos_consumer(message)

    qos = ConsumerQos(STREAM, 7, read=reading, publish=publish, clock=clock, on_collision=heard.append)
    qos.do_work()
    assert heard == []


def test_a_foreign_report_with_the_own_id_is_a_collision_told_once(clock: ManualClock) -> None:
    reader = Reader(clock)
    (own,) = reader.report()
    reader.qos.on_qos_consumer(report())
    reader.qos.on_qos_consumer(own)
    reader.qos.on_qos_consumer(report())
    assert reader.qos.collided
    assert reader.collisions == [7]
    assert reader.qos.statistics()["foreign reports"] == 2


def test_a_twin_that_says_the_very_same_is_noticed(clock: ManualClock) -> None:
    reader, twin = Reader(clock), Reader(clock)
    for heard in reader.report() + twin.report():
        reader.qos.on_qos_consumer(heard)
        twin.qos.on_qos_consumer(heard)
    assert reader.collisions == [7]
    assert twin.collisions == [7]


@pytest.mark.parametrize(("consumer_id", "stream_id"), [(8, STREAM), (7, STREAM + 1)])
def test_reports_of_others_are_no_collision(clock: ManualClock, consumer_id: int, stream_id: int) -> None:
    reader = Reader(clock)
    reader.qos.on_qos_consumer(report(consumer_id, stream_id))
    assert not reader.qos.collided


def test_a_report_that_was_not_taken_does_not_hide_a_twin(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.wire.open = False
    reader.report()
    reader.wire.open = True
    twin = Reader(clock)
    for heard in twin.report():
        reader.qos.on_qos_consumer(heard)
    assert reader.qos.collided


def test_a_new_id_ends_the_collision_and_reports_at_once(clock: ManualClock) -> None:
    reader = Reader(clock)
    (own,) = reader.report()
    reader.qos.on_qos_consumer(report())
    reader.qos.renew(8)
    assert not reader.qos.collided
    (renewed,) = reader.report()
    assert renewed.consumer_id == 8
    for heard in (own, report(), renewed):  # what still arrives for the old id is none of ours
        reader.qos.on_qos_consumer(heard)
    assert not reader.qos.collided
    reader.qos.on_qos_consumer(renewed)
    assert reader.collisions == [7, 8]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_own_reports_are_known_whatever_is_lost_of_them(turns: list[tuple[int, bool]]) -> None:
    clock = ManualClock()
    reader = Reader(clock)
    for value, arrives in turns:
        reader.reading = reading(last_seq_seen=value)
        for heard in reader.report():
            if arrives:
                reader.qos.on_qos_consumer(heard)
        clock.advance(SECOND)
    assert not reader.qos.collided


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    st.data(),
)
def test_any_foreign_report_is_noticed_in_any_interleaving(
    own: list[int], foreign: list[int], data: st.DataObject
) -> None:
    """When all own reports come back, one more with the id is one too many, wherever it stands among them."""
    clock = ManualClock()
    reader, other = Reader(clock), Reader(clock)
    heard: list[tuple[Reader, QosConsumer]] = []
    for who, values in ((reader, own), (other, foreign)):
        for value in values:
            clock.advance(SECOND)
            who.reading = reading(last_seq_seen=value)
            heard += [(who, sent) for sent in who.report()]
    order = data.draw(st.permutations([reader] * len(own) + [other] * len(foreign)))
    queues = {id(who): iter([sent for sender, sent in heard if sender is who]) for who in (reader, other)}
    for who in order:
        reader.qos.on_qos_consumer(next(queues[id(who)]))
    assert reader.collisions == [7]


# Who lives
