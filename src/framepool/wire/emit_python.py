"""A schema as a Python module: enumerations, group entries, messages.

The code written here is straight-line on purpose: a decode is one `unpack` and one call of the constructor.
What can be shared without a cost per field lives in `message` and `cursor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from framepool.wire.schema import PRIMITIVES, Block, Data, Enum, Field, Group, Message, Schema, snake

WIDTH = 110
INDENT = "    "
NULLS = {primitive.null: f"{primitive.name.upper()}_NULL" for primitive in PRIMITIVES.values()}
SUPPORT = (
    "MALFORMED",
    *NULLS.values(),
    "UNFIT",
    "Block",
    "Field",
    "FixedMessage",
    "Message",
    "MessageHeader",
    "at_most",
    "encode_ascii",
    "encode_data",
    "encode_group",
    "exactly",
    "malformed",
    "optional",
    "refuse",
    "unfit",
)


def emit_module(schema: Schema) -> str:
    """The whole module, with only the imports it uses."""
    body: list[str] = []
    for enum in schema.enums:
        body += _enum(enum)
    for entry in schema.entries().values():
        body += _class(entry, "Block", f"An entry of a group: a block of {entry.length} bytes.", [])
    for message in schema.messages:
        body += _message(schema, message)
    names = [f"{message.block.name}," for message in schema.messages]
    body += ["", "", *_tuple("MESSAGES: Final[tuple[type[Message], ...]]", names)]
    text = "\n".join(body)
    return "\n".join([*_preamble(schema, text), text, ""])


def _preamble(schema: Schema, text: str) -> Iterator[str]:
    yield f'"""The messages of schema {schema.id}, `{schema.package}` version {schema.version}.'
    yield ""
    yield f"Written by `python -m framepool.wire.codegen` from schemas/{schema.path.name}: do not edit."
    yield '"""'
    yield ""
    yield "from __future__ import annotations"
    yield ""
    if "Buffer" in text:
        yield "from collections.abc import Buffer"
    if "IntEnum" in text:
        yield "from enum import IntEnum"
    yield "from struct import Struct"
    yield "from typing import ClassVar, Final, Self"
    yield ""
    if "cursor: Cursor" in text:
        yield "from framepool.wire.cursor import Cursor"
    yield "from framepool.wire.message import ("
    yield from (f"{INDENT}{name}," for name in SUPPORT if re.search(rf"\b{name}\b", text))
    yield ")"


def _enum(enum: Enum) -> Iterator[str]:
    yield from (
        "",
        "",
        f"class {enum.name}(IntEnum):",
        f'{INDENT}"""{enum.primitive.name} on the wire."""',
        "",
    )
    for name, value in enum.values:
        yield f"{INDENT}{name} = {value}"
    yield ""
    yield ""
    yield f"{_table(enum)}: Final = {{member.value: member for member in {enum.name}}}"


def _table(enum: Enum) -> str:
    """The dictionary from a number to its member: `MODE_OF` for `Mode`."""
    return f"{snake(enum.name).upper()}_OF"


def _message(schema: Schema, message: Message) -> Iterator[str]:
    block = message.block
    tail = " and what follows it" if not block.is_fixed else ""
    constants = [
        f'SCHEMA: ClassVar[str] = "{schema.package}"',
        f"SCHEMA_ID: ClassVar[int] = {schema.id}",
        f"SCHEMA_VERSION: ClassVar[int] = {schema.version}",
        f"TEMPLATE_ID: ClassVar[int] = {message.id}",
        f"HEADER: ClassVar[MessageHeader] = MessageHeader({block.length}, {message.id}, {schema.id}, {schema.version})",
        "HEADER_BYTES: ClassVar[bytes] = HEADER.encode()",
    ]
    if schema.extensible:
        constants.append("EXTENSIBLE: ClassVar[bool] = True")
    if block.is_fixed:
        constants.append(f'MESSAGE: ClassVar[Struct] = Struct("<8s{block.format[1:]}")')
    base = "FixedMessage" if block.is_fixed else "Message"
    docstring = f"Template {message.id} of schema {schema.id}: a block of {block.length} bytes{tail}."
    yield from _class(block, base, docstring, constants, schema.extensible)


