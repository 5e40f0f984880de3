"""Aeron IPC goes at the pace of its slowest subscriber, unless that one lets itself be left behind.

What is shown over many term buffers: a program that does not attend to its subscription, and one that is stopped
altogether, neither stop the publisher for good nor cost an attentive subscriber one message.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from framepool.transport import channel
from framepool.transport.aeron import Client, Outcome, Publication
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import KIB, AeronSettings
from tests.faults.aeron_reader import END, message, ranges
from tests.support.processes import Process, Processes

READER = str(Path(__file__).parent / "aeron_reader.py")
TERM = 64 * KIB
STREAM = 1100


class Sender:
    """Offers once per number and never again: what was not sent is lost, as for a producer of frames."""

    def __init__(self, publication: Publication, pause: float = 0.0002) -> None:
        self.publication = publication
        self.pause = pause
        self.sent: list[int] = []
        self.lost = 0
        self.next = 0
        self.longest_stall = 0.0

    def run(self, terms: float, seconds: float) -> bool:
        """Sends until `terms` term buffers are full; False if that takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        target = self.publication.position + int(terms * TERM)
        last_sent = time.monotonic()
        while self.publication.position < target:
            outcome = self.publication.offer(message(self.next))
            if outcome > 0:
                self.sent.append(self.next)
                now = time.monotonic()
                self.longest_stall = max(self.longest_stall, now - last_sent)
                last_sent = now
            else:
                assert outcome == Outcome.BACK_PRESSURED
                self.lost += 1
            self.next += 1
            if time.monotonic() > deadline:
                return False
            time.sleep(self.pause)
        return True

    def end(self) -> None:
        while self.publication.offer(message(END)) < 0:
            time.sleep(0.001)


@pytest.fixture
def settings(base_dir: Path) -> AeronSettings:
    return AeronSettings(
        directory=str(base_dir / "aeron"),
        client_liveness_timeout=60.0,
        publication_unblock_timeout=61.0,
        untethered_window_limit_timeout=5.0,  # a reader that gets no processor for a while is not one that stopped
    )


def start_reader(processes: Processes, settings: AeronSettings, how: str, *, tether: bool = False) -> Process:
    text = channel.control(term_length=TERM) if tether else channel.descriptor_subscription(term_length=TERM)
    return processes.start(READER, settings.directory, text, str(STREAM), how)


def test_stopped_and_busy_subscribers_hold_up_nobody(processes: Processes, settings: AeronSettings) -> None:
    with MediaDriver(settings), Client.connect(settings) as client:
        publication = client.add_publication(
            channel.descriptor_publication(settings=settings, term_length=TERM), STREAM
        )
        attentive, busy, stopped = (start_reader(processes, settings, how) for how in ("take", "busy", "take"))
        for reader in (attentive, busy, stopped):
            reader.wait_line("ready")
        sender = Sender(publication)
        assert sender.run(3, 30)
        stopped.signal(signal.SIGSTOP)
        assert sender.run(8, 60), "the publication stood still"
        busy.say("go")
        sender.end()
        statistics = publication.statistics()
        report = json.loads(attentive.wait_line("end").removeprefix("end "))
        report_busy = json.loads(busy.wait_line("end").removeprefix("end "))
        print(
            f"\nsent {len(sender.sent)} messages in {publication.position / TERM:.1f} terms, lost {sender.lost}, "
            f"longest stall {1000 * sender.longest_stall:.0f} ms; busy reader: {report_busy['overwritten']} overwritten"
        )
    assert len(sender.sent) + sender.lost == sender.next
    assert statistics["sent"] == len(sender.sent) + 1
    assert statistics["back_pressured"] >= sender.lost > 0
    assert report["taken"] == ranges(sender.sent)
    assert (report["torn"], report["backwards"], report_busy["torn"], report_busy["backwards"]) == (0, 0, 0, 0)
    assert (report["received"], report["overwritten"]) == (len(sender.sent) + 1, 0)
    assert report_busy["received"] == len(sender.sent) + 1
    assert report_busy["overwritten"] > 0


def test_tethered_subscriber_that_is_stopped_does_stop_the_publication(
    processes: Processes, settings: AeronSettings
) -> None:
    """The other way round: this is what the test above would see without `tether=false`."""
    with MediaDriver(settings), Client.connect(settings) as client:
        publication = client.add_publication(
            channel.descriptor_publication(settings=settings, term_length=TERM), STREAM
        )
        attentive = start_reader(processes, settings, "take")
        stopped = start_reader(processes, settings, "take", tether=True)
        for reader in (attentive, stopped):
            reader.wait_line("ready")
        sender = Sender(publication)
        stopped.signal(signal.SIGSTOP)
        while not sender.lost:
            assert not sender.run(3, 3)
        assert publication.position <= 2 * TERM


def test_stopped_subscriber_that_wakes_delivers_nothing_torn(processes: Processes, settings: AeronSettings) -> None:
    """While it was stopped the log was written over many times, right where it will read on."""
    with MediaDriver(settings), Client.connect(settings) as client:
        text = channel.descriptor_publication(settings=settings, term_length=TERM)
        sender = Sender(client.add_publication(text, STREAM), pause=0.0)
        attentive = start_reader(processes, settings, "take")
        stopped = [start_reader(processes, settings, "take") for _ in range(4)]
        for reader in (attentive, *stopped):
            reader.wait_line("ready")
        assert sender.run(4, 30)
        for reader in stopped:
            reader.signal(signal.SIGSTOP)
        assert sender.run(40, 60)
        for reader in stopped:
            reader.signal(signal.SIGCONT)
        assert sender.run(40, 60)
        for reader in stopped:
            reader.say("report")
            report = json.loads(reader.wait_line("end").removeprefix("end "))
            print(f"\n{report['broken']} frames refused, {report['torn']} torn messages, taken {report['taken'][-1:]}")
            assert (report["torn"], report["backwards"]) == (0, 0)


def test_stopped_subscriber_that_wakes_joins_again_when_asked(processes: Processes, settings: AeronSettings) -> None:
    """It was left behind, sees no publication any more, and need not wait for the resting time."""
    with MediaDriver(settings), Client.connect(settings) as client:
        publication = client.add_publication(
            channel.descriptor_publication(settings=settings, term_length=TERM), STREAM
        )
        text = channel.descriptor_subscription(term_length=TERM)
        attentive = client.add_subscription(text, STREAM)
        drain = attentive.drain(capacity=4096, max_message=4096)
        slow = client.add_subscription(text, STREAM)
        deadline = time.monotonic() + 90
        while not (publication.is_connected and slow.is_connected and attentive.is_connected):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        sender = Sender(publication)
        assert sender.run(4, 60)
        while slow.is_connected:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        client.rejoin(slow)
        while not slow.is_connected:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        while publication.offer(message(7777)) < 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        messages: list[bytes] = []
        while message(7777) not in messages:
            assert time.monotonic() < deadline
            messages += slow.poll()
        assert messages[-1] == message(7777), "the last ones before it may come again"
        assert drain.statistics()["overwritten"] == 0
