"""The drain: a queue of the newest, filled without Python."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

import pytest

from framepool._native.limits import aeron_send
from framepool.errors import ForkedError, TransportClosed, TransportError
from framepool.transport.aeron import AnyPublication, Client, Filter
from tests.unit.transport.conftest import CHANNEL, Ends, Until, tasks

Send = Callable[[AnyPublication, bytes], int]


def test_drain_keeps_the_newest_and_counts_the_overwritten(ends: Ends, send: Send, until: Until) -> None:
    drain = ends.subscription.drain(capacity=8, max_message=64)
    for i in range(100):
        send(ends.publication, b"%d" % i)
    until(lambda: drain.statistics()["received"] == 100)
    assert drain.take(3) == [b"92", b"93", b"94"]
    assert drain.waiting == 5
    assert drain.take() == [b"95", b"96", b"97", b"98", b"99"]
    assert drain.take() == []
    assert drain.statistics() == {
        "received": 100,
        "overwritten": 92,
        "oversized": 0,
        "waiting": 0,
        "filtered": 0,
        "broken": 0,
    }


def test_message_too_long_for_a_slot_is_counted(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain(max_message=64)
    ends.publication.offer(bytes(65))
    ends.publication.offer(bytes(64))
    until(lambda: drain.waiting)
    assert drain.take() == [bytes(64)]
    assert drain.statistics()["oversized"] == 1


def test_drain_assembles_fragments(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain(capacity=4, max_message=8192)
    message = bytes(range(256)) * 32
    ends.publication.offer(message)
    assert drain.wait(10)
    assert drain.take() == [message]


def test_sleeping_program_stalls_nobody(ends: Ends, send: Send, until: Until) -> None:
    """4 terms go by while this program, which holds the only reader, never polls."""
    drain = ends.subscription.drain(capacity=16, max_message=1024)
    count = 4 * 65536 // 1056 + 1
    for i in range(count):
        send(ends.publication, i.to_bytes(4) + bytes(1000))
    until(lambda: drain.statistics()["received"] == count)
    assert drain.statistics()["overwritten"] == count - 16
    assert int.from_bytes(drain.take()[-1][:4]) == count - 1


def test_reader_who_never_catches_up_stalls_nobody(client: Client, ends: Ends, until: Until) -> None:
    """He looks often and takes a part of what there is: the rest must not pile up in the log."""
    channel = "aeron:ipc?term-length=1m"
    publication = client.add_exclusive_publication(channel, 12)
    drain = client.add_subscription(channel, 12).drain(capacity=1024, max_message=64)
    until(lambda: publication.is_connected)
    sent = sum(aeron_send(publication, 64, 200, 25_000) for _ in range(200) if drain.take(1) is not None)
    assert sent == 40_000, "none was refused for want of room"
    until(lambda: drain.statistics()["received"] == sent)


def test_one_thread_stands_by_for_all_drains(client: Client, ends: Ends, until: Until) -> None:
    threads = tasks()
    drains = [ends.subscription.drain(), *(client.add_subscription(CHANNEL, 10).drain() for _ in range(7))]
    (shared,) = tasks() - threads
    ends.publication.offer(b"to all")
    until(lambda: all(drain.waiting for drain in drains))
    assert drains[0].fileno() >= 0
    (own,) = tasks() - threads - {shared}
    assert drains[0].take() == [b"to all"]
    ends.publication.offer(b"again")
    until(lambda: drains[0].waiting and drains[7].waiting == 2)
    drains[0].close()
    until(lambda: own not in tasks())
    for drain in drains[1:]:
        assert shared in tasks()
        drain.close()
    until(lambda: shared not in tasks())


def test_forked_child_cannot_touch_what_its_parent_drains(ends: Ends) -> None:
    with ends.subscription.drain() as drain:
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                ends.subscription.set_filter(schema_id=900)
            except ForkedError:
                drain.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ends.publication.offer(b"as before")
        assert drain.wait(10)


def test_filter_applies_to_a_drain_and_can_change(client: Client, ends: Ends, until: Until) -> None:
    Filter(offset=0, pattern=b"a").apply(ends.subscription)
    drain = ends.subscription.drain()
    ends.publication.offer(b"b1")
    ends.publication.offer(b"a1")
    assert drain.wait(10)
    assert drain.take() == [b"a1"]
    Filter(offset=0, pattern=b"b").apply(ends.subscription)
    ends.publication.offer(b"a2")
    ends.publication.offer(b"b2")
    assert drain.wait(10)
    assert drain.take() == [b"b2"]
    assert drain.statistics()["filtered"] == 2


def test_wait_ends_at_its_timeout_and_lets_other_threads_run(ends: Ends) -> None:
    drain = ends.subscription.drain()
    assert drain.wait(0.001) is False
    threading.Timer(0.1, lambda: ends.publication.offer(b"x")).start()
    assert drain.wait(60) is True


def test_eventfd_is_readable_while_there_is_something_to_take(ends: Ends) -> None:
    drain = ends.subscription.drain()
    poller = select.poll()
    poller.register(drain.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    ends.publication.offer(b"1")
    assert poller.poll(10_000)
    ends.publication.offer(b"2")
    while drain.waiting < 2:
        time.sleep(0.001)
    drain.take(1)
    assert poller.poll(0)
    drain.take(1)
    assert poller.poll(0) == []


def test_drained_subscription_is_not_polled_by_hand(ends: Ends) -> None:
    drain = ends.subscription.drain()
    with pytest.raises(TransportError, match="drain"):
        ends.subscription.poll()
    with pytest.raises(TransportError, match="has a drain already"):
        ends.subscription.drain()
    drain.close()
    drain.close()
    ends.publication.offer(b"x")
    while not (messages := ends.subscription.poll()):
        time.sleep(0.001)
    assert messages == [b"x"]
    with pytest.raises(TransportClosed):
        drain.take()


def test_images_are_seen_through_a_drain(client: Client, ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    other = client.add_exclusive_publication(CHANNEL, 10)
    sessions = {ends.publication.session_id, other.session_id}
    until(lambda: {image.session_id for image in ends.subscription.images()} == sessions)
    other.close()
    until(lambda: ends.subscription.image_count == 1)
    assert drain.take() == []


@pytest.mark.parametrize("first", ["drain", "subscription", "client"])
def test_drain_ends_with_whatever_is_closed_first(client: Client, ends: Ends, first: str, until: Until) -> None:
    threads = tasks()
    drain = ends.subscription.drain()
    (own,) = tasks() - threads
    ends.publication.offer(b"queued")
    until(lambda: drain.waiting)
    {"drain": drain, "subscription": ends.subscription, "client": client}[first].close()
    until(lambda: own not in tasks())  # the kernel counts a joined thread for a moment more
    if first != "drain":
        assert drain.take() == [b"queued"]
    with pytest.raises(TransportClosed):
        drain.take()
    with pytest.raises(TransportClosed):
        drain.wait(1)


def test_waiting_thread_learns_of_the_close(client: Client, ends: Ends) -> None:
    drain = ends.subscription.drain()
    seen: list[Exception] = []

    def wait() -> None:
        try:
            drain.wait()
        except TransportClosed as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    client.close()
    thread.join(10)
    assert len(seen) == 1


def test_rejoin_keeps_the_drain(client: Client, ends: Ends, until: Until, send: Send) -> None:
    drain = ends.subscription.drain()
    ends.publication.offer(b"before")
    until(lambda: drain.waiting)
    client.rejoin(ends.subscription)
    until(lambda: ends.subscription.is_connected)
    send(ends.publication, b"after")
    received: list[bytes] = []
    until(lambda: received.extend(drain.take()) or b"after" in received)
    assert set(received[:-1]) == {b"before"}, "it may come again"
    assert received[-1] == b"after"
