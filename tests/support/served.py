"""A pool with a driver of its own on a small configuration, and an onlooker beside it: fixtures of many tests.

A module that wants another configuration defines `config` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import framepool as fp
from framepool.config import Config
from tests.support.onlooker import Onlooker, small_config


@pytest.fixture
def config(base_dir: Path) -> Config:
    return small_config(base_dir)


@pytest.fixture
def pool(config: Config) -> Iterator[fp.Pool]:
    with fp.serve(config) as pool:
        yield pool


@pytest.fixture
def onlooker(config: Config, pool: fp.Pool) -> Iterator[Onlooker]:
    with Onlooker(config) as onlooker:
        yield onlooker
