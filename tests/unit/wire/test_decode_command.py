"""`framepool decode`: the same shape as the vectors, one line for bad input, no secrets."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framepool.cli import app
from framepool.cli.decode import LARGEST_INPUT, RAW
from tests.golden.vectors import ALL, Vector, example

DESCRIPTOR = example("FrameDescriptor", "typical")


def run(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        app(["decode", *arguments])
    return int(ended.value.code or 0)


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run("--json", *arguments) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    return stream


@pytest.mark.parametrize("each", [v for v in ALL if v.name != "ShmDriverShutdownRequest"], ids=lambda v: v.id)
def test_json_has_the_shape_of_a_vector(each: Vector, capsys: pytest.CaptureFixture[str]) -> None:
    raw = [] if each.with_header else ["--raw", each.name]
    said = as_json(capsys, each.said["hex"], *raw)
    assert {**said, "case": each.said["case"], "codec_only": each.said["codec_only"]} == each.said


@pytest.mark.parametrize("each", ALL, ids=lambda v: v.id)
def test_listing_names_the_message_and_every_field(each: Vector, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(each.said["hex"], *([] if each.with_header else ["--raw", each.name])) == 0
    listing = capsys.readouterr().out
    assert listing.startswith(f"{each.name}: {len(each.encoded)} bytes")
    for name, value in each.fields.items():
        assert name in listing or value == []


def test_bytes_and_text_are_read_from_files_and_standard_input(
    tmp_path: Path, standard_input: io.BytesIO, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = as_json(capsys, DESCRIPTOR.said["hex"])
    spaced = "0x" + DESCRIPTOR.encoded.hex(" ").upper() + "\n"
    assert as_json(capsys, spaced) == expected
    for content in (DESCRIPTOR.encoded, DESCRIPTOR.said["hex"].encode(), spaced.encode()):
        (tmp_path / "message").write_bytes(content)
        assert as_json(capsys, str(tmp_path / "message")) == expected
        standard_input.seek(0)
        standard_input.truncate()
        standard_input.write(content)
        standard_input.seek(0)
        assert as_json(capsys, "-") == expected


def test_raw_reads_the_start_of_a_longer_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    superblock = example("ShmRegionSuperblock", "header_ring")
    with (tmp_path / "header.ring").open("wb") as file:
        file.write(superblock.encoded)
        file.truncate(LARGEST_INPUT + 4096)
    said = as_json(capsys, str(tmp_path / "header.ring"), "--raw", "ShmRegionSuperblock")
    assert said["fields"] == superblock.fields
    assert said["length"] == 64


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["zz"], '"zz" is neither hexadecimal nor a file'),
        ([""], '"" is neither'),
        (["/nowhere/at/all"], "neither hexadecimal nor a file"),
        (["x" * 5000], "neither hexadecimal nor a file"),
        (["\x1b[31m"], "\\u001b"),
        (["abc"], "odd number of digits"),
        (["00"], "a message header needs 8"),
        (["2800040084030100"], "FrameDescriptor needs 40 bytes"),
        (["2800040083030100"], "unsupported schema"),
        (["00", "--raw", "FrameDescriptor"], "only ShmRegionSuperblock, SlotHeader, TensorHeader"),
        (["00", "--raw", "SlotHeader"], "SlotHeader needs 60 bytes"),
        (["/"], "Is a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("framepool decode: ")
    assert said.err.count("\n") == 1
    assert text in said.err


def test_file_too_large_for_a_message_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_INPUT + 1)
    assert run(str(tmp_path / "large")) == 2
    assert "more than 16777216 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("form", [["--json"], []])
def test_token_of_a_shutdown_request_is_not_shown(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(example("ShmDriverShutdownRequest", "typical").said["hex"], *form) == 0
    shown = capsys.readouterr().out
    assert "***********" in shown
    assert "sesame" not in shown
    assert b"sesame".hex() not in shown


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    response = bytes.fromhex("0c00090084030100") + bytes(12) + b"\x05\0\0\0\x1b[31m"
    for form in ([], ["--json"]):
        assert run(response.hex(), *form) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "\\u001b[31m" in shown


def test_newer_event_is_shown_with_the_header_it_came_with(capsys: pytest.CaptureFixture[str]) -> None:
    event = example("EventMessage", "typical_string")
    newer = bytes.fromhex("2a00010089030200") + event.encoded[8:48] + b"\xab\xcd" + event.encoded[48:]
    said = as_json(capsys, newer.hex())
    assert (said["version"], said["block_length"], said["length"]) == (2, 42, len(newer))
    assert said["hex"] == newer.hex()
    assert said["fields"] == event.fields


def test_only_header_less_layouts_are_raw() -> None:
    assert set(RAW) == {"ShmRegionSuperblock", "SlotHeader", "TensorHeader"}


def test_command_is_installed() -> None:
    command = [sys.executable, "-c", "from framepool.cli import main; main()", "decode", "--json", "-"]
    done = subprocess.run(command, input=DESCRIPTOR.encoded, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["fields"] == DESCRIPTOR.fields
