"""Every message of every schema, carried by a real Aeron, by shared memory and by UDP, and read again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from framepool.transport import channel
from framepool.transport.aeron import Client
from framepool.transport.media_driver import MediaDriver
from framepool.wire.describe import describe
from framepool.wire.dispatch import decode, peek_header
from tests.support.ports import free_port

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS: list[dict[str, Any]] = [
    vector
    for name in ("sbe-vectors.json", "hand-vectors.json")
    for vector in json.loads((GOLDEN / name).read_text())
    if vector["with_header"]
]


def carry(client: Client, where: str, messages: list[bytes]) -> list[bytes]:
    """Sends the messages and returns what arrives, in order."""
    subscription = client.add_subscription(where, 1)
    publication = client.add_publication(where, 1)
    received: list[bytes] = []
    waiting = list(messages)
    deadline = time.monotonic() + 20
    while len(received) < len(messages) and time.monotonic() < deadline:
        if waiting and publication.offer(waiting[0]) >= 0:
            waiting.pop(0)
        received += subscription.poll()
    return received


@pytest.mark.clause("N-4.1-01", "S-5-01")
@pytest.mark.parametrize("media", ["ipc", "udp"])
def test_messages_of_all_schemas_arrive_with_their_header_and_say_the_same(
    media_driver: MediaDriver, media: str
) -> None:
    where = channel.control() if media == "ipc" else f"aeron:udp?endpoint=127.0.0.1:{free_port()}|term-length=64k"
    with Client.connect(media_driver.settings) as client:
        received = carry(client, where, [bytes.fromhex(vector["hex"]) for vector in VECTORS])
    assert len(received) == len(VECTORS)
    for vector, data in zip(VECTORS, received, strict=True):
        header = peek_header(data)
        assert (header.schema_id, header.version) == (vector["schema_id"], vector["version"])
        assert (header.template_id, header.block_length) == (vector["template_id"], vector["block_length"])
        assert describe(decode(data)) == vector["fields"]
    assert {vector["schema_id"] for vector in VECTORS} == {900, 901, 902, 904, 905, 910}
