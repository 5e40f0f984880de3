"""One open page: what waits for it, and in how many messages it gets that."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket

from framepool.console.pages import MESSAGE_BYTES, Drawn, Page, Watch
from framepool.console.picture import Wish


class Line:
    """The server's end of a WebSocket, which keeps what it is given to send."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def page(line: Line, streams: int) -> Any:
    """A page that watches so many streams."""
    made = Page(cast(WebSocket, line), trusted=False, loop=asyncio.get_running_loop())
    made.on_message(Watch({str(stream_id): Wish() for stream_id in range(streams)}))
    sending = asyncio.create_task(made.send_all())
    yield made
    sending.cancel()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("nbytes", "messages"), [(1, 1), (MESSAGE_BYTES // 2, 4), (MESSAGE_BYTES, 8)])
def test_pictures_of_a_turn_come_in_as_few_messages_as_their_length_allows(nbytes: int, messages: int) -> None:
    pictures = {stream_id: bytes([stream_id]) * nbytes for stream_id in range(8)}

    async def run() -> list[bytes]:
        line = Line()
        async with page(line, 8) as made:
            made.show(pictures)
            await settle()
        return line.sent

    sent = asyncio.run(run())
    assert len(sent) == messages
    assert b"".join(sent) == b"".join(pictures.values())


def test_a_stream_that_is_not_drawn_yet_gets_no_other_picture() -> None:
    async def run() -> None:
        line = Line()
        async with page(line, 3) as made:
            made.show({0: b"a", 1: b"b"})
            await settle()
            assert line.sent == [b"ab"]
            assert [stream_id for stream_id in range(3) if made.wishes(stream_id)] == [2]
            made.on_message(Drawn([1, 7]))
            assert [stream_id for stream_id in range(9) if made.wishes(stream_id)] == [1, 2]

    asyncio.run(run())


def test_pictures_of_streams_that_it_watches_no_more_are_not_sent() -> None:
    async def run() -> None:
        line = Line()
        async with page(line, 3) as made:
            made.show({0: b"a", 1: b"b"})
            made.on_message(Watch({"1": Wish()}))
            await settle()
            assert line.sent == [b"b"]

    asyncio.run(run())
