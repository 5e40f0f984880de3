"""`framepool decode`: what the bytes of one message say, for people or as JSON.

Bytes come as hexadecimal text on the command line, or from a file or standard input as they are or as
hexadecimal text. Strings are printed with control characters escaped, and the token of a shutdown request is
starred out, because the output ends up on terminals and in logs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from json import dumps
from typing import Annotated, Any, BinaryIO, NoReturn

from cyclopts import Parameter

from framepool.errors import DecodeError
from framepool.wire import dispatch
from framepool.wire._generated.control_900 import ShmRegionSuperblock, SlotHeader, TensorHeader
from framepool.wire.describe import redacted, vector
from framepool.wire.message import Message

LARGEST_INPUT = 16 * 1024 * 1024
RAW: dict[str, type[Message]] = {
    message.__name__: message for message in (ShmRegionSuperblock, SlotHeader, TensorHeader)
}
HEXADECIMAL = re.compile(rb"\s*(0x)?[0-9a-fA-F\s]*", re.ASCII)


def decode(
    source: Annotated[
        str,
        Parameter(allow_leading_hyphen=True, help="The bytes in hexadecimal, a file, or - for standard input."),
    ],
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="One JSON object, shaped like a golden vector.")] = False,
    raw: Annotated[
        str | None,
        Parameter(help=f"Read this layout, without a message header: {', '.join(RAW)}. Bytes after it are ignored."),
    ] = None,
) -> None:
    """Print what a message says."""
    try:
        data = _bytes(source, truncate=raw is not None)
        message = _message(data, raw)
    except (DecodeError, OSError, _BadInput) as error:
        _refuse(error)
    said = vector(redacted(message), with_header=raw is None)
    if message.EXTENSIBLE:  # a newer one says more than we can encode
        header = dispatch.peek_header(data)
        said |= {"version": header.version, "block_length": header.block_length}
        said |= {"length": len(data), "hex": data.hex()}
    if json:
        print(dumps(said))
    else:
        print("\n".join(_listing(said)))


class _BadInput(Exception):
    """The command was given something that cannot hold a message."""


def _refuse(error: Exception) -> NoReturn:
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    print(f"framepool decode: {text}", file=sys.stderr)
    sys.exit(2)


def _message(data: bytes, raw: str | None) -> Message:
    if raw is None:
        return dispatch.decode(data)
    if raw not in RAW:
        raise _BadInput(f"--raw {raw}: only {', '.join(RAW)} come without a message header")
    return RAW[raw].decode_body(data)


def _bytes(source: str, truncate: bool) -> bytes:
    """The bytes meant by the argument; hexadecimal text wins over a file of that name."""
    if source == "-":
        return _content(sys.stdin.buffer, "standard input", truncate)
    if source and HEXADECIMAL.fullmatch(source.encode(errors="replace")):
        return _from_hexadecimal(source)
    if not source or not os.path.exists(source):
        raise _BadInput(f"{_short(source)} is neither hexadecimal nor a file")
    with open(source, "rb") as file:
        return _content(file, source, truncate)


def _content(file: BinaryIO, name: str, truncate: bool) -> bytes:
    data = file.read(LARGEST_INPUT + 1)
    if len(data) > LARGEST_INPUT and not truncate:
        raise _BadInput(f"{name} has more than {LARGEST_INPUT} bytes: too many for one message")
    if data and HEXADECIMAL.fullmatch(data):
        return _from_hexadecimal(data.decode())
    return data


def _from_hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text.strip().removeprefix("0x"))
    except ValueError:
        raise _BadInput("the hexadecimal text has an odd number of digits or a space inside a byte") from None


def _short(text: str) -> str:
    return dumps(text if len(text) <= 40 else f"{text[:37]}...")


def _listing(said: dict[str, Any]) -> Iterator[str]:
    form = "" if said["with_header"] else ", without a message header"
    yield f"{said['message']}: {said['length']} bytes{form}"
    yield f"schema {said['schema']} ({said['schema_id']}), version {said['version']}, template {said['template_id']}"
    yield from _lines(said["fields"], "  ")


def _lines(fields: dict[str, Any], margin: str) -> Iterator[str]:
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        entries = value if isinstance(value, list) and value and isinstance(value[0], dict) else None
        if isinstance(value, dict):
            yield f"{margin}{name}"
            yield from _lines(value, margin + "  ")
        elif entries is not None:
            for index, entry in enumerate(entries):
                yield f"{margin}{name}[{index}]"
                yield from _lines(entry, margin + "  ")
        else:
            yield f"{margin}{name:{width}}  {_shown(value)}"


def _shown(value: object) -> str:
    """None as absent; text in quotes and escaped, but for names and hexadecimal, which look the same either way."""
    if value is None:
        return "absent"
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z0-9_]+", value) else dumps(value)
    return dumps(value)
