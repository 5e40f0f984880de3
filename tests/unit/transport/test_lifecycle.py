"""Closing: any order, any thread, twice, by the garbage collector, while others are at work."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from framepool.errors import TransportBusy, TransportClosed, TransportError
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from tests.support.ports import free_port
from tests.unit.transport.conftest import CHANNEL, Ends

Until = Callable[..., None]


def test_any_order_of_closing(media_driver: MediaDriver) -> None:
    for order in itertools.permutations(["publication", "subscription", "drain", "counter", "client"]):
        client = Client.connect(media_driver.settings)
        publication = client.add_publication_async(CHANNEL, 10)
        counter = client.add_counter_async(2000, "x")
        subscription = client.add_subscription(CHANNEL, 10)
        closeable = {
            "client": client,
            "publication": publication.wait(10),
            "subscription": subscription,
            "counter": counter.wait(10),
            "drain": subscription.drain(),
        }
        for name in order + order:
            closeable[name].close()
        assert client.children() == [], order
        with pytest.raises(TransportClosed):
            publication.wait(10).offer(b"x")
        with pytest.raises(TransportClosed):
            client.add_publication(CHANNEL, 10)


def test_closing_the_media_driver_first_is_harmless(media_driver: MediaDriver, client: Client, ends: Ends) -> None:
    media_driver.close()
    ends.publication.close()
    client.close()
    ends.subscription.close()


def test_dropped_objects_are_given_back(client: Client, until: Until) -> None:
    subscription = client.add_subscription(CHANNEL, 10)
    publication = client.add_publication(CHANNEL, 10)
    until(lambda: subscription.image_count == 1)
    del publication
    gc.collect()
    until(lambda: subscription.image_count == 0)
    assert client.children() == [subscription]


def test_network_address_that_its_last_user_is_leaving_is_waited_for(client: Client) -> None:
    port = free_port()
    for _ in range(20):
        client.add_subscription(f"aeron:udp?endpoint=127.0.0.1:{port}", 10).close()


def test_reconnecting_goes_on_at_an_address_that_is_still_being_left(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaving:
        refusals = 3

        def add(self) -> None: ...

        def poll_add(self) -> bool:
            if self.refusals:
                self.refusals -= 1
                raise TransportBusy("please retry")
            return True

    leaving = Leaving()
    client.shut()
    monkeypatch.setattr(Client, "children", lambda self: [leaving])
    client.reconnect(30)
    assert leaving.refusals == 0
    assert client.connected
    monkeypatch.undo()


def test_cycles_of_objects_are_collected(media_driver: MediaDriver, until: Until) -> None:
    """A handler that closes over its own subscription must not keep the client and its thread for ever."""
    gc.collect()
    threads = thread_count()
    for _ in range(5):
        client = Client.connect(media_driver.settings)
        subscription = client.add_subscription(CHANNEL, 10)
        client.itself = [client, subscription, subscription.drain()]  # type: ignore[attr-defined]
    del client, subscription
    gc.collect()
    until(lambda: thread_count() <= threads)  # the kernel counts a joined thread for a moment more


def test_client_outlives_its_name_while_a_child_is_used(media_driver: MediaDriver, until: Until) -> None:
    publication = Client.connect(media_driver.settings).add_publication(CHANNEL, 10)
    gc.collect()
    assert publication.offer(b"x") == -1
    assert publication.client.connected


def test_closing_while_other_threads_add_poll_and_offer(media_driver: MediaDriver) -> None:
    """Neither a crash nor a hang, and every thread learns of the close."""
    for _ in range(15):
        client = Client.connect(media_driver.settings)
        publication = client.add_publication(CHANNEL, 10)
        subscription = client.add_subscription(CHANNEL, 10)
        drained = client.add_subscription(CHANNEL, 10)
        drain = drained.drain()
        stopped: list[str] = []

        def loop(name: str, work: Callable[[], object], stopped: list[str] = stopped) -> None:
            try:
                while True:
                    work()
            except TransportClosed:
                stopped.append(name)

        works: dict[str, Callable[[], object]] = {
            "offer": lambda p=publication: p.offer(b"x"),  # type: ignore[misc]
            "claim": lambda p=publication: p.try_claim(8),  # type: ignore[misc]
            "poll": lambda s=subscription: s.poll(),  # type: ignore[misc]
            "images": lambda s=drained: s.images(),  # type: ignore[misc]
            "take": lambda d=drain: (d.wait(0.01), d.take()),  # type: ignore[misc]
            "add": lambda c=client: c.add_subscription(CHANNEL, 11),  # type: ignore[misc]
        }
        threads = [threading.Thread(target=loop, args=item) for item in works.items()]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        client.close()
        for thread in threads:
            thread.join(20)
        assert sorted(stopped) == sorted(works)


def test_two_threads_that_poll_share_the_messages(ends: Ends) -> None:
    seen: list[bytes] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            ends.subscription.poll_handler(lambda message: (time.sleep(0), seen.append(message)))

    threads = [threading.Thread(target=poll) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(5000):
        while ends.publication.offer(b"%d" % i) < 0:
            time.sleep(0.0005)
    deadline = time.monotonic() + 20
    while len(seen) < 5000 and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join(10)
    assert sorted(seen) == sorted(b"%d" % i for i in range(5000))


EXIT = """
import ctypes, sys
from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings
client = Client.connect(AeronSettings(directory=sys.argv[1]))
publication = client.add_publication("aeron:ipc?term-length=64k", 10)
drain = client.add_subscription("aeron:ipc?term-length=64k", 10).drain()
claim = publication.try_claim(8)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(drain))  # something keeps it to the very end
"""


def test_program_may_end_without_closing(media_driver: MediaDriver, client: Client, until: Until) -> None:
    """Its client says goodbye at exit: the subscriber is gone long before the liveness timeout."""
    publication = client.add_publication(CHANNEL, 10)
    result = subprocess.run([sys.executable, "-c", EXIT, media_driver.directory], capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, b"")
    until(lambda: not publication.is_connected, 5.0)


def test_open_client_cannot_be_opened_again(client: Client, media_driver: MediaDriver) -> None:
    client.reconnect()
    assert client.generation == 1
    with pytest.raises(TransportError, match="open already"):
        client.open(
            media_driver.directory,
            name="x",
            driver_timeout_ms=1000,
            keepalive_interval_ns=1,
            resource_linger_ns=1,
            idle_sleep_ns=1,
        )


def thread_count() -> int:
    """Threads of this process, C's included."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
