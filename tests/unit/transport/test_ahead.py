"""Pages of a log that are there before anybody needs them."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from framepool._native.limits import aeron_send
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from tests.support.c_program import run_c
from tests.unit.transport.conftest import Until, open_for_messages

CHUNK = 64 * 1024
PAGES = CHUNK // mmap.PAGESIZE
MESSAGE = 64 - 32
"""Bytes of a message that takes 64 in the log."""


def mappings(log: Path) -> list[int]:
    """Where this process has a log mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.split("-")[0], 16) for line in lines if line.endswith(str(log)) and " 00000000 " in line]


def shown(address: int, chunk: int) -> int:
    """Pages of a chunk of a mapping that this process has in its tables."""
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek((address + chunk * CHUNK) // mmap.PAGESIZE * 8)
        words = struct.unpack(f"<{PAGES}Q", pagemap.read(8 * PAGES))
    return sum(word >> 63 for word in words)


def test_the_next_chunk_is_there_before_it_is_begun(media_driver: MediaDriver, until: Until) -> None:
    settings = media_driver.settings
    logs = Path(settings.directory) / "publications"
    with Client.connect(settings, name="sender") as ours, Client.connect(settings, name="reader") as theirs:
        before = set(logs.iterdir())
        publication = ours.add_exclusive_publication("aeron:ipc?term-length=1m", 77)
        (log,) = set(logs.iterdir()) - before
        speakers = mappings(log)  # the media driver's in this process, and the sender's
        subscription = theirs.add_subscription("aeron:ipc?term-length=1m", 77)
        drain = subscription.drain(capacity=4096)
        until(lambda: open_for_messages(publication) and subscription.is_connected)
        (reader,) = set(mappings(log)) - set(speakers)

        def send(nbytes: int) -> None:
            assert aeron_send(publication, MESSAGE, nbytes // 64, 0) == nbytes // 64
            left = nbytes // 64
            while left:
                left -= len(drain.take())
            drain.take()  # nothing: time to look ahead

        send(CHUNK - 64)
        (sender,) = (each for each in speakers if shown(each, 0) == PAGES)
        assert shown(sender, 1) == 0, "who sends little takes no page more than it fills"
        send(2 * 64)
        assert (shown(sender, 1), shown(sender, 2)) == (1, PAGES)
        assert shown(reader, 2) == 0, "the sender may be at it still"
        send(CHUNK // 2)
        assert shown(reader, 2) == PAGES
        assert (shown(sender, 3), shown(reader, 3)) == (0, 0)


def test_messages_stay_whole_while_the_log_is_gone_through_again(media_driver: MediaDriver, until: Until) -> None:
    """Terms of one chunk: the next one is in the next term, or the first again."""
    settings = media_driver.settings
    with Client.connect(settings, name="both") as client:
        publication = client.add_exclusive_publication("aeron:ipc?term-length=64k", 78)
        drain = client.add_subscription("aeron:ipc?term-length=64k", 78).drain(capacity=4096, max_message=1024)
        until(lambda: open_for_messages(publication))
        got: list[bytes] = []
        sent = 0
        while publication.position < 7 * CHUNK:
            sent += aeron_send(publication, 1000, 8, 1000)
            got += drain.take()
        until(lambda: got.extend(drain.take()) or len(got) >= sent)
        stamps = np.array([struct.unpack_from("<q", message)[0] for message in got])
        assert len(got) == sent
        assert np.all(np.diff(stamps) > 0)
        assert {message[8:] for message in got} == {bytes(992)}


def test_a_log_without_room_is_left_alone(tmp_path: Path) -> None:
    assert run_c(Path(__file__).parent / "ahead_test.c", tmp_path) == "ok\n"
