"""FALLBACK for real: the frames of a stream for a consumer without shared memory, out of chunks (Wire 10.1.3, 15.12).

A consumer that is told `payload_fallback_uri` receives what a bridge sends, puts frames together in private memory and
needs no driver on its host. Two kinds of URI say where:

- `aeron:udp?endpoint=HOST:PORT|stream-id=N`: chunks are on stream N of this channel and the forwarded announces on
  stream N + 1, unless `control-stream-id=M` names another. With `control=HOST:PORT|control-mode=dynamic` any number of
  consumers join a sender.
- `bridge://ID`: the channels of `[bridges.ID]` in the consumer's own configuration, metadata included.

The source is a member of the pool's control plane, whose thread empties it: a slow program loses frames, and holds up
nobody.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

from framepool.bridge.chunks import ChunkSizing
from framepool.bridge.forward import TOLD
from framepool.bridge.receiver import Assembler, ChunkReceiver, PrivateTarget
from framepool.bridge.window import listen
from framepool.client.fallback import Arrived, SourceRequest
from framepool.config import Config, LinkConfig
from framepool.config.bridge import LARGEST_MTU, MTU_ALLOWANCE
from framepool.errors import AllocationError, ConfigurationError, MediaDriverLost, RegionError
from framepool.transport import channel
from framepool.wire._generated.control_900 import ShmPoolAnnounce
from framepool.wire.dispatch import Dispatcher

log = logging.getLogger(__name__)

STREAM_ID, CONTROL_STREAM_ID, MTU = "stream-id", "control-stream-id", "mtu"
CHUNKS_PER_TURN = 1024
MESSAGES_PER_TURN = 64


def open_source(request: SourceRequest) -> FallbackStream:
    """What brings the payloads of a stream from where a URI says; `ConfigurationError` for one that leads nowhere."""
    return FallbackStream(request, link_of(request.uri, request.config))


def link_of(uri: str, config: Config) -> LinkConfig:
    """The channels that a `payload_fallback_uri` stands for."""
    scheme, _, rest = uri.partition(":")
    if scheme == "bridge":
        return _known_bridge(rest.removeprefix("//"), config)
    media, parameters = channel.parse(uri)
    if media != "udp":
        raise ConfigurationError(f"{uri!r}: payloads come over UDP, or by bridge://ID")
    try:
        stream_id = int(parameters.pop(STREAM_ID))
        control_id = int(parameters.pop(CONTROL_STREAM_ID, stream_id + 1))
    except KeyError:
        raise ConfigurationError(f"{uri!r} names no {STREAM_ID}") from None
    except ValueError as error:
        raise ConfigurationError(f"{uri!r}: {error}") from None
    mtu = LARGEST_MTU if MTU not in parameters else 0
    where = channel.build(media, parameters)
    try:
        return LinkConfig(
            payload_channel=where,
            payload_stream_id=stream_id,
            control_channel=where,
            control_stream_id=control_id,
            mtu_bytes=mtu,
        )
    except ValueError as error:
        raise ConfigurationError(f"{uri!r}: {error}") from None


def _known_bridge(name: str, config: Config) -> LinkConfig:
    if name in config.bridges:
        return config.bridges[name]
    known = ", ".join(sorted(config.bridges)) or "none"
    raise ConfigurationError(f"bridge {name!r} is not in [bridges]; known: {known}")


class FallbackStream:
    """One stream in private memory. A `PayloadSource`: turned by the control plane, read by the consumer's thread."""

    def __init__(self, request: SourceRequest, link: LinkConfig) -> None:
        client, self._plane = request.client, request.plane
        self._stream_id = request.stream_id
        sizing = ChunkSizing(mtu_bytes=link.mtu, chunk_bytes=link.mtu - MTU_ALLOWANCE)
        self._assembler = Assembler(request.stream_id, sizing)
        self._target: PrivateTarget | None = None
        self._ready = threading.Event()
        self._counts: Counter[str] = Counter()
        self._payload = listen(client, link.payload_channel, link.payload_stream_id)
        self._chunks = ChunkReceiver(self._payload)
        self._chunks.add(self._assembler)
        heard = Dispatcher()
        heard.on(ShmPoolAnnounce, self._on_announce)
        self._ears = [(listen(client, link.control_channel, link.control_stream_id), heard)]
        if link.metadata_channel:
            told = Dispatcher()
            for kind in TOLD:
                told.on(kind, lambda message: message.stream_id == request.stream_id and request.tell(message))
            stream_id = link.metadata_stream_id or request.config.stream_ids.bridge_metadata
            self._ears.append((listen(client, link.metadata_channel, stream_id), told))

    def start(self) -> None:
        pass

    def do_work(self) -> int:
        try:
            work = self._hear() + self._chunks.poll(self._plane.clock.monotonic_ns(), CHUNKS_PER_TURN)
        except MediaDriverLost:  # the plane waits for it
            return 0
        if self._target is not None and self._target.waiting:
            self._ready.set()
        return work

    def due_ns(self) -> int:
        return 0

    def close(self) -> None:
        self._assembler.target = None
        self._chunks.close()
        self._payload.close()
        for subscription, _ in self._ears:
            subscription.close()

    @property
    def epoch(self) -> int | None:
        return self._assembler.epoch

    def take(self, limit: int) -> list[Arrived]:
        with self._plane.lock():
            target, epoch = self._target, self._assembler.epoch
            if target is None or epoch is None:
                return []
            taken = [Arrived(target.reader, checked, epoch, trace_id) for checked, trace_id in target.take(limit)]
            if not target.waiting:
                self._ready.clear()
        return taken

    def wait(self, timeout: float) -> bool:
        return self._ready.wait(timeout)

    def statistics(self) -> dict[str, int]:
        with self._plane.lock():
            target = {} if self._target is None else self._target.statistics()
            return {**self._chunks.statistics(), **self._assembler.statistics(), **target, **self._counts}

    def _hear(self) -> int:
        heard = 0
        for subscription, dispatch in self._ears:
            messages = subscription.poll(MESSAGES_PER_TURN)
            for message in messages:
                dispatch(message)
            heard += len(messages)
        return heard

    def _on_announce(self, message: ShmPoolAnnounce) -> None:
        """The pools of the source are the shape of the memory that its frames come to; a new epoch begins anew. The
        frames of the one before stay whole for whoever holds them."""
        if message.stream_id != self._stream_id:
            return
        strides = {pool.pool_id: pool.stride_bytes for pool in message.payload_pools}
        if not self._assembler.announce(message.epoch, strides, self._plane.clock.monotonic_ns()):
            return
        try:
            self._target = PrivateTarget(strides)
        except (AllocationError, RegionError, ValueError) as error:
            self._target = None
            self._counts["refused layouts"] += 1
            log.warning("stream %d: no private memory for its frames: %s", self._stream_id, error)
        self._assembler.target = self._target
