"""Channel strings: every local one names its term length, and a user's choice is kept."""

from __future__ import annotations

import pytest

from framepool.errors import ConfigurationError
from framepool.transport import channel
from framepool.transport.settings import KIB, MIB, AeronSettings


def test_local_channels_name_their_term_length() -> None:
    assert channel.control() == "aeron:ipc?term-length=1m"
    assert channel.control(term_length=64 * KIB) == "aeron:ipc?term-length=64k"
    assert channel.descriptor_subscription() == "aeron:ipc?term-length=16m|tether=false"


def test_descriptor_publication_says_how_soon_a_stopped_reader_is_left_behind() -> None:
    settings = AeronSettings(directory="x", untethered_window_limit_timeout=0.05, untethered_resting_timeout=60.0)
    assert channel.descriptor_publication(settings=settings, term_length=2 * MIB) == (
        "aeron:ipc?term-length=2m|untethered-window-limit-timeout=50000000ns"
        "|untethered-linger-timeout=50000000ns|untethered-resting-timeout=60000000000ns"
    )


def test_what_the_user_names_is_kept() -> None:
    assert channel.control("aeron:ipc?term-length=4m|alias=x") == "aeron:ipc?term-length=4m|alias=x"
    assert channel.descriptor_subscription("aeron:udp?endpoint=localhost:9|tether=true") == (
        "aeron:udp?endpoint=localhost:9|tether=true|term-length=16m"
    )


def test_network_subscription_has_a_window_unless_the_user_says_something_about_it() -> None:
    plain = "aeron:udp?endpoint=localhost:9"
    assert channel.network_subscription(plain, 4096) == f"{plain}|so-rcvbuf=4096|rcv-wnd=4096"
    for kept in (f"{plain}|rcv-wnd=64k", f"{plain}|so-rcvbuf=1m", "aeron:ipc?alias=x"):
        assert channel.network_subscription(kept, 4096) == kept
    assert channel.network_subscription(plain, 0) == plain


def test_parse_is_the_inverse_of_build() -> None:
    text = "aeron:udp?endpoint=[::1]:4000|mtu=8k"
    assert channel.build(*channel.parse(text)) == text
    assert channel.build(*channel.parse("aeron:ipc")) == "aeron:ipc"


@pytest.mark.parametrize(
    "text",
    ["ipc", "aeron:tcp", "aeron:ipc?a", "aeron:ipc?=1", "aeron:ipc?a=", "aeron:ipc?a=1|a=2"],
)
def test_malformed_channel_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        channel.parse(text)


@pytest.mark.parametrize("length", [0, 1000, 96 * KIB, 2048 * MIB])
def test_impossible_term_length_is_refused(length: int) -> None:
    with pytest.raises(ConfigurationError, match="power of two"):
        channel.control(term_length=length)


def test_two_names_of_one_channel_are_one_place() -> None:
    ipc = channel.place("aeron:ipc")
    assert channel.place("aeron:ipc?term-length=64k|tether=false|alias=x") == ipc
    udp = channel.place("aeron:udp?endpoint=127.0.0.1:40123|mtu=8k")
    assert channel.place("aeron:udp?mtu=1408|endpoint=127.0.0.1:40123") == udp
    elsewhere = ("endpoint=127.0.0.1:40124", "control=127.0.0.1:40123|control-mode=dynamic")
    assert len({ipc, udp, *(channel.place(f"aeron:udp?{each}") for each in elsewhere)}) == 4
