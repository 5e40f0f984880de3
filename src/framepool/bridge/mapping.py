"""One stream on its way to another host, or from one: the mappings of a bridge (Bridge 2.1, 2.2, 7 to 9).

A `SenderMapping` is an ordinary consumer of the source stream that sends what it reads as chunks, and repeats what is
said about the stream beside them. A `ReceiverMapping` is the producer of the destination: frames come out of an
assembler, and what was repeated is said again under the ids of this host. Both are turned by the bridge, never wait,
and carry on by themselves whatever is restarted around them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping as Counts
from typing import Any, Protocol

from framepool.bridge import forward
from framepool.bridge.destination import Destination
from framepool.bridge.forward import REPORTS, TOLD, Report, Told
from framepool.bridge.link import IncomingLink, OutgoingLink, Voice
from framepool.bridge.receiver import Assembler
from framepool.bridge.sender import ChunkSender
from framepool.client.consumer import Consumer
from framepool.client.frame import Frame
from framepool.client.pool import Pool
from framepool.clock import NANOS_PER_MILLI, NANOS_PER_SECOND
from framepool.config import BridgeConfig, MappingConfig
from framepool.discovery.host import this_host
from framepool.errors import MediaDriverLost
from framepool.transport import channel
from framepool.transport.aeron import Filter, Publication
from framepool.transport.listener import Listener
from framepool.wire._generated.control_900 import FrameProgress, QosConsumer, QosProducer, ShmPoolAnnounce
from framepool.wire._generated.trace_904 import TraceLinkSet
from framepool.wire.dispatch import Dispatcher
from framepool.wire.message import MESSAGE_HEADER

log = logging.getLogger(__name__)

CHUNKS_PER_TURN = 256
MESSAGES_PER_TURN = 64
REPEAT_NS = 3 * NANOS_PER_SECOND
"""How old an announce may be that is repeated to a receiver that has just come."""

Voices = Callable[[str, int], Voice]
"""A local stream to say something on, by channel and stream id; mappings share them."""


def key_of(mapping: MappingConfig) -> str:
    """What a mapping is called: its source stream, and its link if it names one."""
    return f"{mapping.source_stream_id}@{mapping.link}" if mapping.link else str(mapping.source_stream_id)


def counted(counts: Counts[str, int], *always: str) -> dict[str, int]:
    """What happened; of the many things that can, those that did not are left out."""
    return {name: count for name, count in counts.items() if count or name in always}


class Mapping(Protocol):
    """What the bridge asks of either kind."""

    config: MappingConfig

    @property
    def state(self) -> str: ...
    def turn(self) -> int: ...
    def close(self) -> None: ...
    def statistics(self) -> dict[str, Any]: ...


class Ear:
    """One local stream, of which only what is about the source stream becomes a Python object."""

    def __init__(self, pool: Pool, where: str, stream_id: int, about: int) -> None:
        only = Filter(offset=MESSAGE_HEADER.size, pattern=about.to_bytes(4, "little"))
        self._subscription = pool.client.add_subscription(channel.control_subscription(where), stream_id, only=only)
        self._listener = Listener(self._subscription)
        self.dispatch = Dispatcher()

    def turn(self) -> int:
        messages = self._listener.poll(MESSAGES_PER_TURN)
        for message in messages:
            self.dispatch(message)
        return len(messages)

    def close(self) -> None:
        self._subscription.close()


class SenderMapping:
    """A stream of this host on its way to others."""

    def __init__(self, pool: Pool, bridge: BridgeConfig, config: MappingConfig, link: OutgoingLink) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self._clock = pool.plane.clock
        self._link = link
        self._host = this_host(pool.config.discovery.host)
        self._announce: ShmPoolAnnounce | None = None
        self._announced_ns = 0
        self._frame: Frame | None = None
        self._chunks = ChunkSender(link.payload, config.source_stream_id, link.sizing, crc32c=bridge.crc32c)
        self._ears: dict[tuple[str, int], Ear] = {}
        try:
            self._listen(pool, bridge)
            self._consumer: Consumer = pool.consumer(
                config.source_stream_id, progress=bridge.forward_progress, timeout=0
            )
        except BaseException:
            self._close_ears()
            raise

    @property
    def state(self) -> str:
        """Where the stream stands: whether its source is there, and whether anybody receives it."""
        if self._consumer.epoch is None:
            return "waiting for the source"
        return "running" if self._link.connected else "waiting for a receiver"

    def turn(self) -> int:
        work = sum(ear.turn() for ear in self._ears.values())
        return work + self._send_frames()

    def repeat(self) -> None:
        """Says the announce again, to a receiver that has just come."""
        if self._announce is not None and self._clock.monotonic_ns() - self._announced_ns < REPEAT_NS:
            self._link.control.say(self._announce)

    def close(self) -> None:
        self._chunks.abandon()
        self._consumer.close()
        self._close_ears()

    def statistics(self) -> dict[str, Any]:
        return {
            "source_epoch": None if self._announce is None else self._announce.epoch,
            "refusal": self._consumer.refusal,
            "frames": counted(self._chunks.statistics(), "sent"),
            "source": counted(self._consumer.counts, "received"),
            **self.counts,
        }

    def _listen(self, pool: Pool, bridge: BridgeConfig) -> None:
        """To the announces of the source, and to what else is to be forwarded of it."""
        ids, channels, config = pool.config.stream_ids, pool.config.channels, self.config

        def ear(where: str, stream_id: int) -> Dispatcher:
            if (where, stream_id) not in self._ears:
                self._ears[where, stream_id] = Ear(pool, where, stream_id, config.source_stream_id)
            return self._ears[where, stream_id].dispatch

        ear(channels.announce, ids.announce).on(ShmPoolAnnounce, self._on_announce)
        if self._link.metadata is not None:
            metadata = ear(channels.metadata, bridge.source_metadata_stream_id or ids.metadata)
            for told in TOLD:
                metadata.on(told, self._on_told)
            metadata.on(TraceLinkSet, self._link.metadata.say)
        if bridge.forward_progress and config.source_control_stream_id:
            ear(channels.control, config.source_control_stream_id).on(FrameProgress, self._on_progress)
        qos = config.source_qos_stream_id or config.source_control_stream_id
        if bridge.forward_qos and qos:
            for report in REPORTS:
                ear(channels.qos if config.source_qos_stream_id else channels.control, qos).on(report, self._on_report)

    def _on_announce(self, message: ShmPoolAnnounce) -> None:
        self._announce = message
        self._announced_ns = self._clock.monotonic_ns()
        self.counts["announces"] += 1
        self._link.control.say(message)

    def _on_told(self, message: Told) -> None:
        assert self._link.metadata is not None
        self.counts["metadata"] += 1
        self._link.metadata.say(forward.departing(message, self._host))

    def _on_progress(self, message: FrameProgress) -> None:
        self.counts["progress"] += 1
        self._link.control.say(message)

    def _on_report(self, message: Report) -> None:
        self.counts["qos"] += 1
        self._link.control.say(message)

    def _send_frames(self) -> int:
        """Sends what is at hand, frame by frame, up to a number of chunks; a frame whose epoch ended is given up."""
        if self._frame is not None and self._frame.epoch != self._consumer.epoch:
            self._chunks.abandon()
        sent = 0
        for _ in range(CHUNKS_PER_TURN):  # frames that come to nothing count too: a flood of them keeps nobody here
            if not self._chunks.sending and not self._begin():
                break
            try:
                sent += self._chunks.step(CHUNKS_PER_TURN - sent)
            except MediaDriverLost:
                self._chunks.abandon()
                raise
            if self._chunks.sending or sent >= CHUNKS_PER_TURN:
                break
        return sent

    def _begin(self) -> bool:
        """Begins with the next frame, if there is one; it may come to nothing."""
        self._frame = next(iter(self._consumer.poll(1)), None)
        if self._frame is None:
            return False
        ring, checked = self._frame.slot
        self._chunks.start(ring, checked, self._frame.epoch, self._frame.trace_id)
        return True

    def _close_ears(self) -> None:
        for ear in self._ears.values():
            ear.close()


class ReceiverMapping:
    """A stream of another host that appears as one of this host."""

    def __init__(
        self,
        pool: Pool,
        bridge: BridgeConfig,
        config: MappingConfig,
        link: IncomingLink,
        *,
        descriptors: Publication,
        voices: Voices,
        taken: set[int],
    ) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.assembler = Assembler(
            config.source_stream_id,
            link.sizing,
            timeout_ns=bridge.assembly_timeout_ms * NANOS_PER_MILLI,
            crc32c=bridge.crc32c,
        )
        self._pool = pool
        self._clock = pool.plane.clock
        self._bridge = bridge
        self._link = link
        self._announced_ns: int | None = None
        self._mismatch = ""
        ids, channels = pool.config.stream_ids, pool.config.channels
        self._metadata = voices(channels.metadata, ids.metadata)
        self._control: Voice | None = None
        if config.dest_control_stream_id:
            self._control = voices(channels.control, config.dest_control_stream_id)
        self._qos = self._control
        if config.dest_qos_stream_id:
            self._qos = voices(channels.qos, config.dest_qos_stream_id)
        self._destination = Destination(pool, config, descriptors, ids=bridge.destinations, taken=taken)
        link.add(config.source_stream_id, self)

    @property
    def state(self) -> str:
        """Where the stream stands: whether there is a destination to write to, and a source that is announced."""
        if self._destination.target is None:
            return "waiting for the destination"
        return "waiting for the source" if self.assembler.epoch is None else "running"

    def turn(self) -> int:
        if not self._destination.turn():
            return 0
        self.assembler.target = self._destination.target
        self._check_profile()
        return 1

    def close(self) -> None:
        self._link.remove(self.config.source_stream_id)
        self.assembler.target = None
        self._destination.close()

    def statistics(self) -> dict[str, Any]:
        age_ns = None if self._announced_ns is None else self._clock.monotonic_ns() - self._announced_ns
        return {
            "dest_stream_id": self._destination.stream_id,
            "local_epoch": self._destination.epoch,
            "source_epoch": self.assembler.epoch,
            "source_age_s": None if age_ns is None else age_ns / NANOS_PER_SECOND,
            "refusal": self._destination.refusal or self._mismatch,
            "frames": counted(self.assembler.statistics(), "published"),
            "destination": self._destination.statistics(),
            **self.counts,
        }

    def on_announce(self, message: ShmPoolAnnounce) -> None:
        """The source's pools, by its own word and never repeated here (Bridge 7.2). Its age is counted from now: the
        clock in it is another host's (`decisions.md` #56). A new source epoch begins a new local one (#50)."""
        self.counts["announces"] += 1
        self._announced_ns = self._clock.monotonic_ns()
        strides = {pool.pool_id: pool.stride_bytes for pool in message.payload_pools}
        if not self.assembler.announce(message.epoch, strides, self._announced_ns):
            return
        if self._destination.used:
            self._destination.renew()
        self.assembler.target = self._destination.target

    def on_told(self, message: Told) -> None:
        self.counts["metadata"] += 1
        about = self.config.metadata_about(self._destination.stream_id)
        self._metadata.say(forward.arriving(message, about, self._bridge.instance_id))

    def on_links(self, message: TraceLinkSet) -> None:
        epoch = self._destination.epoch
        if epoch is None or message.epoch != self.assembler.epoch:
            self.counts["trace links dropped"] += 1
            return
        self.counts["trace links"] += 1
        self._metadata.say(forward.arriving_links(message, self._destination.stream_id, epoch))

    def on_progress(self, message: FrameProgress) -> None:
        """Repeats progress, unless it is of an epoch or of a frame that is over (Bridge 9, `decisions.md` #54)."""
        if self._control is None or message.epoch != self.assembler.epoch or self.assembler.dropped(message.seq):
            self.counts["progress dropped"] += 1
            return
        self.counts["progress"] += 1
        self._control.say(forward.arriving_progress(message, self._destination.stream_id))

    def on_report(self, message: QosProducer | QosConsumer) -> None:
        if self._qos is None:
            self.counts["qos dropped"] += 1
            return
        self.counts["qos"] += 1
        self._qos.say(forward.arriving_report(message, self._destination.stream_id))

    def _check_profile(self) -> None:
        """Says so if the driver lays the destination out in another way than this file expects."""
        expected = self._pool.config.profiles.get(self.config.profile)
        strides = self._destination.strides()
        self._mismatch = ""
        if expected is not None and strides and strides != {pool.stride_bytes for pool in expected.pools}:
            self._mismatch = f"the driver made pools of {sorted(strides)}, not those of profile {self.config.profile!r}"
            log.warning("stream %d: %s", self._destination.stream_id, self._mismatch)
