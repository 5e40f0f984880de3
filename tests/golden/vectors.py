"""The vectors: those of SbeTool (`sbe-vectors.json`) and those put together by hand (`hand-vectors.json`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framepool.wire.dispatch import MESSAGES
from framepool.wire.message import Message

HERE = Path(__file__).parent
CLASSES = {(message.SCHEMA_ID, message.__name__): message for message in MESSAGES}


@dataclass(frozen=True)
class Vector:
    """One message with its bytes and what they mean."""

    said: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.name}-{self.said['case']}"

    @property
    def name(self) -> str:
        return str(self.said["message"])

    @property
    def message(self) -> type[Message]:
        return CLASSES[self.said["schema_id"], self.name]

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.said["fields"])

    @property
    def encoded(self) -> bytes:
        return bytes.fromhex(self.said["hex"])

    @property
    def with_header(self) -> bool:
        return bool(self.said["with_header"])

    def decode(self, buffer: bytes | None = None) -> Message:
        """The message in the buffer, or in this vector's bytes, read the way this vector is."""
        data = self.encoded if buffer is None else buffer
        return self.message.decode(data) if self.with_header else self.message.decode_body(data)


def read(name: str) -> list[Vector]:
    return [Vector(said) for said in json.loads((HERE / name).read_text())]


SBE_TOOL = read("sbe-vectors.json")
BY_HAND = read("hand-vectors.json")
ALL = SBE_TOOL + BY_HAND


def example(name: str, case: str) -> Vector:
    """The vector of this message and case."""
    return next(vector for vector in ALL if (vector.name, vector.said["case"]) == (name, case))
