"""The rule of the house: imports point to the ground, never up, and roles do not know each other's insides."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "framepool"

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"wire"}),
    frozenset({"clock"}),
    frozenset({"shm"}),
    frozenset({"_native"}),
    frozenset({"transport"}),
    frozenset({"agent", "config"}),
    frozenset({"service"}),
    frozenset({"discovery"}),
    frozenset({"driver", "client"}),
    frozenset({"bridge", "limiter", "supervisor", "recorder"}),
    frozenset({"spark", "console", "testing"}),
    frozenset({"framepool"}),
    frozenset({"bench"}),
    frozenset({"cli"}),
)
"""From the ground up. A room imports from floors below its own; on one floor nobody imports a neighbour.
`service` and `discovery` stand below the driver and the client, which embed them; bridge, limiter, supervisor and
recorder are services that use streams as any client does. `framepool` is the package itself, its public names."""

WITHOUT_AERON = frozenset({"errors", "wire", "clock", "shm"})


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "framepool"


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """The framepool rooms that a file imports, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            deeper = node.module == "framepool"
            names = [f"framepool.{alias.name}" for alias in node.names] if deeper else [node.module]
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError(f"{path}:{node.lineno}: relative import; name the module in full")
        else:
            continue
        for name in names:
            if name == "framepool" or name.startswith("framepool."):
                yield room_of(name), node.lineno


def floor_of(room: str) -> int:
    for floor, rooms in enumerate(FLOORS):
        if room in rooms:
            return floor
    raise AssertionError(f"{room} has no floor in this test: add it where it belongs")


def violations(path: Path, room: str) -> list[str]:
    """What a file of `room` imports that stands on its own floor or above."""
    return [
        f"{path}:{line}: {room} imports {other}"
        for other, line in imports_of(path)
        if other != room and floor_of(other) >= floor_of(room)
    ]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__main__":
        return
    room = "framepool" if room == "__init__" else room
    assert violations(path, room) == []


def test_the_rule_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from framepool.transport import aeron\nimport framepool.shm.ring\nfrom framepool import wire\n")
    assert violations(bad, "shm") == [f"{bad}:1: shm imports transport"]
    assert len(violations(bad, "wire")) == 2


@pytest.mark.parametrize("room", sorted(WITHOUT_AERON))
def test_ground_floors_never_name_aeron_library(room: str) -> None:
    paths = (SOURCE / room).rglob("*.py") if (SOURCE / room).is_dir() else SOURCE.glob(f"{room}.py")
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] == "pyaeron" for name in names), f"{path} imports pyaeron"
