"""Any valid message of any class, made from the layout that its class states."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from framepool.wire.message import Block, Field

TEXT = st.text(st.characters(max_codepoint=127), max_size=12)
DATA = st.binary(max_size=24)


def integers(code: str) -> st.SearchStrategy[int]:
    """Any number of a `struct` code."""
    bits = 8 * struct.calcsize(f"<{code}")
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if code.islower() else st.integers(0, 2**bits - 1)


def of_field(field: Field) -> st.SearchStrategy[Any]:
    """Any value of a fixed field."""
    count, code = field.code[:-1], field.code[-1]
    values: st.SearchStrategy[Any]
    if code == "s":
        return st.binary(min_size=field.size, max_size=field.size)
    if field.values is not None:
        values = st.sampled_from(list(field.values.values()))
    elif field.maximum is not None:
        values = st.integers(0, field.maximum)
    else:
        values = integers(code)
    if count:
        return st.tuples(*[values] * int(count))
    if field.null is not None:
        return st.none() | values.filter(lambda value: value != field.null)
    return values


def messages[Any_: Block](kind: type[Any_]) -> st.SearchStrategy[Any_]:
    """Any valid message, or entry of a group, of this class."""
    infos = msgspec.structs.fields(kind)
    values = {info.name: of_field(field) for info, field in zip(infos, kind.FIELDS, strict=False)}
    for info in infos[len(kind.FIELDS) :]:
        if info.type is str:
            values[info.name] = TEXT
        elif info.type is bytes:
            values[info.name] = DATA
        else:
            values[info.name] = st.lists(messages(get_args(info.type)[0]), max_size=3).map(tuple)
    return st.builds(kind, **values)


def weight(value: object) -> int:
    """How much a decoded message holds: one for each object and each byte of text and data."""
    if isinstance(value, str | bytes):
        return 1 + len(value)
    if isinstance(value, tuple):
        return 1 + sum(map(weight, value))
    if isinstance(value, Block):
        return 1 + sum(weight(getattr(value, name)) for name in value.__struct_fields__)
    return 1
