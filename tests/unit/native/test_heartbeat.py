"""Heartbeats: messages that leave at their period while Python does not run."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framepool._native.aeron import Heartbeat
from framepool.errors import ForkedError, MediaDriverLost, TransportClosed
from framepool.transport.aeron import AnyPublication, Client, Drain, Publication, Subscription
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from tests.support.processes import Process, Processes
from tests.unit.transport.conftest import CHANNEL, Ends, open_for_messages, tasks

Send = Callable[[AnyPublication, bytes], int]
Until = Callable[[Callable[[], object]], None]

MILLI = 1_000_000
PERIOD = 20 * MILLI


def stamps(drain: Drain, offset: int = 4) -> list[int]:
    return [int.from_bytes(message[offset : offset + 8], "little") for message in drain.take(10_000)]


def received(drain: Drain) -> int:
    return drain.statistics()["received"]


def test_beats_while_the_main_thread_holds_the_interpreter(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    with Heartbeat(ends.publication, b"beat" + bytes(8), PERIOD, 4) as heartbeat:
        assert drain.wait(10)
        for _ in range(20):  # on a machine that stands still nothing beats: then once more
            started, before = time.monotonic_ns(), heartbeat.sent
            ctypes.PyDLL(None).usleep(1_000_000)
            sent = heartbeat.sent - before
            held = time.monotonic_ns() - started  # last: what was counted is within it
            assert sent <= held // PERIOD + 2, "a period has one message; a late one and the next may be close"
            if sent >= held // PERIOD // 4:
                break
        else:
            pytest.fail("it beats only while Python runs")
    until(lambda: received(drain) >= heartbeat.sent)
    times = stamps(drain)
    assert len(times) == heartbeat.sent
    assert times == sorted(times)


def test_first_message_leaves_at_once_with_the_time(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    before = time.monotonic_ns()
    heartbeat = Heartbeat(ends.publication, b"\xff" * 16, 3_600_000 * MILLI, 4)
    assert drain.wait(10)
    (message,) = drain.take()
    assert message[:4] + message[12:] == b"\xff" * 8
    assert before <= struct.unpack_from("<Q", message, 4)[0] <= time.monotonic_ns()
    until(lambda: heartbeat.sent)  # counted after it left
    assert heartbeat.last_sent_ns == struct.unpack_from("<Q", message, 4)[0]
    assert heartbeat.statistics() == {"sent": 1, "failed": 0, "last_sent_ns": heartbeat.last_sent_ns}


def test_message_without_a_stamp_is_sent_as_it_is_and_can_be_replaced(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    with Heartbeat(ends.publication, b"one", PERIOD) as heartbeat:
        assert drain.wait(10)
        heartbeat.update(b"another")
        sent = heartbeat.sent
        until(lambda: heartbeat.sent > sent + 1)
    until(lambda: received(drain) == heartbeat.sent)
    messages = drain.take()
    assert messages[0] == b"one"
    assert messages[-1] == b"another"
    assert messages == sorted(messages, reverse=True)


def test_nothing_is_sent_after_close(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    heartbeat = Heartbeat(ends.publication, b"beat", MILLI)
    until(lambda: heartbeat.sent > 5)
    heartbeat.close()
    sent, position = heartbeat.sent, ends.publication.position
    heartbeat.close()
    time.sleep(0.05)
    assert heartbeat.sent == sent
    assert ends.publication.position == position
    until(lambda: received(drain) == sent)
    with pytest.raises(TransportClosed, match="heartbeat"):
        heartbeat.update(b"late")


def test_dropped_heartbeat_ends(ends: Ends, until: Until) -> None:
    drain = ends.subscription.drain()
    heartbeat = Heartbeat(ends.publication, b"beat", MILLI)
    until(lambda: received(drain) > 2)
    del heartbeat
    position = ends.publication.position
    time.sleep(0.05)
    assert ends.publication.position == position


def test_many_heartbeats_share_one_thread_and_keep_their_own_pace(client: Client, until: Until) -> None:
    wide = "aeron:ipc?term-length=4m"  # for seconds of beats that nobody takes
    publication, subscription = client.add_publication(wide, 16), client.add_subscription(wide, 16)
    until(lambda: open_for_messages(publication))
    drain = subscription.drain()
    before = tasks()
    fast = [Heartbeat(publication, b"fast", 5 * MILLI) for _ in range(20)]
    slow = [Heartbeat(publication, b"slow", 50 * MILLI) for _ in range(20)]
    assert len(tasks() - before) == 1
    until(lambda: min(beat.sent for beat in slow) >= 10)
    until(lambda: min(beat.sent for beat in fast) > 2 * max(beat.sent for beat in slow))
    drain.close()
    client.close()
    assert all(beat.failed == 0 for beat in slow)


def test_periods_without_a_reader_are_failures_and_it_is_heard_as_soon_as_one_comes(
    client: Client, until: Until
) -> None:
    publication = client.add_publication(CHANNEL, 11)
    with Heartbeat(publication, b"beat", PERIOD) as heartbeat:
        until(lambda: heartbeat.failed >= 3)
        assert heartbeat.sent == 0
        assert heartbeat.last_sent_ns == 0
        subscription = client.add_subscription(CHANNEL, 11)
        drain = subscription.drain()
        assert drain.wait(10)
        until(lambda: heartbeat.sent >= 3)


def test_kept_from_sending_for_too_long_it_ends_for_good(client: Client, until: Until) -> None:
    publication = client.add_publication(CHANNEL, 78)
    with Heartbeat(publication, b"alive", PERIOD, give_up_ns=100 * MILLI) as beat:
        until(lambda: beat.gave_up)
        late = client.add_subscription(CHANNEL, 78)
        until(lambda: publication.is_connected)
        time.sleep(0.1)
        assert late.poll() == []
        assert beat.sent == 0


def test_back_pressure_is_neither_waited_for_nor_counted_twice(ends: Ends, until: Until) -> None:
    """Nobody polls: the window of 32 KiB is full, each period fails once, and the first poll lets one through."""
    while ends.publication.offer(bytes(1000)) >= 0:
        pass
    started = time.monotonic_ns()
    with Heartbeat(ends.publication, bytes(1000), PERIOD) as heartbeat:
        until(lambda: heartbeat.failed >= 5)
        assert heartbeat.sent == 0
        assert heartbeat.failed <= (time.monotonic_ns() - started) // PERIOD + 1
        drain = ends.subscription.drain(max_message=1024)
        until(lambda: heartbeat.sent)
        assert drain.waiting


def test_unfit_arguments_are_refused(ends: Ends, client: Client) -> None:
    with pytest.raises(ValueError, match="offset 5 of 12"):
        Heartbeat(ends.publication, bytes(12), PERIOD, 5)
    with pytest.raises(ValueError, match="offset -1"):
        Heartbeat(ends.publication, bytes(12), PERIOD, -1)
    with pytest.raises(ValueError, match="period"):
        Heartbeat(ends.publication, bytes(12), 0)
    with pytest.raises(ValueError, match="at most"):
        Heartbeat(ends.publication, bytes(65536), PERIOD)
    with pytest.raises(TypeError):
        Heartbeat(client.add_exclusive_publication(CHANNEL, 10), b"", PERIOD)  # type: ignore[arg-type]
    with Heartbeat(ends.publication, bytes(12), PERIOD, 4) as heartbeat, pytest.raises(ValueError, match="offset"):
        heartbeat.update(bytes(11))
    ends.publication.close()
    with pytest.raises(TransportClosed):
        Heartbeat(ends.publication, bytes(12), PERIOD)


def test_begins_when_its_publication_is_there(client: Client, until: Until) -> None:
    subscription = client.add_subscription(CHANNEL, 12)
    drain = subscription.drain()
    pending = client.add_publication_async(CHANNEL, 12)
    heartbeat = Heartbeat(pending._child, b"early", PERIOD)
    pending.wait(10)
    assert drain.wait(10)
    until(lambda: heartbeat.sent > 2)


def test_renewed_publication_goes_on(ends: Ends, until: Until) -> None:
    with Heartbeat(ends.publication, b"beat", MILLI) as heartbeat:
        for _ in range(10):
            sent = heartbeat.sent
            until(lambda sent=sent: ends.subscription.poll(1000) and heartbeat.sent > sent)  # type: ignore[misc]
            ends.publication.renew()
            ends.subscription.poll(1000)
            until(ends.publication.poll_add)
            until(lambda: ends.subscription.poll(1000) or True)


@pytest.mark.parametrize("order", list(itertools.permutations(["heartbeat", "publication", "client"])))
def test_closing_in_any_order(media_driver: MediaDriver, order: tuple[str, ...], until: Until) -> None:
    client = Client.connect(media_driver.settings)
    subscription = client.add_subscription(CHANNEL, 13)
    publication = client.add_publication(CHANNEL, 13)
    drain = subscription.drain()
    heartbeat = Heartbeat(publication, b"beat", MILLI)
    assert drain.wait(10)
    closing = {"heartbeat": heartbeat.close, "publication": publication.close, "client": client.close}
    for name in order:
        closing[name]()
        time.sleep(0.005)
    sent = heartbeat.sent
    time.sleep(0.02)
    assert heartbeat.sent == sent
    with pytest.raises(TransportClosed):
        heartbeat.update(b"late")


def start_driver(processes: Processes, directory: Path) -> Process:
    process = processes.start(
        *("-m", "framepool.cli.media_driver", "--dir", str(directory), "--json"),
        *("--ipc-term-length", str(64 * KIB)),
    )
    assert json.loads(process.line())["event"] == "ready"
    return process


def test_goes_on_after_a_killed_media_driver_is_back(processes: Processes, base_dir: Path, until: Until) -> None:
    settings = AeronSettings(
        directory=str(base_dir / "aeron"), driver_timeout=5.0, keepalive_interval=0.1, ipc_term_length=64 * KIB
    )
    driver = start_driver(processes, base_dir / "aeron")
    with Client.connect(settings) as client:
        subscription = client.add_subscription(CHANNEL, 14)
        publication = client.add_publication(CHANNEL, 14)
        drain = subscription.drain()
        heartbeat = Heartbeat(publication, b"beat" + bytes(8), 2 * MILLI, 4)
        assert drain.wait(10)
        for round_ in range(2):
            driver.kill()
            until(lambda: not client.connected)
            with pytest.raises(MediaDriverLost):
                publication.offer(b"")
            time.sleep(0.02)
            sent, failed = heartbeat.sent, heartbeat.failed
            until(lambda failed=failed: heartbeat.failed > failed + 5)  # type: ignore[misc]
            assert heartbeat.sent == sent
            drain.take(10_000)
            driver = start_driver(processes, base_dir / "aeron")
            client.reconnect(20)
            assert client.generation == round_ + 2
            until(lambda: drain.waiting > 5)
            assert heartbeat.sent > sent
            last = heartbeat.last_sent_ns
            until(lambda last=last: heartbeat.last_sent_ns > last)  # type: ignore[misc]


def test_forked_child_leaves_it_alone(ends: Ends, until: Until) -> None:
    heartbeat = Heartbeat(ends.publication, b"beat", MILLI)
    drain = ends.subscription.drain()
    until(lambda: heartbeat.sent > 2)
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            try:
                heartbeat.update(b"child")
            except ForkedError:
                code = 2
            heartbeat.close()
            sent = heartbeat.sent
            time.sleep(0.02)
            code = 0 if code == 2 and heartbeat.sent == sent else 3
            del heartbeat
            gc.collect()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sent = heartbeat.sent
    until(lambda: heartbeat.sent > sent + 5)
    assert set(drain.take(10_000)) == {b"beat"}


PROGRAM = """
import sys
from framepool._native.aeron import Heartbeat
from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings
client = Client.connect(AeronSettings(directory=sys.argv[1]))
subscription = client.add_subscription("aeron:ipc?term-length=64k", 15)
publication = client.add_publication("aeron:ipc?term-length=64k", 15)
drain = subscription.drain()
heartbeat = Heartbeat(publication, b"beat", 100_000)
assert drain.wait(10)
if sys.argv[2] == "exit":
    sys.exit(7)
