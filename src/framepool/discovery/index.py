"""Who has which streams: a fold over announces and metadata, and over nothing else (Discovery 6).

The index is soft state. Each message comes with the driver it is from, as the configuration of its subscription says
(`decisions.md` #46), and with the local time of its receipt; the stamps of senders are not looked at, because a clock
of another host says nothing here (`decisions.md` #56). Fed the same messages at the same times, an index is the same:
it can be rebuilt from a capture. All of it comes from outside and is bounded.

A question costs what its answer costs: streams are found by id, name, data source, producer and tag through
dictionaries, whatever their number.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from framepool.config import DiscoveryLimits
from framepool.discovery.entry import Entry, Filters, Key, Origin, Term, Told, say_the_same
from framepool.discovery.host import HOST_TAG
from framepool.wire._generated.control_900 import DataSourceAnnounce, DataSourceMeta, ShmPoolAnnounce
from framepool.wire.attributes import Metadata
from framepool.wire.dispatch import Dispatcher

log = logging.getLogger(__name__)

EARLY_LIMIT: Final = 4_096
"""Streams whose metadata is kept although nobody has announced them yet."""
READ_KEYS: Final = frozenset({"data_source_id", "tags"})
"""The attributes of metadata that discovery reads; large ones of other keys are not even decoded."""


class TooMany(Exception):
    """More streams match than a response may hold."""


class Index:
    """The streams of any number of drivers, as last announced.

    `now_ns` is the local monotonic time and never goes back. What is older than its driver's window is not returned,
    whether or not `expire` has been called.
    """

    def __init__(self, limits: DiscoveryLimits | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._limits = limits or DiscoveryLimits()
        self._entries: dict[Key, Entry] = {}
        self._early: OrderedDict[Key, Told] = OrderedDict()
        """What is told of streams that nobody announces; the last heard is last."""
        self._ages: dict[int, OrderedDict[Key, None]] = {}
        """Announced streams by the window of their driver; the last announced is last."""
        self._found: dict[Term, set[Entry]] = {}
        self._shown: set[Entry] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    # What comes

    def on_announce(self, origin: Origin, announce: ShmPoolAnnounce, now_ns: int) -> None:
        """A stream is there. Of its epochs the newest counts, and a lower one only of a driver whose endpoint has
        changed, or after the higher one fell silent (Discovery 6.3)."""
        key = (origin.instance_id, announce.stream_id)
        entry = self._entry(key, now_ns)
        if entry is None:
            if len(self._entries) >= self._limits.max_streams and not self.expire(now_ns):
                self._drop("too many streams", key)
                return
            entry = Entry(origin, announce, self._take_early(key, now_ns), now_ns)
            self._insert(entry)
            self._judge(entry)
            return
        if announce.epoch < entry.announce.epoch and origin == entry.origin:
            self._drop("older epochs", key)
            return
        self._ages[entry.origin.window_ns].pop(key)
        self._age(origin.window_ns)[key] = None
        entry.announced_ns = now_ns
        if origin != entry.origin or not say_the_same(announce, entry.announce):
            self._unlink(entry)
            entry.origin, entry.announce = origin, announce
            self._link(entry)
            self._judge(entry)

    def on_same_announce(self, origin: Origin, announce: ShmPoolAnnounce, now_ns: int) -> None:
        """As `on_announce`, for a driver in this process whose announce may be the very one that it gave before."""
        key = (origin.instance_id, announce.stream_id)
        entry = self._entries.get(key)
        if entry is None or entry.announce is not announce or entry.origin is not origin or entry.is_past(now_ns):
            self.on_announce(origin, announce, now_ns)
            return
        self._ages[origin.window_ns].move_to_end(key)
        entry.announced_ns = now_ns

    def on_source(self, origin: Origin, source: DataSourceAnnounce, now_ns: int) -> None:
        """The name of a stream. One of a lower epoch counts only when the higher one fell silent."""
        key = (origin.instance_id, source.stream_id)
        told = self._hear(key, origin, now_ns)
        if source.epoch < told.epoch and now_ns - told.named_ns <= origin.window_ns:
            self._drop("metadata of older epochs", key)
            return
        name = source.name
        if len(name) > self._limits.max_name_bytes:
            self._drop("names too long", key)
            name = ""
        told.named_ns, told.epoch, told.version = now_ns, source.epoch, source.meta_version
        other = told.producer_id not in {None, source.producer_id}
        told.producer_id = source.producer_id
        if other or name != told.name:
            with self._changing(key):
                told.name = name
                if other:
                    told.forget()

    def on_meta(self, origin: Origin, meta: DataSourceMeta, now_ns: int) -> None:
        """Data source and tags of a stream; of its versions, the announced one counts if it is known."""
        key = (origin.instance_id, meta.stream_id)
        told = self._hear(key, origin, now_ns)
        stamp = (meta.meta_version, meta.timestamp_ns)
        if stamp == told.meta_stamp:
            return
        known = told.meta_stamp is not None and told.meta_stamp[0] == told.version
        if known and meta.meta_version != told.version:
            self._drop("metadata of other versions", key)
            return
        attributes = tuple(attribute for attribute in meta.attributes if attribute.key in READ_KEYS)
        metadata = Metadata(meta.stream_id, meta.meta_version, meta.timestamp_ns, attributes)
        if len(metadata) != len(attributes):
            self._drop("malformed attributes", key)
        with self._changing(key):
            told.meta_stamp = stamp
            told.data_source_id = metadata.data_source_id
            told.tags = self._bounded(metadata.tags, key)

    def expire(self, now_ns: int) -> int:
        """Lets go of what fell silent; how many streams that was."""
        gone = 0
        for window_ns, keys in self._ages.items():
            while keys:
                entry = self._entries[next(iter(keys))]
                if now_ns - entry.announced_ns <= window_ns:
                    break
                self._remove(entry)
                gone += 1
        while self._early:
            key, told = next(iter(self._early.items()))
            if now_ns <= told.until_ns:
                break
            del self._early[key]
        return gone

    # What is asked

    def find(
        self,
        filters: Filters,
        now_ns: int,
        *,
        limit: int | None = None,
        visible: Callable[[Entry], bool] = lambda entry: True,
    ) -> list[Entry]:
        """The streams that match and may be seen, by driver and id; `TooMany` if that is more than the limit."""
        found = []
        for entry in self._candidates(filters):
            if not entry.is_past(now_ns) and entry.matches(filters) and visible(entry):
                found.append(entry)
                if limit is not None and len(found) > limit:
                    raise TooMany
        found.sort(key=lambda entry: entry.key)
        return found

    def _candidates(self, filters: Filters) -> Collection[Entry]:
        """The streams that one of the filters leaves, and of all filters the one that leaves the fewest."""
        terms = filters.terms()
        if not terms:
            return self._shown
        return min((self._found.get(term, ()) for term in terms), key=len)

    def statistics(self) -> dict[str, int]:
        """How much there is, and counts of what was dropped and why."""
        return {
            "streams": len(self._entries),
            "unfit": len(self._entries) - len(self._shown),
            "early metadata": len(self._early),
            **self.counts,
        }

    def drivers(self) -> Counter[str]:
        """How many streams each driver has."""
        return Counter(instance_id for instance_id, _ in self._entries)

    # Steps

    def _insert(self, entry: Entry) -> None:
        key = entry.key
        self._entries[key] = entry
        self._age(entry.origin.window_ns)[key] = None
        self._link(entry)

    def _remove(self, entry: Entry) -> None:
        key = entry.key
        self._unlink(entry)
        del self._entries[key], self._ages[entry.origin.window_ns][key]
        self.counts["expired"] += 1

    def _judge(self, entry: Entry) -> None:
        if not entry.fit:
            self._drop("unfit announces", entry.key)

    def _link(self, entry: Entry) -> None:
        entry.refresh()
        if not entry.fit:
            return
        self._shown.add(entry)
        for term in entry.terms():
            self._found.setdefault(term, set()).add(entry)

    def _unlink(self, entry: Entry) -> None:
        if entry not in self._shown:
            return
        self._shown.discard(entry)
        for term in entry.terms():
            found = self._found[term]
            found.discard(entry)
            if not found:
                del self._found[term]

    @contextmanager
    def _changing(self, key: Key) -> Iterator[None]:
        """Takes a stream out of the dictionaries while what it is found by changes."""
        entry = self._entries.get(key)
        if entry is not None:
            self._unlink(entry)
        yield
        if entry is not None:
            self._link(entry)

    def _age(self, window_ns: int) -> OrderedDict[Key, None]:
        return self._ages.setdefault(window_ns, OrderedDict())

    def _entry(self, key: Key, now_ns: int) -> Entry | None:
        """The stream, unless its last announce is too long ago: then it is gone."""
        entry = self._entries.get(key)
        if entry is not None and entry.is_past(now_ns):
            self._remove(entry)
            return None
        return entry

    def _hear(self, key: Key, origin: Origin, now_ns: int) -> Told:
        """What is told of a stream, announced or not, by somebody who just told something."""
        entry = self._entry(key, now_ns)
        if entry is not None:
            return entry.told
        told = self._take_early(key, now_ns)
        told.until_ns = now_ns + origin.window_ns
        self._early[key] = told
        if len(self._early) > EARLY_LIMIT:
            self._drop("too much early metadata", key)
            self._early.popitem(last=False)
        return told

    def _take_early(self, key: Key, now_ns: int) -> Told:
        """What was told lately of a stream that is not announced; it is kept no longer."""
        told = self._early.pop(key, None)
        return told if told is not None and now_ns <= told.until_ns else Told(now_ns)

    def _bounded(self, tags: tuple[str, ...], key: Key) -> tuple[str, ...]:
        """The tags that may be shown: all of them or none. Which host a stream is on is not its producer's to say."""
        own = tuple(tag for tag in tags if not tag.startswith(HOST_TAG))
        if len(own) != len(tags):
            self._drop("host tags in metadata", key)
        limits = self._limits
        if len(own) > limits.max_tags or any(len(tag) > limits.max_name_bytes for tag in own):
            self._drop("too many or too long tags", key)
            return ()
        return own

    def _drop(self, kind: str, key: Key) -> None:
        """Counts what is not shown; the first of a kind is logged."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            log.warning("discovery: %s, first of stream %d of driver %r", kind, key[1], key[0])


class Feed:
    """The messages of one driver on their way into an index: gated, decoded, and everything else dropped."""

    def __init__(self, index: Index, origin: Origin, limits: DiscoveryLimits | None = None) -> None:
        self.origin = origin
        self._index = index
        self._most = (limits or DiscoveryLimits()).max_announce_bytes
        self._now_ns = 0
        self._size = 0
        self._dispatch = Dispatcher()
        self._dispatch.on(ShmPoolAnnounce, self._on_announce)
        self._dispatch.on(DataSourceAnnounce, lambda source: index.on_source(origin, source, self._now_ns))
        self._dispatch.on(DataSourceMeta, lambda meta: index.on_meta(origin, meta, self._now_ns))

    def __call__(self, message: bytes, now_ns: int) -> None:
        """One message as it came, with the time of its receipt."""
        self._now_ns = now_ns
        self._size = len(message)
        self._dispatch(message)

    def _on_announce(self, announce: ShmPoolAnnounce) -> None:
        if self._size > self._most:
            self._index.counts["announces too large"] += 1
            return
        self._index.on_announce(self.origin, announce, self._now_ns)

    def statistics(self) -> dict[str, int]:
        """What came, and what was dropped by kind."""
        return self._dispatch.statistics()
