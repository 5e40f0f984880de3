"""The name of a region: ``shm:file?path=<absolute path>[|require_hugepages=true]`` (Wire 15.22).

The grammar is taken literally: one scheme, `path` first, then at most one `require_hugepages`, nothing escaped and
nothing ignored. Whether the path may be opened is the business of `paths`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from framepool.errors import RegionUriError

SCHEME: Final = "shm:file?"
_PATH: Final = "path="
_HUGEPAGES: Final = "require_hugepages"
_BOOL: Final = {"true": True, "false": False}
_OUTSIDE_VCHAR: Final = re.compile(r"[^\x21-\x7e]")
_WINDOWS_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class RegionUri:
    """A well-formed region URI. Constructing one checks the path, so `str(uri)` is always of the grammar."""

    path: str
    require_hugepages: bool = False

    def __post_init__(self) -> None:
        _check_path(self.path)

    @classmethod
    def parse(cls, text: str) -> RegionUri:
        """Reads a URI or raises RegionUriError with the reason."""
        if not text.startswith(SCHEME):
            raise RegionUriError(f"{text!r}: unknown scheme, only {SCHEME}path=… is supported")
        path, *parameters = text.removeprefix(SCHEME).split("|")
        if not path.startswith(_PATH):
            raise RegionUriError(f"{text!r}: the first parameter must be {_PATH}<absolute path>")
        return cls(path.removeprefix(_PATH), _read_parameters(text, parameters))

    def __str__(self) -> str:
        suffix = f"|{_HUGEPAGES}=true" if self.require_hugepages else ""
        return f"{SCHEME}{_PATH}{self.path}{suffix}"


def _check_path(path: str) -> None:
    if found := _OUTSIDE_VCHAR.search(path):
        raise RegionUriError(f"{path!r}: {found.group()!r} is not a visible ASCII character")
    if found := re.search(r"[?|]", path):
        raise RegionUriError(f"{path!r}: {found.group()!r} cannot be part of a path")
    if _WINDOWS_DRIVE.match(path):
        raise RegionUriError(f"{path!r}: a Windows drive path cannot be opened on this platform")
    if not path.startswith("/"):
        raise RegionUriError(f"{path!r}: the path is not absolute")


def _read_parameters(text: str, parameters: list[str]) -> bool:
    """The value of require_hugepages, the only parameter that may follow the path, and only once."""
    if not parameters:
        return False
    name, equals, value = parameters[0].partition("=")
    if name != _HUGEPAGES:
        raise RegionUriError(f"{text!r}: unknown parameter {name!r}")
    if not equals or value not in _BOOL:
        raise RegionUriError(f"{text!r}: {_HUGEPAGES} must be true or false, not {value!r}")
    if len(parameters) > 1:
        repeated = parameters[1].partition("=")[0]
        raise RegionUriError(f"{text!r}: nothing may follow {_HUGEPAGES}, found {repeated!r}")
    return _BOOL[value]
