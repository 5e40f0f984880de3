"""The schemas of `schemas/*.xml` as plain objects with every offset worked out.

A reader of the subset of SBE 1.0 that the specifications use, and of their deviations as settled in
decisions.md #4 to #8: `tags` as data, named pad types, null values per field, no `presence` on data. Whatever
it does not know it refuses, so that a new schema cannot be half-read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from framepool.wire.constants import DATA_LENGTH_BYTES, GROUP_HEADER_BYTES

SBE = "{http://fixprotocol.io/2016/sbe}"
EXTENSIBLE = "{urn:framepool:schema}extensible"
HIDES_A_TYPE = frozenset({"bytes", "int", "str", "tuple"})


class SchemaError(Exception):
    """The XML says something that this reader does not know."""


@dataclass(frozen=True)
class Primitive:
    """An SBE primitive: its name, `struct` code, size and default null value."""

    name: str
    code: str
    size: int
    null: int


PRIMITIVES = {
    primitive.name: primitive
    for primitive in (
        Primitive("int8", "b", 1, -(2**7)),
        Primitive("int16", "h", 2, -(2**15)),
        Primitive("int32", "i", 4, -(2**31)),
        Primitive("int64", "q", 8, -(2**63)),
        Primitive("uint8", "B", 1, 2**8 - 1),
        Primitive("uint16", "H", 2, 2**16 - 1),
        Primitive("uint32", "I", 4, 2**32 - 1),
        Primitive("uint64", "Q", 8, 2**64 - 1),
    )
}


@dataclass(frozen=True)
class Enum:
    """An enumeration and its valid values in the order of the file."""

    name: str
    primitive: Primitive
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Type:
    """What a field's `type` stands for."""

    primitive: Primitive
    length: int = 1
    optional: bool = False
    null: int | None = None
    maximum: int | None = None
    constant: int | None = None
    enum: Enum | None = None


@dataclass(frozen=True)
class Field:
    """A field of fixed size at its offset in the block; a constant occupies no bytes."""

    name: str
    offset: int
    type: Type
    null: int | None

    @property
    def size(self) -> int:
        return 0 if self.type.constant is not None else self.type.primitive.size * self.type.length

    @property
    def is_bytes(self) -> bool:
        return self.type.length > 1 and self.type.primitive.name == "uint8"

    @property
    def is_array(self) -> bool:
        return self.type.length > 1 and not self.is_bytes

    @property
    def code(self) -> str:
        """The `struct` format of the whole field."""
        if self.is_bytes:
            return f"{self.type.length}s"
        return f"{self.type.length if self.is_array else ''}{self.type.primitive.code}"


@dataclass(frozen=True)
class Data:
    """Variable-length data: a uint32 length of at most `maximum`, then the bytes."""

    name: str
    ascii: bool
    maximum: int


@dataclass(frozen=True)
class Block:
    """What messages and group entries share: fixed fields, then groups, then data."""

    name: str
    fields: tuple[Field, ...]
    constants: tuple[Field, ...]
    groups: tuple[Group, ...]
    data: tuple[Data, ...]
    length: int

    @property
    def is_fixed(self) -> bool:
        return not self.groups and not self.data

    @property
    def has_arrays(self) -> bool:
        return any(field.is_array for field in self.fields)

    @property
    def minimum(self) -> int:
        """The fewest bytes an encoding of this can have."""
        return self.length + GROUP_HEADER_BYTES * len(self.groups) + DATA_LENGTH_BYTES * len(self.data)

    @property
    def format(self) -> str:
        return "<" + "".join(field.code for field in self.fields)


@dataclass(frozen=True)
class Group:
    """A repeating group and the block of its entries."""

    name: str
    entry: Block


@dataclass(frozen=True)
class Message:
    """A message: its template id and its block."""

    id: int
    block: Block


@dataclass(frozen=True)
class Schema:
    """One XML file."""

    path: Path
    package: str
    id: int
    version: int
    extensible: bool
    enums: tuple[Enum, ...]
    messages: tuple[Message, ...]

    @property
    def name(self) -> str:
        """`control` of `shm.tensorpool.control`."""
        return self.package.rpartition(".")[2]

    def entries(self) -> dict[str, Block]:
        """The entry of every group by name, inner ones first; a name stands for one layout only."""
        found: dict[str, Block] = {}
        for message in self.messages:
            for block in _entries_of(message.block):
                if found.setdefault(block.name, block) != block:
                    raise SchemaError(f"{self.path.name}: {block.name} names two different groups")
        return found


def _entries_of(block: Block) -> list[Block]:
    found = []
    for group in block.groups:
        found += [*_entries_of(group.entry), group.entry]
    return found


def snake(name: str) -> str:
    """`streamId` as `stream_id`; a name that would hide a built-in type gets an underscore."""
    lower = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    return f"{lower}_" if lower in HIDES_A_TYPE else lower


