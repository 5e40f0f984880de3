"""The layouts as C: `_native/layout.h`, so that the compiled core has no offset of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from framepool.wire import constants
from framepool.wire.schema import Block, Enum, Field, Schema, SchemaError

CONSTANTS = (
    "SUPERBLOCK_MAGIC",
    "LAYOUT_VERSION",
    "SUPERBLOCK_SIZE",
    "HEADER_SLOT_BYTES",
    "MAX_DIMS",
    "MESSAGE_HEADER_BYTES",
    "GROUP_HEADER_BYTES",
    "DATA_LENGTH_BYTES",
    "HEADER_BYTES_OFFSET",
    "TENSOR_HEADER_OFFSET",
    "TENSOR_HEADER_BYTES",
)


def emit_header(schemas: Sequence[Schema]) -> str:
    """The whole header: constants, schemas, enumerations, messages, group entries."""
    lines = [
        "/* Written by `python -m framepool.wire.codegen` from schemas/: do not edit. */",
        "/* Offsets are within a block; in a message with header add FP_MESSAGE_HEADER_BYTES. */",
        "#ifndef FRAMEPOOL_LAYOUT_H",
        "#define FRAMEPOOL_LAYOUT_H",
        "",
        "#include <stdint.h>",
        "",
        *(_define(name, getattr(constants, name)) for name in CONSTANTS),
        "",
        "/* the message header: four uint16 */",
        *(
            _define(f"MESSAGE_HEADER_{name}_OFFSET", 2 * index)
            for index, name in enumerate(("BLOCK_LENGTH", "TEMPLATE_ID", "SCHEMA_ID", "VERSION"))
        ),
        "",
        "/* schemas */",
    ]
    for schema in schemas:
        lines += [
            _define(f"{upper(schema.name)}_SCHEMA_ID", schema.id),
            _define(f"{upper(schema.name)}_SCHEMA_VERSION", schema.version),
        ]
    for enum in _distinct_enums(schemas):
        lines += ["", f"/* {enum.name}: {enum.primitive.name} */"]
        lines += [_define(f"{upper(enum.name)}_{name}", value) for name, value in enum.values]
    for schema in schemas:
        for message in schema.messages:
            prefix = upper(message.block.name)
            lines += ["", f"/* {schema.id} {message.block.name} */"]
            lines += [_define(f"{prefix}_TEMPLATE_ID", message.id)]
            lines += _block(prefix, message.block)
        for entry in schema.entries().values():
            lines += ["", f"/* {schema.id} group entry {entry.name} */"]
            lines += _block(f"{upper(schema.name)}_{upper(entry.name)}", entry)
    return "\n".join([*lines, "", "#endif", ""])


def upper(name: str) -> str:
    """`FrameDescriptor` as `FRAME_DESCRIPTOR`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper()


def _define(name: str, value: int) -> str:
    if value >= 2**32:
        return f"#define FP_{name} UINT64_C(0x{value:016X})"
    return f"#define FP_{name} {value}u" if value >= 2**31 else f"#define FP_{name} {value}"


def _distinct_enums(schemas: Sequence[Schema]) -> list[Enum]:
    """Each enumeration once; schemas that share a name must agree on its values."""
    found: dict[str, Enum] = {}
    for schema in schemas:
        for enum in schema.enums:
            if found.setdefault(enum.name, enum) != enum:
                raise SchemaError(f"{schema.path.name}: {enum.name} differs from the one of another schema")
    return list(found.values())


def _block(prefix: str, block: Block) -> Iterator[str]:
    yield _define(f"{prefix}_BLOCK_LENGTH", block.length)
    for field in block.fields:
        yield from _field(f"{prefix}_{upper(field.name)}", field)
    for constant in block.constants:
        assert constant.type.constant is not None
        yield _define(f"{prefix}_{upper(constant.name)}", constant.type.constant)


def _field(prefix: str, field: Field) -> Iterator[str]:
    yield _define(f"{prefix}_OFFSET", field.offset)
    yield _define(f"{prefix}_SIZE", field.size)
    if field.null is not None:
        yield _define(f"{prefix}_NULL", field.null)
    if field.type.maximum is not None:
        yield _define(f"{prefix}_MAX", field.type.maximum)
