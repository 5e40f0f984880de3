"""The media driver dies, or gives a client up: it is reported in time, nobody exits, everybody carries on."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from framepool.errors import MediaDriverLost, TransportTimeout
from framepool.transport.aeron import Client
from framepool.transport.listener import Listener
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from tests.support.processes import Process, Processes

WORKER = str(Path(__file__).parent / "aeron_worker.py")
CHANNEL = "aeron:ipc?term-length=64k"
TIMEOUT = 5.0
SLACK = 15.0
"""Seconds on top of a timeout for a machine that is busy with other tests; without them it is within the timeout."""


def start_driver(processes: Processes, directory: Path, liveness: float = 10.0) -> Process:
    process = processes.start(
        *("-m", "framepool.cli.media_driver", "--dir", str(directory), "--json"),
        *("--client-liveness", str(liveness), "--ipc-term-length", str(64 * KIB)),
    )
    assert json.loads(process.line())["event"] == "ready"
    return process


def start_pair(processes: Processes, directory: Path) -> list[Process]:
    """Two workers, each reading what the other sends: one polls, one has a drain."""
    pair = [
        processes.start(WORKER, str(directory), "1", "2", str(TIMEOUT), "poll"),
        processes.start(WORKER, str(directory), "2", "1", str(TIMEOUT), "drain"),
    ]
    for worker in pair:
        worker.wait_line("ready")
    for worker in pair:
        worker.wait_line("flowing")
    return pair


def lost_at(worker: Process, timeout: float) -> float:
    return float(worker.wait_line("lost", timeout).split()[1])


def test_killed_media_driver_is_reported_in_time_and_both_clients_carry_on(
    processes: Processes, base_dir: Path
) -> None:
    driver = start_driver(processes, base_dir / "aeron")
    pair = start_pair(processes, base_dir / "aeron")
    driver.kill()
    killed = time.monotonic()
    waits = [lost_at(worker, 60) - killed for worker in pair]
    print(f"reported after {waits[0]:.2f} s and {waits[1]:.2f} s with a timeout of {TIMEOUT} s")
    assert max(waits) <= TIMEOUT + SLACK
    assert [worker.popen.poll() for worker in pair] == [None, None]
    start_driver(processes, base_dir / "aeron")
    for worker in pair:
        assert worker.wait_line("back") == "back 2"
    for worker in pair:
        worker.wait_line("flowing")


def test_media_driver_replaced_before_the_timeout_is_noticed_too(processes: Processes, base_dir: Path) -> None:
    """The clients still hold the files of the dead one: its heart does not beat there."""
    driver = start_driver(processes, base_dir / "aeron")
    pair = start_pair(processes, base_dir / "aeron")
    driver.kill()
    start_driver(processes, base_dir / "aeron")
    for worker in pair:
        assert worker.wait_line("back") == "back 2"
    for worker in pair:
        worker.wait_line("flowing")


def test_media_driver_that_ends_cleanly_is_noticed_without_a_timeout(processes: Processes, base_dir: Path) -> None:
    driver = start_driver(processes, base_dir / "aeron")
    pair = start_pair(processes, base_dir / "aeron")
    driver.signal(signal.SIGTERM)
    for worker in pair:
        assert "shutdown" in worker.wait_line("lost")
    start_driver(processes, base_dir / "aeron")
    for worker in pair:
        worker.wait_line("back")
        worker.wait_line("flowing")


def test_client_stopped_past_its_liveness_reports_it_and_carries_on(processes: Processes, base_dir: Path) -> None:
    """SIGSTOP for longer than the media driver's patience: it has given the client up when that wakes."""
    start_driver(processes, base_dir / "aeron", liveness=4.0)
    stopped, other = start_pair(processes, base_dir / "aeron")
    stopped.signal(signal.SIGSTOP)
    time.sleep(5.5)
    woken = time.monotonic()
    stopped.signal(signal.SIGCONT)
    assert lost_at(stopped, 20) - woken <= SLACK + TIMEOUT
    assert stopped.wait_line("back") == "back 2"
    stopped.wait_line("flowing")
    other.wait_line("flowing")
    assert not [line for line in other.lines if line.startswith("lost")]


@pytest.mark.parametrize("use", ["offer", "claim", "poll", "handler", "take", "counter", "add", "verify", "images"])
def test_every_use_of_a_lost_client_raises(base_dir: Path, use: str) -> None:
    settings = AeronSettings(directory=str(base_dir / "aeron"), driver_timeout=10.0, keepalive_interval=0.05)
    with MediaDriver(settings) as driver:
        client = Client.connect(settings)
        publication = client.add_publication(CHANNEL, 1)
        subscription = client.add_subscription(CHANNEL, 1)
        drain = client.add_subscription(CHANNEL, 1).drain()
        counter = client.add_counter(3000, "x")
        driver.close()
        uses = {
            "offer": lambda: publication.offer(b"x"),
            "claim": lambda: publication.try_claim(1),
            "poll": subscription.poll,
            "handler": lambda: subscription.poll_handler(print),
            "take": drain.take,
            "counter": counter.increment,
            "add": lambda: client.add_publication(CHANNEL, 2),
            "verify": client.verify,
            "images": subscription.images,
        }
        deadline = time.monotonic() + 10
        while client.connected:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(MediaDriverLost, match="reconnect when it is back"):
            uses[use]()
        with pytest.raises(MediaDriverLost):
            drain.wait(5)
    with pytest.raises(TransportTimeout, match="no media driver"):
        client.reconnect(0.1)
    with pytest.raises(MediaDriverLost):
        uses[use]()
    client.close()


