"""The page of limits names settings that exist, with the numbers that they have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from framepool.config import BridgeConfig, Config

PAGE = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
SECTIONS = ("driver", "discovery", "supervisor", "console", "recorder", "bridge")
SETTINGS = sorted(set(re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_.]+)`", PAGE)))


def test_settings_are_named() -> None:
    assert len(SETTINGS) > 20


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_exists(name: str) -> None:
    section, *keys = name.split(".")
    if section == "bridge":
        assert keys[0] in {field.name for field in msgspec.structs.fields(BridgeConfig)}
        return
    found: Any = getattr(Config(), section)
    for key in keys:
        assert hasattr(found, key), name
        found = getattr(found, key)
