"""The window that a bridge listens with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framepool.bridge import window
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from tests.support.ports import free_port


@pytest.fixture
def client(media_driver: MediaDriver) -> Iterator[Client]:
    with Client.connect(media_driver.settings, name="test") as client:
        yield client


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says about sockets, for the test to write."""
    path = tmp_path / "rmem_max"
    monkeypatch.setattr(window, "KERNELS", path)
    return path


@pytest.mark.parametrize(
    ("said", "expected"), [("8388608\n", 2 * 2**20), ("212992\n", 212_992), ("131072\n", 0), ("much\n", 0), (None, 0)]
)
def test_window_is_what_the_kernel_gives_up_to_a_limit(kernel: Path, said: str | None, expected: int) -> None:
    if said is not None:
        kernel.write_text(said)
    assert window.window() == expected


def test_bridge_listens_with_it(client: Client, kernel: Path) -> None:
    kernel.write_text("163840\n")
    where = f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
    heard = window.listen(client, where, 10)
    assert heard.channel == f"{where}|so-rcvbuf=163840|rcv-wnd=163840"
    assert window.listen(client, where, 11).channel == heard.channel, "the same address again"


def test_where_somebody_listens_with_other_buffers_it_takes_those(client: Client, kernel: Path) -> None:
    kernel.write_text("163840\n")
    where = f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
    first = client.add_subscription(where, 10)
    assert window.listen(client, where, 11).channel == first.channel == where
