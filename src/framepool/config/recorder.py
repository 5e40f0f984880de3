"""The recorder: how segments are cut and written, and how long they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from framepool.config.section import NotNegative, Positive, Section

BLOCK = 4096


class RecorderConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recorder, `framepool record` and `framepool.Recorder`."""

    segment_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024)] = 256 * 2**20
    """A segment ends before it is longer, unless one frame alone is. So much is reserved on disk when it begins."""
    segment_frames: Positive = 65_536
    """A segment has no more frames."""
    segment_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """A segment with frames ends after so long: then its index is there for others to read."""
    flush_interval_ms: Positive = 200
    """How often what was recorded is made durable; a killed recorder loses no more than that."""
    staging_bytes: Annotated[int, msgspec.Meta(ge=2**20, multiple_of=BLOCK)] = 64 * 2**20
    """Frames that wait for the disk. It grows when a single frame needs more."""
    direct_io: Literal["auto", "never"] = "auto"
    """Write around the page cache where the filesystem takes it, or never."""
    compression: Literal["none", "zstd", "blosc2"] = "none"
    """Of each frame; blosc2 shuffles bits first. Either costs most of the speed."""
    compression_level: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    """Higher is smaller and slower."""
    retain_bytes: NotNegative = 0
    """Keep a ring: remove the oldest segments when all of them have more bytes; 0 keeps all."""
    retain_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Keep a ring: remove segments whose newest frame is older; 0 keeps all."""
    priority: Annotated[int, msgspec.Meta(ge=-20, le=19)] = 0
    """The nice value of the recorder's threads, where the system allows it: a busy machine costs frames."""

    def __post_init__(self) -> None:
        if self.retain_bytes and self.retain_bytes < 3 * self.segment_bytes:
            raise ValueError(
                f"retain_bytes {self.retain_bytes} is less than three segments of {self.segment_bytes}: "
                "the one being written, the one being sealed and one to read"
            )