def _class(block: Block, base: str, docstring: str, constants: list[str], extensible: bool = False) -> Iterator[str]:
    yield from ("", "", f'class {block.name}({base}, frozen=True, kw_only=True, rename="camel"):')
    body = [f'"""{docstring}"""', "", *_attributes(block), "", *constants, *_layout(block), ""]
    body += _encode_body(block)
    body.append("")
    body += _decode(block) if base == "FixedMessage" else _read(block, extensible)
    for line in body:
        yield f"{INDENT}{line}" if line else ""


def _attributes(block: Block) -> Iterator[str]:
    for field in block.fields:
        yield f"{snake(field.name)}: {_annotation(field)}"
    for group in block.groups:
        yield f"{snake(group.name)}: tuple[{group.entry.name}, ...] = ()"
    for data in block.data:
        yield f'{snake(data.name)}: str = ""' if data.ascii else f'{snake(data.name)}: bytes = b""'


def _annotation(field: Field) -> str:
    """The type of an attribute, and its default: None for an optional field, zero for padding."""
    if field.is_bytes:
        return f"bytes = bytes({field.type.length})"
    if field.is_array:
        return "tuple[int, ...]"
    name = field.type.enum.name if field.type.enum else "int"
    if field.null is not None:
        return f"{name} | None = None"
    return f"{name} = 0" if field.name.startswith("pad") else name


def _layout(block: Block) -> Iterator[str]:
    for constant in block.constants:
        yield f"{snake(constant.name).upper()}: ClassVar[int] = {constant.type.constant}"
    yield f'BLOCK: ClassVar[Struct] = Struct("{block.format}")'
    yield f"BLOCK_LENGTH: ClassVar[int] = {block.length}"
    yield f"MINIMUM_LENGTH: ClassVar[int] = {block.minimum}"
    yield from _tuple("FIELDS: ClassVar[tuple[Field, ...]]", [f"Field({_details(field)})," for field in block.fields])


def _details(field: Field) -> str:
    details = [f'"{field.name}"', str(field.offset), f'"{field.code}"']
    if field.null is not None:
        details.append(f"null={_null(field)}")
    if field.type.maximum is not None:
        details.append(f"maximum={field.type.maximum:_}")
    if field.type.enum is not None:
        details.append(f"values={_table(field.type.enum)}")
    return ", ".join(details)


def _tuple(name: str, items: list[str]) -> Iterator[str]:
    if len(items) < 2:
        yield f"{name} = ({''.join(items)})"
        return
    yield f"{name} = ("
    yield from (f"{INDENT}{item}" for item in items)
    yield ")"


def _encode_body(block: Block) -> Iterator[str]:
    yield "def encode_body(self) -> bytes:"
    tail = [
        *map(_encoded_group, _labelled(block, block.groups)),
        *map(_encoded_data, _labelled(block, block.data)),
    ]
    if block.fields:
        result = "block =" if tail else "return"
        yield f"{INDENT}try:"
        packed = [_packed(field) for field in block.fields]
        yield from (INDENT * 2 + line for line in _call(f"{result} self.BLOCK.pack", packed, 12))
        yield f"{INDENT}except UNFIT:"
        yield f"{INDENT * 2}unfit(self)"
    if tail:
        parts = ["block", *tail] if block.fields else tail
        if len(line := f"{INDENT}return {' + '.join(parts)}") <= WIDTH - len(INDENT):
            yield line
            return
        yield f"{INDENT}return ("
        yield f"{INDENT * 2}{parts[0]}"
        yield from (f"{INDENT * 2}+ {part}" for part in parts[1:])
        yield f"{INDENT})"


def _labelled[Part: (Group, Data)](block: Block, parts: tuple[Part, ...]) -> list[tuple[str, Part]]:
    return [(f"{block.name}.{snake(part.name)}", part) for part in parts]


def _encoded_group(labelled: tuple[str, Group]) -> str:
    label, group = labelled
    return f'encode_group(self.{snake(group.name)}, {group.entry.length}, "{label}")'


def _encoded_data(labelled: tuple[str, Data]) -> str:
    label, data = labelled
    function = "encode_ascii" if data.ascii else "encode_data"
    return f'{function}(self.{snake(data.name)}, {data.maximum:_}, "{label}")'


def _packed(field: Field) -> str:
    """The argument of `pack` for a field; the helpers raise what `UNFIT` catches."""
    value = f"self.{snake(field.name)}"
    if field.is_bytes:
        return f"exactly({value}, {field.type.length})"
    if field.is_array:
        return f"*exactly({value}, {field.type.length})"
    if field.type.enum is not None:
        member = f"{_table(field.type.enum)}[{value}]"
        return f"{_null(field)} if {value} is None else {member}" if field.null is not None else member
    if field.null is not None:
        return f"optional({value}, {_null(field)})"
    if field.type.maximum is not None:
        return f"at_most({value}, {field.type.maximum:_})"
    return value


