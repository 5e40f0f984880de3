"""The two kinds of URI that lead a consumer to its payloads, and what each of them stands for."""

from __future__ import annotations

import msgspec
import pytest

from framepool.bridge.fallback import link_of
from framepool.config import Config
from framepool.errors import ConfigurationError

LAB = {
    "payload_channel": "aeron:udp?endpoint=10.0.0.2:1",
    "payload_stream_id": 3000,
    "control_channel": "aeron:udp?endpoint=10.0.0.2:2",
    "control_stream_id": 3001,
}
CONFIG = msgspec.convert({"bridges": {"lab": LAB}}, Config)


def test_aeron_uri_has_chunks_on_its_stream_and_announces_on_the_next() -> None:
    link = link_of("aeron:udp?endpoint=10.0.0.2:40123|stream-id=3000", CONFIG)
    assert link.payload_channel == link.control_channel == "aeron:udp?endpoint=10.0.0.2:40123"
    assert (link.payload_stream_id, link.control_stream_id) == (3000, 3001)
    assert link.metadata_channel == ""
    assert link.mtu == 65_504, "a sender's own MTU is not known: any chunk that fits a datagram will do"


def test_aeron_uri_may_name_the_stream_of_announces_and_the_mtu() -> None:
    link = link_of("aeron:udp?endpoint=10.0.0.2:1|stream-id=3000|control-stream-id=3099|mtu=8k", CONFIG)
    assert (link.control_stream_id, link.mtu) == (3099, 8192)


def test_bridge_uri_is_what_the_configuration_says() -> None:
    assert link_of("bridge://lab", CONFIG) == CONFIG.bridges["lab"]


@pytest.mark.parametrize(
    "uri", ["bridge://", "bridge://other", "aeron:udp?endpoint=10.0.0.2:1", "aeron:ipc?stream-id=1"]
)
def test_uri_that_leads_nowhere_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        link_of(uri, CONFIG)
