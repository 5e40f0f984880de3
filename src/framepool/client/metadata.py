"""What a stream shows, as its producer tells it (Wire 10.3).

A frame carries the version of the metadata that applies to it. The producer announces its source and sends all
attributes when they change and once a period, for readers that come later. What readers make of it is in
`metadata_cache`; tables too large for a message go as `blobs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Self

import msgspec

from framepool._native.frames import Changes
from framepool.client.qos import Publish
from framepool.clock import NANOS_PER_SECOND, Clock
from framepool.discovery.host import HOST_TAG
from framepool.discovery.query import TAG_LIMIT
from framepool.errors import EncodeError
from framepool.wire._generated.control_900 import Attribute, DataSourceAnnounce, DataSourceMeta
from framepool.wire.attributes import attribute_of, check_text, value_of
from framepool.wire.message import UINT64_NULL

NAME_LIMIT: Final = 255
SUMMARY_LIMIT: Final = 1_023

LAST_VERSION: Final = 2**32 - 2
"""2^32-1 is the null of `FrameDescriptor.meta_version`; after the last version comes 1 again."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a source; replaced as a whole, so that another thread sees all of a change or nothing."""

    name: str
    summary: str
    attributes: dict[str, Attribute]
    version: int
    timestamp_ns: int

    def announce(self, stream_id: int, producer_id: int, epoch: int) -> DataSourceAnnounce:
        return DataSourceAnnounce(
            stream_id=stream_id,
            producer_id=producer_id,
            epoch=epoch,
            meta_version=self.version,
            name=self.name,
            summary=self.summary,
        )

    def meta(self, stream_id: int) -> DataSourceMeta:
        return DataSourceMeta(
            stream_id=stream_id,
            meta_version=self.version,
            timestamp_ns=self.timestamp_ns,
            attributes=tuple(self.attributes.values()),
        )


def with_identity(attributes: Mapping[str, Any], tags: Iterable[str], data_source_id: int | None) -> dict[str, Any]:
    """The attributes with those that discovery finds a source by (`decisions.md` #46).

    `EncodeError` for a tag that could not be asked for, or that speaks of the host, which its driver names.
    """
    named = list(dict.fromkeys([tags] if isinstance(tags, str) else tags))
    for tag in named:
        check_text("a tag", tag, TAG_LIMIT)
        if not tag or tag != tag.strip():
            raise EncodeError(f"{tag!r} is no tag: it is empty, or begins or ends with a space")
        if tag.startswith(HOST_TAG):
            raise EncodeError(f"{tag!r} is no tag of a source: its driver says on which host it is")
    if data_source_id is not None and not 0 <= data_source_id < UINT64_NULL:
        raise EncodeError(f"data_source_id is {data_source_id}, must be 0 to {UINT64_NULL - 1}")
    identity = {"tags": named} if named else {}
    return {**attributes, **identity, **({} if data_source_id is None else {"data_source_id": data_source_id})}


