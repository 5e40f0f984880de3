"""The options of `format("framepool")`, checked: Spark hands over text, and knows nothing of what it means.

Names are those of Spark's own sources where there is one (`failOnDataLoss`, `startingOffsets`); case does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from framepool.errors import ConfigurationError
from framepool.spark.live import default_log
from framepool.spark.selection import BEYOND, LOWEST, Selection

MIB: Final = 2**20
NANOS: Final = 10**9

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Payload = Literal["inline", "reference", "none"]
Table = Literal["frames", "losses", "problems"]


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a reader was asked for."""

    path: str
    """The recording: what `load` is given. Without one, a streaming query reads live streams, and this is their log."""
    table: Table = "frames"
    """`frames`, one row a frame; `losses`, one row for frames that were never recorded; `problems`, one row for each
    frame or segment that is damaged now, found by reading every byte."""
    payload: Payload = "reference"
    """`inline`: the bytes in a binary column; `reference`: where they are; `none`: neither."""
    stream: str = ""
    """Ids of streams, with commas between; all unless given. Of live streams, ids or names."""
    epoch: Natural | None = None
    start_seq: Natural | None = None
    end_seq: Natural | None = None
    """One more than the last."""
    start_time: str = ""
    """When frames were recorded, by the wall clock: ISO 8601 (UTC unless it says otherwise) or nanoseconds."""
    end_time: str = ""
    """The first moment that is too late."""
    strict: bool | None = None
    """Whether damage fails the query instead of being reported and passed over. Streaming queries with
    `failOnDataLoss` are strict unless told otherwise."""
    pushdown: bool = False
    """Take Spark's filters. Needs `spark.sql.python.filterPushdown.enabled`, or every read fails."""
    partition_bytes: Positive = 128 * MIB
    """About so much of a recording for one task."""
    starting_offsets: str = "earliest"
    """Where a new streaming query begins: `earliest`, or an ordinal."""
    max_frames_per_trigger: Positive | None = None
    max_bytes_per_trigger: Positive | None = None
    fail_on_data_loss: bool = True
    """Whether a streaming query fails if retention removed frames that it did not read."""
    hold_seconds: Natural = 600
    """For how long after it was last seen a streaming query keeps retention from removing what it needs, and the
    recorder of live streams from ending."""
    log: str = ""
    """Where live streams are recorded; below `~/.local/state/framepool/live` unless given."""
    retain_bytes: Annotated[int, msgspec.Meta(ge=2**20)] = 2**31
    """Live streams: the log is a ring of so many bytes, and longer only where a query is behind."""
    config: str = ""
    """Live streams: the configuration file of the driver that has them."""
    live: bool = False
    """Not an option: whether there is a log instead of a recording."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """From Spark's dictionary; `ConfigurationError` says what is wrong."""
        names = {name.lower(): name for name in cls.__struct_encode_fields__ if name != "live"}
        unknown = sorted(name for name in given if name.lower() not in names)
        if unknown:
            raise ConfigurationError(
                f"unknown option {unknown[0]!r} of framepool: known are {', '.join(names.values())}"
            )
        words: dict[str, Any] = {names[name.lower()]: value for name, value in given.items()}
        words["live"] = not words.get("path")
        if words["live"]:
            words["path"] = _log_of(words)
        try:
            words["path"] = absolute(words["path"])
            options = msgspec.convert(words, cls, strict=False)
            if options.live and not options.hold_seconds:
                raise ValueError("holdSeconds 0 would end the recorder of a live stream at once")
            options.selection()
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigurationError(f"option of framepool: {error}") from None
        return options

    @property
    def start(self) -> int:
        """The ordinal with which a new streaming query begins."""
        return 0 if self.starting_offsets == "earliest" else int(self.starting_offsets)

    @property
    def is_strict(self) -> bool:
        return bool(self.strict)

    def selection(self) -> Selection:
        """Which frames are wanted."""
        if self.start < 0:
            raise ValueError(f"startingOffsets {self.start} is negative")
        found = Selection()
        if self.stream and not self.live:  # a log has nothing else in it
            found = found.among(frozenset(int(each) for each in self.stream.split(",")))
        if self.epoch is not None:
            found = found.within("epoch", self.epoch, self.epoch + 1)
        if self.start_seq is not None or self.end_seq is not None:
            found = found.within("seq", self.start_seq or 0, BEYOND if self.end_seq is None else self.end_seq)
        if self.start_time or self.end_time:
            low = moment(self.start_time) if self.start_time else LOWEST
            found = found.within("recorded_ns", low, moment(self.end_time) if self.end_time else BEYOND)
        return found


def _log_of(words: dict[str, Any]) -> str:
    """The log of the live streams that are named."""
    if not words.get("stream"):
        raise ConfigurationError(
            'framepool needs the path of a recording, load(path), or a live stream, option("stream", …)'
        )
    if words.get("config"):
        words["config"] = absolute(words["config"])
    return words.get("log") or default_log(words["stream"], words.get("config", ""))


def moment(text: str) -> int:
    """Nanoseconds since 1970, of a number of them or a date with or without a time."""
    if text.lstrip("-").isdigit():
        return int(text)
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NANOS + since.microseconds * 1_000


def absolute(path: str) -> str:
    """A path that means the same in every process; `file:` URIs too."""
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    if "\0" in path:
        raise ValueError("a path has no null byte in it")
    return os.path.abspath(os.path.expanduser(path))
