"""What the console takes from whoever can connect, before anything is known of them."""

from __future__ import annotations

import logging

import pytest
from starlette.requests import HTTPConnection

from framepool.config import ConsoleConfig
from framepool.console.pages import stream_of
from framepool.console.web import Keeper


@pytest.mark.parametrize("text", ["", "-1", "1.5", " 7", "1_0", "１２", "4294967295", "9" * 400, "0x10", "stream"])
def test_what_is_no_stream_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no stream"):
        stream_of(text)


def test_stream_ids_are_numbers_of_32_bits() -> None:
    assert [stream_of("0"), stream_of("10000"), stream_of("4294967294")] == [0, 10_000, 2**32 - 2]


def test_nobody_writes_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The path of a request comes from outside, decoded: it may have anything in it, and be as long as it likes."""
    scope = {
        "type": "http",
        "path": "/\nroot: all is well " + "x" * 5000,
        "query_string": b"\xa0",
        "headers": [],
        "client": ("127.0.0.1", 1),
    }
    with caplog.at_level(logging.WARNING):
        Keeper(ConsoleConfig(), "token").refuse("unknown host", HTTPConnection(scope))
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 300