sys.modules["keep"] = heartbeat
raise SystemExit(7)
"""


@pytest.mark.parametrize("way", ["exit", "kept"])
def test_program_may_end_without_closing(processes: Processes, media_driver: MediaDriver, way: str) -> None:
    process = processes.start("-c", PROGRAM, media_driver.settings.directory, way)
    assert process.wait() == 7, process.lines
    assert not process.lines


def cycle(media_driver: MediaDriver, rng: random.Random) -> None:
    client = Client.connect(media_driver.settings)
    stream = rng.randrange(1, 5)
    children: list[Publication | Subscription] = []
    for _ in range(rng.randrange(1, 3)):
        children.append(client.add_publication(CHANNEL, stream))
        children.append(client.add_subscription(CHANNEL, stream))
    things: list[Heartbeat | Drain | Publication | Subscription | Client] = [client, *children]
    for child in children:
        if isinstance(child, Publication):
            things += [
                Heartbeat(child, bytes(rng.randrange(8, 200)), rng.randrange(1_000, 500_000), rng.choice([None, 0]))
                for _ in range(rng.randrange(4))
            ]
        elif rng.random() < 0.5:
            things.append(child.drain())
    for thing in things:
        if isinstance(thing, Heartbeat) and rng.random() < 0.3:
            thing.update(bytes(rng.randrange(8, 400)))
    if rng.random() < 0.2:
        client.shut()
        client.reconnect(20)
    rng.shuffle(things)
    for thing in things[: rng.randrange(len(things) + 1)]:
        thing.close()
    if rng.random() < 0.3:
        other = threading.Thread(target=client.close)
        other.start()
        other.join()


def footprint() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "resident": int(fields["RssAnon"].split()[0]) * 1024,
    }


def test_five_hundred_random_cycles_leave_nothing_behind(media_driver: MediaDriver, until: Until) -> None:
    rng = random.Random(4)
    for _ in range(50):
        cycle(media_driver, rng)
    before = footprint()
    for _ in range(500):
        cycle(media_driver, rng)
    until(lambda: footprint()["threads"] <= before["threads"])  # one that was joined is counted for a moment more
    after = footprint()
    assert after["files"] == before["files"]
    assert after["threads"] <= before["threads"]
    assert after["resident"] - before["resident"] < 4 * 1024 * 1024