def read_schemas(directory: Path) -> list[Schema]:
    """Every schema in the directory, by id."""
    return sorted((read_schema(path) for path in directory.glob("*.xml")), key=lambda schema: schema.id)


def read_schema(path: Path) -> Schema:
    """One schema, with its offsets worked out and its attributes checked."""
    root = ElementTree.parse(path).getroot()
    if root.tag != f"{SBE}messageSchema" or root.get("byteOrder") != "littleEndian":
        raise SchemaError(f"{path.name}: not a little-endian SBE schema")
    reader = _Reader(path, root)
    return Schema(
        path=path,
        package=root.attrib["package"],
        id=int(root.attrib["id"]),
        version=int(root.attrib["version"]),
        extensible=root.get(EXTENSIBLE) == "true",
        enums=tuple(reader.enums.values()),
        messages=tuple(
            Message(int(message.attrib["id"]), reader.block(message, message.attrib["name"]))
            for message in root.iter(f"{SBE}message")
        ),
    )


class _Reader:
    """Resolves the types of one file."""

    def __init__(self, path: Path, root: ElementTree.Element) -> None:
        self.path = path
        types = root.find("types")
        assert types is not None, path
        self.enums = {each.attrib["name"]: self._enum(each) for each in types.iter("enum")}
        self.types = {name: Type(primitive) for name, primitive in PRIMITIVES.items()}
        self.types |= {each.attrib["name"]: self._type(each) for each in types.findall("type")}
        self.types |= {name: Type(enum.primitive, enum=enum) for name, enum in self.enums.items()}
        self.maxima = {
            each.attrib["name"]: int(length.attrib["maxValue"])
            for each in types.findall("composite")
            if (length := each.find("type[@name='length']")) is not None
        }

    def _enum(self, element: ElementTree.Element) -> Enum:
        values = tuple((each.attrib["name"], int(each.text or "")) for each in element.iter("validValue"))
        return Enum(element.attrib["name"], PRIMITIVES[element.attrib["encodingType"]], values)

    def _type(self, element: ElementTree.Element) -> Type:
        known = {"name", "primitiveType", "length", "presence", "nullValue", "maxValue"}
        if unknown := set(element.attrib) - known:
            raise SchemaError(f"{self.path.name}: type {element.attrib['name']} has {sorted(unknown)}")
        return Type(
            primitive=PRIMITIVES[element.attrib["primitiveType"]],
            length=int(element.get("length", "1")),
            optional=element.get("presence") == "optional",
            null=int(element.attrib["nullValue"]) if "nullValue" in element.attrib else None,
            maximum=int(element.attrib["maxValue"]) if "maxValue" in element.attrib else None,
            constant=int(element.text or "") if element.get("presence") == "constant" else None,
        )

    def block(self, element: ElementTree.Element, name: str) -> Block:
        fields, groups, data = [], [], []
        offset = 0
        for child in element:
            if child.tag == "field":
                field = self._field(child, offset)
                offset += field.size
                fields.append(field)
            elif child.tag == "group":
                entry = self.block(child, _entry_name(child.attrib["name"]))
                groups.append(Group(child.attrib["name"], entry))
            elif child.tag == "data":
                data.append(self._data(child))
            else:
                raise SchemaError(f"{self.path.name}: {name} has a <{child.tag}>")
        declared = int(element.get("blockLength", offset))
        if declared != offset:
            raise SchemaError(f"{self.path.name}: {name} declares {declared} bytes, its fields have {offset}")
        return Block(
            name=name,
            fields=tuple(field for field in fields if field.type.constant is None),
            constants=tuple(field for field in fields if field.type.constant is not None),
            groups=tuple(groups),
            data=tuple(data),
            length=offset,
        )

    def _field(self, element: ElementTree.Element, offset: int) -> Field:
        name = element.attrib["name"]
        if unknown := set(element.attrib) - {"name", "id", "type", "presence", "nullValue"}:
            raise SchemaError(f"{self.path.name}: field {name} has {sorted(unknown)}")
        type = self.types[element.attrib["type"]]
        null = None
        if type.optional or element.get("presence") == "optional":
            default = type.primitive.null if type.null is None else type.null
            null = int(element.get("nullValue", default))
        return Field(name, offset, type, null)

    def _data(self, element: ElementTree.Element) -> Data:
        if unknown := set(element.attrib) - {"name", "id", "type"}:
            raise SchemaError(f"{self.path.name}: data {element.attrib['name']} has {sorted(unknown)}")
        type = element.attrib["type"]
        return Data(element.attrib["name"], type.startswith("varAscii"), self.maxima[type])


def _entry_name(group: str) -> str:
    """`payloadPools` as `PayloadPool`."""
    return group[0].upper() + group[1:].removesuffix("s")
