"""The streams between two bridges, as either end holds them: chunks, control messages, metadata (Bridge 3, 7, 9).

All mappings of a link share its streams. The outgoing end publishes; the incoming end hands what it hears to the
mapping of the source stream that it is about, and counts what is nobody's. Neither ever waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from framepool.bridge.chunks import ChunkSizing
from framepool.bridge.forward import REPORTS, TOLD, Report, Told
from framepool.bridge.receiver import Assembler, ChunkReceiver
from framepool.bridge.window import listen
from framepool.config import BridgeConfig, Config, LinkConfig
from framepool.errors import ConfigurationError, MediaDriverLost
from framepool.transport import channel
from framepool.transport.aeron import Client, ExclusivePublication, Subscription
from framepool.transport.outbox import Outbox
from framepool.wire._generated.control_900 import FrameProgress, ShmPoolAnnounce
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import Message

log = logging.getLogger(__name__)

WAITING = 256
"""Messages that wait for Aeron; the oldest go first."""
DATA_HEADER_BYTES = 32
"""What Aeron takes of the MTU."""
CHUNKS_PER_TURN = 256
MESSAGES_PER_TURN = 64


def sizing_of(bridge: BridgeConfig, link: LinkConfig) -> ChunkSizing:
    """The sizes that both ends of a link keep to."""
    return ChunkSizing(
        mtu_bytes=link.mtu, chunk_bytes=bridge.chunk_size(link.mtu), max_payload_bytes=bridge.max_payload_bytes
    )


class Voice:
    """One outgoing stream of messages: what Aeron does not take at once waits, and what is too long for it is counted
    and dropped."""

    def __init__(self, client: Client, where: str, stream_id: int, name: str, counts: Counter[str]) -> None:
        self._client = client
        self._name = name
        self._counts = counts
        self._publication = client.add_publication(where, stream_id)
        self._outbox = Outbox(self._publication, name, counts, capacity=WAITING)
        self._connected = False

    def say(self, message: Message) -> None:
        data = message.encode()
        if len(data) > self._publication.max_message_length:
            self._counts[f"{self._name} too long"] += 1
            return
        self._counts[f"{self._name} sent"] += 1
        self._outbox.put(data)

    def turn(self) -> int:
        """Sends what waited, once there is a media driver again."""
        if self._outbox.lost is not None and self._client.connected and not self._client.rejoining:
            self._outbox.lost = None
        return self._outbox.flush()

    def newly_heard(self) -> bool:
        """Whether somebody listens who did not before; raises `MediaDriverLost`."""
        before, self._connected = self._connected, self._publication.is_connected
        return self._connected and not before

    def close(self) -> None:
        self._publication.close()


class OutgoingLink:
    """The sender's end."""

    def __init__(self, client: Client, config: Config, bridge: BridgeConfig, name: str) -> None:
        link = bridge.link(name)
        self.sizing = sizing_of(bridge, link)
        self.counts: Counter[str] = Counter()
        self.metadata: Voice | None = None
        self._voices: list[Voice] = []
        where = channel.complete(link.payload_channel, mtu=str(link.mtu)) if link.mtu_bytes else link.payload_channel
        self.payload: ExclusivePublication = client.add_exclusive_publication(where, link.payload_stream_id)
        try:
            if link.mtu > self.payload.max_payload_length + DATA_HEADER_BYTES:
                raise ConfigurationError(f"the media driver has a smaller MTU for {where} than the {link.mtu} expected")
            where = channel.control(link.control_channel)
            self.control = self._voice(client, where, link.control_stream_id, "control")
            if bridge.forwards_metadata(link):
                stream_id = link.metadata_stream_id or config.stream_ids.bridge_metadata
                self.metadata = self._voice(client, channel.control(link.metadata_channel), stream_id, "metadata")
        except BaseException:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether anybody receives chunks."""
        try:
            return self.payload.is_connected
        except MediaDriverLost:
            return False

    def turn(self) -> int:
        return sum(voice.turn() for voice in self._voices)

    def close(self) -> None:
        self.payload.close()
        for voice in self._voices:
            voice.close()

    def statistics(self) -> dict[str, object]:
        return {"connected": self.connected, **self.counts}

    def _voice(self, client: Client, where: str, stream_id: int, name: str) -> Voice:
        self._voices.append(Voice(client, where, stream_id, name, self.counts))
        return self._voices[-1]


class Arrivals(Protocol):
    """What a mapping does with what comes for it."""

    @property
    def assembler(self) -> Assembler: ...
    def on_announce(self, message: ShmPoolAnnounce) -> None: ...
    def on_told(self, message: Told) -> None: ...
    def on_links(self, message: TraceLinkSet) -> None: ...
    def on_progress(self, message: FrameProgress) -> None: ...
    def on_report(self, message: Report) -> None: ...


class IncomingLink:
    """The receiver's end. What each stream may carry is what is listened for there and nothing else (Bridge 7.2)."""

    def __init__(self, client: Client, config: Config, bridge: BridgeConfig, name: str) -> None:
        link = bridge.link(name)
        self.sizing = sizing_of(bridge, link)
        self.counts: Counter[str] = Counter()
        self._mappings: dict[int, Arrivals] = {}
        self._ears: list[tuple[Subscription, Dispatcher]] = []
        self._payload = listen(client, link.payload_channel, link.payload_stream_id)
        self._chunks = ChunkReceiver(self._payload)
        try:
            control = listen(client, link.control_channel, link.control_stream_id)
            self._ears.append((control, self._hears_control(bridge)))
            if bridge.forwards_metadata(link):
                stream_id = link.metadata_stream_id or config.stream_ids.bridge_metadata
                self._ears.append((listen(client, link.metadata_channel, stream_id), self._hears_metadata()))
        except BaseException:
            self.close()
            raise

    @property
    def senders(self) -> int:
        """How many publications of chunks are heard."""
        try:
            return self._payload.image_count
        except MediaDriverLost:
            return 0

    def add(self, source_stream_id: int, mapping: Arrivals) -> None:
        """What is about this stream goes to the mapping from here on."""
        self._chunks.add(mapping.assembler)
        self._mappings[source_stream_id] = mapping

    def remove(self, source_stream_id: int) -> None:
        """What is about this stream is nobody's from here on."""
        if self._mappings.pop(source_stream_id, None) is not None:
            self._chunks.remove(source_stream_id)

    def turn(self, now_ns: int) -> int:
        """Messages first: a frame is accepted by the announce that came before it. Raises `MediaDriverLost`."""
        work = 0
        for subscription, dispatch in self._ears:
            messages = subscription.poll(MESSAGES_PER_TURN)
            for message in messages:
                dispatch(message)
            work += len(messages)
        return work + self._chunks.poll(now_ns, CHUNKS_PER_TURN)

    def close(self) -> None:
        self._chunks.close()
        self._payload.close()
        for subscription, _ in self._ears:
            subscription.close()

    def statistics(self) -> dict[str, object]:
        kinds: Counter[str] = Counter()
        for _, dispatch in self._ears:
            kinds.update(dispatch.statistics())
        told = {**self._chunks.statistics(), **kinds, **self.counts}
        return {"senders": self.senders, **{name: count for name, count in told.items() if count}}

    def _hears_control(self, bridge: BridgeConfig) -> Dispatcher:
        heard = Dispatcher()
        heard.on(ShmPoolAnnounce, self._to(lambda mapping, message: mapping.on_announce(message)))
        if bridge.forward_progress:
            heard.on(FrameProgress, self._to(lambda mapping, message: mapping.on_progress(message)))
        if bridge.forward_qos:
            for report in REPORTS:
                heard.on(report, self._to(lambda mapping, message: mapping.on_report(message)))
        return heard

    def _hears_metadata(self) -> Dispatcher:
        heard = Dispatcher()
        for told in TOLD:
            heard.on(told, self._to(lambda mapping, message: mapping.on_told(message)))
        heard.on(TraceLinkSet, self._to(lambda mapping, message: mapping.on_links(message)))
        return heard

    def _to[M: Message](self, hand_over: Callable[[Arrivals, M], None]) -> Callable[[M], None]:
        def handle(message: M) -> None:
            stream_id: int = message.stream_id  # type: ignore[attr-defined]  # all of these begin with it
            mapping = self._mappings.get(stream_id)
            if mapping is None:
                self.counts["unmapped messages"] += 1
                if self.counts["unmapped messages"].bit_count() == 1:
                    log.warning("%s of stream %d, which is not mapped here", type(message).__name__, stream_id)
                return
            try:
                hand_over(mapping, message)
            except MediaDriverLost:
                raise
            except Exception:  # one mapping's trouble is not the others'
                self.counts["failed messages"] += 1
                log.exception("%s of stream %d", type(message).__name__, stream_id)

        return handle