def test_objects_in_hand_live_on_in_the_same_process(base_dir: Path) -> None:
    settings = AeronSettings(directory=str(base_dir / "aeron"), driver_timeout=10.0, keepalive_interval=0.05)
    with MediaDriver(settings) as driver:
        client = Client.connect(settings)
        publication = client.add_exclusive_publication(CHANNEL, 1)
        subscription = client.add_subscription(CHANNEL, 1)
        drained = client.add_subscription(CHANNEL, 1)
        drain = drained.drain()
        counter = client.add_counter(3000, "x")
        before = counter.registration_id, publication.session_id, client.client_id
        driver.close()
        with pytest.raises(MediaDriverLost):
            drain.wait(60)
    with MediaDriver(settings):
        started = time.monotonic()
        client.reconnect(10)
        print(f"reconnected in {1000 * (time.monotonic() - started):.0f} ms")
        assert client.generation == 2
        assert publication.session_id != before[1]
        while not (subscription.is_connected and drained.is_connected) or publication.offer(b"again") < 0:
            time.sleep(0.001)
        assert drain.wait(10)
        assert drain.take() == [b"again"]
        assert subscription.poll() == [b"again"]
        assert counter.increment() == 0
        client.close()


FORK = """
import os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from framepool.errors import ForkedError
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings

settings = AeronSettings(directory=sys.argv[1])
driver = MediaDriver(settings)
client = Client.connect(settings)
publication = client.add_publication("aeron:ipc?term-length=64k", 1)
subscription = client.add_subscription("aeron:ipc?term-length=64k", 1)
drain = client.add_subscription("aeron:ipc?term-length=64k", 1).drain()
counter = client.add_counter(3000, "x")
claim = None
while not publication.is_connected:
    time.sleep(0.001)
claim = publication.try_claim(4)

def refused(use):
    try:
        use()
    except ForkedError as error:
        return "spawn" in str(error)
    return False

child = os.fork()
if child == 0:
    uses = [lambda: publication.offer(b"x"), lambda: publication.try_claim(1), subscription.poll, drain.take,
            lambda: drain.wait(1), drain.fileno, counter.increment, client.verify, claim.commit, subscription.images,
            lambda: client.add_publication("aeron:ipc", 2), client.reconnect]
    answers = [refused(use) for use in uses]
    with_new = Client.connect(settings)
    fresh = with_new.add_publication("aeron:ipc?term-length=64k", 5)
    answers.append(fresh.offer(b"x") == -1)
    print("child", all(answers), answers, flush=True)
    claim.abort(); publication.close(); subscription.close(); drain.close(); client.close(); driver.close()
    del claim, publication, subscription, drain, counter, client, driver
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
memoryview(claim)[:] = b"mine"
claim.commit()
deadline = time.monotonic() + 10
while not (messages := subscription.poll()):
    assert time.monotonic() < deadline
print("parent", messages, os.path.exists(driver.directory + "/cnc.dat"), os.path.exists(driver.directory + ".lock"))
"""


def test_forked_child_is_refused_and_takes_nothing_with_it(processes: Processes, base_dir: Path) -> None:
    process = processes.start("-c", FORK, str(base_dir / "aeron"))
    assert process.wait_line("child").startswith("child True")
    assert process.wait_line("parent") == "parent [b'mine'] True True"
    assert process.wait() == 0
    assert os.listdir(base_dir) == []


def test_forked_child_does_not_keep_the_lock_of_a_dead_media_driver(processes: Processes, base_dir: Path) -> None:
    code = (
        "import os, sys, time, warnings; warnings.simplefilter('ignore')\n"
        "from framepool.transport.media_driver import MediaDriver\n"
        "from framepool.transport.settings import AeronSettings\n"
        "driver = MediaDriver(AeronSettings(directory=sys.argv[1]))\n"
        "child = os.fork()\n"
        'os.write(1, f\'{"child" if child == 0 else "parent"} {os.getpid()}\\n\'.encode())  # in one piece\n'
        "time.sleep(60)\n"
    )
    process = processes.start("-c", code, str(base_dir / "aeron"))
    lines = dict(process.line().split() for _ in range(2))
    process.kill()
    try:
        with MediaDriver(AeronSettings(directory=str(base_dir / "aeron"))) as driver:
            assert driver.running
    finally:
        os.kill(int(lines["child"]), signal.SIGKILL)


SPEAKER = """
import sys, time
from framepool.transport.aeron import Client
from framepool.transport.settings import AeronSettings
with Client.connect(AeronSettings(directory=sys.argv[1])) as client:
    print("ready", flush=True)
    sys.stdin.readline()
    publication = client.add_exclusive_publication(sys.argv[2], 1)
    while True:
        publication.offer(b"x")
        time.sleep(0.01)
"""


def test_listener_hears_a_publication_whose_log_could_not_be_mapped_at_first(
    processes: Processes, base_dir: Path
) -> None:
    """Aeron's client reports that and does not try again."""
    settings = AeronSettings(directory=str(base_dir / "aeron"))
    start_driver(processes, base_dir / "aeron")
    with Client.connect(settings) as client:
        speaker = processes.start("-c", SPEAKER, settings.directory, CHANNEL)
        speaker.wait_line("ready")
        listener = Listener(client.add_subscription(CHANNEL, 1))
        while os.open(os.devnull, os.O_RDONLY) < 3:
            pass  # the standard ones are to be taken
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        deadline = time.monotonic() + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # so there are no more
        try:
            speaker.say("go")
            while not client.errors():
                assert time.monotonic() < deadline, (speaker.popen.poll(), listener.poll())
                time.sleep(0.01)
            assert listener.poll() == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        while not listener.poll():
            assert time.monotonic() < deadline, client.errors()
            time.sleep(0.01)
