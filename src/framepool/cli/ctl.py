"""`framepool ctl`: a command to a service, from a terminal, and what the service made of it (Service 6)."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import Parameter

from framepool.config import load
from framepool.errors import EncodeError, FramepoolError
from framepool.service import Commander, Format, Ref, Value
from framepool.service.events import plain_value
from framepool.wire.values import FLOATS, NUMBERS


def ctl(
    tag: Annotated[str, Parameter(help="The service, such as service:limiter:20000; `framepool services` lists them.")],
    key: Annotated[str, Parameter(help="The command: start, stop, pause, resume, state, set:NAME; `commands` lists.")],
    value: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Its value: a number, true or false, else text. --format says otherwise: bytes are hexadecimal, bit "
            "is ones and zeros, ref is STREAM/EPOCH/SEQ.",
        ),
    ] = None,
    /,
    *,
    format: Annotated[Format | None, Parameter(help="How the value goes over the wire.")] = None,
    timeout: Annotated[float | None, Parameter(help="Seconds to wait for the echo.")] = None,
    config: Annotated[Path | None, Parameter(help="The TOML file that the driver runs with.")] = None,
    json: Annotated[bool, Parameter(negative="", help="One JSON document.")] = False,
) -> None:
    """Send a command to a service, wait until it is accepted, and show the echo; exit code 1 if it is not."""
    settings = load(config)
    try:
        parsed = parse(value, format)
    except ValueError as error:
        refuse("ctl", str(error))
    try:
        with Commander.connect(settings) as commander:
            sent = commander.command(tag, key, parsed, format=format, timeout=timeout)
    except EncodeError as error:
        refuse("ctl", str(error))
    except FramepoolError as error:
        if not json:
            raise
        print(jsonlib.dumps({"accepted": False, "error": str(error), "kind": type(error).__name__}))
        sys.exit(1)
    assert sent.echo is not None
    result = unfolded(sent.result)
    if json:
        echo = sent.echo.plain()
        print(jsonlib.dumps({"accepted": True, "echo": echo, "result": result}))
        return
    said = "" if sent.echo.value is None else f" {shown(sent.echo.value)}"
    print(f"{tag} accepted {key}{said}")
    if result is not None:
        print(jsonlib.dumps(result, indent=2) if isinstance(result, dict | list) else printable(str(result)))


def parse(text: str | None, format: Format | None) -> Value:
    """The value that somebody typed; ValueError says what is wrong with it."""
    if text is None or format is Format.NOTHING:
        return None
    match format:
        case None:
            return guessed(text)
        case Format.STRING:
            return text
        case Format.BOOLEAN if text in ("true", "false"):
            return text == "true"
        case Format.BYTES:
            return bytes.fromhex(text)
        case Format.BIT if set(text) <= {"0", "1"}:
            return tuple(bit == "1" for bit in text)
        case Format.REF if len(parts := text.split("/")) == 3:
            return Ref(*map(int, parts))
        case _ if format in NUMBERS:
            with contextlib.suppress(ValueError):
                return float(text) if format in FLOATS else int(text, 0)
    raise ValueError(f"{text!r} is no {format.name}")


def guessed(text: str) -> Value:
    """A number if it looks like one, a truth value, else text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def unfolded(value: Value) -> Any:
    """A result as JSON has it; text that is JSON itself is unfolded."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return jsonlib.loads(value)
        except ValueError:
            return value
    return plain_value(value)


def shown(value: Value) -> str:
    """A value in a line for people."""
    return str(value) if isinstance(value, Ref) else printable(jsonlib.dumps(plain_value(value), ensure_ascii=False))


def printable(text: str) -> str:
    """Text from outside without anything that a terminal would obey."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def refuse(command: str, why: str) -> NoReturn:
    print(f"framepool {command}: {why}", file=sys.stderr)
    sys.exit(2)