class SourceMetadata(MutableMapping[str, Any]):
    """The metadata of a stream as its producer writes it: a dictionary of attributes, a name and a summary.

    ::

        meta["camera_serial"] = "SN-1"                        # text/plain
        meta["roi"] = {"x": 0, "y": 64, "w": 512, "h": 128}   # application/json
        with meta.edit():                                     # both or none, and one version
            meta["gain"] = 4
            del meta["roi"]

    What is read back is a copy: changing it changes nothing here. One thread writes; another may turn `do_work`.
    """

    def __init__(
        self,
        stream_id: int,
        *,
        publish: Publish,
        clock: Clock,
        max_message_length: int,
        name: str = "",
        summary: str = "",
        attributes: Mapping[str, Any] | None = None,
        first_version: int = 1,
        period_ns: int = NANOS_PER_SECOND,
        changes: Changes | None = None,
        hurry: Callable[[], object] = lambda: None,
    ) -> None:
        """The first version has the given attributes. A producer that knows what its predecessor had, and wants
        versions never to repeat on its stream, says where to begin. Every new version is counted in `changes`, and
        `hurry` is called for it."""
        if not 1 <= first_version <= LAST_VERSION:
            raise ValueError(f"a version lies between 1 and {LAST_VERSION}, not at {first_version}")
        self.stream_id = stream_id
        self.counts: Counter[str] = Counter()
        self._publish = publish
        self._clock = clock
        self._max_message_length = max_message_length
        self._period_ns = period_ns
        self._changes = changes or Changes()
        self._hurry = hurry
        self._draft: _State | None = None
        self._lease: tuple[int, int] | None = None
        self._told: tuple[int, tuple[int, int]] | None = None
        self._due_ns = 0
        self._state = self._checked(
            _State(
                name=name,
                summary=summary,
                attributes={key: attribute_of(key, value) for key, value in (attributes or {}).items()},
                version=first_version,
                timestamp_ns=clock.timestamp_ns(),
            )
        )

    # What the producer writes

    @property
    def version(self) -> int:
        """What goes into `meta_version` of the frames from now on."""
        return self._state.version

    @property
    def name(self) -> str:
        """What people call the stream; "" is none."""
        return self._seen.name

    @name.setter
    def name(self, name: str) -> None:
        self._change(name=name)

    @property
    def summary(self) -> str:
        """Nominal dtype and shape in a few words; "" is none."""
        return self._seen.summary

    @summary.setter
    def summary(self, summary: str) -> None:
        self._change(summary=summary)

    def set(self, key: str, value: Any, *, format: str | None = None) -> None:
        """Sets an attribute; the format follows from the value unless it is given."""
        self._change(attributes={**self._seen.attributes, key: attribute_of(key, value, format)})

    def format(self, key: str) -> str:
        """The format of an attribute; `KeyError` when there is none of this key."""
        return self._seen.attributes[key].format

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """As they are sent."""
        return tuple(self._seen.attributes.values())

    def restore(self, version: int, attributes: Iterable[Attribute]) -> None:
        """Makes attributes that were encoded before those of this version, whatever came before: for a replay."""
        if not 1 <= version <= LAST_VERSION:
            raise ValueError(f"a version lies between 1 and {LAST_VERSION}, not at {version}")
        kept = {attribute.key: attribute for attribute in attributes}
        self._state = self._checked(
            msgspec.structs.replace(
                self._state, attributes=kept, version=version, timestamp_ns=self._clock.timestamp_ns()
            )
        )
        self._changes.count += 1
        self._hurry()

    @contextmanager
    def edit(self) -> Iterator[Self]:
        """All changes in the block are one version; when it raises, or they do not fit a message, none is made."""
        if self._draft is not None:  # part of the edit around it
            yield self
            return
        self._draft = self._state
        try:
            yield self
            self._commit(self._draft)
        finally:
            self._draft = None

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        rest = dict(self._seen.attributes)
        del rest[key]
        self._change(attributes=rest)

    def __getitem__(self, key: str) -> Any:
        return value_of(self._seen.attributes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._seen.attributes))

    def __len__(self) -> int:
        return len(self._seen.attributes)

    def update(self, *args: Any, **attributes: Any) -> None:
        """As of a dictionary, in one version."""
        with self.edit():
            super().update(*args, **attributes)

    def clear(self) -> None:
        """Removes all attributes, in one version."""
        self._change(attributes={})

    # What its agent turns

    def attached(self, producer_id: int, epoch: int) -> None:
        """There is a lease: the source is announced under it, at once and from now on."""
        self._lease = (producer_id, epoch)

    def detached(self) -> None:
        """There is no lease: nothing is said."""
        self._lease = None

    def do_work(self) -> int:
        """Sends announce and attributes when something changed and once a period; what is refused, again soon."""
        state, lease = self._state, self._lease
        if lease is None:
            return 0
        now = self._clock.monotonic_ns()
        if self._told == (state.version, lease) and now < self._due_ns:
            return 0
        self._told = (state.version, lease)
        # The announce goes first: a reader forgets the versions of another producer when it hears of a new one.
        taken = self._send(state.announce(self.stream_id, *lease)) and self._send(state.meta(self.stream_id))
        self._due_ns = now + (self._period_ns if taken else self._period_ns // 10)
        return 1

    def due_ns(self) -> int:
        """When they are to be sent again, if nothing changes."""
        return self._due_ns

    def statistics(self) -> dict[str, int]:
        return {"version": self.version, "attributes": len(self._state.attributes), **self.counts}

    @property
    def _seen(self) -> _State:
        return self._draft or self._state

    def _change(self, **changes: Any) -> None:
        with self.edit():
            assert self._draft is not None
            self._draft = msgspec.structs.replace(self._draft, **changes)

    def _commit(self, draft: _State) -> None:
        if draft == self._state:
            return
        version = self._state.version % LAST_VERSION + 1
        self._state = self._checked(
            msgspec.structs.replace(draft, version=version, timestamp_ns=self._clock.timestamp_ns())
        )
        self._changes.count += 1
        self._hurry()

    def _checked(self, state: _State) -> _State:
        check_text("the name of a source", state.name, NAME_LIMIT)
        check_text("the summary of a source", state.summary, SUMMARY_LIMIT)
        for message in (state.announce(self.stream_id, 0, 0), state.meta(self.stream_id)):
            length, limit = len(message.encode()), self._max_message_length
            if length > limit:
                what = type(message).__name__
                raise EncodeError(
                    f"{what} would have {length} bytes, {limit} fit a message: send large values as blobs"
                )
        return state

    def _send(self, message: DataSourceAnnounce | DataSourceMeta) -> bool:
        taken = self._publish(message) is not False
        self.counts["sent" if taken else "refused"] += 1
        return taken
