"""What every table of the file has in common, and the kinds of its numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(gt=0)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
StreamId = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
IdRange = tuple[StreamId, StreamId]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""
