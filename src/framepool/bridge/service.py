"""A bridge as a service: its mappings, their links, and what it can be told while it runs (Service control plane).

Mappings are added, paused, resumed and removed by command, checked by the rules that the configuration file is checked
by. A mapping that is paused lets go of everything: its lease, its subscriptions, and its link if no other mapping uses
it. Everything happens on the thread that turns the bridge; whoever is on another one asks through `ask`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from framepool.bridge.link import IncomingLink, OutgoingLink, Voice
from framepool.bridge.mapping import Mapping, ReceiverMapping, SenderMapping, key_of
from framepool.client.pool import Pool
from framepool.clock import NANOS_PER_SECOND
from framepool.config import BridgeConfig, MappingConfig, check_bridge, direction
from framepool.errors import CommandRefused, ConfigurationError, FramepoolError, MediaDriverLost
from framepool.service import Service, ServiceState, command
from framepool.transport import channel
from framepool.transport.aeron import Publication

log = logging.getLogger(__name__)

RETRY_NS = 5 * NANOS_PER_SECOND
"""After so long a mapping that failed is begun anew."""


class Entry:
    """A mapping that the bridge knows, running or not."""

    def __init__(self, config: MappingConfig) -> None:
        self.config = config
        self.paused = False
        self.mapping: Mapping | None = None
        self.failure = ""
        """Why it is not running although it should be."""
        self.due_ns = 0
        """When it is tried again."""


class BridgeService(Service):
    """`service:bridge:<instance_id>`."""

    def __init__(self, pool: Pool) -> None:
        if pool.config.bridge is None:
            raise ConfigurationError("no [bridge] in the configuration")
        super().__init__(
            pool.client, pool.config, name="bridge", instance=pool.config.bridge.instance_id, clock=pool.plane.clock
        )
        self._pool = pool
        self._bridge: BridgeConfig = pool.config.bridge
        self._entries = {key_of(mapping): Entry(mapping) for mapping in pool.config.mappings}
        self._outgoing: dict[str, OutgoingLink] = {}
        self._incoming: dict[str, IncomingLink] = {}
        self._voices: dict[tuple[str, int], Voice] = {}
        self._said: Counter[str] = Counter()
        self._taken: set[int] = set()
        self._descriptors: Publication | None = None
        self._turner = 0
        """The thread that turns the bridge; 0 while none does."""
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    # What it can be told

    @command
    def add(self, mapping: str) -> str:
        """Map one more stream: the keys of a `[[mappings]]` table, as JSON. Gives back what the mapping is called."""
        try:
            config = msgspec.json.decode(mapping, type=MappingConfig)
            return self.add_mapping(config)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CommandRefused(str(error)) from error

    @command
    def remove(self, mapping: str) -> None:
        """Unmap a stream for good."""
        entry = self._entry(mapping)
        if len(self._entries) == 1:
            raise CommandRefused("a bridge needs at least one mapping: stop it instead")
        self._end(entry)
        del self._entries[mapping]

    @command
    def pause(self, mapping: str = "") -> None:
        """Let go of a mapping for a while; without a name, of all of them."""
        if not mapping:
            super().pause()
            return
        entry = self._entry(mapping)
        entry.paused = True
        self._end(entry)

    @command
    def resume(self, mapping: str = "") -> None:
        """Take a mapping up again; without a name, all that were not paused by name."""
        if not mapping:
            super().resume()
            return
        entry = self._entry(mapping)
        if self.state is ServiceState.RUNNING:
            self._begin(entry)
        entry.paused = False

    def on_state(self, state: ServiceState) -> None:
        for entry in self._entries.values():
            if state is not ServiceState.RUNNING:
                self._end(entry)
            elif not entry.paused:
                self._begin(entry)

    def add_mapping(self, config: MappingConfig) -> str:
        """Maps one more stream; its name. `ValueError` says what it contradicts, `CommandRefused` why it cannot be."""
        known = [entry.config for entry in self._entries.values()]
        streams = [stream.stream_id for stream in self._config.streams]
        ids, profiles = self._config.stream_ids, self._config.profiles
        check_bridge(self._bridge, [*known, config], ids, static=streams, profiles=profiles)
        key = key_of(config)
        self._entries[key] = Entry(config)
        try:
            if self.state is ServiceState.RUNNING:
                self._begin(self._entries[key])
        except BaseException:
            del self._entries[key]
            raise
        return key

    def ask[T](self, question: Callable[[], T]) -> T:
        """Calls something on the thread that turns the bridge, and gives back or raises what that does."""
        if self._turner in (0, threading.get_ident()):
            return question()
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        self._asked.put(work)
        if not self._turner:  # closed just now: nobody else will
            self._answer()
        return answer.result()

    def report(self) -> dict[str, Any]:
        return {
            "instance_id": self._bridge.instance_id,
            "mappings": [self._describe(key, entry) for key, entry in self._entries.items()],
            "links": {
                **{f"{name} outgoing".strip(): link.statistics() for name, link in self._outgoing.items()},
                **{f"{name} incoming".strip(): link.statistics() for name, link in self._incoming.items()},
            },
            "local": dict(self._said),
        }

    # The agent

    def on_start(self) -> None:
        """Opens all mappings; what cannot be opened keeps the bridge from starting."""
        self._turner = threading.get_ident()
        super().on_start()
        for entry in self._entries.values():
            self._start(entry)

    def do_work(self) -> int:
        return self._answer() + super().do_work()

    def work(self) -> int:
        try:
            work = sum(voice.turn() for voice in self._voices.values())
            for name, link in self._outgoing.items():
                work += link.turn()
                if link.control.newly_heard():
                    self._repeat(name)
            work += sum(link.turn(self.clock.monotonic_ns()) for link in self._incoming.values())
            return work + sum(self._turn(entry) for entry in self._entries.values())
        except MediaDriverLost:  # the pool's control plane waits for it
            return 0

    def _turn(self, entry: Entry) -> int:
        """Turns one mapping. One that fails is begun anew after a while, and is in no other's way (Bridge 2.3)."""
        try:
            if entry.mapping is not None:
                return entry.mapping.turn()
            if not entry.paused and self.clock.monotonic_ns() >= entry.due_ns:
                self._start(entry)
                entry.failure = ""
        except MediaDriverLost:
            raise
        except Exception as error:
            log.exception("mapping %s failed", key_of(entry.config))
            self.counts["mappings failed"] += 1
            self._end(entry)
            entry.failure = f"{type(error).__name__}: {error}"
            entry.due_ns = self.clock.monotonic_ns() + RETRY_NS
        return 0

    def on_close(self) -> None:
        for entry in self._entries.values():
            self._end(entry)
        for voice in self._voices.values():
            voice.close()
        self._voices.clear()
        super().on_close()
        self._turner = 0
        self._answer()

    def _answer(self) -> int:
        """Does what other threads asked for."""
        answered = 0
        while not self._asked.empty():
            self._asked.get()()
            answered += 1
        return answered

    # Mappings and what they share

    def _entry(self, key: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            raise CommandRefused(f"no mapping {key!r}; there are {', '.join(self._entries)}")
        return entry

    def _begin(self, entry: Entry) -> None:
        """Starts a mapping by command."""
        try:
            self._start(entry)
        except FramepoolError as error:
            raise CommandRefused(f"mapping {key_of(entry.config)}: {error}") from error

    def _start(self, entry: Entry) -> None:
        if entry.mapping is not None:
            return
        config = entry.config
        try:
            if direction(self._bridge, config) == "sender":
                entry.mapping = SenderMapping(self._pool, self._bridge, config, self._outgoing_link(config.link))
            else:
                entry.mapping = ReceiverMapping(
                    self._pool,
                    self._bridge,
                    config,
                    self._incoming_link(config.link),
                    descriptors=self._descriptor_publication(),
                    voices=self._voice,
                    taken=self._taken,
                )
        finally:
            self._close_unused_links()

    def _end(self, entry: Entry) -> None:
        mapping, entry.mapping = entry.mapping, None
        if mapping is not None:
            mapping.close()
            self._close_unused_links()

    def _outgoing_link(self, name: str) -> OutgoingLink:
        if name not in self._outgoing:
            self._outgoing[name] = OutgoingLink(self._pool.client, self._config, self._bridge, name)
        return self._outgoing[name]

    def _incoming_link(self, name: str) -> IncomingLink:
        if name not in self._incoming:
            self._incoming[name] = IncomingLink(self._pool.client, self._config, self._bridge, name)
        return self._incoming[name]

    def _close_unused_links(self) -> None:
        running = [entry.mapping for entry in self._entries.values() if entry.mapping is not None]
        sending = {mapping.config.link for mapping in running if isinstance(mapping, SenderMapping)}
        receiving = {mapping.config.link for mapping in running if isinstance(mapping, ReceiverMapping)}
        for name in self._outgoing.keys() - sending:
            self._outgoing.pop(name).close()
        for name in self._incoming.keys() - receiving:
            self._incoming.pop(name).close()

    def _voice(self, where: str, stream_id: int) -> Voice:
        """A local stream that mappings say something on; one for all of them, and kept."""
        if (where, stream_id) not in self._voices:
            speak = channel.control_publication(where, self._config.aeron)
            self._voices[where, stream_id] = Voice(self._pool.client, speak, stream_id, str(stream_id), self._said)
        return self._voices[where, stream_id]

    def _descriptor_publication(self) -> Publication:
        if self._descriptors is None:
            where = channel.descriptor_publication(self._config.channels.descriptor, self._config.aeron)
            self._descriptors = self._pool.client.add_publication(where, self._config.stream_ids.descriptor)
        return self._descriptors

    def _repeat(self, link: str) -> None:
        for entry in self._entries.values():
            if isinstance(entry.mapping, SenderMapping) and entry.config.link == link:
                entry.mapping.repeat()

    def _describe(self, key: str, entry: Entry) -> dict[str, Any]:
        config, mapping = entry.config, entry.mapping
        return {
            "mapping": key,
            "role": direction(self._bridge, config),
            "link": config.link,
            "source_stream_id": config.source_stream_id,
            "dest_stream_id": config.dest_stream_id,
            "state": mapping.state if mapping is not None else "failed" if entry.failure else "paused",
            **({"refusal": entry.failure} if mapping is None else mapping.statistics()),
        }
