"""The grammar of region URIs (Wire 15.22), by example, by round trip and by every single mutation."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framepool.errors import RegionUriError
from framepool.shm.uri import RegionUri

PATH_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "?|")
GRAMMAR = re.compile(rf"shm:file\?path=(/[{re.escape(PATH_CHARACTERS)}]*)(?:\|require_hugepages=(true|false))?")

paths = st.text(PATH_CHARACTERS, max_size=200).map(lambda rest: "/" + rest)


@pytest.mark.clause("W-15.22-01")
@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("shm:file?path=/dev/shm/a", RegionUri("/dev/shm/a", False)),
        ("shm:file?path=/dev/shm/a|require_hugepages=true", RegionUri("/dev/shm/a", True)),
        ("shm:file?path=/dev/shm/a|require_hugepages=false", RegionUri("/dev/shm/a", False)),
        ("shm:file?path=/a=b,c;d:e", RegionUri("/a=b,c;d:e", False)),
    ],
)
def test_the_three_valid_forms_are_read(text: str, uri: RegionUri) -> None:
    assert RegionUri.parse(text) == uri


@pytest.mark.clause("W-15.22-01")
@given(paths, st.booleans())
def test_what_is_written_is_read_back(path: str, require_hugepages: bool) -> None:
    uri = RegionUri(path, require_hugepages)
    assert RegionUri.parse(str(uri)) == uri


@pytest.mark.clause("W-15.22-02")
@pytest.mark.parametrize("path", ["", "/a b", "/a?b", "/a\tb", "/a\nb", "/a\0b", "/a\x7fb", "/ä", "/a\u2028b", "/a "])
def test_a_path_of_other_than_visible_ascii_is_refused(path: str) -> None:
    with pytest.raises(RegionUriError):
        RegionUri.parse(f"shm:file?path={path}")
    with pytest.raises(RegionUriError):
        RegionUri(path)


@pytest.mark.clause("W-15.22-02")
def test_nothing_in_a_path_is_an_escape() -> None:
    assert RegionUri.parse("shm:file?path=/a%20b\\n+").path == "/a%20b\\n+"


def test_a_path_cannot_smuggle_a_parameter() -> None:
    with pytest.raises(RegionUriError, match="cannot be part of a path"):
        RegionUri("/a|require_hugepages=true")


@pytest.mark.clause("W-15.22-03")
def test_an_ampersand_separates_nothing() -> None:
    uri = RegionUri.parse("shm:file?path=/a&require_hugepages=true")
    assert uri == RegionUri("/a&require_hugepages=true", False)


@pytest.mark.clause("W-15.22-04", "W-15.21a.5-01")
@pytest.mark.parametrize(
    "text",
    ["shm:file?require_hugepages=true", "shm:file?path=a/b", "shm:file?path=./a", "shm:file?", "shm:file?path="],
)
def test_a_missing_or_relative_path_is_refused(text: str) -> None:
    with pytest.raises(RegionUriError):
        RegionUri.parse(text)


@pytest.mark.clause("W-15.22-08")
@pytest.mark.parametrize("name", ["Global\\tensorpool", "\\\\.\\pipe\\tensorpool", "@abstract", "tensorpool"])
def test_a_platform_identifier_that_is_no_path_is_refused(name: str) -> None:
    with pytest.raises(RegionUriError, match="not absolute"):
        RegionUri.parse(f"shm:file?path={name}")


@pytest.mark.parametrize("path", ["C:\\aeron\\ring", "d:/aeron/ring"])
def test_a_windows_path_is_refused_with_its_reason(path: str) -> None:
    with pytest.raises(RegionUriError, match="Windows"):
        RegionUri.parse(f"shm:file?path={path}")


@pytest.mark.clause("W-15.22-05")
@pytest.mark.parametrize("value", ["TRUE", "True", "1", "0", "", "yes", "true ", " true", "truefalse", "true="])
def test_require_hugepages_is_true_or_false_and_nothing_else(value: str) -> None:
    with pytest.raises(RegionUriError, match="require_hugepages must be true or false"):
        RegionUri.parse(f"shm:file?path=/a|require_hugepages={value}")


@pytest.mark.clause("W-15.22-05")
def test_require_hugepages_needs_a_value_and_is_false_when_absent() -> None:
    assert RegionUri.parse("shm:file?path=/a").require_hugepages is False
    with pytest.raises(RegionUriError):
        RegionUri.parse("shm:file?path=/a|require_hugepages")


@pytest.mark.clause("W-15.22-06")
@pytest.mark.parametrize(
    "text",
    [
        "shm:memfd?path=/a",
        "file:///x",
        "shm:file/x",
        "shm:file:path=/a",
        "SHM:file?path=/a",
        "shm:FILE?path=/a",
        " shm:file?path=/a",
        "/a",
        "",
    ],
)
def test_an_unknown_scheme_is_refused(text: str) -> None:
    with pytest.raises(RegionUriError, match="unknown scheme"):
        RegionUri.parse(text)


@pytest.mark.clause("W-15.22-07")
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("foo=1", "unknown parameter 'foo'"),
        ("", "unknown parameter ''"),
        ("path=/b", "unknown parameter 'path'"),
        ("Require_hugepages=true", "unknown parameter 'Require_hugepages'"),
        ("require_hugepages=true|foo=1", "found 'foo'"),
        ("require_hugepages=true|require_hugepages=true", "found 'require_hugepages'"),
        ("require_hugepages=true|", "found ''"),
    ],
)
def test_an_unknown_or_repeated_parameter_is_refused(parameters: str, reason: str) -> None:
    with pytest.raises(RegionUriError, match=reason):
        RegionUri.parse(f"shm:file?path=/a|{parameters}")


def test_parameters_in_another_order_are_refused() -> None:
    with pytest.raises(RegionUriError, match="the first parameter must be path="):
        RegionUri.parse("shm:file?require_hugepages=true|path=/a")


def _single_mutations(text: str) -> set[str]:
    characters = [chr(code) for code in range(128)] + ["é", "\u2028", "Ａ"]
    mutations = {text + text}
    for at in range(len(text) + 1):
        mutations |= {text[:at] + character + text[at:] for character in characters}
        mutations |= {text[:at] + character + text[at + 1 :] for character in characters}
        mutations |= {text[:at], text[at:], text[:at] + text[at + 1 :]}
    return mutations


@pytest.mark.parametrize("text", ["shm:file?path=/d/a", "shm:file?path=/d/a|require_hugepages=true"])
def test_every_single_mutation_is_judged_as_the_grammar_judges_it(text: str) -> None:
    for mutated in _single_mutations(text):
        match = GRAMMAR.fullmatch(mutated)
        if match is None:
            with pytest.raises(RegionUriError):
                RegionUri.parse(mutated)
        else:
            assert RegionUri.parse(mutated) == RegionUri(match[1], match[2] == "true")