def _decode(block: Block) -> Iterator[str]:
    """Header and block in one step; whatever is wrong with them is found out by `refuse`."""
    yield "@classmethod"
    yield "def decode(cls, buffer: Buffer) -> Self:"
    yield f"{INDENT}try:"
    yield from (INDENT * 2 + line for line in _unpack(block, "cls.MESSAGE.unpack(buffer)", ["header"]))
    header = "values[0]" if block.has_arrays else "header"
    yield f"{INDENT * 2}if {header} == cls.HEADER_BYTES:"
    yield from (INDENT * 3 + line for line in _construct(block, margin=16, first=1))
    yield f"{INDENT}except MALFORMED:"
    yield f"{INDENT * 2}pass"
    yield f"{INDENT}refuse(cls, buffer)"


def _read(block: Block, extensible: bool) -> Iterator[str]:
    checked = any(field.type.enum or field.type.maximum is not None for field in block.fields)
    yield "@classmethod"
    yield "def read(cls, cursor: Cursor) -> Self:"
    lines = ["start = cursor.offset"] if checked else []
    if block.fields:
        lines += _unpack(block, f'cursor.block(cls.BLOCK, "{block.name}")')
    if extensible:
        lines.append(f'cursor.skip_extension("{block.name}")')
    for label, group in _labelled(block, block.groups):
        lines.append(f'{snake(group.name)} = cursor.group("{label}", {group.entry.name})')
    for label, data in _labelled(block, block.data):
        method = "ascii" if data.ascii else "data"
        lines.append(f'{snake(data.name)} = cursor.{method}("{label}", {data.maximum:_})')
    construct = list(_construct(block, margin=12 if checked else 8))
    if checked:
        construct = ["try:", *(INDENT + line for line in construct), "except MALFORMED:"]
        construct.append(f"{INDENT}malformed(cls, cursor.view, start)")
    yield from (INDENT + line for line in [*lines, *construct])


def _unpack(block: Block, source: str, before: Sequence[str] = ()) -> Iterator[str]:
    """Names for the values of the block; where one field has several values, a tuple to take slices of."""
    if block.has_arrays:
        yield f"values = {source}"
        return
    names = [*before, *(snake(field.name) for field in block.fields)]
    if len(names) == 1:
        yield f"({names[0]},) = {source}"
        return
    line = f"{', '.join(names)} = {source}"
    if 12 + len(line) <= WIDTH:
        yield line
        return
    yield "("
    yield from (f"{INDENT}{name}," for name in names)
    yield f") = {source}"


def _construct(block: Block, margin: int, first: int = 0) -> Iterator[str]:
    arguments = []
    index = first
    for field in block.fields:
        count = field.type.length if field.is_array else 1
        source = f"values[{index}:{index + count}]" if field.is_array else f"values[{index}]"
        name = snake(field.name)
        arguments.append(f"{name}={_unpacked(field, source if block.has_arrays else name)}")
        index += count
    for name in [group.name for group in block.groups] + [data.name for data in block.data]:
        arguments.append(f"{snake(name)}={snake(name)}")
    yield from _call("return cls", arguments, margin)


def _unpacked(field: Field, value: str) -> str:
    known = f"{_table(field.type.enum)}[{value}]" if field.type.enum is not None else value
    if field.type.maximum is not None:
        known = f"at_most({value}, {field.type.maximum:_})"
    return f"None if {value} == {_null(field)} else {known}" if field.null is not None else known


def _null(field: Field) -> str:
    """The null value of an optional field, by name where it is the one of its type."""
    assert field.null is not None
    return NULLS.get(field.null, str(field.null))


def _call(function: str, arguments: list[str], margin: int) -> Iterator[str]:
    """A call on one line if it is short, else with one argument on each line."""
    line = f"{function}({', '.join(arguments)})"
    if margin + len(line) <= WIDTH:
        yield line
        return
    yield f"{function}("
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if margin + len(f"{INDENT}{argument},") <= WIDTH:
            yield f"{INDENT}{argument},"
        else:
            yield from (f"{INDENT}{name}{equals}(", f"{INDENT * 2}{value}", f"{INDENT}),")
    yield ")"
