"""The layouts against the table SbeTool gave (LAYOUT.md), the C header, and the rules for the XML itself."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from framepool.wire import codegen, constants
from framepool.wire._generated.control_900 import PayloadPool, SlotHeader, TensorHeader
from framepool.wire._generated.discovery_910 import Result
from framepool.wire.dispatch import MESSAGES
from framepool.wire.emit_header import CONSTANTS, upper
from framepool.wire.message import Message
from framepool.wire.schema import SchemaError, read_schema, read_schemas, snake
from tests.golden.vectors import HERE as GOLDEN
from tests.golden.vectors import example

BY_NAME = {message.__name__: message for message in MESSAGES}
LINE = re.compile(r"- \*\*(\w+)\*\* tid=(\d+) block=(\d+): ([^|]*)(.*)")
SBE_MESSAGE = "{http://fixprotocol.io/2016/sbe}message"
DEFINES = dict(re.findall(r"#define FP_(\w+) (\S+)", (codegen.PACKAGE / "_native" / "layout.h").read_text()))
XML_FILES = sorted(codegen.SCHEMAS.glob("*.xml"))


def table() -> list[tuple[str, int, int, str, str]]:
    """The rows of LAYOUT.md: name, template, block length, fixed fields, the rest."""
    found = (LINE.match(line) for line in (GOLDEN / "LAYOUT.md").read_text().splitlines())
    return [(m[1], int(m[2]), int(m[3]), m[4], m[5]) for m in found if m]


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_fields_lie_where_the_table_says(row: tuple[str, int, int, str, str]) -> None:
    name, template, block_length, fixed, _ = row
    message = BY_NAME[name]
    assert (template, block_length) == (message.TEMPLATE_ID, message.BLOCK_LENGTH)
    fields = [f"{field.name}@{field.offset}+{field.size}" for field in message.FIELDS]
    assert fields == [field for field in fixed.split() if not field.endswith("(const)")]


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_groups_and_data_follow_in_the_order_of_the_table(row: tuple[str, int, int, str, str]) -> None:
    name, _, _, _, rest = row
    message = BY_NAME[name]
    outer = re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", "", rest)  # what stands inside groups is theirs
    expected = re.findall(r"G (\w+)", outer)
    for data in re.findall(r"D ([\w, ]+)", outer):
        expected += data.split(", ")
    assert list(message.__struct_encode_fields__[len(message.FIELDS) :]) == expected


def test_table_has_all_messages_but_those_of_section_0_of_the_decisions() -> None:
    added = {"MetaBlobAnnounce", "MetaBlobChunk", "MetaBlobComplete", "ShmDriverShutdownRequest", "TraceLinkSet"}
    assert {row[0] for row in table()} | added == set(BY_NAME)


def test_group_entries_lie_where_the_table_says() -> None:
    assert [(field.name, field.offset, field.size) for field in PayloadPool.FIELDS] == [
        ("poolId", 0, 2),
        ("poolNslots", 2, 4),
        ("strideBytes", 6, 4),
    ]
    assert [field.offset for field in Result.FIELDS] == [0, 4, 8, 16, 20, 24, 26, 27, 35]
    assert (PayloadPool.BLOCK_LENGTH, Result.BLOCK_LENGTH) == (10, 39)


@pytest.mark.clause("W-8.2-01")
def test_max_dims_is_a_constant_without_bytes() -> None:
    assert TensorHeader.MAX_DIMS == constants.MAX_DIMS == 8
    assert TensorHeader.BLOCK_LENGTH == 184
    assert "maxDims" not in TensorHeader.__struct_encode_fields__
    header = example("TensorHeader", "image_u16_row_major").decode()
    marked = TensorHeader(**{**{n: getattr(header, n) for n in header.__struct_fields__}, "pad_align": 0x5A})
    assert marked.encode_body()[4:6] == bytes([2, 0x5A])


@pytest.mark.clause("W-8.2-03")
def test_slot_is_a_body_without_a_message_header() -> None:
    slot = example("SlotHeader", "image_u16_row_major").decode()
    assert isinstance(slot, SlotHeader)
    assert slot.encode_body()[:8] == slot.seq_commit.to_bytes(8, "little")
    assert SlotHeader.decode_body(slot.encode_body()).seq_commit == 246913


@pytest.mark.clause("W-8.2-09", "W-8.2-10")
def test_tensor_header_is_embedded_with_its_message_header() -> None:
    tensor = example("TensorHeader", "image_u16_row_major").decode()
    slot = example("SlotHeader", "image_u16_row_major").decode()
    assert isinstance(slot, SlotHeader)
    rebuilt = SlotHeader(**{**{n: getattr(slot, n) for n in slot.__struct_fields__}, "header_bytes": tensor.encode()})
    body = rebuilt.encode_body()
    assert len(body) == constants.HEADER_SLOT_BYTES == 256
    assert body[60:64] == bytes.fromhex("c0 00 00 00")
    assert body[64:72] == bytes.fromhex("b8 00 34 00 84 03 01 00")
    assert constants.HEADER_BYTES_OFFSET == 60
    assert constants.TENSOR_HEADER_OFFSET == 64
    assert constants.TENSOR_HEADER_BYTES == len(tensor.encode()) == 192
    assert TensorHeader.decode(SlotHeader.decode_body(body).header_bytes) == tensor


def test_superblock_constants_are_those_of_the_golden_superblock() -> None:
    superblock = example("ShmRegionSuperblock", "header_ring").encoded
    assert superblock[:8] == constants.SUPERBLOCK_MAGIC.to_bytes(8, "little") == bytes.fromhex("314d48534c504f54")
    assert len(superblock) == constants.SUPERBLOCK_SIZE
    assert superblock[8:12] == constants.LAYOUT_VERSION.to_bytes(4, "little")


class TestHeaderFile:
    """The C header of the compiled core says the same as the Python classes."""

    def number(self, name: str) -> int:
        return int(re.sub(r"UINT64_C\((.*)\)|u$", r"\1", DEFINES[name]), 0)

    @pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
    def test_message_has_its_numbers(self, message: type[Message]) -> None:
        prefix = upper(message.__name__)
        assert self.number(f"{prefix}_TEMPLATE_ID") == message.TEMPLATE_ID
        assert self.number(f"{prefix}_BLOCK_LENGTH") == message.BLOCK_LENGTH
        for field in message.FIELDS:
            assert self.number(f"{prefix}_{upper(field.name)}_OFFSET") == field.offset
            assert self.number(f"{prefix}_{upper(field.name)}_SIZE") == field.size
            if field.null is not None:
                assert self.number(f"{prefix}_{upper(field.name)}_NULL") == field.null
            for value in (field.values or {}).values():
                assert self.number(f"{upper(type(value).__name__)}_{value.name}") == value

    def test_constants_are_the_python_ones(self) -> None:
        assert {name: self.number(name) for name in CONSTANTS} == {n: getattr(constants, n) for n in CONSTANTS}


@pytest.mark.clause("W-10.1-06")
@pytest.mark.parametrize("path", XML_FILES, ids=lambda path: path.name)
def test_data_is_never_marked_optional(path: Path) -> None:
    assert [data.attrib for data in ElementTree.parse(path).iter("data") if "presence" in data.attrib] == []


@pytest.mark.clause("W-10.1-07", "N-5.0-04")
@pytest.mark.parametrize("path", XML_FILES, ids=lambda path: path.name)
def test_data_comes_last_and_ids_rise_over_fields_and_over_data(path: Path) -> None:
    """Ids are not on the wire and stay as the specifications print them (decisions.md #7): rising, with gaps."""
    root = ElementTree.parse(path)
    for parent in [*root.iter(SBE_MESSAGE), *root.iter("group")]:
        tags = [child.tag for child in parent]
        assert tags == sorted(tags, key=["field", "group", "data"].index)
        for tag in ("field", "data"):
            ids = [int(child.attrib["id"]) for child in parent if child.tag == tag]
            assert ids == sorted(set(ids))


@pytest.mark.clause("W-16-02")
def test_change_of_the_wire_layout_asks_for_a_review_of_the_versions() -> None:
    """Whoever changes a layout of schema 900 changes this fingerprint, and decides on the versions beside it."""
    schema = next(schema for schema in read_schemas(codegen.SCHEMAS) if schema.id == 900)
    layout = repr((schema.enums, schema.messages)).encode()
    reviewed = {"schema version": schema.version, "layout version": constants.LAYOUT_VERSION}
    assert reviewed == {"schema version": 1, "layout version": 1}
    assert hashlib.sha256(layout).hexdigest()[:16] == "39cb13ce61cc1365"


class TestSchemaReader:
    """What the reader does not know it refuses."""

    def rewritten(self, tmp_path: Path, old: str, new: str) -> Path:
        text = (codegen.SCHEMAS / "bridge-902.xml").read_text()
        assert old in text
        path = tmp_path / "bridge-902.xml"
        path.write_text(text.replace(old, new))
        return path

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('byteOrder="littleEndian"', 'byteOrder="bigEndian"'),
            ('id="6" type="uint32"', 'id="6" type="uint32" maxValue="5"'),
            ('type="varDataEncoding"/>', 'type="varDataEncoding" presence="optional"/>'),
            ('name="BridgeFrameChunk" id="1"', 'name="BridgeFrameChunk" id="1" blockLength="44"'),
            ('<data  name="headerBytes"', '<blob name="headerBytes"'),
            ('maxValue="65535"/>', 'minValue="1" maxValue="65535"/>'),
        ],
    )
    def test_unknown_construct_is_refused(self, tmp_path: Path, old: str, new: str) -> None:
        with pytest.raises(SchemaError):
            read_schema(self.rewritten(tmp_path, old, new))

    def test_names_come_back_from_snake_case(self) -> None:
        for message in MESSAGES:
            assert tuple(map(snake, message.__struct_encode_fields__)) == message.__struct_fields__
